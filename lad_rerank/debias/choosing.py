"""Leave one calibration sample out: how well would each recipe have done, and which is chosen.

S samples in all N cyclic shifts are P = S x N passes. A recipe is fitted on the passes of all samples but one and
scores the passes of that one; so every pass is scored by what has not seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.choice import Choice, margin
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.mixing import MIXERS
from lad_rerank.debias.reading import EvidenceSettings, Row, fit_evidence, log_attention, readable, sample_means
from lad_rerank.debias.recipe import FittedRecipe, Recipe, recipes
from lad_rerank.records import FloatArray, Observation

TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
QUANTILES = 21
MOST_MEMBERS = 9
LEAST_SAMPLES = 3
"""With two, every recipe is fitted on one sample, and the luckiest of a thousand is far from the best."""
LEAST_GAIN = 0.01
"""Nats per pass by which a recipe must be beaten, at least, before it is called worse."""
IMAGINED = 0.1
"""Weight, in samples, of an imagined one whose target comes second: without it a model that made no mistake on five
samples would be called certain."""
FIRST_STAGE_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""In nats per standard deviation of first-stage scores within a list."""


@dataclass(frozen=True)
class CalibrationPasses:
    """The passes of a calibration for one number of candidates.

    Attributes:
        observations: P passes.
        samples: (P,) which sample each shows, 0 .. S - 1.
        targets: (P,) position of the target.
        shown: (P, N) index into the sample's candidates at each position.
        first_stage: (P, N) first-stage scores by position; ``None`` unless all samples have them.
    """

    observations: Sequence[Observation]
    samples: NDArray[np.int64]
    targets: NDArray[np.int64]
    shown: NDArray[np.int64]
    first_stage: FloatArray | None = None

    @property
    def log_probs(self) -> FloatArray:
        """(P, N) label log-probs."""
        return np.stack([o.log_probs for o in self.observations])


@dataclass(frozen=True)
class LeftOut:
    """How a recipe did on left-out samples.

    Attributes:
        recipe: Which.
        log_scores: (P, N), at temperature 1.
        accuracy: Share of passes whose target came first.
        log_likelihood: Mean log probability of the target at the best temperature.
        temperature: That temperature.
    """

    recipe: Recipe
    log_scores: FloatArray
    accuracy: float
    log_likelihood: float
    temperature: float


BiasOf: TypeAlias = Callable[[NDArray[np.bool_]], PositionBias]
"""Estimates the position bias from some of the passes."""


def leave_one_out(passes: CalibrationPasses, bias_of: BiasOf, some: Iterable[Recipe] | None = None) -> list[LeftOut]:
    """Score all passes by recipes that were fitted without them.

    Args:
        passes: At least two samples.
        bias_of: Estimates the bias from the passes that a mask keeps.
        some: Recipes to try; by default all whose evidence the passes hold.
    """
    if some is None:
        lengths_differ = any(len(set(o.lengths)) > 1 for o in passes.observations)
        null = all(o.null is not None for o in passes.observations)
        some = (r for r in recipes(lengths_differ=lengths_differ, null=null) if _readable(r, passes))
    folds = [passes.samples == s for s in np.unique(passes.samples)]
    biases = [bias_of(~fold) for fold in folds]
    z = passes.log_probs

    # Recipes that share what is read, or their evidence, come one after the other: one of each is kept.
    @lru_cache(maxsize=1)
    def read(settings: EvidenceSettings) -> FloatArray:
        return np.stack([log_attention(o, settings) for o in passes.observations])

    @lru_cache(maxsize=1)
    def held_out(settings: EvidenceSettings) -> FloatArray:
        # What is read does not depend on which units are chosen of it.
        log = read(replace(settings, units="heads" if settings.by_head else "mass", count=0, mean="geometric"))
        evidence = np.empty_like(z)
        for fold in folds:
            fit = fit_evidence(settings, log[~fold], passes.targets[~fold], passes.samples[~fold])
            evidence[fold] = fit.of(log[fold])
        return evidence

    results = []
    for recipe in some:
        e = np.zeros_like(z) if recipe.evidence is None else held_out(recipe.evidence)
        scores = np.empty_like(z)
        for fold, bias in zip(folds, biases, strict=True):
            scores[fold] = MIXERS[recipe.mixer](z[fold], e[fold], bias, recipe.tau)
        results.append(judged(recipe, scores, passes.targets))
    return results


def _readable(recipe: Recipe, passes: CalibrationPasses) -> bool:
    # The first pass speaks for all: they are of one backbone.
    return recipe.evidence is None or readable(passes.observations[0], recipe.evidence)


def judged(recipe: Recipe, log_scores: FloatArray, targets: NDArray[np.int64]) -> LeftOut:
    """Accuracy, likelihood and temperature of left-out scores."""
    accuracy = float((log_scores.argmax(axis=1) == targets).mean())
    likelihood, temperature = best_temperature(log_scores, targets)
    return LeftOut(recipe, log_scores, accuracy, likelihood, temperature)


def best_temperature(log_scores: FloatArray, targets: NDArray[np.int64]) -> tuple[float, float]:
    """The temperature under which the targets are most likely, and their mean log probability.

    Args:
        log_scores: (P, N).
        targets: (P,).

    Returns:
        (mean log probability, temperature); among equals the temperature nearest to 1.
    """
    passes = np.arange(len(targets))
    found = [(float(log_softmax(log_scores / t)[passes, targets].mean()), t) for t in TEMPERATURES]
    return max(found, key=lambda pair: (round(pair[0], 6), -abs(np.log(pair[1]))))


