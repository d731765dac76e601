"""A rendered chat taken apart at what is put into it, and put together again with known places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from lad_rerank.backbones.families.base import Added
from lad_rerank.errors import BackboneError
from lad_rerank.prompt import QUERY_MARK, Shape, text_mark


class Slot(NamedTuple):
    """A place in a prompt: of a candidate's image or text, or of the query.

    Attributes:
        kind: What goes there.
        owner: Index of the candidate; 0 for the query.
    """

    kind: Literal["image", "text", "query"]
    owner: int = 0


QUERY = Slot("query")

Frame: TypeAlias = tuple[str | Slot, ...]
"""Literal text and slots, in order."""


@dataclass(frozen=True)
class Written:
    """A prompt's text.

    Attributes:
        text: All of it.
        places: Where each slot's text begins and ends in it, in characters.
    """

    text: str
    places: Mapping[Slot, tuple[int, int]]


def taken_apart(rendered: str, shape: Shape, placeholder: str | None) -> Frame:
    """Find the slots of a rendered chat.

    Args:
        rendered: The chat with marks in place of query and texts.
        shape: What each candidate has. Its images come in order, if not where they were put: some templates write
            all images first.
        placeholder: What the template writes for an image; ``None`` where there are none.

    Raises:
        BackboneError: An image or a text is missing, or occurs twice.
    """
    slots = {QUERY_MARK: QUERY} | {text_mark(i): Slot("text", i) for i, (_, text) in enumerate(shape) if text}
    images = iter([i for i, (image, _) in enumerate(shape) if image])
    expected = len(slots) + sum(image for image, _ in shape)
    marks = [*slots, *([placeholder] if placeholder else [])]
    frame: list[str | Slot] = []
    for piece in re.split(f"({'|'.join(map(re.escape, marks))})", rendered):
        if piece == placeholder:
            frame.append(Slot("image", next(images, -1)))
        elif piece:
            frame.append(slots.get(piece, piece))
    found = [piece for piece in frame if isinstance(piece, Slot)]
    if len(found) != expected or len(set(found)) != expected or Slot("image", -1) in found:
        raise BackboneError(
            f"The chat template does not pass {len(shape)} candidates through: of {expected} images, texts and queries "
            f"it made {len(found)} places."
        )
    return tuple(frame)


def put_together(frame: Frame, fill: Mapping[Slot, str], added: Added) -> Written:
    """Fill a frame.

    Args:
        frame: Literal text and slots.
        fill: Text of each slot.
        added: What a processor writes on its own. Where there is no image, what goes behind the last one goes first.
    """
    last_image = max((i for i, p in enumerate(frame) if isinstance(p, Slot) and p.kind == "image"), default=None)
    text = added.first + (added.behind_images if last_image is None else "")
    places = {}
    for i, piece in enumerate(frame):
        begin = len(text)
        text += fill[piece] if isinstance(piece, Slot) else piece
        if isinstance(piece, Slot):
            places[piece] = begin, len(text)
        if i == last_image:
            text += added.behind_images
    return Written(text + added.last, places)


def adds_start(tokenizer: Any, text: str) -> bool:
    """Whether a tokenizer may add what a template has not written already."""
    start = tokenizer.bos_token
    return start is None or not text.startswith(start)
