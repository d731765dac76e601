"""Keys and values of a prompt, kept so that what shares its beginning need not run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeptPrompt:
    """One prompt's keys and values in every decoder layer.

    Attributes:
        ids: The prompt's token ids.
        layers: (key, value) of each layer, each (1, Hk, T, D).
        shift: Position id of a token behind the candidates, less its index: 0 but for M-RoPE.
        candidates_end: Index of the first token behind the last candidate; only what comes later may differ.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    shift: int
    candidates_end: int

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.untyped_storage().nbytes() for pair in self.layers for t in pair)

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens that another prompt over the same candidates may take from here; 0 where it differs too early.

        At least one token is always left to run.
        """
        n = 0
        for mine, other in zip(self.ids, ids, strict=False):
            if mine != other:
                break
            n += 1
        n = min(n, len(ids) - 1)
        return n if n >= self.candidates_end else 0

    def cache(self, length: int, batch: int) -> Any:
        """A new cache of the first ``length`` tokens for each prompt of a batch."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for i, (key, value) in enumerate(self.layers):
            # Expanded views: the first update of the cache concatenates, so nothing kept is written to.
            k, v = (t[:, :, :length].expand(batch, -1, -1, -1) for t in (key, value))
            cache.update(k, v, i)
        return cache


def keep(cache: Any, row: int, start: int, ids: Sequence[int], shift: int, candidates_end: int) -> KeptPrompt:
    """Take one prompt's keys and values out of a cache, without its left padding.

    Args:
        cache: What the pass filled.
        row: The prompt's place in the batch.
        start: How much padding stands before it.
        ids: Its token ids, padding left out.
        shift: See :class:`KeptPrompt`.
        candidates_end: See :class:`KeptPrompt`.
    """
    end = start + len(ids)
    layers = tuple(
        (layer.keys[row : row + 1, :, start:end], layer.values[row : row + 1, :, start:end]) for layer in cache.layers
    )
    return KeptPrompt(tuple(ids), layers, shift, candidates_end)
