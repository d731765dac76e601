"""A label ensemble: the same candidates asked for under two label styles, their scores added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.contents import kind_of
from lad_rerank.debias.scoring import listwise_probabilities
from lad_rerank.errors import RowUnavailableError
from lad_rerank.evaluation.cost import Meter
from lad_rerank.evaluation.orders import Instance, ObservedRuns, ShownObservation, best_first
from lad_rerank.evaluation.permutations import Order
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import scored
from lad_rerank.prompt import LabelStyle, clean_query

if TYPE_CHECKING:
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone
    from lad_rerank.calibration.record import Calibration

STYLES: tuple[LabelStyle, ...] = ("digits", "letters")
TOGETHER = 4
"""Lists that are shown under one style before the next: their keys and values must still be kept by then."""


def ensemble(
    name: str,
    backbone: HuggingFaceBackbone,
    instances: Sequence[Instance],
    shown: Sequence[Sequence[Order]],
    calibration: Calibration | None,
    *,
    method: str = "lad",
    store: CalibrationStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RowResult:
    """Show every instance under each label style, and add the log probabilities that a scorer makes of them.

    Over images the second style runs only what stands behind them, on the kept keys and values of the first.

    Args:
        name: What to call the row.
        backbone: The model.
        instances: Q instances.
        shown: T x Q orders.
        calibration: That of the backbone's own label style, where there is one; the other style's is looked for in
            the store, and must have been made of the same samples.
        method: The scorer.
        store: Where calibrations are looked for; the user's and those shipped by default.
        progress: Called with (queries shown, queries to show), both over all orders.

    Raises:
        RowUnavailableError: A style has no calibration for these numbers of candidates, or one of other samples.
        InvalidRequestError: More candidates than a style can name.
    """
    variants = [backbone.variant(labels=style) for style in STYLES]
    known = _calibrations(variants, instances, calibration, store or CalibrationStore())
    total, done = sum(map(len, shown)), 0
    seen: list[list[list[ShownObservation]]] = [[[] for _ in shown] for _ in variants]
    with Meter() as meter:
        for t, order in enumerate(shown):
            pairs = list(zip(instances, order, strict=True))
            for start in range(0, len(pairs), TOGETHER):
                some = pairs[start : start + TOGETHER]
                requests = [(clean_query(i.query), [i.contents[k] for k in own]) for i, own in some]
                for variant, runs in zip(variants, seen, strict=True):
                    observed = variant.observe_many(requests)
                    runs[t] += [ShownObservation(o, own) for o, (_, own) in zip(observed, some, strict=True)]
                done += len(some)
                if progress is not None:
                    progress(done, total)
    styles = [scored(ObservedRuns(runs), bias, method) for runs, bias in zip(seen, known, strict=True)]
    answers = [
        [
            _added([style.probabilities[t][q] for style in styles if style.probabilities], own)
            for q, own in enumerate(order)
        ]
        for t, order in enumerate(shown)
    ]
    return RowResult(
        name,
        [[ranking for ranking, _ in run] for run in answers],
        [[probabilities for _, probabilities in run] for run in answers],
        passes=float(np.mean([_passes(variants[0], instance) for instance in instances])),
        seconds=meter.seconds / total if total else None,
        peak_bytes=meter.peak_bytes,
    )


def _calibrations(
    variants: Sequence[HuggingFaceBackbone],
    instances: Sequence[Instance],
    given: Calibration | None,
    store: CalibrationStore,
) -> list[Calibration]:
    """The calibration of each variant, all of the same samples.

    Raises:
        RowUnavailableError: There is none, or it is of other samples.
    """
    kinds = {kind_of(instance.contents) for instance in instances}
    if len(kinds) > 1:
        raise RowUnavailableError("Lists of images, of texts and of both have calibrations of their own; evaluate one.")
    found = []
    for variant in variants:
        identity = variant.identity.for_kind(*kinds)
        own = given if given is not None and given.identity == identity else store.find(identity)
        if own is None:
            raise RowUnavailableError(
                f"There is no calibration of {variant.name} with labels={identity.labels!r}; make one with "
                f"lad-rerank calibrate --labels {identity.labels}."
            )
        found.append(own)
    for n in {instance.n for instance in instances}:
        if missing := [own for own in found if n not in own.counts]:
            raise RowUnavailableError(
                f"The calibration with labels={missing[0].identity.labels!r} does not cover {n} candidates."
            )
        # What was kept apart from the set for one style must have been kept apart for all.
        if (
            len({own.counts[n].sample_digest for own in [*found, *([given] if given and n in given.counts else [])]})
            > 1
        ):
            raise RowUnavailableError(
                f"The calibrations of the label styles for {n} candidates were made of different samples, of which it "
                "is not known that all are apart from the set; calibrate every style on the same ones."
            )
    return found


def _added(probabilities: Sequence[tuple[float, ...]], shown: Order) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranking and probabilities by the sum of log probabilities; empty where a style has no ranking."""
    if not all(probabilities):
        return (), ()
    logs = np.log(np.maximum(np.array(probabilities), np.finfo(np.float64).tiny)).sum(axis=0)
    return tuple(best_first(shown, logs[list(shown)])), tuple(listwise_probabilities(logs).tolist())


def _passes(backbone: HuggingFaceBackbone, instance: Instance) -> float:
    """Passes that the styles took: all but the first run only what stands behind the candidates, over images."""
    if not backbone.uses_prefix or kind_of(instance.contents) != "image":
        return float(len(STYLES))
    prompt = backbone.encode(clean_query(instance.query), instance.contents)
    return 1 + (len(STYLES) - 1) * (prompt.length - prompt.candidates_end) / prompt.length
