"""Token positions of what is read: visual tokens by counting, text by the offsets of its characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lad_rerank.errors import BackboneError


def visual_spans(ids: Sequence[int], image_token_id: int, counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Deal the placeholder's positions out to the images, in order.

    Never by runs of the placeholder: adjacent images would be one run.

    Raises:
        BackboneError: There are more or fewer than the images stand for.
    """
    positions = [i for i, token in enumerate(ids) if token == image_token_id]
    if sum(counts) != len(positions):
        raise BackboneError(
            f"The prompt holds {len(positions)} visual tokens, but its images stand for {list(counts)}; "
            "nothing was truncated, so the processor and the model's image token do not agree."
        )
    spans, start = [], 0
    for count in counts:
        spans.append(tuple(positions[start : start + count]))
        start += count
    return spans


def with_delimiters(
    ids: Sequence[int], spans: Sequence[tuple[int, ...]], texts: Sequence[Sequence[int]], image_token_id: int
) -> list[tuple[int, ...]]:
    """Widen each span to all that the processor wrote for its image, and to the marks right beside it.

    The marks beside it (``<|vision_start|>``) stand in the template for some families, in the
    replacement for others.
    """
    widened = []
    for span, text in zip(spans, texts, strict=True):
        lead = text.index(image_token_id)
        trail = len(text) - 1 - max(i for i, token in enumerate(text) if token == image_token_id)
        first, last = span[0] - lead, span[-1] + trail
        if lead == trail == 0:
            first, last = max(first - 1, 0), min(last + 1, len(ids) - 1)
        widened.append(tuple(range(first, last + 1)))
    return widened


class TextPlaces:
    """Finds the tokens of characters in a prompt.

    The prompt's whole text is tokenised, so that every character stands where it does in the prompt. Where a
    processor does not say what it wrote for an image, its ids may differ there; what comes behind the last
    difference is found all the same.

    Args:
        ids: The prompt's ids.
        tokenised: The ids that its text gives.
        offsets: First and last character of each of these.
    """

    def __init__(self, ids: Sequence[int], tokenised: Sequence[int], offsets: Sequence[tuple[int, int]]) -> None:
        same = 0
        for a, b in zip(reversed(ids), reversed(tokenised), strict=False):
            if a != b:
                break
            same += 1
        self._first = len(ids) - same
        self._shift = len(ids) - len(tokenised)
        self._offsets: NDArray[np.int64] = np.array(offsets, dtype=np.int64).reshape(-1, 2)

    def __call__(self, begin: int, end: int, what: str) -> tuple[int, ...]:
        """Positions of all tokens with a character from ``begin`` to ``end``.

        Raises:
            BackboneError: There is none, or the prompt's ids are not those of its text there.
        """
        starts, stops = self._offsets.T
        found = np.flatnonzero((begin < stops) & (starts < end) & (starts < stops)) + self._shift
        if not len(found):
            raise BackboneError(f"No token of the prompt belongs to the {what}.")
        if found[0] < self._first:
            raise BackboneError(f"The prompt tokenises differently on its own; the {what} is not found.")
        return tuple(found.tolist())
