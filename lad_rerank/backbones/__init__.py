"""A Hugging Face model in, an Observation out."""

from __future__ import annotations
