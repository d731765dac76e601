"""Order-robustness and probability metrics. T orders, Q queries, N candidates.

Metrics of a single ranking are in :mod:`lad_rerank.evaluation.ranking_metrics`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lad_rerank.records import FloatArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_CHOICE = -1
"""Stands in arrays of choices for a method that gave no answer: never right, never consistent."""

RESAMPLES = 1000


def hits(choices: IntArray, relevant: Sequence[Collection[int]]) -> BoolArray:
    """Whether the chosen candidate is relevant.

    Args:
        choices: (T, Q) candidate chosen in each order, or ``NO_CHOICE``.
        relevant: Q collections of relevant candidates.

    Returns:
        (T, Q).
    """
    right = [[choice in relevant[q] for q, choice in enumerate(order)] for order in choices.tolist()]
    return np.array(right, dtype=np.bool_).reshape(choices.shape)


def accuracy(choices: IntArray, relevant: Sequence[Collection[int]]) -> FloatArray:
    """Share of queries whose chosen candidate is relevant, for each order.

    Args:
        choices: See :func:`hits`.
        relevant: See :func:`hits`.

    Returns:
        (T,) in [0, 1].
    """
    share: FloatArray = hits(choices, relevant).mean(axis=1)
    return share


def consistent(choices: IntArray) -> BoolArray:
    """Whether the same candidate is chosen in all orders.

    Args:
        choices: (T, Q) candidate chosen in each order, or ``NO_CHOICE``.

    Returns:
        (Q,).
    """
    same: BoolArray = (choices == choices[0]).all(axis=0) & (choices[0] != NO_CHOICE)
    return same


def consistency(choices: IntArray) -> float:
    """Share of queries for which the same candidate is chosen in all orders, in [0, 1].

    Args:
        choices: See :func:`consistent`.
    """
    return float(consistent(choices).mean())


def top1_agreement(choices: IntArray) -> float:
    """Share of pairs of orders with the same first choice, mean over queries, in [0, 1]; NaN for one order.

    Args:
        choices: See :func:`consistent`.
    """
    first, second = np.triu_indices(len(choices), k=1)
    if len(first) == 0:
        return float("nan")
    return float(((choices[first] == choices[second]) & (choices[first] != NO_CHOICE)).mean())


def kendall_tau(rankings: ArrayLike) -> float:
    """Kendall's tau between the orders' rankings of one query, mean over pairs of orders.

    1 where every order gives the same ranking, 0 where they have nothing to do with each other. Rankings have
    no ties, so tau-a, tau-b and tau-c are the same.

    Args:
        rankings: (T, N) candidates, best first; every row a permutation of the same N.

    Returns:
        In [-1, 1]; NaN for fewer than two orders or candidates.
    """
    ranks = np.argsort(np.asarray(rankings), axis=1)
    orders, n = ranks.shape
    if orders < 2 or n < 2:
        return float("nan")
    first, second = np.triu_indices(n, k=1)
    before = np.where(ranks[:, first] < ranks[:, second], 1, -1)
    # Over all pairs of orders: (sum s)^2 = T + 2 * sum of the products wanted.
    products = (before.sum(axis=0) ** 2 - orders) / (orders * (orders - 1))
    return float(products.mean())


def confusion_matrix(target_positions: IntArray, chosen_positions: IntArray, n: int) -> FloatArray:
    """How often each position is chosen, for each position of the target (paper, Figure 1).

    Args:
        target_positions: (P,) position of the target in each pass.
        chosen_positions: (P,) position chosen, or ``NO_CHOICE``.
        n: Number of positions.

    Returns:
        (n, n), target by chosen. Rows sum to 1 less the share without an answer; a row of NaN for a position
        that never held the target.
    """
    counts = np.zeros((n, n))
    answered = chosen_positions != NO_CHOICE
    np.add.at(counts, (target_positions[answered], chosen_positions[answered]), 1.0)
    shown = np.bincount(target_positions, minlength=n).astype(np.float64)
    shown[shown == 0] = np.nan
    return counts / shown[:, None]


def recall_by_position(target_positions: IntArray, chosen_positions: IntArray, n: int) -> FloatArray:
    """Recall of the target for each position it was shown at: the diagonal of the confusion matrix.

    Args:
        target_positions: See :func:`confusion_matrix`.
        chosen_positions: See :func:`confusion_matrix`.
        n: Number of positions.

    Returns:
        (n,) in [0, 1]; NaN for a position that never held the target.
    """
    return confusion_matrix(target_positions, chosen_positions, n).diagonal().copy()


def recall_std(recall: FloatArray) -> float:
    """RStd: standard deviation of recall over positions, ddof 1, times 100 (paper, Figure 1).

    Args:
        recall: (N,) recall by position; NaN ones are left out.

    Returns:
        Points; NaN where fewer than two positions held the target.
    """
    seen = recall[~np.isnan(recall)]
    return float(100 * seen.std(ddof=1)) if len(seen) > 1 else float("nan")


def calibration_error(confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> float:
    """ECE: how far the probability of the first choice is from how often it is right.

    Bins of equal width over (0, 1]; the absolute gaps of their means, weighted by their sizes (Guo et al. 2017).

    Args:
        confidence: (P,) probability of the first choice.
        right: (P,) whether it is relevant.
        bins: How many.

    Returns:
        In [0, 1]; NaN for no passes.
    """
    probability, correct = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if len(probability) == 0:
        return float("nan")
    place = np.clip(np.ceil(probability * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=correct - probability, minlength=bins)
    return float(np.abs(gaps).sum() / len(probability))


def auroc(positive: ArrayLike, negative: ArrayLike) -> float:
    """Probability that a positive's value is above a negative's, ties counted half; NaN where one is missing.

    Args:
        positive: (P,) values that should be high.
        negative: (M,) values that should be low.
    """
    high, low = np.asarray(positive, dtype=np.float64), np.sort(np.asarray(negative, dtype=np.float64))
    if len(high) == 0 or len(low) == 0:
        return float("nan")
    below = np.searchsorted(low, high, side="left")
    up_to = np.searchsorted(low, high, side="right")
    return float((below + up_to).mean() / (2 * len(low)))


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile confidence interval of a mean over queries, by drawing the queries anew with replacement.

    Orders of one query belong together: average over them first.

    Args:
        values: (Q,) one value a query.
        level: Share that the interval covers.
        resamples: How many draws.
        seed: Chooses the draws.

    Returns:
        Lower and upper end; NaN for no queries.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(seed).integers(len(sample), size=(resamples, len(sample)))
    low, high = np.quantile(sample[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
