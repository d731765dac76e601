"""What comes with the package: two tiny models, a shop of rendered products, and how they were trained.

Nothing here is evidence for the paper: see ``MODEL_CARD.md`` beside this file.
"""

from __future__ import annotations

from pathlib import Path

_MODELS = Path(__file__).parent / "models"


def mllm_folder() -> Path:
    """Folder of the tiny multimodal LLM, for ``AutoModelForImageTextToText.from_pretrained``."""
    return _MODELS / "mllm"


def clip_folder() -> Path:
    """Folder of the tiny CLIP, for open_clip's ``local-dir:`` schema."""
    return _MODELS / "clip"


def calibration_folder() -> Path:
    """Folder of the calibrations that come with the package."""
    return _MODELS / "calibrations"


__all__ = ["calibration_folder", "clip_folder", "mllm_folder"]
