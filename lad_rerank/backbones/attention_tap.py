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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lad_rerank.backbones.decoder import full_attention_modules
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
_ATTEND: ContextVar[Callable[..., Any] | None] = ContextVar("lad_rerank_attend", default=None)


@dataclass(frozen=True)
class ReadOut:
    """What to read from one prompt of a batch.

    Attributes:
        rows: Read-out rows by name, each the queries (counted in what this pass feeds) to average.
        spans: Keys of each candidate, counted from the first key the layer sees.
    """

    rows: Mapping[str, Sequence[int]]
    spans: Sequence[Sequence[int]]


@dataclass(frozen=True)
class AttentionRows:
    """The read-out rows of one prompt.

    Attributes:
        mass: By row name, (L, H, N) float64: attention summed over each candidate's tokens.
        peaks: By row name, (L, H, N) float64: the largest attention to one of them.
    """

    mass: Mapping[str, FloatArray]
    peaks: Mapping[str, FloatArray]


class AttentionSink:
    """Collects, for one pass over a batch of prompts, the attention from read-out rows to candidates.

    Args:
        layer_of: Decoder layer number by ``id`` of its attention module; other modules are ignored.
        read_outs: One for each prompt of the batch.
    """

    def __init__(self, layer_of: Mapping[int, int], read_outs: Sequence[ReadOut]) -> None:
        self._layer_of = layer_of
        self._read_outs = read_outs
        self._read: list[dict[str, dict[int, torch.Tensor]]] = [{name: {} for name in r.rows} for r in read_outs]
        self._plans: dict[tuple[int, int, torch.device], _Plan] = {}

    def read(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
    ) -> None:
        """Take the wanted rows of one layer.

        Args:
            module: The attention module that is running.
            query: (B, H, Q, D) rotated queries.
            key: (B, Hk, T, D) rotated keys, cached ones first, not repeated for grouped heads.
            mask: (B or 1, 1, Q, T) bool or additive mask, or ``None`` for plain causal attention.
            **kwargs: ``scaling`` and whatever else the module passes to its attention function.
        """
        layer = self._layer_of.get(id(module))
        if layer is None:
            return
        if query.shape[0] != len(self._read_outs):
            raise BackboneError(f"Layer {layer} got {query.shape[0]} prompts where {len(self._read_outs)} were sent.")
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        for b, (read_out, read) in enumerate(zip(self._read_outs, self._read, strict=True)):
            own_mask = None if mask is None else mask[b if mask.shape[0] > 1 else 0, 0]
            if not read_out.rows:
                continue
            place = b, key.shape[2], key.device
            plan = self._plans.get(place)
            if plan is None:
                # The same in every layer of a device.
                plan = self._plans[place] = _plan(read_out, key.shape[2], key.device)
            rows = _candidate_attention(query[b], key[b], own_mask, plan, scaling)
            for name, row in zip(read_out.rows, rows, strict=True):
                read[name][layer] = row

    def results(self, layers: Sequence[int]) -> list[AttentionRows]:
        """What was collected of each prompt.

        Raises:
            AttentionNotSeenError: A layer is missing, or what was read is no share of a distribution.
        """
        results = []
        for read in self._read:
            both = {name: _stacked(name, by_layer, layers) for name, by_layer in read.items()}
            results.append(
                AttentionRows({name: b[:, 0] for name, b in both.items()}, {name: b[:, 1] for name, b in both.items()})
            )
        return results


def _stacked(name: str, by_layer: Mapping[int, torch.Tensor], layers: Sequence[int]) -> FloatArray:
    """(L, 2, H, N) float64, checked: sums over a candidate's tokens, and the largest of them."""
    missing = [layer for layer in layers if layer not in by_layer]
    if missing:
        raise AttentionNotSeenError(
            f"No attention arrived from decoder layer(s) {missing}: the model does not run its decoder through "
            f"the attention implementation {TAP_NAME!r}. Load it with LADReranker.from_pretrained."
        )
    array: FloatArray = np.stack([by_layer[layer].cpu().numpy().astype(np.float64) for layer in layers])
    if not np.isfinite(array).all():
        raise AttentionNotSeenError(f"The attention of the {name!r} row is NaN or infinite; try dtype='float32'.")
    mass = array[:, 0]
    if mass.min() < 0 or mass.sum(axis=-1).max() > 1 + 1e-3 or mass.max() == 0:
        raise AttentionNotSeenError(
            f"The attention of the {name!r} row is no share of a distribution over the prompt: its sums over "
            f"the candidates reach {mass.sum(axis=-1).max():.4g}."
        )
    return array


@dataclass(frozen=True)
class _Plan:
    """A :class:`ReadOut` as tensors.

    Attributes:
        rows: (R,) all queries that are read.
        weights: (W, R) float32, how much of each query is in each read-out row.
        membership: (T, N) float32, 1 where a key belongs to a candidate.
        owner: (T,) int64, the candidate a key belongs to; N for none.
    """

    rows: torch.Tensor
    weights: torch.Tensor
    membership: torch.Tensor
    owner: torch.Tensor


