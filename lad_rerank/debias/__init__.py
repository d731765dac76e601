"""The method: arrays in, arrays out. No torch model, no disk, no clock."""

from __future__ import annotations
