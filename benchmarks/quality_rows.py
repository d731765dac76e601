"""Rows of the quality benchmark that the harness does not have by name: fixed recipes, escalation, fusion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lad_rerank import Candidate, LADReranker
from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.making import (
    SampleObservations,
    calibration_passes,
    fitted_bias,
    observe_shifts,
    query_without_answer,
)
from lad_rerank.calibration.samples import CalibrationSample, OpenedSample, open_samples
from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.choosing import CalibrationPasses, fitted
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.reading import EvidenceSettings
from lad_rerank.debias.recipe import Recipe
from lad_rerank.evaluation.measuring import row_report
from lad_rerank.evaluation.orders import Instance, ObservedRuns, best_first
from lad_rerank.evaluation.reports import RowReport
from lad_rerank.evaluation.results import RowResult
from lad_rerank.passes import Passes
from lad_rerank.records import FloatArray, Observation

VARIANTS: dict[str, Recipe] = {
    "LAD, arithmetic mean (authors' code)": Recipe("lad", EvidenceSettings(mean="arithmetic")),
    "LAD, no prior": Recipe("lad", EvidenceSettings(prior="none")),
    "LAD, null-query prior": Recipe("lad", EvidenceSettings(prior="null")),
    "LAD, largest token in place of the sum": Recipe("lad", EvidenceSettings(pooling="max")),
    "LAD, 2 layers by calibration": Recipe("lad", EvidenceSettings(units="layers")),
    "LAD, 16 heads by calibration": Recipe("lad", EvidenceSettings(units="heads", count=16)),
    "LAD, weighted heads": Recipe("lad", EvidenceSettings(units="weighted", count=32)),
    "LAD, query row, by mass": Recipe("lad", EvidenceSettings(("query",))),
    "LAD, query row, 16 heads": Recipe("lad", EvidenceSettings(("query",), units="heads", count=16)),
    "LAD, both rows, 16 heads": Recipe("lad", EvidenceSettings(("last", "query"), units="heads", count=16)),
    "attention, query row, by mass": Recipe("attention", EvidenceSettings(("query",))),
    "attention, query row, 16 heads": Recipe("attention", EvidenceSettings(("query",), units="heads", count=16)),
    "the same, largest token / sqrt(length)": Recipe(
        "attention", EvidenceSettings(("query",), "max", 0.5, units="heads", count=16)
    ),
    "the same, mean over tokens": Recipe(
        "attention", EvidenceSettings(("query",), "sum", 1.0, units="heads", count=16)
    ),
}


class Calibrated:
    """Calibration passes kept, so that any number of samples and any recipe can be fitted on them."""

    def __init__(self, backbone: Backbone, samples: Sequence[CalibrationSample], *, null: bool = True) -> None:
        self.samples: list[OpenedSample] = open_samples(samples)
        self.seen: list[SampleObservations] = []
        for i, sample in enumerate(self.samples):
            other = query_without_answer(self.samples, i)
            self.seen.append(observe_shifts(backbone, sample, other, null_query=null))

    def without_null(self, count: int) -> list[SampleObservations]:
        return [
            SampleObservations(
                [replace(o, null=None) for o in s.shifts], [replace(o, null=None) for o in s.without_answer]
            )
            for s in self.seen[:count]
        ]

    def bias(self, count: int) -> PositionBias:
        return fitted_bias(self.samples[:count], self.without_null(count))

    def passes(self, count: int) -> CalibrationPasses:
        return calibration_passes(self.samples[:count], self.seen[:count])


def row_of(name: str, observed: ObservedRuns, scores: Sequence[Sequence[FloatArray]], passes: float = 1.0) -> RowResult:
    """A row from log scores by position."""
    ranked, probabilities = [], []
    for run, own in zip(observed.runs, scores, strict=True):
        by_candidate = []
        for seen, by_position in zip(run, own, strict=True):
            values = np.empty_like(by_position)
            values[list(seen.shown)] = log_softmax(by_position)
            by_candidate.append(values)
        ranked.append([tuple(best_first(s.shown, v[list(s.shown)])) for s, v in zip(run, by_candidate, strict=True)])
        probabilities.append([tuple(np.exp(v).tolist()) for v in by_candidate])
    return RowResult(name, ranked, probabilities, passes, observed.seconds_per_pass, observed.peak_bytes)


def recipe_row(name: str, recipe: Recipe, observed: ObservedRuns, calibrated: Calibrated, count: int) -> RowResult:
    """One fixed recipe, fitted on the calibration passes."""
    bias, fit = calibrated.bias(count), fitted(recipe, calibrated.passes(count))
    return row_of(name, observed, [[fit.log_scores(s.observation, bias) for s in run] for run in observed.runs])


def chosen_scores(bias: PositionBias, observation: Observation) -> FloatArray:
    """What ``auto`` makes of a pass."""
    assert bias.choice is not None
    return bias.choice.log_scores(observation, bias)


def through_reranker(
    name: str,
    reranker: LADReranker,
    instances: Sequence[Instance],
    shown: Sequence[Sequence[tuple[int, ...]]],
    *,
    passes: Passes = 1,
    mean_passes: float | None = None,
) -> RowResult:
    """A row made by the product itself, over the orders given."""
    ranked, probabilities, used, start = [], [], [], time.perf_counter()
    for orders in shown:
        run_ranked, run_probabilities = [], []
        for begin in range(0, len(instances), 32):
            some, own = instances[begin : begin + 32], orders[begin : begin + 32]
            lists = [
                [Candidate(image=i.contents[k].image, text=i.contents[k].text, id=str(k)) for k in order]
                for i, order in zip(some, own, strict=True)
            ]
            rankings = reranker.rerank_many([i.query for i in some], lists, passes=passes, mean_passes=mean_passes)
            for instance, ranking in zip(some, rankings, strict=True):
                values = [0.0] * instance.n
                for hit in ranking:
                    values[int(hit.id)] = hit.score
                run_ranked.append(tuple(int(hit.id) for hit in ranking))
                run_probabilities.append(tuple(values))
                used.append(ranking.passes)
        ranked.append(run_ranked)
        probabilities.append(run_probabilities)
    seconds = (time.perf_counter() - start) / len(used)
    return RowResult(name, ranked, probabilities, float(np.mean(used)), seconds)


def measured(row: RowResult, instances: Sequence[Instance], shown: object = None) -> RowReport:
    return row_report(row, instances, shown)  # type: ignore[arg-type]  # orders as the harness gives them
