"""Digests that tell one loaded model from another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.contents import CandidateKind
from lad_rerank.prompt import LabelStyle, SpanStyle, prompt_version

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

VALUES_PER_TENSOR = 256


def identity_of(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    labels: LabelStyle,
    spans: SpanStyle,
    pixels: int | None,
    layers: tuple[int, ...],
) -> BackboneIdentity:
    """Identity of a model as it ranks images one after the other, or texts where it reads no images.

    Args:
        model: The loaded model.
        processor: Its processor or tokenizer.
        labels: How candidates are named.
        spans: Which tokens count as a candidate's own.
        pixels: Pixel budget of one image; ``None`` where the model reads texts only.
        layers: Decoder layers whose attention is read.
    """
    kind: CandidateKind = "text" if pixels is None else "image"
    return BackboneIdentity(
        model_type=model.config.model_type,
        weights=weights_digest(model),
        prompt=prompt_version(kind),
        chat_template=text_digest(str(processor.chat_template)),
        labels=labels,
        max_pixels=pixels or 0,
        spans=spans,
        dtype=str(model.dtype).removeprefix("torch."),
        layers=layers,
        candidates=kind,
    )


def weights_digest(model: PreTrainedModel) -> str:
    """Digest of the weights as they are loaded, quantised or not.

    Takes the name, shape and dtype of every tensor of the state and 256 of its values, evenly spaced:
    a fine-tune or a merged adapter changes some of them, and a 7B model takes a second, not a minute.

    Returns:
        16 hexadecimal digits.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // VALUES_PER_TENSOR)
        sample = flat[::step][:VALUES_PER_TENSOR].cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def text_digest(text: str) -> str:
    """16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
