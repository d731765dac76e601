"""Sizes of the tiny multimodal LLM and the budget of its training: steps, never minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLConfig

PATCH = 8
MERGE = 2
HIDDEN = 128
TOKENS_PER_IMAGE = 16
INITIAL = 0.08
"""Spread of new weights, about 1 / sqrt(HIDDEN): with the usual 0.02 outlines take more than twice the steps."""


@dataclass(frozen=True)
class VisionPlan:
    """How the vision tower is trained.

    Attributes:
        images: Rendered pictures of training products.
        steps: Optimiser steps.
        batch: Pictures a step.
        rate: Peak learning rate of AdamW.
        seed: Fixes weights, pictures and their order.
        workers: Processes that render.
    """

    images: int = 24_000
    steps: int = 480
    batch: int = 128
    rate: float = 2e-3
    seed: int = 1
    workers: int = 2


@dataclass(frozen=True)
class LanguagePlan:
    """How the language model is trained, the vision tower frozen.

    Attributes:
        steps: Optimiser steps.
        sequences: Sequences a step.
        segments: Captions asked about the same images, each with its own answer.
        rate: Peak learning rate of AdamW.
        seed: Fixes weights, sets and captions.
        answered: Largest set whose answer is trained. Larger ones only teach where to look: that is
            where the position bias of this model comes from.
        grounded: Largest set that is common in training.
        largest: Largest set that is shown at all.
    """

    steps: int = 900
    sequences: int = 10
    segments: int = 8
    rate: float = 2e-3
    seed: int = 1
    answered: int = 4
    grounded: int = 8
    largest: int = 8


def model_config(vocabulary: int, special: dict[str, int]) -> Qwen2_5_VLConfig:
    """The architecture, with as many token rows as the tokenizer needs.

    Args:
        vocabulary: Number of tokens.
        special: Ids of the special tokens by their text.
    """
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": HIDDEN,
            "intermediate_size": 320,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
            "bos_token_id": special["<|endoftext|>"],
            "eos_token_id": special["<|im_end|>"],
            "pad_token_id": special["<|endoftext|>"],
            "tie_word_embeddings": False,
            "initializer_range": INITIAL,
        },
        vision_config={
            "depth": 4,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_heads": 4,
            "initializer_range": INITIAL,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "window_size": 64,
            "fullatt_block_indexes": [1, 3],
            "out_hidden_size": HIDDEN,
        },
        image_token_id=special["<|image_pad|>"],
        video_token_id=special["<|video_pad|>"],
        vision_start_token_id=special["<|vision_start|>"],
        vision_end_token_id=special["<|vision_end|>"],
        tie_word_embeddings=False,
    )
