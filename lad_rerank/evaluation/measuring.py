"""From rankings to what is said of them: one row, and all rows over one set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lad_rerank.evaluation import metrics
from lad_rerank.evaluation.metrics import NO_CHOICE, IntArray
from lad_rerank.evaluation.orders import Instance
from lad_rerank.evaluation.permutations import Order
from lad_rerank.evaluation.ranking_metrics import ndcg_at, recall_at, reciprocal_rank
from lad_rerank.evaluation.reports import ConfidenceReport, RowReport, SliceReport
from lad_rerank.evaluation.results import RowResult
from lad_rerank.records import FloatArray

RECALL_CUTS = (1, 3, 5)
NDCG_CUTS = (5, 10)


def slice_report(
    name: str,
    instances: Sequence[Instance],
    rows: Sequence[RowResult],
    *,
    set_digest: str,
    calibration_digest: str | None = None,
    shown: Sequence[Sequence[Order]] | None = None,
    left_out: Mapping[str, str] | None = None,
    confidence: ConfidenceReport | None = None,
) -> SliceReport:
    """Measure all rows over one set.

    Args:
        name: Of the set.
        instances: Q instances.
        rows: What was made of them.
        set_digest: See :class:`SliceReport`.
        calibration_digest: See :class:`SliceReport`.
        shown: T x Q orders in which candidates were shown: of ``ObservedRuns.shown``. A row over another number
            of orders gets no figures by position.
        left_out: See :class:`SliceReport`.
        confidence: See :class:`SliceReport`.
    """
    reports = [
        row_report(row, instances, shown if shown is not None and len(shown) == len(row.ranked) else None)
        for row in rows
    ]
    return SliceReport(
        name=name,
        n=max((instance.n for instance in instances), default=0),
        instances=len(instances),
        orders=len(shown) if shown is not None else max((len(row.ranked) for row in rows), default=0),
        not_retrieved=sum(not instance.retrieved for instance in instances),
        unanswerable=sum(not instance.answerable for instance in instances),
        set_digest=set_digest,
        calibration_digest=calibration_digest,
        rows=tuple(reports),
        left_out=dict(left_out or {}),
        confidence=confidence,
    )


def row_report(
    row: RowResult, instances: Sequence[Instance], shown: Sequence[Sequence[Order]] | None = None
) -> RowReport:
    """Measure one row.

    Args:
        row: T x Q rankings.
        instances: The Q instances.
        shown: T x Q orders, for the figures by position; left out where no order was shown.

    Raises:
        ValueError: Not as many rankings as instances, or as orders shown.
    """
    if any(len(order) != len(instances) for order in row.ranked):
        raise ValueError(f"row {row.name!r} does not hold one ranking of each of {len(instances)} instances")
    counted = [q for q, instance in enumerate(instances) if instance.answerable]
    relevant = [instances[q].relevant for q in counted]
    ranked = [[order[q] for q in counted] for order in row.ranked]
    choices = np.array([[r[0] if r else NO_CHOICE for r in order] for order in ranked], dtype=np.int64)
    choices = choices.reshape(len(ranked), len(counted))
    right = metrics.hits(choices, relevant)
    several = len(ranked) > 1
    by_order = right.mean(axis=1) if counted else np.full(len(ranked), np.nan)
    consistent = metrics.consistent(choices)
    whole = all(len(r) in (0, instances[q].n) for order in ranked for q, r in zip(counted, order, strict=True))
    flat = [(r, own) for order in ranked for r, own in zip(order, relevant, strict=True)]
    confusion = None if shown is None else _confusion(row, instances, shown)
    recall = None if confusion is None else confusion.diagonal()
    confidence, none_confidence, sure_right = _confidences(row, instances)
    return RowReport(
        name=row.name,
        accuracy=_number(by_order.mean()),
        accuracy_interval=metrics.bootstrap_interval(right.mean(axis=0)) if counted else None,
        accuracy_std=_number(by_order.std(ddof=1)) if several else None,
        recall_std=None if recall is None else _number(metrics.recall_std(recall)),
        consistency=_number(consistent.mean()) if several and counted else None,
        consistency_interval=metrics.bootstrap_interval(consistent) if several and counted else None,
        top1_agreement=_number(metrics.top1_agreement(choices)) if counted else None,
        kendall_tau=_mean_tau(ranked) if whole else None,
        recall_at={
            k: _mean([recall_at(r, own, k) for r, own in flat]) if whole or k == 1 else None for k in RECALL_CUTS
        },
        mrr=_mean([reciprocal_rank(r, own) for r, own in flat]) if whole else None,
        ndcg_at={k: _mean([ndcg_at(r, own, k) for r, own in flat]) if whole else None for k in NDCG_CUTS},
        ece=_number(metrics.calibration_error(confidence, sure_right)),
        recall_by_position=None if recall is None else tuple(map(_number, recall)),
        confusion=None if confusion is None else tuple(tuple(map(_number, line)) for line in confusion),
        passes=row.passes,
        seconds=row.seconds,
        peak_bytes=row.peak_bytes,
        no_answer=float(np.mean([not r for order in row.ranked for r in order])) if instances else 0.0,
        not_retrieved=sum(not instance.retrieved for instance in instances) / max(1, len(counted)),
        none_auroc=_number(metrics.auroc(confidence, none_confidence)),
    )


def _confusion(row: RowResult, instances: Sequence[Instance], shown: Sequence[Sequence[Order]]) -> FloatArray | None:
    """Over passes with one relevant candidate; ``None`` where there is none, or nothing was shown to the method."""
    if row.passes == 0:
        return None
    targets, chosen = [], []
    for order, run in zip(row.ranked, shown, strict=True):
        for ranking, positions, instance in zip(order, run, instances, strict=True):
            if len(instance.relevant) == 1:
                targets.append(positions.index(min(instance.relevant)))
                chosen.append(positions.index(ranking[0]) if ranking else NO_CHOICE)
    if not targets:
        return None
    n = max(instance.n for instance in instances)
    return metrics.confusion_matrix(_positions(targets), _positions(chosen), n)


def _positions(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _confidences(row: RowResult, instances: Sequence[Instance]) -> tuple[list[float], list[float], list[bool]]:
    """First choices' probabilities where something is right, where nothing is, and whether the former are right."""
    some: list[float] = []
    none: list[float] = []
    right: list[bool] = []
    for order, probabilities in zip(row.ranked, row.probabilities or (), strict=row.probabilities is not None):
        for ranking, probability, instance in zip(order, probabilities, instances, strict=True):
            if not ranking or not probability:
                continue
            if instance.answerable:
                some.append(probability[ranking[0]])
                right.append(ranking[0] in instance.relevant)
            else:
                none.append(probability[ranking[0]])
    return some, none, right


def _mean_tau(ranked: Sequence[Sequence[tuple[int, ...]]]) -> float | None:
    """Over queries that have a ranking in every order."""
    by_query = [rankings for rankings in zip(*ranked, strict=True) if all(rankings)]
    taus = [metrics.kendall_tau(rankings) for rankings in by_query]
    return _mean([tau for tau in taus if not math.isnan(tau)])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _number(value: float) -> float | None:
    """A Python float; ``None`` for NaN."""
    return None if math.isnan(value) else float(value)