def choose(passes: CalibrationPasses, bias_of: BiasOf) -> Choice | None:
    """Choose evidence, mixer and weights by leaving one sample out.

    The paper's recipe stays unless another one is better by more than a standard error over samples. Otherwise the
    best recipe of each evidence is a member where it is not worse than the best of all by more than that, nine at
    most: the best of each choice of rows first, so that a handful of samples cannot bet on one row alone.

    Args:
        passes: The passes of a calibration.
        bias_of: See :func:`leave_one_out`.

    Returns:
        ``None`` for fewer than :data:`LEAST_SAMPLES` samples: the paper's recipe is used as it is.
    """
    if len(np.unique(passes.samples)) < LEAST_SAMPLES:
        return None
    tried = leave_one_out(passes, bias_of)
    best = max(tried, key=lambda t: t.log_likelihood)
    paper = tried[0]
    members = [paper] if _as_good(paper, best, passes) else _members(tried, best, passes)
    votes = np.mean([log_softmax(m.log_scores / m.temperature) for m in members], axis=0)
    weight = first_stage_weight(votes, passes)
    fused = votes if passes.first_stage is None else votes + weight * passes.first_stage
    temperature = careful_temperature(fused, passes)
    winners = np.take_along_axis(passes.shown, fused.argmax(axis=1)[:, None], axis=1)[:, 0]
    same = [len(set(winners[passes.samples == s])) == 1 for s in np.unique(passes.samples)]
    return Choice(
        members=tuple(fitted(m.recipe, passes, m.temperature) for m in members),
        temperature=temperature,
        first_stage_weight=weight / temperature,
        expected_accuracy=float((fused.argmax(axis=1) == passes.targets).mean()),
        expected_consistency=float(np.mean(same)),
        margins=tuple(np.quantile(margin(fused / temperature), np.linspace(0, 1, QUANTILES)).tolist()),
    )


def _as_good(one: LeftOut, best: LeftOut, passes: CalibrationPasses) -> bool:
    """Whether a recipe is within a standard error, over samples, of the best one."""
    behind = by_sample(best, passes) - by_sample(one, passes)
    return bool(behind.mean() <= max(LEAST_GAIN, standard_error(behind)))


def standard_error(values: FloatArray) -> float:
    """Of the mean of one value for each sample."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _members(tried: Sequence[LeftOut], best: LeftOut, passes: CalibrationPasses) -> list[LeftOut]:
    """The best recipe of each evidence that is as good as the best of all; of each choice of rows one comes first."""
    by_evidence: dict[EvidenceSettings | None, LeftOut] = {}
    for t in sorted(tried, key=lambda t: -t.log_likelihood):
        by_evidence.setdefault(t.recipe.evidence, t)
    good = [t for t in by_evidence.values() if _as_good(t, best, passes)]
    by_rows: dict[tuple[Row, ...] | None, LeftOut] = {}
    for t in good:
        by_rows.setdefault(None if t.recipe.evidence is None else t.recipe.evidence.rows, t)
    first = {t.recipe: t for t in by_rows.values()}
    return [*first.values(), *(t for t in good if t.recipe not in first)][:MOST_MEMBERS]


def by_sample(tried: LeftOut, passes: CalibrationPasses) -> FloatArray:
    """(S,) mean log probability of the target for each left-out sample, at the recipe's temperature."""
    log_probs = log_softmax(tried.log_scores / tried.temperature)
    return sample_means(log_probs[np.arange(len(passes.targets)), passes.targets], passes.samples)


def fitted(recipe: Recipe, passes: CalibrationPasses, temperature: float = 1.0) -> FittedRecipe:
    """Fit a recipe on all passes."""
    if recipe.evidence is None:
        return FittedRecipe(recipe, None, temperature)
    settings = recipe.evidence
    log = np.stack([log_attention(o, settings) for o in passes.observations])
    return FittedRecipe(recipe, fit_evidence(settings, log, passes.targets, passes.samples), temperature)


def careful_temperature(log_scores: FloatArray, passes: CalibrationPasses) -> float:
    """Temperature of left-out scores, with room for the mistake that a handful of samples did not show.

    Args:
        log_scores: (P, N) left-out log scores.
        passes: Their passes.
    """
    rows, samples = np.arange(len(passes.targets)), len(np.unique(passes.samples))
    second = np.argsort(log_scores, axis=1)[:, -2]

    def objective(temperature: float) -> float:
        log_probs = log_softmax(log_scores / temperature)
        return float(samples * log_probs[rows, passes.targets].mean() + IMAGINED * log_probs[rows, second].mean())

    return max(TEMPERATURES, key=objective)


def first_stage_weight(log_scores: FloatArray, passes: CalibrationPasses) -> float:
    """Weight of first-stage scores that makes left-out targets most likely, in nats per unit of score.

    Args:
        log_scores: (P, N) left-out log scores.
        passes: Their passes; without first-stage scores the weight is 0.
    """
    scores = passes.first_stage
    if scores is None:
        return 0.0
    spread = float(scores.std(axis=1).mean())
    if spread == 0.0:
        return 0.0
    rows = np.arange(len(passes.targets))

    def of_target(weight: float) -> FloatArray:
        result: FloatArray = log_softmax(log_scores + weight / spread * scores)[rows, passes.targets]
        return result

    best = max(FIRST_STAGE_WEIGHTS, key=lambda w: (round(float(of_target(w).mean()), 6), -w))
    gains = sample_means(of_target(best) - of_target(0.0), passes.samples)
    # An informative first stage helps every sample alike; anything less is left out, since it costs when it misleads.
    if gains.mean() <= standard_error(gains):
        return 0.0
    return best / spread
