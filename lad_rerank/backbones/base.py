"""What the reranker expects of a backbone, and how a backbone is told apart from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lad_rerank.prompt import LabelStyle
from lad_rerank.records import Observation

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class BackboneIdentity:
    """Everything about a backbone on which its position bias depends.

    Two backbones with equal identities may share a calibration.

    Attributes:
        model_type: ``config.model_type``, such as ``qwen2_5_vl``.
        weights: Digest over every parameter and buffer, see ``identity.weights_digest``.
        prompt: Version of the question's wording.
        chat_template: Digest of the processor's chat template.
        labels: How candidates are named.
        max_pixels: Pixel budget of one image.
        spans: Which tokens count as a candidate's own; ``"visual"`` leaves delimiters out.
        dtype: Floating point type of the decoder, such as ``float32``.
        layers: Decoder layers whose attention is read.
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

    def differences(self, other: BackboneIdentity) -> dict[str, tuple[object, object]]:
        """Fields that differ, each with (self's, other's) value."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


Request: TypeAlias = "tuple[str, Sequence[Image]]"
"""A query and its images, in the order they are shown."""


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

    def observe(self, query: str, images: Sequence[Image]) -> Observation:
        """Show the images in this order and ask for the query, in one forward pass.

        Args:
            query: One line of text, as :func:`lad_rerank.prompt.clean_query` returns it.
            images: At least two RGB pictures.

        Raises:
            PromptTooLongError: The prompt does not fit the context window.
            AttentionNotSeenError: The read-out rows did not arrive.
            BackboneError: The model did not behave as a backbone must.
        """
        ...

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        """:meth:`observe` for several requests, which may run in batches and share what they have in common.

        Args:
            requests: (query, images) pairs; the numbers of images may differ.
        """
        ...

    def capacity(self, query: str, images: Sequence[Image]) -> int:
        """How many of these images one prompt holds, all of them at most: what context and labels allow."""
        ...
