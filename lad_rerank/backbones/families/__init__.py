"""What differs between model families: one small file each, chosen by ``config.model_type``."""

from __future__ import annotations

from lad_rerank.backbones.families.base import Family, FixedSize
from lad_rerank.backbones.families.llava_onevision import LlavaOneVision
from lad_rerank.backbones.families.mistral3 import Mistral3
from lad_rerank.backbones.families.molmo2 import Molmo2
from lad_rerank.backbones.families.paligemma import PaliGemma
from lad_rerank.backbones.families.qwen_vl import QwenVL

_BY_TYPE: dict[str, Family] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llavaonevision1_5"), QwenVL()),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), QwenVL(frames=2)),
    # InternVL's and Aya's processor classes force tiling on over their image processor's own setting.
    **dict.fromkeys(("internvl", "aya_vision", "ovis2"), FixedSize({"crop_to_patches": False})),
    **dict.fromkeys(("idefics3", "smolvlm"), FixedSize({"do_image_splitting": False}, images_axis=1)),
    "gemma3": FixedSize({"do_pan_and_scan": False}),
    "llava_onevision": LlavaOneVision(),
    "mistral3": Mistral3(),
    "molmo2": Molmo2(),
    "paligemma": PaliGemma(),
}


def family_of(model_type: str) -> Family:
    """The family of a model type; careful defaults where none is listed."""
    return _BY_TYPE.get(model_type, Family())
