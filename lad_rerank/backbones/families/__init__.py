"""What differs between model families: one small file each, chosen by ``config.model_type``."""

from __future__ import annotations

from lad_rerank.backbones.families.base import Family
from lad_rerank.backbones.families.qwen_vl import QwenVL

FAMILIES: dict[str, Family] = {
    "qwen2_vl": QwenVL(),
    "qwen2_5_vl": QwenVL(),
    "qwen3_vl": QwenVL(),
    "qwen3_vl_moe": QwenVL(),
    "glm4v": QwenVL(),
}


def family_of(model_type: str) -> Family:
    """The family of a model type; the defaults where none is listed."""
    return FAMILIES.get(model_type, Family())
