"""What calibration knows of a model, kept on disk, and how it is made."""

from __future__ import annotations
