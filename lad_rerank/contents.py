"""What the model is shown of a candidate: a picture, a text, or both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lad_rerank.images import image_digest

if TYPE_CHECKING:
    from PIL.Image import Image

CandidateKind: TypeAlias = Literal["image", "text", "mixed"]
"""What a list of candidates consists of: pictures alone, texts alone, or anything else."""

Arrangement: TypeAlias = Literal["sequence", "set"]
"""How candidates stand in a pass: one after the other (the paper's), or side by side, unseen by each other."""


@dataclass(frozen=True)
class Content:
    """One candidate as it is shown.

    Attributes:
        image: RGB picture, or ``None``.
        text: One line of text, or ``None``. A content has at least one of the two.
        digest: Names the pixels and the text; equal contents have equal digests.
        pixels: Names the pixels alone; empty where there is no picture.
    """

    image: Image | None
    text: str | None
    digest: str
    pixels: str = ""

    def __post_init__(self) -> None:
        if self.image is not None and not self.pixels:
            object.__setattr__(self, "pixels", self.digest if self.text is None else image_digest(self.image))

    @classmethod
    def of(cls, image: Image | None = None, text: str | None = None) -> Content:
        """Make a content and its digest.

        Args:
            image: RGB picture.
            text: One line of text, as :func:`lad_rerank.prompt.clean_text` returns it.

        Raises:
            ValueError: Neither is given.
        """
        if image is None and text is None:
            raise ValueError("a content needs a picture or a text")
        pixels = "" if image is None else image_digest(image)
        if text is None:
            return cls(image, None, pixels, pixels)
        return cls(image, text, hashlib.sha256(f"{pixels}\n{text}".encode()).hexdigest(), pixels)


Showable: TypeAlias = "Content | Image"
"""A content, or a picture by itself."""


def as_contents(values: Iterable[Showable]) -> list[Content]:
    """Contents of all values; a picture that occurs twice is hashed once."""
    known: dict[int, Content] = {}
    contents = []
    for value in values:
        if not isinstance(value, Content):
            value = known.setdefault(id(value), known.get(id(value)) or Content.of(value))
        contents.append(value)
    return contents


def kind_of(contents: Sequence[Content]) -> CandidateKind:
    """What a list consists of, on which its prompt and its calibration depend."""
    if all(content.text is None for content in contents):
        return "image"
    if all(content.image is None for content in contents):
        return "text"
    return "mixed"
