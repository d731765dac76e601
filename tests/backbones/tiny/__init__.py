"""Tiny random-weight models of true transformers classes with true processors, made offline in well under a second.

For breadth: what a backbone must get right differs by family (how images are nested, which tokens stand for them,
where an answer begins, which layers see the whole prompt), and every difference here is the real one. Sizes are
not: hidden 64, three or four layers, a vocabulary of a few hundred tokens.
"""

from __future__ import annotations

from types import ModuleType
from zlib import crc32

import torch
import transformers
from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny import (
    aya_vision,
    gemma,
    glm4v,
    idefics,
    internvl,
    llava_onevision,
    mistral3,
    mllama,
    molmo2,
    ovis2,
    qwen,
)
from tests.backbones.tiny.peaked import peak

_BUILDERS: dict[str, ModuleType] = {
    "qwen2_vl": qwen,
    "qwen2_5_vl": qwen,
    "qwen3_vl": qwen,
    "internvl": internvl,
    "llava_onevision": llava_onevision,
    "smolvlm": idefics,
    "idefics3": idefics,
    "gemma3": gemma,
    "mistral3": mistral3,
    "aya_vision": aya_vision,
    "ovis2": ovis2,
    "glm4v": glm4v,
    "paligemma": gemma,
    "molmo2": molmo2,
    "mllama": mllama,
    "gemma3_sliding": gemma,
}

REFUSED: tuple[str, ...] = ("mllama", "gemma3_sliding")
"""Families whose attention to images cannot be read: cross-attention, and no full-attention layer."""

FAMILIES: tuple[str, ...] = tuple(
    name for name in _BUILDERS if name not in REFUSED and (name != "molmo2" or hasattr(transformers, "Molmo2Config"))
)
"""Families that a backbone must read; Molmo 2 came late to transformers."""

TILING: tuple[str, ...] = (
    "internvl", "llava_onevision", "smolvlm", "idefics3", "aya_vision", "ovis2", "molmo2",
)  # fmt: skip
"""Families that can cut one image into several; off unless ``tiling=True``."""


def build(family: str, *, tiling: bool = False, seed: int = 0) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Make a family's model and processor.

    Args:
        family: One of ``FAMILIES`` or ``REFUSED``.
        tiling: Leave the processor's splitting of large images on, as most checkpoints have it.
        seed: Of the weights.

    Returns:
        A model in float32 and evaluation mode with peaked attention, and its processor.
    """
    # Construction draws random numbers; the caller's generator is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, processor = _BUILDERS[family].build(family, tiling)
    return peak(model, seed + crc32(family.encode())), processor
