"""The few attention rows we need, read beside SDPA while the pass runs.

transformers hands every decoder layer's rotated query and key to one attention function. Ours calls
SDPA for the output, and where a sink is open it also computes the wanted rows from the same query and
key. No T x T map exists at any time; a row costs H x T floats, and only sums over candidates are kept.

Source: the AttentionInterface page of the transformers documentation. A mask function must be
registered under the same name: without one transformers passes no mask at all, and the rows of padded
prompts are silently wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.errors import AttentionNotSeenError, BackboneError
from lad_rerank.records import FloatArray

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TAP_NAME = "lad_rerank_sdpa"
"""Name of the attention implementation; must not contain "flash", which transformers looks for."""

ROW_BLOCK_ELEMENTS = 2**18
"""Scores computed at once, so that a long query's rows stay within a megabyte of float32."""

_SINK: ContextVar[AttentionSink | None] = ContextVar("lad_rerank_attention_sink", default=None)


class AttentionSink:
    """Collects, for one pass over one prompt, the attention from read-out rows to candidates.

    Args:
        layer_of: Decoder layer number by ``id`` of its attention module; other modules are ignored.
        rows: Read-out rows by name, each the token positions whose attention is averaged.
        spans: Token positions of each candidate.
    """

    def __init__(
        self, layer_of: Mapping[int, int], rows: Mapping[str, Sequence[int]], spans: Sequence[Sequence[int]]
    ) -> None:
        self._layer_of = layer_of
        self._rows = rows
        self._spans = spans
        self._mass: dict[str, dict[int, torch.Tensor]] = {name: {} for name in rows}

    def read(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
    ) -> None:
        """Take the wanted rows of one layer.

        Args:
            module: The attention module that is running.
            query: (1, H, T, D) rotated queries.
            key: (1, Hk, T, D) rotated keys, not repeated for grouped heads.
            mask: (1, 1, T, T) bool or additive mask, or ``None`` for plain causal attention.
            **kwargs: ``scaling`` and whatever else the module passes to its attention function.
        """
        layer = self._layer_of.get(id(module))
        if layer is None:
            return
        if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
            raise BackboneError(
                "Attention is read from one whole prompt at a time, "
                f"but layer {layer} got queries {tuple(query.shape)} and keys {tuple(key.shape)}."
            )
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        for name, rows in self._rows.items():
            self._mass[name][layer] = _candidate_mass(query, key, mask, rows, self._spans, scaling)

    def result(self, layers: Sequence[int]) -> dict[str, FloatArray]:
        """Collected mass as arrays, each (L, H, N) float64.

        Raises:
            AttentionNotSeenError: A layer is missing, or what was read is no share of a distribution.
        """
        arrays = {}
        for name, by_layer in self._mass.items():
            missing = [layer for layer in layers if layer not in by_layer]
            if missing:
                raise AttentionNotSeenError(
                    f"No attention arrived from decoder layer(s) {missing}: the model does not run its decoder through "
                    f"the attention implementation {TAP_NAME!r}. Load it with LADReranker.from_pretrained."
                )
            array = np.stack([by_layer[layer].cpu().numpy().astype(np.float64) for layer in layers])
            if not np.isfinite(array).all():
                raise AttentionNotSeenError(
                    f"The attention of the {name!r} row is NaN or infinite; try dtype='float32'."
                )
            if array.min() < 0 or array.sum(axis=-1).max() > 1 + 1e-3 or array.max() == 0:
                raise AttentionNotSeenError(
                    f"The attention of the {name!r} row is no share of a distribution over the prompt: its sums over "
                    f"the candidates reach {array.sum(axis=-1).max():.4g}."
                )
            arrays[name] = array
        return arrays


def _candidate_mass(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    rows: Sequence[int],
    spans: Sequence[Sequence[int]],
    scaling: float,
) -> torch.Tensor:
    """Post-softmax attention of the rows to each span, mean over rows; (H, N) float32."""
    import torch

    heads, tokens = query.shape[1], key.shape[2]
    groups = heads // key.shape[1]
    membership = torch.zeros(tokens, len(spans), device=key.device)
    for k, span in enumerate(spans):
        membership[list(span), k] = 1.0
    keys = key[0].float()
    positions = torch.arange(tokens, device=key.device)
    total = torch.zeros(heads, len(spans), device=key.device)
    step = max(1, ROW_BLOCK_ELEMENTS // (heads * tokens))
    for start in range(0, len(rows), step):
        block = torch.as_tensor(list(rows[start : start + step]), device=key.device)
        # (H, R, D) -> (Hk, G*R, D): grouped heads share a key, which is never repeated.
        q = query[0, :, block].float().reshape(key.shape[1], groups * len(block), -1)
        scores = (q @ keys.transpose(1, 2) * scaling).view(heads, len(block), tokens)
        if mask is None:
            scores = scores.masked_fill(positions > block[:, None], float("-inf"))
        elif mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[0, :, block], float("-inf"))
        else:
            scores = scores + mask[0, :, block].float()
        total += (scores.softmax(dim=-1) @ membership).sum(dim=1)
    return total / len(rows)


@contextlib.contextmanager
def open_sink(sink: AttentionSink) -> Iterator[AttentionSink]:
    """Route the passes of this context (and of no other thread or task) to the sink."""
    token = _SINK.set(sink)
    try:
        yield sink
    finally:
        _SINK.reset(token)


def _tapped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    sink = _SINK.get()
    if sink is not None:
        sink.read(module, query, key, attention_mask, **kwargs)
    output: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return output


def install(model: PreTrainedModel) -> None:
    """Let the model's decoder run through the tap; the vision tower keeps plain SDPA.

    Raises:
        BackboneError: The model has no separate text configuration, or does not take the implementation.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(TAP_NAME, _tapped_sdpa)
    AttentionMaskInterface.register(TAP_NAME, sdpa_mask)
    if "text_config" not in getattr(model.config, "sub_configs", {}):
        raise BackboneError(
            f"{type(model).__name__} has no text_config; it is not a multimodal model this package reads."
        )
    model.set_attn_implementation({"text_config": TAP_NAME})
    if model.config.get_text_config()._attn_implementation != TAP_NAME:
        raise BackboneError(f"{type(model).__name__} does not let its decoder's attention implementation be chosen.")


def full_attention_modules(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    """Decoder layers that attend to the whole prompt: attention module by layer number.

    Sliding-window and linear-attention layers are left out: early images get exactly nothing there.

    Raises:
        BackboneError: No decoder layers, or none with full attention.
    """
    decoder: Any = model.get_decoder()
    for attribute in ("language_model", "text_model", "model"):
        if not hasattr(decoder, "layers") and hasattr(decoder, attribute):
            decoder = getattr(decoder, attribute)
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise BackboneError(f"{type(model).__name__} has no decoder layers where one looks for them.")
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"] * len(layers)
    found = {
        i: layer.self_attn
        for i, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
        if kind == "full_attention" and hasattr(layer, "self_attn")
    }
    if not found:
        raise BackboneError(
            f"{type(model).__name__} has no full-attention layer; its attention to images is not readable."
        )
    return found
