"""How many candidates a prompt holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lad_rerank.contents import Content

AROUND_ONE = 16
"""Tokens of a label and what stands around its candidate at most."""
QUESTION = 1024
"""No question takes as many tokens."""


def most_that_fit(
    contents: Sequence[Content],
    bounds: Sequence[int],
    most: int,
    context: int,
    length: Callable[[Sequence[Content]], int],
) -> int:
    """How many of these contents fit a context together, whichever they are.

    Args:
        contents: At least two.
        bounds: Tokens that each of them takes at most.
        most: How many are wanted at most.
        context: Tokens that a prompt may have.
        length: Tokens of the prompt of some contents.

    Returns:
        From 2, where even two may be too many, to ``most``.
    """
    if sum(bounds) + AROUND_ONE * len(contents) + QUESTION <= context:
        return most
    longest = max(contents, key=lambda content: length([content]))
    two, three = (length([longest] * n) for n in (2, 3))
    fitting = min(most, 2 + max(0, context - two) // (three - two))
    # Later labels may be longer ones.
    while fitting > 2 and length([longest] * fitting) > context:
        fitting -= 1
    return fitting
