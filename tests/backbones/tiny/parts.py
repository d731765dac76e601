"""Vision towers, decoders and image sizes that several families share."""

from __future__ import annotations

from typing import Any

import transformers

hf: Any = transformers
"""transformers without its annotations, which do not know all keywords that its own files pass."""

PATCH = 14
SIDE = 56
"""Pixels along the side of a fixed-size image or tile: 4 x 4 patches."""


def siglip() -> dict[str, Any]:
    """A SigLIP tower for 56 x 56 images: 16 patch features of 32 numbers."""
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "vision_use_head": False,
    }


def square(side: int = SIDE) -> dict[str, int]:
    """``size`` of an image processor that makes squares."""
    return {"height": side, "width": side}


def text(model_type: str, vocabulary: int, **more: Any) -> dict[str, Any]:
    """A decoder of 3 layers, hidden 64, 4 heads over 2 key-value heads of 16."""
    return {
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    } | more
