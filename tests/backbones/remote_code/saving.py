"""A folder of a model with code of its own, as a hub would have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.backbones.remote_code.configuration_own_way import OwnWayConfig, OwnWayTextConfig
from tests.backbones.remote_code.modeling_own_way import OwnWayForConditionalGeneration
from tests.backbones.tiny import build
from tests.backbones.tiny.peaked import peak


def save_own_way(path: Path) -> Path:
    """Write weights, processor, configuration and code; returns the folder."""
    _, processor = build("qwen2_5_vl")
    tokenizer = processor.tokenizer
    text = OwnWayTextConfig(vocab_size=len(tokenizer))
    config = OwnWayConfig(text, image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"))
    classes: tuple[Any, Any] = (OwnWayConfig, OwnWayForConditionalGeneration)
    # From then on, saving copies the files that the classes are written in.
    classes[0].register_for_auto_class()
    classes[1].register_for_auto_class("AutoModelForCausalLM")
    peak(classes[1]._from_config(config, attn_implementation="sdpa"), seed=3).save_pretrained(path)
    processor.save_pretrained(path)
    return path
