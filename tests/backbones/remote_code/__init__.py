"""Code that comes with a model, as transformers copies it: written in the way of LLaVA-OneVision-1.5's."""

from __future__ import annotations
