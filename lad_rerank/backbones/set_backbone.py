"""A model that is shown its candidates side by side: no candidate has a position, so the order cannot matter."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, overload

import numpy as np

from lad_rerank.backbones.attention_tap import AttentionRows
from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.backbones.batching import batches, halving
from lad_rerank.backbones.block_runs import BlockRuns
from lad_rerank.backbones.block_store import BlockReport, BlockStore
from lad_rerank.backbones.blocks import Block, BlockDtype
from lad_rerank.backbones.identity import text_digest
from lad_rerank.backbones.set_encoding import EncodedSuffix, SetEncoder
from lad_rerank.backbones.set_passes import SetPasses
from lad_rerank.backbones.set_verify import checked_windows, verify_set
from lad_rerank.contents import Arrangement, Content, Showable, as_contents, kind_of
from lad_rerank.errors import InvalidRequestError, PromptTooLongError
from lad_rerank.prompt import prompt_version
from lad_rerank.records import FloatArray, Observation

if TYPE_CHECKING:
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone

logger = logging.getLogger(__name__)

MEBIBYTE = 2**20


@dataclass(frozen=True)
class PrecomputeReport:
    """What :meth:`SetBackbone.precompute` did.

    Attributes:
        made: Contents that were run.
        found: Contents that were kept already, or occurred before.
        bytes: Bytes that the different ones among them take where they are kept.
    """

    made: int
    found: int
    bytes: int


@dataclass(frozen=True)
class SetSeen:
    """What was asked and seen of one set of candidates, in the order in which they were joined.

    Attributes:
        attention: Read-out rows of each question.
        blocks: The candidates.
        tokens: Tokens of each question's whole prompt.
    """

    attention: list[AttentionRows]
    blocks: list[Block]
    tokens: list[int]


class SetBackbone:
    """A view of a :class:`HuggingFaceBackbone` whose candidates stand side by side; made by its ``arranged``.

    Each candidate is a block right behind the shared prefix that sees the prefix and itself; the question comes
    behind the longest block and sees all. What is observed of a candidate is the same in whatever order the
    candidates are given: bit for bit, where the same blocks are kept, since they are joined in the order of their
    digests. Equal candidates get equal numbers, the mean of their own. There are no labels: ``log_probs`` are those
    of a guess, and ``label_mass`` is 0. A block depends on no query and no other candidate, so it is kept, and a
    question over kept candidates runs its own tokens only.

    Keeps no state between calls but what is kept: threads may share one.

    Args:
        backbone: Whose model, processor and image features are used.
        max_block_bytes: Keys and values of candidates kept in memory at most, on the model's devices.
        block_folder: Keep them on disk too, as safetensors.
        block_dtype: How they are kept, in memory and on disk: as the ``"model"`` has them, rounded to
            ``"bfloat16"``, or as ``"int8"`` with a scale for each channel. What is kept in less than the model's type
            is rounded before its first use too, so that results do not depend on what was kept.
        verify: Check on tiny prompts that the model is read right; see ``set_verify.py``.

    Raises:
        InvalidRequestError: Unknown dtype, or a negative number.
        BackboneError: Candidates cannot stand side by side in this model; the message says why.
    """

    def __init__(
        self,
        backbone: HuggingFaceBackbone,
        *,
        max_block_bytes: int = 512 * MEBIBYTE,
        block_folder: str | Path | None = None,
        block_dtype: BlockDtype = "model",
        verify: bool = True,
    ) -> None:
        if block_dtype not in get_args(BlockDtype):
            raise InvalidRequestError(
                f"Unknown block_dtype {block_dtype!r}; choose one of {', '.join(get_args(BlockDtype))}."
            )
        if max_block_bytes < 0:
            raise InvalidRequestError(f"max_block_bytes must not be negative, got {max_block_bytes}.")
        self._backbone = backbone
        windows = checked_windows(backbone)
        self.encoder = SetEncoder(backbone._encoder)
        self.passes = SetPasses(
            backbone._model, backbone._passes, backbone._traits, windows, backbone._family.first_position
        )
        sequence = backbone.identity
        self._identity = replace(
            sequence,
            prompt=prompt_version(sequence.candidates, arrangement="set"),
            labels="digits",
            arrangement="set",
        )
        settings = (
            sequence.weights,
            sequence.dtype,
            text_digest(str(self.encoder.prefix)),
            self.encoder.block_settings,
        )
        folder = None if block_folder is None else Path(block_folder)
        self._store = BlockStore(" ".join(settings), block_dtype, max_block_bytes, folder)
        self.blocks = self.block_runs(self._store)
        if verify:
            self.blocks.images_behind_prefix = verify_set(self)

    @property
    def name(self) -> str:
        """What the user calls the model."""
        return self._backbone.name

    @property
    def revision(self) -> str | None:
        """Hub revision, where one was given."""
        return self._backbone.revision

    @property
    def identity(self) -> BackboneIdentity:
        """What its evidence depends on. No labels are read, so all labels have the same one."""
        return self._identity

    @property
    def reads_images(self) -> bool:
        """Whether it can be shown images; a plain language model reads texts only."""
        return self._backbone.reads_images

    @overload
    def arranged(self, arrangement: Literal["sequence"]) -> HuggingFaceBackbone: ...
    @overload
    def arranged(self, arrangement: Literal["set"]) -> SetBackbone: ...
    def arranged(self, arrangement: Arrangement) -> HuggingFaceBackbone | SetBackbone:
        """The same model with its candidates arranged in this way; settings are those of the backbone.

        Raises:
            InvalidRequestError: Unknown arrangement.
        """
        return self if arrangement == "set" else self._backbone.arranged(arrangement)

    def capacity(self, query: str, candidates: Sequence[Showable]) -> int:
        """How many of these candidates one pass holds: all. They stand side by side, and have no labels.

        Raises:
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        self._backbone._encoder.check_readable(as_contents(candidates), self.name)
        return len(candidates)

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        """Show the candidates side by side and ask for the query.

        Args:
            query: One line of text.
            candidates: At least two: contents, or RGB pictures by themselves.

        Raises:
            PromptTooLongError: The longest candidate and the question do not fit the context window together.
            AttentionNotSeenError: The read-out rows did not arrive.
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        return self.observe_many([(query, candidates)])[0]

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        """:meth:`observe` for several requests.

        Requests over the same candidates, in whatever order, share one joined cache and run side by side; the same
        query over the same candidates runs once.

        Args:
            requests: (query, candidates) pairs; numbers and kinds of candidates may differ.
        """
        import torch

        contents = as_contents(candidate for _, candidates in requests for candidate in candidates)
        self._backbone._encoder.check_readable(contents, self.name)
        remaining = iter(contents)
        groups: dict[tuple[str, ...], list[tuple[int, str, list[Content]]]] = {}
        for i, (query, candidates) in enumerate(requests):
            own = list(itertools.islice(remaining, len(candidates)))
            groups.setdefault(tuple(sorted(c.digest for c in own)), []).append((i, query, own))
        observations: dict[int, Observation] = {}
        with torch.inference_mode():
            for group in groups.values():
                joined = sorted(group[0][2], key=lambda content: content.digest)
                queries = list(dict.fromkeys(query for _, query, _ in group))
                seen = self.see(joined, queries)
                for i, query, own in group:
                    observations[i] = self._observation(seen, queries.index(query), joined, own)
        return [observations[i] for i in range(len(requests))]

    def precompute(
        self, contents: Iterable[Showable], progress: Callable[[int], None] | None = None
    ) -> PrecomputeReport:
        """Run candidates that will be asked about later, and keep their keys and values.

        What is kept already is not run again, so a call that was interrupted goes on where it was when it is made
        again, if there is a folder. Without one only what fits the memory is kept.

        Args:
            contents: Contents, or RGB pictures by themselves; read a batch at a time.
            progress: Called after every batch with the number of contents done so far.

        Raises:
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        import torch

        done, made = 0, 0
        sizes: dict[str, int] = {}
        values = iter(contents)
        with torch.inference_mode():
            while some := as_contents(itertools.islice(values, self._backbone._batch_size)):
                self._backbone._encoder.check_readable(some, self.name)
                found, ran = self.blocks.found(some)
                sizes |= {digest: self._store.size(digest) for digest in found}
                done, made = done + len(some), made + ran
                if progress is not None:
                    progress(done)
        report = PrecomputeReport(made, done - made, sum(sizes.values()))
        if self._store.folder is None and (lost := sum(not self._store.size(digest) for digest in sizes)):
            logger.warning("%d of %d candidates do not fit max_block_bytes and are not kept.", lost, len(sizes))
        return report

    def cache_report(self) -> BlockReport:
        """How many candidates were found kept, how many had to be run, and how many bytes they take."""
        return self._store.report()

    def forget(self) -> None:
        """Let go of all features, keys and values that are in memory."""
        self._backbone.forget()
        self._store.clear()

    def block_runs(self, store: BlockStore) -> BlockRuns:
        """What runs this model's candidates and keeps them in a store."""
        inner = self._backbone
        return BlockRuns(
            self.encoder, self.passes, store, inner._pictures, lambda: inner.uses_features, inner._batch_size
        )

    def see(self, contents: Sequence[Content], queries: Sequence[str]) -> SetSeen:
        """Ask queries over contents, joined in the order that is given; in inference mode.

        Raises:
            PromptTooLongError: See :meth:`observe`.
        """
        kind = kind_of(contents)
        suffixes = [self.encoder.suffix(query, len(contents), kind) for query in queries]
        found, _ = self.blocks.found(contents)
        blocks = [found[content.digest] for content in contents]
        self._check_length(blocks, suffixes)
        prefix = self.blocks.prefix()
        attention = [
            rows
            for some in batches(suffixes, self._backbone._batch_size)
            for rows in halving(some, lambda few: self.passes.suffixes(prefix, blocks, few))
        ]
        shown = len(self.encoder.prefix) + sum(block.tokens for block in blocks)
        return SetSeen(attention, blocks, [shown + len(suffix.ids) for suffix in suffixes])

    def _check_length(self, blocks: Sequence[Block], suffixes: Sequence[EncodedSuffix]) -> None:
        context = self._backbone._context
        needed = max(block.facts.end for block in blocks) + max(len(suffix.ids) for suffix in suffixes)
        if context is not None and needed > context:
            raise PromptTooLongError(
                f"The longest of these candidates and this query reach position {needed}, the model takes {context}. "
                "Lower max_pixels or max_text_tokens, or shorten the query."
            )

    def _observation(self, seen: SetSeen, which: int, joined: Sequence[Content], own: Sequence[Content]) -> Observation:
        """The record of one request, its numbers in the order in which its candidates were given."""
        places: dict[str, list[int]] = {}
        for i, content in enumerate(joined):
            places.setdefault(content.digest, []).append(i)
        order = [places[content.digest] for content in own]
        blocks = [seen.blocks[same[0]] for same in order]
        rows = seen.attention[which]
        return Observation(
            log_probs=np.full(len(own), -np.log(len(own))),
            attention=_reordered(rows.mass, order),
            layers=self._identity.layers,
            label_mass=0.0,
            prompt_tokens=seen.tokens[which],
            peaks=_reordered(rows.peaks, order),
            lengths=tuple(len(block.facts.span) for block in blocks),
            cut=tuple(block.facts.cut for block in blocks) if any(c.text is not None for c in own) else (),
        )


def _reordered(rows: Mapping[str, FloatArray], order: Sequence[Sequence[int]]) -> dict[str, FloatArray]:
    """Columns of read-out rows in another order; equal candidates share the mean of theirs."""
    return {name: np.stack([row[..., same].mean(axis=-1) for same in order], axis=-1) for name, row in rows.items()}
