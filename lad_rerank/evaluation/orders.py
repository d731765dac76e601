"""Show the same candidates in several orders, and keep what was seen: everything else is scored from that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lad_rerank.backbones.base import Backbone, Request
from lad_rerank.calibration.record import Calibration
from lad_rerank.contents import Content, Showable, as_contents
from lad_rerank.debias.scoring import ScoringSettings, get_scorer, score
from lad_rerank.errors import InvalidRequestError
from lad_rerank.evaluation.cost import Meter
from lad_rerank.evaluation.permutations import Order, balanced_orders
from lad_rerank.prompt import NULL_QUERY, clean_query
from lad_rerank.records import FloatArray, Observation

CHUNK = 16
"""Instances that are handed to the backbone at a time: it forms its own batches of them, and may hold all their
keys and values until the last is done."""


@dataclass(frozen=True)
class Instance:
    """One query with its candidates and what is right.

    Attributes:
        query: What is asked.
        contents: N candidates, in the first stage's order where there was one.
        relevant: Indices of the right ones. Empty for a query that has no right answer among them.
        id: Its name in the set.
        retrieved: ``False`` where something right exists and the first stage did not find it: then nothing here
            is relevant, and every method misses.
    """

    query: str
    contents: Sequence[Content]
    relevant: frozenset[int]
    id: str = ""
    retrieved: bool = True

    def __post_init__(self) -> None:
        if any(not 0 <= i < len(self.contents) for i in self.relevant):
            raise InvalidRequestError(
                f"Instance {self.id!r} calls {sorted(self.relevant)} relevant, of {len(self.contents)} candidates "
                "counted from 0."
            )
        if self.relevant and not self.retrieved:
            raise InvalidRequestError(f"Instance {self.id!r} has a relevant candidate and is said not to have one.")

    @classmethod
    def of(
        cls,
        query: str,
        values: Iterable[Showable],
        relevant: Iterable[int],
        *,
        id: str = "",
        retrieved: bool = True,
    ) -> Instance:
        """Make an instance of contents, or of bare pictures.

        Args:
            query: See the class.
            values: N contents or RGB pictures.
            relevant: Indices of the right ones.
            id: See the class.
            retrieved: See the class.

        Raises:
            InvalidRequestError: An index is out of range, or something is relevant and not retrieved.
        """
        return cls(query, as_contents(values), frozenset(relevant), id, retrieved)

    @property
    def n(self) -> int:
        """Number of candidates."""
        return len(self.contents)

    @property
    def answerable(self) -> bool:
        """Whether something right exists, found or not: such instances count for accuracy."""
        return bool(self.relevant) or not self.retrieved


@dataclass(frozen=True)
class ShownObservation:
    """What one pass yielded, and which candidate stood at each position.

    Attributes:
        observation: By position.
        shown: (N,) candidate index at each position.
    """

    observation: Observation
    shown: Order


@dataclass(frozen=True)
class ObservedRuns:
    """Passes over all instances in several orders, and what they cost.

    Attributes:
        runs: T lists of Q passes.
        seconds_per_pass: Wall-clock seconds for one query in one order, mean. Later orders profit from what the
            backbone keeps of the pictures, as they do in use; the null query is included where it was asked.
        peak_bytes: See :class:`lad_rerank.evaluation.cost.Meter`.
    """

    runs: Sequence[Sequence[ShownObservation]]
    seconds_per_pass: float | None = None
    peak_bytes: int | None = None

    @property
    def shown(self) -> list[list[Order]]:
        """T lists of Q orders."""
        return [[seen.shown for seen in run] for run in self.runs]


def observe_orders(
    backbone: Backbone,
    instances: Sequence[Instance],
    *,
    orders: int = 5,
    seed: int = 0,
    null: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ObservedRuns:
    """Show every instance in random orders, its target equally often at every position.

    Nothing is sorted into the canonical order. Of several relevant candidates the first is balanced. As every
    order is as hard as the next, accuracy spreads less over these orders than over free shuffles.

    Args:
        backbone: The model.
        instances: Q queries with their candidates.
        orders: T, how many orders of each.
        seed: Chooses the orders.
        null: See :func:`observe_shown`.
        progress: Called with (queries shown, queries to show), both over all orders.
    """
    counts = [instance.n for instance in instances]
    targets = [min(instance.relevant, default=None) for instance in instances]
    drawn = balanced_orders(counts, targets, orders, np.random.default_rng(seed))
    return observe_shown(backbone, instances, drawn, null=null, progress=progress)


def observe_shown(
    backbone: Backbone,
    instances: Sequence[Instance],
    orders: Sequence[Sequence[Order]],
    *,
    null: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ObservedRuns:
    """Show every instance in given orders.

    Args:
        backbone: The model.
        instances: Q queries with their candidates.
        orders: T lists of Q orders.
        null: Also ask the query that says nothing about the same list, and keep the answer in
            ``Observation.null``. It shares the pictures' keys and values, so it costs a few tokens.
        progress: See :func:`observe_orders`.
    """
    total, done = sum(map(len, orders)), 0
    runs: list[list[ShownObservation]] = []
    with Meter() as meter:
        for order in orders:
            pairs = list(zip(instances, order, strict=True))
            run: list[ShownObservation] = []
            for start in range(0, len(pairs), CHUNK):
                run.extend(_observe(backbone, pairs[start : start + CHUNK], null))
                if progress is not None:
                    progress(done + len(run), total)
            done += len(run)
            runs.append(run)
    return ObservedRuns(runs, meter.seconds / total if total else None, meter.peak_bytes)


def _observe(backbone: Backbone, pairs: Sequence[tuple[Instance, Order]], null: bool) -> list[ShownObservation]:
    requests: list[Request] = []
    for instance, shown in pairs:
        contents = [instance.contents[i] for i in shown]
        requests.append((clean_query(instance.query), contents))
        if null:
            requests.append((NULL_QUERY, contents))
    seen = backbone.observe_many(requests)
    if null:
        seen = [replace(asked, null=empty) for asked, empty in zip(seen[::2], seen[1::2], strict=True)]
    return [ShownObservation(observation, shown) for observation, (_, shown) in zip(seen, pairs, strict=True)]


def best_first(shown: Order, scores: FloatArray) -> list[int]:
    """Candidate indices by descending score; of equal ones that shown first.

    Args:
        shown: Candidate at each position.
        scores: (N,) by position.
    """
    return [shown[i] for i in np.argsort(-scores, kind="stable")]


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

    Raises:
        CalibrationMissingError: The calibration does not cover a number of candidates.
        DegenerateScoresError: The scores of a pass are no ranking.
    """
    return [best_first(seen.shown, log_scores(seen, calibration, method, settings)) for seen in run]


def log_scores(
    seen: ShownObservation, calibration: Calibration | None, method: str, settings: ScoringSettings | None = None
) -> FloatArray:
    """(N,) scores of one pass by position, see :func:`rankings`."""
    bias = None
    if calibration is not None and get_scorer(method).needs_calibration:
        bias = calibration.position_bias(seen.observation.n)
    return score(seen.observation, bias, method, settings).log_scores
