"""What one row of a table made of every instance in every order, whatever it needed for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowResult:
    """One method's rankings. T orders, Q instances, N candidates.

    Attributes:
        name: What the row is called in tables.
        ranked: T x Q tuples of candidate indices, best first. Empty where the method gave no answer (a generated
            text without a label in it, say), which is a miss; one index where it only chooses.
        probabilities: T x Q tuples by candidate index that sum to 1, empty where the ranking is; ``None`` for a
            method without probabilities.
        passes: Forward passes over a prompt per query, mean.
        seconds: Seconds per query, mean; ``None`` where nobody measured.
        peak_bytes: Peak memory of the passes; ``None`` where nobody measured.
    """

    name: str
    ranked: Sequence[Sequence[tuple[int, ...]]]
    probabilities: Sequence[Sequence[tuple[float, ...]]] | None = None
    passes: float = 1.0
    seconds: float | None = None
    peak_bytes: int | None = None
