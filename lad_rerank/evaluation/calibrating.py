"""The calibration an evaluation is scored with, and whether it is known to share nothing with what is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lad_rerank.calibration.making import make_calibration
from lad_rerank.calibration.samples import CalibrationSample, OpenedSample, open_samples, samples_digest
from lad_rerank.errors import InvalidRequestError
from lad_rerank.evaluation.disjoint import check_disjoint

if TYPE_CHECKING:
    from lad_rerank.backbones.base import BackboneIdentity
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.evaluation.opening import CandidateOpener
    from lad_rerank.evaluation.sets import EvaluationSet
    from lad_rerank.reranker import LADReranker


@dataclass(frozen=True)
class UsedCalibration:
    """What sets of one kind of candidates are scored with.

    Attributes:
        calibration: ``None`` where there is none, and rows that need one are left out.
        told: What was done, in a sentence.
    """

    calibration: Calibration | None
    told: str

    @property
    def reads_null(self) -> bool:
        """Whether what it chose for ``method="auto"`` reads the pass of a query that says nothing."""
        if self.calibration is None:
            return False
        chosen = [self.calibration.position_bias(n).choice for n in self.calibration.counts]
        return any(choice is not None and choice.needs_null for choice in chosen)


def calibration_for(
    reranker: LADReranker,
    sets: Sequence[EvaluationSet],
    samples: Sequence[CalibrationSample] = (),
    *,
    recalibrate: bool = False,
    opener: CandidateOpener | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> UsedCalibration:
    """Take the model's calibration, or make what is missing of it; nothing is kept on disk.

    Args:
        reranker: The model, with the calibration it was given or finds in its store.
        sets: What is evaluated, all of one kind of candidates.
        samples: Samples to calibrate on where a number of candidates is not covered; those of another kind of
            candidates are passed over.
        recalibrate: Calibrate in any case.
        opener: Opens the sets' candidates.
        progress: Called with (passes done, passes in all).

    Raises:
        OverlapError: A sample shares a picture or a query with a set.
        CalibrationSampleError: The samples cannot be used.
        InvalidRequestError: ``recalibrate`` without samples.
    """
    (kind,) = {one.kind for one in sets}
    opened = open_samples(samples, allow_urls=reranker.allow_urls, limits=reranker.limits) if samples else []
    pairs = [(sample, one) for sample, one in zip(samples, opened, strict=True) if one.kind == kind]
    usable = [one for _, one in pairs]
    if recalibrate and not pairs:
        raise InvalidRequestError("There are no samples to recalibrate on; ask for some, or give a file of them.")
    for one in sets if pairs else ():
        check_disjoint(usable, one, opener=opener)
    counts = sorted({n for one in sets for n in one.counts})
    known = _known(reranker, reranker.backbone.identity.for_kind(kind))
    covered = [] if known is None or recalibrate else [n for n in counts if n in known.counts]
    largest = max((len(sample.contents) for sample in usable), default=0)
    missing = [n for n in counts if n not in covered and n <= largest]
    if not missing:
        return UsedCalibration(known, _told_of_known(known, covered, counts, usable))
    made = make_calibration(
        reranker.backbone,
        [sample for sample, _ in pairs],
        candidate_counts=missing,
        allow_urls=reranker.allow_urls,
        limits=reranker.limits,
        progress=progress,
    )
    told = (
        f"Calibrated for {_list(missing)} candidates on {len(pairs)} samples set apart, which share no picture and no "
        "query with what is evaluated; the calibration is not kept."
    )
    if covered:
        told += " " + _told_of_known(known, covered, covered, usable)
    return UsedCalibration(made if known is None else known.merged(made), told)


def is_covered(reranker: LADReranker, sets: Sequence[EvaluationSet]) -> bool:
    """Whether the reranker has a calibration for everything in some sets already."""
    for one in sets:
        known = _known(reranker, reranker.backbone.identity.for_kind(one.kind))
        if known is None or not set(one.counts) <= set(known.counts):
            return False
    return True


def _known(reranker: LADReranker, identity: BackboneIdentity) -> Calibration | None:
    """The calibration the reranker was given or found, or else the store's, for this kind of candidates."""
    given = reranker.calibration
    return given if given is not None and given.identity == identity else reranker.store.find(identity)


def _told_of_known(
    known: Calibration | None, covered: Sequence[int], counts: Sequence[int], opened: Sequence[OpenedSample]
) -> str:
    if known is None or not covered:
        return "There is no calibration, so rows that need one are left out."
    same = [n for n in covered if known.counts[n].sample_digest == _digest(opened, n)]
    told = f"The stored calibration of {known.provenance.model} was used for {_list(covered)} candidates; "
    if len(same) == len(covered):
        told += "it was made of the samples set apart here, which share no picture and no query with what is evaluated."
    else:
        told += "what it was made of is not known here, so it may have seen what is evaluated (recalibrate to be sure)."
    if len(covered) < len(counts):
        told += f" It does not cover {_list([n for n in counts if n not in covered])}."
    return told


def _digest(opened: Sequence[OpenedSample], n: int) -> str | None:
    """Digest that a calibration made of these samples would have for n candidates."""
    usable = [sample.reduced(n) for sample in opened if len(sample.contents) >= n]
    return samples_digest(usable) if usable else None


def _list(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
