"""The attention rows of models that call SDPA themselves, and so cannot be given another attention function.

Some models of remote code (LLaVA-OneVision-1.5) have a class for each attention implementation and call
``torch.nn.functional.scaled_dot_product_attention`` in it, past transformers' AttentionInterface. For them
alone that function is wrapped, once for the process. The wrapper hands on what it gets, unless a sink is
open and a decoder attention module runs, in this thread: then the sink sees the rotated query and key too.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.attention_tap import AttentionSink, current_sink
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    import torch

SDPA = "scaled_dot_product_attention"
INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""What a forward that goes through transformers' AttentionInterface names."""

_MARK = "_lad_rerank_wrapper"
_LOCK = threading.Lock()


@dataclass
class _Run:
    """One decoder attention module that runs now."""

    module: torch.nn.Module
    read: bool = False


_RUNNING: ContextVar[_Run | None] = ContextVar("lad_rerank_running_attention", default=None)


def calls_sdpa_itself(module: torch.nn.Module) -> bool:
    """Whether a module's forward calls SDPA, and does not go through transformers' AttentionInterface.

    Read off the names that the compiled forward uses, the most derived class first.
    """
    for kind in type(module).__mro__:
        forward: Any = vars(kind).get("forward")
        if forward is not None:
            names = set(_names(inspect.unwrap(forward).__code__))
            if names & {SDPA, INTERFACE}:
                return INTERFACE not in names
    return False


def install(modules: Iterable[torch.nn.Module]) -> None:
    """Wrap SDPA, unless that was done before, and let these attention modules say when they run.

    Args:
        modules: Decoder attention modules that may be read.
    """
    with _LOCK:
        _wrap()
        for module in modules:
            if _enter not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_enter)
                # A forward that raises has ended too.
                module.register_forward_hook(_leave, always_call=True)


def _names(code: CodeType) -> Iterator[str]:
    """Global names and attributes that a function uses, those of functions within it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _wrap() -> None:
    import torch

    original: Any = torch.nn.functional.scaled_dot_product_attention
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        run = _RUNNING.get()
        if run is not None and (sink := current_sink()) is not None:
            _read(sink, run, *args, **kwargs)
        return original(*args, **kwargs)

    setattr(scaled_dot_product_attention, _MARK, True)
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def _enter(module: torch.nn.Module, args: Any) -> None:
    _RUNNING.set(_Run(module))


def _leave(module: torch.nn.Module, args: Any, output: Any) -> None:
    _RUNNING.set(None)


def _read(
    sink: AttentionSink,
    run: _Run,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """Show the sink what SDPA is called with; its signature, that of torch."""
    if run.read:
        raise BackboneError(
            f"{type(run.module).__name__} calls SDPA more than once in a layer; which of them is the attention to "
            "the prompt cannot be told, so this model cannot be read."
        )
    run.read = True
    sink.read(run.module, query, key, _mask(query, key, attn_mask, is_causal), scaling=scale)


def _mask(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor | None:
    """SDPA's mask as a sink takes it: (B or 1, 1, Q, T), or ``None`` where each row sees all up to itself.

    SDPA aligns ``is_causal`` with the first key, not with the last, and without it shows every key to every
    query: with a cache, neither is what ``None`` means to a sink.
    """
    import torch

    queries, keys = query.shape[-2], key.shape[-2]
    if mask is None:
        if queries == (keys if is_causal else 1):
            return None
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        mask = mask.tril() if is_causal else mask
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1] > 1 and not torch.equal(mask, mask[:, :1].expand_as(mask)):
        raise BackboneError("The attention mask differs between heads (as ALiBi's does); this model cannot be read.")
    return mask[:, :1].expand(-1, -1, queries, keys)
