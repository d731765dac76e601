"""Metrics of one ranking with binary relevance, equal to those of ranx and trec_eval."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def recall_at(ranked: Sequence[int], relevant: Collection[int], k: int) -> float:
    """Share of the relevant candidates that are among the first k; 0 where there are none.

    Args:
        ranked: Candidates, best first.
        relevant: The relevant ones.
        k: Cut-off.
    """
    return len(set(ranked[:k]).intersection(relevant)) / len(relevant) if relevant else 0.0


def reciprocal_rank(ranked: Sequence[int], relevant: Collection[int]) -> float:
    """1 / rank of the first relevant candidate, 0 where there is none.

    Args:
        ranked: Candidates, best first.
        relevant: The relevant ones.
    """
    return next((1.0 / rank for rank, candidate in enumerate(ranked, start=1) if candidate in relevant), 0.0)


def ndcg_at(ranked: Sequence[int], relevant: Collection[int], k: int) -> float:
    """Normalised discounted cumulative gain of the first k, gain 1 over ``log2(rank + 1)``; 0 for none relevant.

    Args:
        ranked: Candidates, best first.
        relevant: The relevant ones.
        k: Cut-off.
    """
    if not relevant:
        return 0.0
    gained = sum(1 / math.log2(rank + 1) for rank, candidate in enumerate(ranked[:k], start=1) if candidate in relevant)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(relevant)) + 1))
    return float(gained / ideal)
