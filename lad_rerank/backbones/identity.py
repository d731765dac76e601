"""Digests that tell one loaded model from another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VALUES_PER_TENSOR = 256


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
