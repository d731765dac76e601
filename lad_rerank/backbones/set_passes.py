"""Forward passes over candidates that stand side by side.

Every block stands right behind the prefix, so that all have the same positions; blocks do not see each other, since
each runs on its own. The suffix begins one position behind the largest of any block and sees the prefix, all blocks
and itself. No map of all tokens by all tokens is made: a suffix of S tokens over J kept ones has a mask of S x J.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.attention_tap import AttentionRows, ReadOut
from lad_rerank.backbones.blocks import Block, BlockFacts, Layers, joined
from lad_rerank.backbones.features import ImageFeatures, merged
from lad_rerank.backbones.passes import Passes
from lad_rerank.backbones.set_encoding import EncodedBlock, EncodedSuffix
from lad_rerank.backbones.traits import Traits

if TYPE_CHECKING:
    import torch


class SetPasses:
    """Runs a model over prefix, blocks and suffixes. Holds nothing that a call changes.

    Args:
        model: The model, its decoder switched to the attention tap.
        passes: Runs it.
        traits: What it can do.
        windows: Width of each sliding-window layer, by ``id`` of its attention module.
        first_position: Position id of a prompt's first token.
    """

    def __init__(
        self, model: Any, passes: Passes, traits: Traits, windows: Mapping[int, int], first_position: int
    ) -> None:
        self._model = model
        self._passes = passes
        self._traits = traits
        self._windows = windows
        self._first = first_position

    def prefix(self, ids: Sequence[int]) -> Layers:
        """Keys and values of what stands before all candidates."""
        (layers,) = self._filled([list(ids)], 0, None, self._count(0, len(ids)), {})
        return layers

    def blocks(
        self,
        prefix_ids: Sequence[int],
        prefix: Layers | None,
        blocks: Sequence[EncodedBlock],
        features: Sequence[ImageFeatures],
    ) -> list[Block]:
        """Run candidates side by side in one batch, padded on the right.

        Args:
            prefix_ids: Token ids of the prefix.
            prefix: Its keys and values, behind which the blocks run; ``None`` runs it again with each of them.
            blocks: What to run; just one where its image comes as pixels.
            features: Features of the blocks' images in order, in place of pixels.
        """
        import torch

        start = len(prefix_ids)
        spread = [self._positions(prefix_ids, block) for block in blocks]
        lead = [] if prefix is not None else list(prefix_ids)
        rows = [lead + list(block.ids) for block in blocks]
        longest = max(map(len, rows))
        # What stands at a padded place does not matter: nothing that is kept sees it.
        own = [p[..., start - len(lead) :] for p in spread]
        places = torch.cat([torch.nn.functional.pad(p, (0, longest - p.shape[-1])) for p in own], dim=-2)
        inputs: dict[str, Any] = {}
        if features:
            inputs["mm_encoder_outputs"] = {"image": merged(features)}
        elif (image := blocks[0].image) is not None:
            inputs |= self._passes.pixels(image.inputs)
        layers = self._filled(rows, len(lead), prefix, places, inputs)
        return [
            Block(pairs, BlockFacts(block.span, int(p.max()) + 1, block.cut))
            for pairs, block, p in zip(layers, blocks, spread, strict=True)
        ]

    def suffixes(
        self, prefix: Layers, blocks: Sequence[Block], suffixes: Sequence[EncodedSuffix]
    ) -> list[AttentionRows]:
        """Ask questions over the same candidates, in one batch padded on the right.

        Args:
            prefix: Keys and values of the prefix.
            blocks: The candidates.
            suffixes: The questions.

        Returns:
            The read-out rows of each: what the last token and the query's own give to each candidate.
        """
        import torch

        start = int(prefix[0][0].shape[2])
        spans, at = [], start
        for block in blocks:
            spans.append(tuple(at + i for i in block.facts.span))
            at += block.tokens
        begin = max(block.facts.end for block in blocks)
        longest = max(len(suffix.ids) for suffix in suffixes)
        places = self._count(begin, longest)
        inputs = self._inputs([list(s.ids) for s in suffixes], at, places.expand(*places.shape[:-2], len(suffixes), -1))
        inputs[self._traits.cache_keyword] = joined(prefix, blocks, len(suffixes))
        read_outs = [ReadOut({"last": (len(s.ids) - 1,), "query": s.query}, spans) for s in suffixes]
        windowed: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._windows:
            # These occur only where a model counts its tokens, so a block's positions are those of its tokens.
            kept = [(self._first, self._first + start), *((b.facts.end - b.tokens, b.facts.end) for b in blocks)]
            keys = torch.cat([*(torch.arange(*ends, device=places.device) for ends in kept), places[0]])
            windowed = attention_tap.attending(_Windows(self._windows, keys, places[0]))
        with windowed:
            _, attention = self._passes.run(inputs, read_outs, [longest - 1] * len(suffixes), True)
        return attention

    def _filled(
        self, rows: list[list[int]], start: int, prefix: Layers | None, places: torch.Tensor, more: dict[str, Any]
    ) -> list[Layers]:
        """Keys and values of rows of tokens.

        Args:
            rows: Token ids.
            start: Which of each row's tokens is the first whose keys and values are wanted.
            prefix: Keys and values behind which the rows run, if any.
            places: Positions, (B, T) or (3, B, T).
            more: What else the model is given.
        """
        from transformers import DynamicCache

        cached = 0 if prefix is None else int(prefix[0][0].shape[2])
        cache: Any = DynamicCache() if prefix is None else joined(prefix, [], len(rows))
        inputs = self._inputs(rows, cached, places) | more | {self._traits.cache_keyword: cache}
        self._passes.run(inputs, [ReadOut({}, [])] * len(rows), [max(map(len, rows)) - 1] * len(rows), True)
        # Copies, so that what is kept of a row does not hold on to the whole batch.
        return [
            tuple(
                (
                    layer.keys[b : b + 1, :, cached + start : cached + len(row)].clone(),
                    layer.values[b : b + 1, :, cached + start : cached + len(row)].clone(),
                )
                for layer in cache.layers
            )
            for b, row in enumerate(rows)
        ]

    def _inputs(self, rows: list[list[int]], cached: int, places: torch.Tensor) -> dict[str, Any]:
        """What the model is given for rows of tokens behind some kept ones, padded on the right."""
        import torch

        device = self._model.device
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self._filler] * (longest - len(row)) for row in rows], device=device)
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": places}
        for name in self._traits.type_ids:
            inputs[name] = self._passes.marked(ids).long()
        if self._traits.wants_mask:
            inputs["attention_mask"] = torch.ones(len(rows), cached + longest, dtype=torch.long, device=device)
        return inputs

    @property
    def _filler(self) -> int:
        """A token that stands for no image."""
        return next(i for i in range(len(self._traits.marked_ids) + 1) if i not in self._traits.marked_ids)

    def _count(self, begin: int, count: int) -> torch.Tensor:
        """Ascending positions of one row of text: (1, T), or (3, 1, T) where they are three-dimensional."""
        import torch

        places = torch.arange(begin, begin + count, device=self._model.device)[None]
        return places.expand(3, 1, -1) if self._traits.rope_index else places + (self._first if begin == 0 else 0)

    def _positions(self, prefix_ids: Sequence[int], block: EncodedBlock) -> torch.Tensor:
        """Positions of the prefix and one block behind it."""
        if self._traits.rope_index:
            ids = (*prefix_ids, *block.ids)
            return self._passes.positions(ids, () if block.image is None else (block.image,))[0]
        return self._count(0, len(prefix_ids) + len(block.ids))


class _Windows:
    """Attention in which sliding-window layers see as far as positions say, in whatever order candidates are joined.

    Args:
        widths: Width of each sliding-window layer, by ``id`` of its attention module.
        keys: (T,) positions of all keys.
        queries: (S,) positions of the last S of them, which ask.
    """

    def __init__(self, widths: Mapping[int, int], keys: torch.Tensor, queries: torch.Tensor) -> None:
        self._widths = widths
        self._ahead = queries[:, None] - keys

    def __call__(self, module: torch.nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        width = self._widths.get(id(module))
        if width is not None:
            ahead = self._ahead.to(query.device)
            mask = ((ahead >= 0) & (ahead < width))[None, None]
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
