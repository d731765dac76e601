"""From what a user has to sets and the calibration samples that go with them, which have nothing in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lad_rerank.calibration.samples import CalibrationSample, samples_from_titles
from lad_rerank.errors import EvaluationSetError
from lad_rerank.evaluation.builders import (
    Difficulty,
    Vectors,
    check_request,
    end_to_end_set,
    index_vectors,
    set_from_titles,
)
from lad_rerank.evaluation.disjoint import split_set
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.sets import EvaluationSet, with_unanswerable
from lad_rerank.evaluation.shop_sets import shop_samples, shop_set
from lad_rerank.evaluation.titled import Split, TitledImage, distinct, split, titled_index

if TYPE_CHECKING:
    from clip_faiss import ClipFaissIndex


@dataclass(frozen=True)
class Wanted:
    """What sets are wanted.

    Attributes:
        candidates: Numbers of candidates, from 2 to 26 each.
        difficulties: ``"random"``, ``"adversarial"`` or both.
        instances: Queries of each set, at most.
        samples: Calibration samples to set apart; 0 for none.
        seed: Chooses everything.
    """

    candidates: Sequence[int] = (8,)
    difficulties: Sequence[Difficulty] = ("random", "adversarial")
    instances: int = 100
    samples: int = 5
    seed: int = 0

    def check(self) -> None:
        """Refuse numbers out of range before anything is opened.

        Raises:
            InvalidRequestError: Says which.
        """
        for n in self.candidates:
            for difficulty in self.difficulties:
                check_request(n, self.instances, difficulty)


@dataclass(frozen=True)
class Prepared:
    """Sets, and samples that show and ask nothing of them.

    Attributes:
        sets: What is evaluated.
        samples: What may be calibrated on; empty where none was wanted.
        opener: What opened the sets' candidates.
        taken_out: Items of a set of one's own that are not evaluated: the samples, and what shares something with one.
    """

    sets: tuple[EvaluationSet, ...]
    samples: tuple[CalibrationSample, ...]
    opener: CandidateOpener = field(compare=False)
    taken_out: int = 0

    def with_unanswerable(self, seed: int = 0) -> Prepared:
        """The same, and of every set one more of which half the items have no right answer."""
        more = (with_unanswerable(one, seed=seed) for one in self.sets)
        return replace(self, sets=(*self.sets, *more))


def prepare_titled(
    images: Sequence[TitledImage],
    wanted: Wanted,
    *,
    vectors: Callable[[Sequence[TitledImage]], Vectors] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Sets of titled images, for every number of candidates and difficulty.

    Args:
        images: Titled images; what cannot be opened, and pictures there twice, are left out.
        wanted: What sets.
        vectors: Makes vectors of the images that are evaluated; adversarial sets need it.
        progress: Called with (images opened, images in all).

    Raises:
        EvaluationSetError: Too few images.
        InvalidRequestError: A number out of range.
    """
    wanted.check()
    opener = CandidateOpener()
    parts = _parts(images, wanted, max(wanted.candidates), opener, progress)
    made = None if vectors is None else vectors(parts.evaluated)
    sets = tuple(
        set_from_titles(
            parts.evaluated,
            candidates=n,
            instances=wanted.instances,
            seed=wanted.seed,
            difficulty=difficulty,
            vectors=made,
        )
        for difficulty in wanted.difficulties
        for n in wanted.candidates
    )
    return Prepared(sets, _samples(parts, wanted, max(wanted.candidates)), opener)


def prepare_index(
    index: ClipFaissIndex,
    wanted: Wanted,
    *,
    end_to_end: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Sets of an index's titled images.

    Args:
        index: The first stage.
        wanted: What sets.
        end_to_end: k: in place of those sets, one of the k candidates that the first stage finds for each title.
            The pictures of calibration samples are not among those that it may find.
        progress: Called with (images opened, images in all).

    Raises:
        EvaluationSetError: Too few images with a title.
        InvalidRequestError: A number out of range.
    """
    images = titled_index(index)
    if len({one.key for one in images}) < 2:
        raise EvaluationSetError(
            f"{len(images)} of {len(index)} images of the index have a title: the metadata's 'title', or the words of "
            "the file name (numbers are none). Name the files, or give a set of your own."
        )
    if end_to_end is None:
        return prepare_titled(images, wanted, vectors=lambda some: index_vectors(index, some), progress=progress)
    check_request(end_to_end, wanted.instances, "random")
    opener = CandidateOpener()
    parts = _parts(images, wanted, end_to_end, opener, progress)
    made = end_to_end_set(
        index,
        parts.evaluated,
        candidates=end_to_end,
        instances=wanted.instances,
        seed=wanted.seed,
        without=parts.samples,
    )
    return Prepared((made,), _samples(parts, wanted, end_to_end), opener)


def prepare_set(
    evaluated: EvaluationSet,
    wanted: Wanted,
    *,
    samples: Sequence[CalibrationSample] | None = None,
    opener: CandidateOpener | None = None,
) -> Prepared:
    """A set of one's own.

    Args:
        evaluated: The set.
        wanted: Of which ``instances``, ``samples`` and ``seed`` are used.
        samples: Calibration samples of one's own; otherwise as many as are wanted are taken out of the set, and
            with them every item that shares a picture with one.
        opener: Opens candidates; a new one by default.

    Raises:
        EvaluationSetError: Too few items, or a candidate that cannot be opened.
    """
    opener = opener or CandidateOpener()
    chosen, left = list(samples or ()), evaluated
    if samples is None and wanted.samples:
        chosen, left = split_set(evaluated, samples=wanted.samples, seed=wanted.seed, opener=opener)
    drawn = left.drawn(wanted.instances, wanted.seed)
    return Prepared((drawn,), tuple(chosen), opener, len(evaluated) - len(left))


def prepare_shop(wanted: Wanted) -> Prepared:
    """Sets of the shop's held-out products, and samples of those that the bundled models were trained on.

    Raises:
        InvalidRequestError: A number out of range.
    """
    wanted.check()
    sets = tuple(
        shop_set(candidates=n, instances=wanted.instances, seed=wanted.seed, difficulty=difficulty)
        for difficulty in wanted.difficulties
        for n in wanted.candidates
    )
    samples = shop_samples(count=wanted.samples, candidates=max(wanted.candidates), seed=wanted.seed)
    return Prepared(sets, tuple(samples), CandidateOpener())


def _parts(
    images: Sequence[TitledImage],
    wanted: Wanted,
    candidates: int,
    opener: CandidateOpener,
    progress: Callable[[int, int], None] | None,
) -> Split:
    """Images apart for samples and for sets; the same for one seed, whether the samples are needed or not."""
    pool = distinct(images, opener, progress)
    if not wanted.samples:
        return Split((), tuple(pool))
    return split(pool, titles=max(candidates, wanted.samples), seed=wanted.seed)


def _samples(parts: Split, wanted: Wanted, candidates: int) -> tuple[CalibrationSample, ...]:
    if not wanted.samples:
        return ()
    pairs = [one.pair for one in parts.samples]
    return tuple(samples_from_titles(pairs, count=wanted.samples, candidates=candidates, seed=wanted.seed))
