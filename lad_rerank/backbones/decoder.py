"""A model's decoder layers, and how far each of them sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the kinds of layers that matter here."""


def full_attention_modules(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    """Decoder layers that attend to the whole prompt: attention module by layer number.

    Sliding-window and linear-attention layers are left out: early candidates get exactly nothing there.

    Raises:
        BackboneError: No decoder layers, or none with full attention.
    """
    found = {
        i: layer.self_attn
        for i, (layer, kind) in enumerate(_decoder_layers(model))
        if kind == FULL and hasattr(layer, "self_attn")
    }
    if not found:
        raise BackboneError(
            f"{type(model).__name__} has no full-attention layer; its attention to images is not readable."
        )
    return found


def sliding_windows(model: PreTrainedModel) -> dict[int, int]:
    """Decoder layers that see a sliding window only: its width in tokens by ``id`` of the attention module."""
    width = getattr(model.config.get_text_config(), "sliding_window", None)
    return {
        id(layer.self_attn): int(width)
        for layer, kind in _decoder_layers(model)
        if kind == SLIDING and width is not None and hasattr(layer, "self_attn")
    }


def _decoder_layers(model: PreTrainedModel) -> list[tuple[Any, str]]:
    """Decoder layers in order, each with what the configuration calls its kind.

    Raises:
        BackboneError: There are none where one looks for them.
    """
    decoder: Any = model.get_decoder()
    for attribute in ("language_model", "text_model", "model"):
        if not hasattr(decoder, "layers") and hasattr(decoder, attribute):
            decoder = getattr(decoder, attribute)
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise BackboneError(f"{type(model).__name__} has no decoder layers where one looks for them.")
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or [FULL] * len(layers)
    return list(zip(layers, kinds, strict=True))