def _plan(read_out: ReadOut, tokens: int, device: torch.device) -> _Plan:
    import torch

    weights = torch.zeros(len(read_out.rows), sum(map(len, read_out.rows.values())))
    start = 0
    for w, rows in enumerate(read_out.rows.values()):
        weights[w, start : start + len(rows)] = 1 / len(rows)
        start += len(rows)
    membership = torch.zeros(tokens, len(read_out.spans))
    owner = torch.full((tokens,), len(read_out.spans))
    for k, span in enumerate(read_out.spans):
        membership[list(span), k] = 1.0
        owner[list(span)] = k
    places = torch.tensor([i for rows in read_out.rows.values() for i in rows])
    return _Plan(places.to(device), weights.to(device), membership.to(device), owner.to(device))


def _candidate_attention(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, plan: _Plan, scaling: float
) -> torch.Tensor:
    """Post-softmax attention of each read-out row to each span, its sum and its maximum; (W, 2, H, N) float32.

    Args:
        query: (H, Q, D).
        key: (Hk, T, D).
        mask: (Q, T) bool or additive, or ``None``.
        plan: What to read.
        scaling: Factor of the scores.
    """
    import torch

    heads, tokens = query.shape[0], key.shape[1]
    cached = tokens - query.shape[1]
    groups = heads // key.shape[0]
    keys = key.float().transpose(1, 2)
    positions = torch.arange(tokens, device=key.device)
    candidates = plan.membership.shape[1]
    total = torch.zeros(len(plan.weights), 2, heads, candidates, device=key.device)
    step = max(1, ROW_BLOCK_ELEMENTS // (heads * tokens))
    for start in range(0, len(plan.rows), step):
        block, weights = plan.rows[start : start + step], plan.weights[:, start : start + step]
        # (H, R, D) -> (Hk, G*R, D): grouped heads share a key, which is never repeated.
        q = (query[:, block].float() * scaling).reshape(key.shape[0], groups * len(block), -1)
        scores = (q @ keys).view(heads, len(block), tokens)
        if mask is None:
            scores.masked_fill_(positions > cached + block[:, None], float("-inf"))
        elif mask.dtype == torch.bool:
            scores.masked_fill_(~mask[block], float("-inf"))
        else:
            scores += mask[block].float()
        attention = scores.softmax(dim=-1)
        largest = torch.zeros(heads, len(block), candidates + 1, device=key.device)
        largest.scatter_reduce_(-1, plan.owner.expand_as(attention), attention, "amax")
        both = torch.stack([attention @ plan.membership, largest[..., :candidates]])
        total += torch.einsum("wr,chrn->wchn", weights, both)
    return total


@contextlib.contextmanager
def open_sink(sink: AttentionSink) -> Iterator[AttentionSink]:
    """Route the passes of this context (and of no other thread or task) to the sink."""
    token = _SINK.set(sink)
    try:
        yield sink
    finally:
        _SINK.reset(token)


def current_sink() -> AttentionSink | None:
    """The sink that is open in this context, if any."""
    return _SINK.get()


@contextlib.contextmanager
def attending(attend: Callable[..., Any]) -> Iterator[None]:
    """Let a function with the signature of transformers' SDPA make the decoder's attention in this context."""
    token = _ATTEND.set(attend)
    try:
        yield
    finally:
        _ATTEND.reset(token)


def _tapped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    sink = current_sink()
    if sink is not None:
        sink.read(module, query, key, attention_mask, **kwargs)
    attend = _ATTEND.get() or sdpa_attention_forward
    output: tuple[torch.Tensor, None] = attend(module, query, key, value, attention_mask, **kwargs)
    return output


def install(model: PreTrainedModel) -> Literal["interface", "patch"]:
    """Let the model's decoder run through the tap; the vision tower keeps plain SDPA.

    Returns:
        ``"interface"``: the decoder takes its attention function from transformers, and now takes ours.
        ``"patch"``: it calls SDPA itself and is read there, see ``sdpa_patch.py``.

    Raises:
        BackboneError: A multimodal model has no separate text configuration, or neither way is open.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    from lad_rerank.backbones import sdpa_patch

    modules = full_attention_modules(model).values()
    if all(map(sdpa_patch.calls_sdpa_itself, modules)):
        sdpa_patch.install(modules)
        return "patch"
    AttentionInterface.register(TAP_NAME, _tapped_sdpa)
    AttentionMaskInterface.register(TAP_NAME, sdpa_mask)
    select(model, TAP_NAME)
    if model.config.get_text_config()._attn_implementation != TAP_NAME:
        raise BackboneError(
            f"{type(model).__name__} neither lets its decoder's attention implementation be chosen nor calls "
            "torch's scaled_dot_product_attention itself. If it has an attn_implementation='sdpa', load it with that."
        )
    return "interface"


def select(model: PreTrainedModel, implementation: str) -> None:
    """Choose the attention implementation of a model's decoder; a plain language model is all decoder.

    Raises:
        BackboneError: The model has parts, and no text configuration among them.
    """
    parts = getattr(model.config, "sub_configs", {})
    if parts and "text_config" not in parts:
        raise BackboneError(
            f"{type(model).__name__} has no text_config; it is not a multimodal model this package reads."
        )
    model.set_attn_implementation({"text_config": implementation} if parts else implementation)
