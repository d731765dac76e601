"""Rows of a table from stored passes: every method that needs no more than what was seen."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lad_rerank.calibration.record import Calibration
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.scoring import SCORERS, ScoringSettings, get_scorer, listwise_probabilities
from lad_rerank.errors import DegenerateScoresError, InvalidRequestError, LADRerankError
from lad_rerank.evaluation.orders import Instance, ObservedRuns, ShownObservation, best_first, log_scores
from lad_rerank.evaluation.results import RowResult
from lad_rerank.records import FloatArray

logger = logging.getLogger(__name__)

IDENTITY = "identity"
RANDOM = "random"

NO_ANSWER: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Rows:
    """Rows, and those that could not be made.

    Attributes:
        rows: What was made.
        left_out: Why each of the others was not, by name.
    """

    rows: tuple[RowResult, ...]
    left_out: Mapping[str, str]


def stored_rows(
    observed: ObservedRuns,
    instances: Sequence[Instance],
    calibration: Calibration | None,
    *,
    methods: Iterable[str] | None = None,
    settings: ScoringSettings | None = None,
    seed: int = 0,
) -> Rows:
    """All rows that the same passes can give: first stage, chance, and every scorer.

    Args:
        observed: T x Q passes.
        instances: The Q instances.
        calibration: What scorers that need one are given.
        methods: Names of scorers; all of them by default.
        settings: How evidence is turned into scores.
        seed: Of the row ``random``.

    Returns:
        The rows in the order of ``methods``; a scorer that lacks what it needs (a calibration for a number of
        candidates, say) is left out, with the reason.

    Raises:
        InvalidRequestError: No scorer of such a name.
    """
    names = list(SCORERS if methods is None else methods)
    for name in names:
        get_scorer(name)
    rows = [identity(instances, len(observed.runs)), chance(instances, len(observed.runs), seed=seed)]
    left_out: dict[str, str] = {}
    for name in names:
        try:
            rows.append(scored(observed, calibration, name, settings=settings))
        except LADRerankError as error:
            left_out[name] = str(error)
            logger.info("Row %s is left out: %s", name, error)
    return Rows(tuple(rows), left_out)


def identity(instances: Sequence[Instance], orders: int) -> RowResult:
    """The candidates as they were given: the first stage's ranking, which no order of showing changes."""
    given = [tuple(range(instance.n)) for instance in instances]
    return RowResult(IDENTITY, [given] * orders, passes=0.0, seconds=0.0)


def chance(instances: Sequence[Instance], orders: int, *, seed: int = 0) -> RowResult:
    """Random rankings, a new one in each order."""
    rng = np.random.default_rng(seed)
    drawn = [[tuple(rng.permutation(instance.n).tolist()) for instance in instances] for _ in range(orders)]
    return RowResult(RANDOM, drawn, passes=0.0, seconds=0.0)


def scored(
    observed: ObservedRuns,
    calibration: Calibration | None,
    method: str,
    *,
    name: str | None = None,
    settings: ScoringSettings | None = None,
) -> RowResult:
    """One scorer on stored passes.

    A pass whose scores are no ranking is a miss: its ranking is empty, and reports count it.

    Args:
        observed: T x Q passes.
        calibration: What the scorer is given, where it needs one.
        method: Name of the scorer.
        name: What to call the row; the scorer's name by default.
        settings: How evidence is turned into scores.

    Raises:
        CalibrationMissingError: The calibration does not cover a number of candidates.
        InvalidRequestError: The scorer needs a calibration and there is none, or the passes lack a reading.
    """
    answers = [[_answer([seen], calibration, method, settings) for seen in run] for run in observed.runs]
    passes = _mean(seen.observation.passes for run in observed.runs for seen in run)
    seconds = observed.seconds_per_pass
    return _row(name or method, answers, passes, seconds, observed.peak_bytes)


def grouped(observed: ObservedRuns, size: int) -> list[list[list[ShownObservation]]]:
    """Passes of the same instance in ``size`` consecutive orders, to be averaged.

    Args:
        observed: G x ``size`` lists of Q passes.
        size: How many orders belong together.

    Returns:
        G x Q groups of ``size`` passes.

    Raises:
        InvalidRequestError: The number of orders is no multiple of ``size``.
    """
    if size < 1 or len(observed.runs) % size:
        raise InvalidRequestError(f"{len(observed.runs)} orders cannot be grouped by {size}.")
    starts = range(0, len(observed.runs), size)
    return [[list(group) for group in zip(*observed.runs[s : s + size], strict=True)] for s in starts]


def averaged(
    name: str,
    groups: Sequence[Sequence[Sequence[ShownObservation]]],
    *,
    method: str = "vanilla",
    calibration: Calibration | None = None,
    settings: ScoringSettings | None = None,
    seconds_per_pass: float | None = None,
    peak_bytes: int | None = None,
) -> RowResult:
    """Average several orders of the same candidates: mean of their log scores, mapped back to the candidates.

    With ``method="vanilla"`` this is permutation averaging, of the labels' log-probabilities.

    Args:
        name: What to call the row.
        groups: T x Q groups of passes of one instance, as :func:`grouped` makes them.
        method: The scorer whose log probabilities are averaged.
        calibration: What it is given, where it needs one.
        settings: How evidence is turned into scores.
        seconds_per_pass: What one pass took.
        peak_bytes: Peak memory of the passes.

    Raises:
        CalibrationMissingError: See :func:`scored`.
        InvalidRequestError: See :func:`scored`.
    """
    answers = [[_answer(group, calibration, method, settings) for group in order] for order in groups]
    passes = _mean(sum(seen.observation.passes for seen in group) for order in groups for group in order)
    shown = _mean(len(group) for order in groups for group in order)
    return _row(name, answers, passes, None if seconds_per_pass is None else shown * seconds_per_pass, peak_bytes)


def _answer(
    group: Sequence[ShownObservation], calibration: Calibration | None, method: str, settings: ScoringSettings | None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranking and probabilities by candidate index, from one pass or the mean of several; empty for no ranking."""
    try:
        by_candidate = np.mean([_log_probabilities(seen, calibration, method, settings) for seen in group], axis=0)
    except DegenerateScoresError as error:
        logger.info("A pass counts as a miss: %s", error)
        return NO_ANSWER
    # Ties go to what was shown first, as in a ranking of one pass.
    first = group[0].shown
    probabilities = listwise_probabilities(by_candidate)
    return tuple(best_first(first, by_candidate[list(first)])), tuple(probabilities.tolist())


def _log_probabilities(
    seen: ShownObservation, calibration: Calibration | None, method: str, settings: ScoringSettings | None
) -> FloatArray:
    """(N,) by candidate index."""
    by_position = log_scores(seen, calibration, method, settings)
    by_candidate = np.empty_like(by_position)
    by_candidate[list(seen.shown)] = log_softmax(by_position)
    return by_candidate


def _row(
    name: str,
    answers: Sequence[Sequence[tuple[tuple[int, ...], tuple[float, ...]]]],
    passes: float,
    seconds: float | None,
    peak_bytes: int | None,
) -> RowResult:
    ranked = [[ranking for ranking, _ in run] for run in answers]
    probabilities = [[probability for _, probability in run] for run in answers]
    return RowResult(name, ranked, probabilities, passes, seconds, peak_bytes)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
