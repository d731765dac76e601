"""What is evaluated: queries, their candidates and which of them is right; in memory and as JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from lad_rerank.errors import EvaluationSetError, InvalidRequestError
from lad_rerank.evaluation.opening import CandidateOpener, LazyContents
from lad_rerank.evaluation.orders import Instance
from lad_rerank.prompt import clean_query, clean_text
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable

    from lad_rerank.contents import CandidateKind
    from lad_rerank.images import ImageLimits


@dataclass(frozen=True)
class EvaluationItem:
    """One query, its candidates, and the right one.

    Attributes:
        id: Unique within its set.
        query: What is asked.
        candidates: At least two, in the first stage's order where there was one.
        target: Index of the right candidate; ``None`` where none of them is right.
        retrieved: Whether the right one is among the candidates, or there is none at all; ``False`` is a miss of
            the first stage, which no reranker can mend.

    Raises:
        EvaluationSetError: A value that makes no sense; the message names the field.
    """

    id: str
    query: str
    candidates: tuple[Candidate, ...]
    target: int | None
    retrieved: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise EvaluationSetError(f"field 'id' must be a text that is not blank, got {self.id!r}.")
        try:
            clean_query(self.query)
        except InvalidRequestError as error:
            raise EvaluationSetError(f"field 'query': {error}") from error
        if len(self.candidates) < 2:
            raise EvaluationSetError(f"field 'candidates' must list at least two, got {len(self.candidates)}.")
        for i, candidate in enumerate(self.candidates):
            if candidate.image is None and not clean_text(candidate.text or ""):
                raise EvaluationSetError(f"field 'candidates': number {i} has neither an image nor a text.")
        if self.target is not None and not 0 <= self.target < len(self.candidates):
            raise EvaluationSetError(
                f"field 'target': {self.target} is no index into {len(self.candidates)} candidates; they count from 0."
            )
        if not self.retrieved and self.target is not None:
            raise EvaluationSetError("field 'retrieved' is false, so 'target' must be null.")

    @property
    def kind(self) -> CandidateKind:
        """What the candidates are."""
        if not any(clean_text(candidate.text or "") for candidate in self.candidates):
            return "image"
        return "text" if all(candidate.image is None for candidate in self.candidates) else "mixed"


@dataclass(frozen=True)
class EvaluationSet:
    """Named items.

    Attributes:
        name: What reports call the set. Sets that differ in their number of candidates alone share it.
        items: At least one; ids are unique.

    Raises:
        EvaluationSetError: No items, or an id there twice.
    """

    name: str
    items: tuple[EvaluationItem, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise EvaluationSetError(f"The evaluation set {self.name} is empty.")
        seen: set[str] = set()
        for item in self.items:
            if item.id in seen:
                raise EvaluationSetError(f"The evaluation set {self.name} has the id {item.id!r} twice.")
            seen.add(item.id)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of candidates that occur, ascending."""
        return tuple(sorted({len(item.candidates) for item in self.items}))

    @property
    def kind(self) -> CandidateKind:
        """What its lists consist of, on which prompt and calibration depend.

        Raises:
            EvaluationSetError: Some lists consist of something else than others.
        """
        kinds = {item.kind for item in self.items}
        if len(kinds) > 1:
            raise EvaluationSetError(
                f"The evaluation set {self.name} holds lists of images, of texts or of both side by side; each kind "
                "has a prompt and a calibration of its own, so put them into sets of their own."
            )
        return kinds.pop()

    def drawn(self, instances: int, seed: int = 0) -> EvaluationSet:
        """This set, or as many of its items drawn at random, in their order.

        Args:
            instances: How many at most.
            seed: Chooses them.
        """
        if len(self.items) <= instances:
            return self
        chosen = sorted(Random(f"drawn {seed}").sample(range(len(self.items)), instances))
        return replace(self, items=tuple(self.items[i] for i in chosen))

    def digest(self, opener: CandidateOpener | None = None) -> str:
        """16 hexadecimal digits over queries, what the candidates show, and targets.

        Opens every picture that the opener does not know yet. Names, paths and scores do not count.

        Args:
            opener: Opens candidates; a new one by default.

        Raises:
            EvaluationSetError: A candidate cannot be opened.
        """
        opener = opener or CandidateOpener()
        digest = hashlib.sha256()
        for item in self.items:
            contents = [_digest(self, item, i, opener) for i in range(len(item.candidates))]
            line = [clean_query(item.query), contents, item.target, item.retrieved]
            digest.update(json.dumps(line).encode())
        return digest.hexdigest()[:16]


