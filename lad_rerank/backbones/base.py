"""What the reranker expects of a backbone, and how a backbone is told apart from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeAlias

from lad_rerank.contents import Arrangement, CandidateKind, Showable
from lad_rerank.prompt import LabelStyle, prompt_version, wording_of
from lad_rerank.records import Observation


@dataclass(frozen=True)
class BackboneIdentity:
    """Everything about a backbone on which its position bias depends.

    Two backbones with equal identities may share a calibration.

    Attributes:
        model_type: ``config.model_type``, such as ``qwen2_5_vl``.
        weights: Digest over every parameter and buffer, see ``identity.weights_digest``.
        prompt: Version of the question's wording, see :func:`lad_rerank.prompt.prompt_version`.
        chat_template: Digest of the processor's chat template.
        labels: How candidates are named.
        max_pixels: Pixel budget of one image; 0 where the model reads texts only.
        spans: Which tokens count as a candidate's own; ``"visual"`` leaves delimiters out.
        dtype: Floating point type of the decoder, such as ``float32``.
        layers: Decoder layers whose attention is read.
        candidates: What is ranked: images, texts, or lists with anything else.
        arrangement: How candidates stand in a pass.
    """

    model_type: str
    weights: str
    prompt: str
    chat_template: str
    labels: LabelStyle
    max_pixels: int
    spans: str
    dtype: str
    layers: tuple[int, ...]
    candidates: CandidateKind = "image"
    arrangement: Arrangement = "sequence"

    def for_kind(self, kind: CandidateKind) -> BackboneIdentity:
        """The same backbone as it ranks candidates of a kind, each of which has a prompt and a bias of its own."""
        if kind == self.candidates:
            return self
        prompt = prompt_version(kind, wording_of(self.prompt), self.arrangement)
        return replace(self, candidates=kind, prompt=prompt)

    def differences(self, other: BackboneIdentity) -> dict[str, tuple[object, object]]:
        """Fields that differ, each with (self's, other's) value."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


Request: TypeAlias = tuple[str, Sequence[Showable]]
"""A query and its candidates, in the order they are shown."""


class Backbone(Protocol):
    """A model that can be shown candidates once and says what it saw.

    Implementations keep no state between calls: threads may share one.
    """

    @property
    def name(self) -> str:
        """What the user calls the model: a hub id, a folder, or ``bundled``."""
        ...

    @property
    def revision(self) -> str | None:
        """Hub revision, where there is one."""
        ...

    @property
    def identity(self) -> BackboneIdentity:
        """What its position bias depends on."""
        ...

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        """Show the candidates in this order and ask for the query, in one forward pass.

        Args:
            query: One line of text, as :func:`lad_rerank.prompt.clean_query` returns it.
            candidates: At least two: contents, or RGB pictures by themselves. What is no content is hashed here.

        Raises:
            PromptTooLongError: The prompt does not fit the context window.
            AttentionNotSeenError: The read-out rows did not arrive.
            BackboneError: The model did not behave as a backbone must.
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        ...

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        """:meth:`observe` for several requests, which may run in batches and share what they have in common.

        Args:
            requests: (query, candidates) pairs; numbers and kinds of candidates may differ.
        """
        ...

    def capacity(self, query: str, candidates: Sequence[Showable]) -> int:
        """How many of these candidates one prompt holds, all of them at most: what context and labels allow."""
        ...
