"""How good, and how dependent on order, a ranking is."""

from __future__ import annotations
