"""What an evaluation says: records of rows, sets and all of it, and their JSON. Made by ``measuring``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

SCHEMA = "lad-rerank-evaluation-1"

Interval = tuple[float, float]


@dataclass(frozen=True)
class RowReport:
    """One row. Shares are in [0, 1]; ``None`` stands for what cannot be said of this row.

    Over instances with a right answer, found by the first stage or not, except ``none_auroc``.

    Attributes:
        name: What the row is called.
        accuracy: Share of relevant first choices, mean over orders.
        accuracy_interval: 95 % bootstrap interval of it over queries.
        accuracy_std: Standard deviation of it over orders (ddof 1), within [0, 1].
        recall_std: RStd: standard deviation (ddof 1) of recall over target positions, in points.
        consistency: Share of queries with the same first choice in all orders.
        consistency_interval: 95 % bootstrap interval of it.
        top1_agreement: Share of pairs of orders with the same first choice.
        kendall_tau: Between the rankings of two orders, mean over pairs and queries, in [-1, 1].
        recall_at: Recall@k by k.
        mrr: Mean reciprocal rank of the first relevant candidate.
        ndcg_at: nDCG@k by k, binary relevance.
        ece: Expected calibration error of the first choice's probability, 10 bins.
        recall_by_position: Recall for each position of the target, over passes with one relevant candidate;
            ``None`` at a position that never held it.
        confusion: Target position x chosen position, each row a share of the passes with the target there.
        passes: Forward passes per query.
        seconds: Seconds per query.
        peak_bytes: Peak memory.
        no_answer: Share of passes without a ranking, each of them a miss.
        not_retrieved: Share of queries whose right answer the first stage did not find, each of them a miss.
        none_auroc: How well the first choice's probability tells queries with a right answer from those without.
    """

    name: str
    accuracy: float | None
    accuracy_interval: Interval | None
    accuracy_std: float | None
    recall_std: float | None
    consistency: float | None
    consistency_interval: Interval | None
    top1_agreement: float | None
    kendall_tau: float | None
    recall_at: Mapping[int, float | None]
    mrr: float | None
    ndcg_at: Mapping[int, float | None]
    ece: float | None
    recall_by_position: tuple[float | None, ...] | None
    confusion: tuple[tuple[float | None, ...], ...] | None
    passes: float
    seconds: float | None
    peak_bytes: int | None
    no_answer: float
    not_retrieved: float
    none_auroc: float | None

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has: no NaN, lists for tuples, cut-offs as strings."""
        return dict(_plain(asdict(self)))


@dataclass(frozen=True)
class ConfidenceReport:
    """How ``Ranking.confidence`` did on lists with and without a right answer. Shares in [0, 1].

    Attributes:
        auroc: How well it tells them apart, whatever the threshold; 0.5 is chance.
        present_confident: Share of passes with a right answer that are called confident.
        absent_unsure: Share of passes without one that are not.
    """

    auroc: float
    present_confident: float
    absent_unsure: float


@dataclass(frozen=True)
class SliceReport:
    """All rows over one set of instances.

    Attributes:
        name: Of the set, such as ``shop, adversarial``.
        n: Candidates of an instance; the most, where they differ.
        instances: How many.
        orders: In how many orders each was shown.
        not_retrieved: Instances whose right answer the first stage did not find.
        unanswerable: Instances without a right answer.
        set_digest: Of the set.
        calibration_digest: Of the calibration's samples; ``None`` where none was used.
        rows: One by one.
        left_out: Rows that could not be made, and why.
        confidence: How the absolute signal did; ``None`` where no list lacks a right answer, or there is no signal.
    """

    name: str
    n: int
    instances: int
    orders: int
    not_retrieved: int
    unanswerable: int
    set_digest: str
    calibration_digest: str | None
    rows: tuple[RowReport, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    confidence: ConfidenceReport | None = None

    def row(self, name: str) -> RowReport | None:
        """A row by its name."""
        return next((row for row in self.rows if row.name == name), None)

    @property
    def ours(self) -> RowReport | None:
        """The row of the package's own method: ``auto``, or else ``lad``."""
        return self.row("auto") or self.row("lad")


@dataclass(frozen=True)
class Evaluation:
    """A whole evaluation of one model.

    Attributes:
        model: Name of the backbone.
        settings: How it was run; values as JSON has them.
        created: Date and time, ISO 8601.
        slices: One for each set and number of candidates.
    """

    model: str
    settings: Mapping[str, Any]
    created: str
    slices: tuple[SliceReport, ...]


def to_document(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as ``json.dumps`` takes it, NaN and infinity excluded."""
    slices = [
        {
            **_plain({**vars(one), "rows": (), "confidence": asdict(one.confidence) if one.confidence else None}),
            "rows": [row.to_dict() for row in one.rows],
        }
        for one in evaluation.slices
    ]
    head = {"schema": SCHEMA, "model": evaluation.model, "created": evaluation.created}
    return {**head, "settings": _plain(evaluation.settings), "slices": slices}


def _plain(value: Any) -> Any:
    """The same in the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
