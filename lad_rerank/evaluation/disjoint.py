"""Calibration samples and evaluated sets have nothing in common: made so, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from lad_rerank.calibration.samples import CalibrationSample, OpenedSample, open_samples
from lad_rerank.errors import EvaluationSetError, OverlapError
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.prompt import clean_query

if TYPE_CHECKING:
    from lad_rerank.images import ImageLimits


def sample_of(item: EvaluationItem) -> CalibrationSample:
    """An item with a target as a calibration sample.

    Raises:
        EvaluationSetError: It has no target.
    """
    if item.target is None:
        raise EvaluationSetError(f"Item {item.id} has no right answer, so nothing can be calibrated on it.")
    return CalibrationSample(item.query, item.candidates, item.target)


def split_set(
    evaluated: EvaluationSet, *, samples: int = 5, seed: int = 0, opener: CandidateOpener | None = None
) -> tuple[list[CalibrationSample], EvaluationSet]:
    """Take calibration samples out of a set, and every item that shows one of their candidates or asks their query.

    Samples are drawn among the items with a target and the most candidates, so that they cover all N of the set.

    Args:
        evaluated: The set.
        samples: How many.
        seed: Chooses them.
        opener: Opens candidates; a new one by default.

    Returns:
        The samples, and a set of the same name with what is left.

    Raises:
        EvaluationSetError: Too few items have a target, or none is left.
    """
    opener = opener or CandidateOpener()
    usable = [item for item in evaluated.items if item.target is not None]
    usable = Random(f"split set {seed}").sample(usable, len(usable))
    usable = [item for item in sorted(usable, key=lambda item: -len(item.candidates)) if _is_varied(item, opener)]
    if len(usable) < samples:
        raise EvaluationSetError(
            f"{evaluated.name} has {len(usable)} items to calibrate on, and {samples} are needed; ask for "
            "fewer samples."
        )
    chosen = usable[:samples]
    banned = {digest for item in chosen for digest in _shown(item, opener)}
    asked = {clean_query(item.query).casefold() for item in chosen}
    left = [
        item
        for item in evaluated.items
        if banned.isdisjoint(_shown(item, opener)) and clean_query(item.query).casefold() not in asked
    ]
    if not left:
        raise EvaluationSetError(
            f"Every item of {evaluated.name} shares a picture with the {samples} calibration samples taken out of it. "
            "Give samples of their own, or a calibration; or take none out."
        )
    return [sample_of(item) for item in chosen], EvaluationSet(evaluated.name, tuple(left))


def check_disjoint(
    samples: Sequence[CalibrationSample | Mapping[str, Any]] | Sequence[OpenedSample],
    evaluated: EvaluationSet,
    *,
    opener: CandidateOpener | None = None,
    allow_urls: bool = False,
    limits: ImageLimits | None = None,
) -> None:
    """Make sure that nothing a model is calibrated on is evaluated.

    Args:
        samples: Calibration samples, opened or not.
        evaluated: The set.
        opener: Opens the set's candidates; a new one by default.
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most.

    Raises:
        OverlapError: A picture or text of a sample is among the set's candidates, or its query is asked there; names
            sample and item.
        CalibrationSampleError: A sample is unusable.
        EvaluationSetError: A candidate of the set cannot be opened.
    """
    opener = opener or CandidateOpener(allow_urls=allow_urls, limits=limits)
    opened = [one for one in samples if isinstance(one, OpenedSample)]
    if len(opened) < len(samples):
        opened = open_samples(samples, allow_urls=allow_urls, limits=limits)  # type: ignore[arg-type]
    sample_of_digest = {digest: number for number, one in enumerate(opened) for digest in one.digests}
    sample_of_query = {one.query.casefold(): number for number, one in enumerate(opened)}
    for item in evaluated.items:
        number = sample_of_query.get(clean_query(item.query).casefold())
        if number is not None:
            raise OverlapError(
                f"Calibration sample {number} asks the query {item.query!r} of item {item.id} of {evaluated.name}. "
                "What is evaluated must not be calibrated on; take other samples."
            )
        for i, digest in enumerate(_shown(item, opener)):
            if digest in sample_of_digest:
                raise OverlapError(
                    f"Calibration sample {sample_of_digest[digest]} shows candidate {i} of item {item.id} of "
                    f"{evaluated.name}. What is evaluated must not be calibrated on; take other samples."
                )


def _shown(item: EvaluationItem, opener: CandidateOpener) -> list[str]:
    return [opener.digest(candidate) for candidate in item.candidates]


def _is_varied(item: EvaluationItem, opener: CandidateOpener) -> bool:
    """Whether all candidates differ, as calibration wants it."""
    shown = _shown(item, opener)
    return len(set(shown)) == len(shown)