def without_targets(evaluated: EvaluationSet) -> EvaluationSet:
    """The slice without a right answer: every item with a target, and the target taken out of its candidates.

    Items of two candidates are left out, since one candidate alone is no choice.

    Raises:
        EvaluationSetError: Nothing is left.
    """
    items = []
    for item in evaluated.items:
        if item.target is not None and len(item.candidates) > 2:
            others = tuple(c for i, c in enumerate(item.candidates) if i != item.target)
            items.append(replace(item, candidates=others, target=None))
    if not items:
        raise EvaluationSetError(
            f"No item of {evaluated.name} has a target and three candidates, so none can do without its target."
        )
    return EvaluationSet(f"{evaluated.name}, none right", tuple(items))


def with_unanswerable(evaluated: EvaluationSet, *, seed: int = 0) -> EvaluationSet:
    """Every item with a target less one candidate: in half of them the target, in the others a wrong one.

    All are equally long, so that nothing but the right answer tells the halves apart.

    Args:
        evaluated: The set.
        seed: Chooses the half, and what is left out of the other.

    Raises:
        EvaluationSetError: Fewer than two items have a target and three candidates.
    """
    usable = [item for item in evaluated.items if item.target is not None and len(item.candidates) > 2]
    if len(usable) < 2:
        raise EvaluationSetError(
            f"{evaluated.name} has {len(usable)} items with a target and three candidates; two are needed to leave the "
            "right answer out of one of them."
        )
    rng = Random(f"unanswerable {seed}")
    without = set(rng.sample(range(len(usable)), len(usable) // 2))
    items = []
    for i, item in enumerate(usable):
        assert item.target is not None
        wrong = rng.choice([c for c in range(len(item.candidates)) if c != item.target])
        out = item.target if i in without else wrong
        items.append(
            replace(
                item,
                candidates=item.candidates[:out] + item.candidates[out + 1 :],
                target=None if i in without else item.target - (wrong < item.target),
            )
        )
    return EvaluationSet(f"{evaluated.name}, half without answer", tuple(items))


def open_set(
    evaluated: EvaluationSet,
    *,
    allow_urls: bool = False,
    limits: ImageLimits | None = None,
    opener: CandidateOpener | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Instance]:
    """Check every candidate once, and make instances that open their pictures when they are shown.

    Pictures are kept within the opener's bounds only: a set of many photos does not fill the memory.
    A candidate that shows exactly what the target shows is right too.

    Args:
        evaluated: The set.
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most.
        opener: Opens candidates, in place of a new one with these two settings.
        progress: Called with (items checked, items in all).

    Raises:
        EvaluationSetError: A candidate cannot be opened; says which, of which item, and why.
    """
    opener = opener or CandidateOpener(allow_urls=allow_urls, limits=limits)
    instances = []
    for done, item in enumerate(evaluated.items, start=1):
        digests = [_digest(evaluated, item, i, opener) for i in range(len(item.candidates))]
        right = None if item.target is None else digests[item.target]
        relevant = frozenset(i for i, digest in enumerate(digests) if digest == right)
        instances.append(
            Instance(
                query=clean_query(item.query),
                contents=LazyContents(item.candidates, opener),
                relevant=relevant,
                id=item.id,
                retrieved=item.retrieved,
            )
        )
        if progress is not None:
            progress(done, len(evaluated.items))
    return instances


def named(evaluated: Iterable[EvaluationSet]) -> Sequence[EvaluationSet]:
    """Sets as a list, refused where two have one name and as many candidates: reports could not tell them apart.

    Raises:
        EvaluationSetError: A name there twice, or no set.
    """
    sets = list(evaluated)
    names = [f"{one.name} ({one.counts[-1]} candidates)" for one in sets]
    if not sets or len(set(names)) < len(names):
        raise EvaluationSetError(f"Evaluation sets must have names of their own; got {', '.join(names) or 'no set'}.")
    return sets


def _digest(evaluated: EvaluationSet, item: EvaluationItem, i: int, opener: CandidateOpener) -> str:
    from lad_rerank.errors import ImageError

    candidate = item.candidates[i]
    try:
        return opener.digest(candidate)
    except (ImageError, InvalidRequestError) as error:
        name = f" ({candidate.id})" if candidate.id is not None else ""
        raise EvaluationSetError(
            f"Evaluation set {evaluated.name}, item {item.id}, candidate {i}{name}: {error}"
        ) from error
