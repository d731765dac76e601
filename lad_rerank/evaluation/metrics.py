"""Ranking and order-robustness metrics. T orders, Q queries, N candidates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from lad_rerank.records import FloatArray

IntArray = NDArray[np.int64]


def accuracy(choices: IntArray, relevant: Sequence[Collection[int]]) -> FloatArray:
    """Share of queries whose chosen candidate is relevant, for each order.

    Args:
        choices: (T, Q) candidate chosen in each order.
        relevant: Q collections of relevant candidates.

    Returns:
        (T,) in [0, 1].
    """
    hit = [[choice in relevant[q] for q, choice in enumerate(order)] for order in choices.tolist()]
    share: FloatArray = np.array(hit, dtype=np.float64).mean(axis=1)
    return share


def consistency(choices: IntArray) -> float:
    """Share of queries for which the same candidate is chosen in all orders, in [0, 1].

    Args:
        choices: (T, Q) candidate chosen in each order.
    """
    return float((choices == choices[0]).all(axis=0).mean())


def recall_by_position(target_positions: IntArray, chosen_positions: IntArray, n: int) -> FloatArray:
    """Recall of the target for each position it was shown at.

    Args:
        target_positions: (P,) position of the target in each pass.
        chosen_positions: (P,) position chosen.
        n: Number of positions.

    Returns:
        (n,) in [0, 1]; NaN for a position that never held the target.
    """
    recall = np.full(n, np.nan)
    for i in range(n):
        here = target_positions == i
        if here.any():
            recall[i] = (chosen_positions[here] == i).mean()
    return recall


def recall_std(recall: FloatArray) -> float:
    """RStd: standard deviation of recall over positions, ddof 1, times 100 (paper, Figure 1).

    Args:
        recall: (N,) recall by position.
    """
    seen = recall[~np.isnan(recall)]
    return float(100 * seen.std(ddof=1)) if len(seen) > 1 else float("nan")


def reciprocal_rank(ranked: Sequence[int], relevant: Collection[int]) -> float:
    """1 / rank of the first relevant candidate, 0 where there is none.

    Args:
        ranked: Candidates, best first.
        relevant: The relevant ones.
    """
    return next((1.0 / rank for rank, candidate in enumerate(ranked, start=1) if candidate in relevant), 0.0)
