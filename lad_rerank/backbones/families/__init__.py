"""What differs between model families and cannot be read off a signature or configuration."""

from __future__ import annotations
