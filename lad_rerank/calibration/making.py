"""How a calibration is made: every sample in every cyclic order, S x N passes for each N (Section 4.2).

Beyond the paper, two passes of each sample also ask for another sample's query, to which none of the candidates is
an answer: the images have run already, so each costs its own few tokens.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.record import Calibration, CountCalibration, Provenance
from lad_rerank.calibration.samples import CalibrationSample, OpenedSample, open_samples, samples_digest
from lad_rerank.debias.bias import PositionBias, position_bias
from lad_rerank.debias.choosing import CalibrationPasses, choose, fitted
from lad_rerank.debias.presence import fit_presence
from lad_rerank.debias.recipe import PAPER
from lad_rerank.debias.scoring import head_mean
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits
from lad_rerank.prompt import NULL_QUERY
from lad_rerank.records import Observation

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (passes done, passes in all)."""

FEW_SAMPLES = 3
NEAR_CHANCE = 1.5
"""Times chance: below that a model is said not to rank at all."""


def make_calibration(
    backbone: Backbone,
    samples: Sequence[CalibrationSample | Mapping[str, Any]],
    *,
    candidate_counts: Sequence[int] | None = None,
    null_query: bool = False,
    allow_urls: bool = False,
    limits: ImageLimits | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate a backbone.

    Args:
        backbone: The model.
        samples: Samples with known targets, disjoint from whatever is evaluated later; five are enough.
        candidate_counts: Numbers of candidates to cover; by default from 2 to the largest sample. A
            sample serves every N up to its own number of candidates: the surplus distractors are left out.
        null_query: Also ask a query that says nothing in every pass, so that evidence against it is among what
            calibration chooses from. Rankings ask it too where it is chosen. (It did not help where we measured.)
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most; the defaults of :class:`lad_rerank.images.ImageLimits` otherwise.
        progress: Called after every sample.

    Returns:
        The calibration; S x N passes were made for each N, and 2 x S short ones for queries without an answer.

    Raises:
        CalibrationSampleError: A sample is unusable, samples are of different kinds, none is large enough for
            some N, or ``candidate_counts`` is no list of whole numbers above one.
    """
    asked = None if candidate_counts is None else _checked_counts(candidate_counts)
    opened = open_samples(samples, allow_urls=allow_urls, limits=limits)
    kind = opened[0].kind
    if any(sample.kind != kind for sample in opened):
        raise CalibrationSampleError(
            "The calibration samples are of different kinds: some show images, some texts or both. Each kind has a "
            "prompt and a bias of its own; calibrate once for each."
        )
    largest = max(len(sample.contents) for sample in opened)
    counts = asked if asked is not None else list(range(2, largest + 1))
    chosen = {n: [s.reduced(n) for s in opened if len(s.contents) >= n] for n in counts}
    for n, usable in chosen.items():
        if not usable:
            raise CalibrationSampleError(f"No calibration sample has {n} candidates; the largest has {largest}.")
        if len(usable) < FEW_SAMPLES:
            logger.warning("Only %d calibration samples for %d candidates; five are steadier.", len(usable), n)
    total = sum(n * len(usable) for n, usable in chosen.items())
    done = 0
    records = {}
    for n, usable in chosen.items():
        seen: list[SampleObservations] = []
        for i, sample in enumerate(usable):
            seen.append(observe_shifts(backbone, sample, query_without_answer(usable, i), null_query=null_query))
            done += n
            if progress is not None:
                progress(done, total)
        bias = fitted_bias(usable, seen)
        if bias.choice is not None and bias.choice.expected_accuracy < NEAR_CHANCE / n:
            logger.warning(
                "%s: of left-out calibration samples of %d candidates only %.0f %% were right, and chance is %.0f %%. "
                "This model does not rank them; check the samples, or take another model.",
                *(backbone.name, n, 100 * bias.choice.expected_accuracy, 100 / n),
            )
        records[n] = CountCalibration.of(bias, len(usable), samples_digest(usable))
    return Calibration(identity=backbone.identity.for_kind(kind), provenance=_provenance(backbone), counts=records)


@dataclass(frozen=True)
class SampleObservations:
    """What the passes over one sample yielded.

    Attributes:
        shifts: One pass for each cyclic shift.
        without_answer: Passes with a query that no candidate answers.
    """

    shifts: list[Observation]
    without_answer: list[Observation]


def query_without_answer(samples: Sequence[OpenedSample], i: int) -> str | None:
    """The query of the next sample whose target sample i does not show; ``None`` where there is none.

    Args:
        samples: All samples of a calibration.
        i: Which of them shall have no answer.
    """
    shown = set(samples[i].digests)
    for other in (*samples[i + 1 :], *samples[:i]):
        if other.query != samples[i].query and other.digests[other.target] not in shown:
            return other.query
    return None


def observe_shifts(
    backbone: Backbone, sample: OpenedSample, other_query: str | None = None, *, null_query: bool = False
) -> SampleObservations:
    """Show a sample in all cyclic shifts: in shift r, position i holds candidate (i + r) mod N.

    Args:
        backbone: The model.
        sample: Its target stands at (target - r) mod N in shift r.
        other_query: A query that none of the candidates answers; asked in the first and in the opposite shift.
        null_query: Also ask the query that says nothing, in every pass.
    """
    n = len(sample.contents)
    shifts = [[sample.contents[(i + r) % n] for i in range(n)] for r in range(n)]
    requests = [(sample.query, contents) for contents in shifts]
    if other_query is not None:
        requests += [(other_query, shifts[r]) for r in (0, n // 2)]
    nulls = [(NULL_QUERY, contents) for contents in shifts] if null_query else []
    seen = backbone.observe_many([*requests, *nulls])
    if null_query:
        empty = seen[len(requests) :]
        shown = [*range(n), 0, n // 2][: len(requests)]
        seen = [replace(o, null=empty[r]) for o, r in zip(seen, shown, strict=False)]
    return SampleObservations(seen[:n], seen[n:])


def calibration_passes(samples: Sequence[OpenedSample], seen: Sequence[SampleObservations]) -> CalibrationPasses:
    """The passes of all samples, in a row."""
    n = len(samples[0].contents)
    shown = np.array([[(i + r) % n for i in range(n)] for r in range(n)])
    first_stage = None
    if all(s.first_stage_scores is not None for s in samples):
        first_stage = np.concatenate([np.array(s.first_stage_scores)[shown] for s in samples])
    return CalibrationPasses(
        observations=[o for s in seen for o in s.shifts],
        samples=np.repeat(np.arange(len(samples)), n),
        targets=np.concatenate([(s.target - np.arange(n)) % n for s in samples]),
        shown=np.tile(shown, (len(samples), 1)),
        first_stage=first_stage,
    )


def fitted_bias(samples: Sequence[OpenedSample], seen: Sequence[SampleObservations]) -> PositionBias:
    """All that is learned for one number of candidates: the paper's bias, the choice of ``auto``, presence.

    Args:
        samples: Samples of N candidates each.
        seen: What was observed of each.
    """
    passes = calibration_passes(samples, seen)
    log_probs = passes.log_probs
    attention = np.stack([head_mean(o) for o in passes.observations])
    layers = passes.observations[0].layers

    def bias_of(kept: NDArray[np.bool_]) -> PositionBias:
        return position_bias(log_probs[kept], attention[kept], passes.targets[kept], layers)

    bias = bias_of(np.ones(len(log_probs), dtype=bool))
    choice = choose(passes, bias_of)
    absent = [o for s in seen for o in s.without_answer]
    reading = [m.evidence for m in choice.members if m.evidence is not None] if choice is not None else []
    if any(o.null is None for o in absent):
        reading = [e for e in reading if e.settings.prior != "null"]
    evidence = reading[0] if reading else fitted(PAPER, passes).evidence
    assert evidence is not None
    return replace(bias, choice=choice, presence=fit_presence(evidence, passes.observations, absent))


def _checked_counts(counts: Sequence[int]) -> list[int]:
    """Numbers of candidates as plain ints, ascending, each once.

    Raises:
        CalibrationSampleError: Nothing to go through, nothing in it, or something in it is no number of candidates.
    """
    if isinstance(counts, (str, bytes)) or not isinstance(counts, Iterable):
        raise CalibrationSampleError(f"candidate_counts must be a list of whole numbers, got {counts!r}.")
    checked = set()
    for count in counts:
        try:
            n = operator.index(count)
        except TypeError:
            n = None
        if n is None or isinstance(count, bool):
            raise CalibrationSampleError(f"candidate_counts must hold whole numbers such as 8, got {count!r}.")
        if n < 2:
            raise CalibrationSampleError(f"Calibration is for two candidates and more, not for {n}.")
        checked.add(n)
    if not checked:
        raise CalibrationSampleError("candidate_counts is empty; leave it out to cover all that the samples allow.")
    return sorted(checked)


def _provenance(backbone: Backbone) -> Provenance:
    packages = ("lad-rerank", "transformers", "torch")
    return Provenance(
        model=backbone.name,
        revision=backbone.revision,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions={package: metadata.version(package) for package in packages},
    )
