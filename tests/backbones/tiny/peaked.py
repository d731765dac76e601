"""Random weights under which attention has something to say: peaked rows that differ by head and by image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

SHARPNESS = 1.6
"""Factor on queries and on keys; scores then have a standard deviation of about 2.5."""


@torch.no_grad()
def peak(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Give a model seeded weights of a scale that carries content through, and sharpen its decoder's attention.

    The usual initialisation (0.02 everywhere) leaves a tiny model with uniform attention and images that look
    alike, on which a wrong mask, a wrong layer or a wrong image would go unnoticed.

    Args:
        model: Any multimodal model, changed in place.
        seed: Of every weight.

    Returns:
        The same model, in float32 and in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    modules: Iterable[Any] = model.modules()
    for module in modules:
        weight: Any = getattr(module, "weight", None)
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d):
            weight.normal_(0, (weight[0].numel()) ** -0.5, generator=generator)
            if module.bias is not None:
                module.bias.normal_(0, 0.1, generator=generator)
        elif isinstance(module, nn.Embedding):
            weight.normal_(0, 1.0, generator=generator)
        else:
            # Position tables, and Gemma 3's projection, which begins as zeros: no image would reach the decoder.
            for parameter in module.parameters(recurse=False):
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.2, generator=generator)
    for attention in decoder_attentions(model):
        _sharpen(attention, generator)
    model.float().eval()
    return model


def decoder_attentions(model: PreTrainedModel) -> list[Any]:
    """The self-attention modules of the decoder, by layer; layers without one are left out."""
    decoder: Any = model.get_decoder()
    for attribute in ("language_model", "text_model", "model"):
        if not hasattr(decoder, "layers") and hasattr(decoder, attribute):
            decoder = getattr(decoder, attribute)
    return [layer.self_attn for layer in decoder.layers if hasattr(layer, "self_attn")]


def _sharpen(attention: Any, generator: torch.Generator) -> None:
    """Scale queries and keys; where they are normalised per head, scale the norm's weight instead."""
    for side in ("q", "k"):
        norm = getattr(attention, f"{side}_norm", None)
        if norm is not None:
            # Gemma's norms multiply by 1 + weight.
            offset = 1.0 if "Gemma" in type(norm).__name__ else 0.0
            spread = torch.rand(norm.weight.shape, generator=generator) * 0.6 - 0.3
            norm.weight.copy_(SHARPNESS + spread - offset)
            continue
        projection = getattr(attention, f"{side}_proj")
        heads = projection.weight.shape[0] // attention.head_dim
        factors = torch.linspace(0.8, 1.2, heads).repeat_interleave(attention.head_dim) * SHARPNESS
        projection.weight.mul_(factors[:, None])
