"""More candidates than one pass takes: balanced windows, their best in a final pass, one order over all.

What is guaranteed: two candidates that met in the last pass they shared stand as that pass says, and a
candidate that did not reach the next round stands below every one of its window that did. Candidates that
never met are ordered by estimate: each loser keeps its distance, in log score, to the weakest finalist of
its own window. Only what met in a pass was compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import TypeAlias

import numpy as np

from lad_rerank.errors import InvalidRequestError
from lad_rerank.records import FloatArray

Group: TypeAlias = tuple[int, ...]
"""Candidates that are shown together, by number."""
Rounds: TypeAlias = Generator[list[Group], list[FloatArray], FloatArray]
"""Yields groups to score together, is sent the log scores of each, returns the log scores of all."""


def balanced(count: int, window: int) -> list[int]:
    """Sizes of as few windows as hold count candidates; they differ by one at most.

    Args:
        count: Number of candidates, at least 2.
        window: Largest number in one window, at least 2.

    Raises:
        InvalidRequestError: A window of fewer than two.
    """
    if window < 2:
        raise InvalidRequestError(f"A window holds at least 2 candidates, got {window}.")
    windows = -(-count // window)
    small, larger = divmod(count, windows)
    return [small + (i < larger) for i in range(windows)]


def rounds(candidates: Sequence[int], window: int, top_n: int | None = None) -> Rounds:
    """Rank any number of candidates by passes over at most ``window`` of them.

    Where ``top_n`` is at most ``window // number of windows``, as many of each window go on, and nothing
    that belongs to the first ``top_n`` can be lost before the final pass.

    Args:
        candidates: Candidates by number.
        window: Largest number in one pass.
        top_n: How many of the best are wanted; one where all are.

    Returns:
        (M,) log scores in the order of ``candidates``, defined up to a constant.
    """
    if len(candidates) <= window:
        (scores,) = yield [tuple(candidates)]
        return scores
    sizes = balanced(len(candidates), window)
    edges = np.cumsum([0, *sizes])
    groups = [tuple(candidates[a:b]) for a, b in itertools.pairwise(edges)]
    # A window of one has nothing to compare: its candidate goes on.
    answers = iter((yield [group for group in groups if len(group) > 1]))
    scored = [next(answers) if len(group) > 1 else np.zeros(1) for group in groups]
    # At least one of each window goes on, and never more in all than a pass takes: fewer than there were.
    going_on = min(max(1, window // len(groups)), max(top_n or 1, 1))
    best = [np.argsort(-s, kind="stable")[:going_on] for s in scored]
    finalists = [group[i] for group, chosen in zip(groups, best, strict=True) for i in chosen]
    final = dict(zip(finalists, (yield from rounds(finalists, window, top_n)), strict=True))
    joined: list[float] = []
    for group, scores, chosen in zip(groups, scored, best, strict=True):
        weakest = min(final[group[i]] for i in chosen)
        lowest = min(scores[i] for i in chosen)
        joined += [final[c] if c in final else weakest + float(s - lowest) for c, s in zip(group, scores, strict=True)]
    return np.array(joined, dtype=np.float64)
