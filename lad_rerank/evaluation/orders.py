"""Show the same candidates in several orders; score what was seen by any method, without the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.record import Calibration
from lad_rerank.debias.scoring import ScoringSettings, get_scorer, score
from lad_rerank.evaluation import metrics
from lad_rerank.records import FloatArray, Observation

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Instance:
    """One query with its candidates and what is right.

    Attributes:
        query: What is asked.
        images: N RGB pictures.
        relevant: Indices of the right ones; empty where the first stage did not retrieve any.
    """

    query: str
    images: Sequence[Image]
    relevant: frozenset[int]


@dataclass(frozen=True)
class ShownObservation:
    """What one pass yielded, and which candidate stood at each position.

    Attributes:
        observation: By position.
        shown: (N,) candidate index at each position.
    """

    observation: Observation
    shown: tuple[int, ...]


@dataclass(frozen=True)
class OrderReport:
    """How one method did over all orders.

    Attributes:
        method: Name of the scorer.
        accuracy: Share of relevant first choices, mean over orders, in [0, 1].
        accuracy_std: Standard deviation of it over orders (ddof 1).
        mrr: Mean reciprocal rank over orders and queries.
        consistency: Share of queries with the same first choice in all orders.
        recall: (N,) recall by position of the target, over queries with one relevant candidate.
        recall_std: RStd, in points.
        passes: Forward passes per ranking.
    """

    method: str
    accuracy: float
    accuracy_std: float
    mrr: float
    consistency: float
    recall: FloatArray
    recall_std: float
    passes: int = 1


def observe_orders(
    backbone: Backbone,
    instances: Sequence[Instance],
    *,
    orders: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[ShownObservation]]:
    """Show every instance in random orders; nothing is sorted into the canonical one.

    Args:
        backbone: The model.
        instances: Queries with their candidates.
        orders: T, how many orders of each.
        seed: Chooses the orders.
        progress: Called with (passes done, passes in all).

    Returns:
        T lists of Q passes.
    """
    rng = np.random.default_rng(seed)
    total, done = orders * len(instances), 0
    runs: list[list[ShownObservation]] = []
    for _ in range(orders):
        run = []
        for instance in instances:
            shown = tuple(rng.permutation(len(instance.images)).tolist())
            observation = backbone.observe(instance.query, [instance.images[i] for i in shown])
            run.append(ShownObservation(observation, shown))
            done += 1
            if progress is not None:
                progress(done, total)
        runs.append(run)
    return runs


def rankings(
    run: Sequence[ShownObservation],
    calibration: Calibration | None,
    method: str,
    settings: ScoringSettings | None = None,
) -> list[list[int]]:
    """Candidate indices best first, for each pass of one order.

    Args:
        run: Passes.
        calibration: Must cover their numbers of candidates where the method needs one.
        method: Name of a scorer.
        settings: How evidence is turned into scores.
    """
    ranked = []
    for seen in run:
        bias = None
        if calibration is not None and get_scorer(method).needs_calibration:
            bias = calibration.position_bias(seen.observation.n)
        log_scores = score(seen.observation, bias, method, settings).log_scores
        ranked.append([seen.shown[i] for i in np.argsort(-log_scores, kind="stable")])
    return ranked


def order_report(
    runs: Sequence[Sequence[ShownObservation]],
    instances: Sequence[Instance],
    calibration: Calibration | None,
    method: str,
    settings: ScoringSettings | None = None,
) -> OrderReport:
    """Score stored passes by one method and measure it.

    Args:
        runs: T lists of Q passes, as :func:`observe_orders` returns them.
        instances: The Q instances.
        calibration: See :func:`rankings`.
        method: Name of a scorer.
        settings: How evidence is turned into scores.
    """
    relevant = [instance.relevant for instance in instances]
    ranked = [rankings(run, calibration, method, settings) for run in runs]
    choices = np.array([[order[0] for order in run] for run in ranked])
    by_order = metrics.accuracy(choices, relevant)
    targets, chosen = [], []
    for run, ranked_run in zip(runs, ranked, strict=True):
        for seen, order, right in zip(run, ranked_run, relevant, strict=True):
            if len(right) == 1:
                targets.append(seen.shown.index(next(iter(right))))
                chosen.append(seen.shown.index(order[0]))
    n = max(len(instance.images) for instance in instances)
    recall = metrics.recall_by_position(np.array(targets, dtype=np.int64), np.array(chosen, dtype=np.int64), n)
    reciprocal = [metrics.reciprocal_rank(o, r) for run in ranked for o, r in zip(run, relevant, strict=True)]
    return OrderReport(
        method=method,
        accuracy=float(by_order.mean()),
        accuracy_std=float(by_order.std(ddof=1)) if len(by_order) > 1 else 0.0,
        mrr=float(np.mean(reciprocal)),
        consistency=metrics.consistency(choices),
        recall=recall,
        recall_std=metrics.recall_std(recall),
        passes=max(seen.observation.passes for run in runs for seen in run),
    )
