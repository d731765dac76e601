"""Evaluation sets of titled images: the title is the query, its image is right, others distract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from lad_rerank.errors import EvaluationSetError, InvalidRequestError
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.evaluation.titled import TitledImage, titled
from lad_rerank.records import Candidate, FloatArray

if TYPE_CHECKING:
    from clip_faiss import ClipEncoder, ClipFaissIndex
    from lad_rerank.records import ImageSource

Difficulty: TypeAlias = Literal["random", "adversarial"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)

MOST_CANDIDATES = 26
SIMILAR_TITLES = 0.9
"""Titles whose texts are this similar may both be right: neither distracts from the other."""


@dataclass(frozen=True)
class Vectors:
    """What an encoder makes of P titled images; rows of length 1, float64.

    Attributes:
        images: (P, D) of the pictures.
        titles: (P, D) of the titles.
    """

    images: FloatArray
    titles: FloatArray


def index_vectors(index: ClipFaissIndex, images: Sequence[TitledImage]) -> Vectors:
    """Vectors of an index's titled images, of which only the titles must still be encoded.

    Args:
        index: The index.
        images: What :func:`lad_rerank.evaluation.titled.titled_index` returned for it, or some of that.
    """
    rows = [one.row for one in images]
    if None in rows:
        raise InvalidRequestError("index_vectors takes titled images of that index; use encode_titled for others.")
    return Vectors(index.vectors[np.array(rows, dtype=np.int64)].astype(np.float64), _titles(index.encoder, images))


def encode_titled(encoder: ClipEncoder, images: Sequence[TitledImage], progress: object = False) -> Vectors:
    """Vectors of titled images.

    Args:
        encoder: A first stage's encoder.
        images: P titled images.
        progress: See :data:`clip_faiss.progress.Progress`.

    Raises:
        ImageError: A picture cannot be opened.
    """
    pictures = encoder.encode_images([one.image for one in images], progress=progress)  # type: ignore[arg-type]
    return Vectors(pictures.astype(np.float64), _titles(encoder, images))


def _titles(encoder: ClipEncoder, images: Sequence[TitledImage]) -> FloatArray:
    distinct = list(dict.fromkeys(one.title for one in images))
    place = {title: i for i, title in enumerate(distinct)}
    rows: FloatArray = encoder.encode_texts(distinct)[[place[one.title] for one in images]].astype(np.float64)
    return rows


def set_from_titles(
    images: Sequence[TitledImage | tuple[str, ImageSource]],
    *,
    candidates: int = 8,
    instances: int = 100,
    seed: int = 0,
    difficulty: Difficulty = "random",
    vectors: Vectors | None = None,
    name: str | None = None,
) -> EvaluationSet:
    """Make a set of titled images.

    Every title is asked before one is asked again, of another picture. No distractor has the query's title.
    With vectors, candidates stand in the first stage's order and carry its score; without, in a random order.

    Args:
        images: P titled images, each picture once.
        candidates: N, from 2 to 26.
        instances: How many queries at most; as many as there are pictures where those are fewer.
        seed: Chooses queries and distractors.
        difficulty: ``"random"``: the others are any images. ``"adversarial"``: those whose pictures are the most
            similar to the right one, and whose titles are less than 0.9 similar to the query.
        vectors: What an encoder makes of the images, in their order; adversarial sets need them.
        name: What reports call the set, beside its N; the difficulty by default.

    Raises:
        EvaluationSetError: Too few images, or no query with enough distractors.
        InvalidRequestError: A number of candidates or instances out of range, an unknown difficulty, no vectors.
    """
    check_request(candidates, instances, difficulty)
    pool = titled(images)
    if vectors is None and difficulty == "adversarial":
        raise InvalidRequestError("Adversarial sets need the vectors of an encoder; see encode_titled.")
    if vectors is not None and len(vectors.images) != len(pool):
        raise InvalidRequestError(f"There are {len(pool)} titled images and vectors of {len(vectors.images)}.")
    rng = Random(f"set {seed} {candidates} {difficulty}")
    items: list[EvaluationItem] = []
    for target in _targets(pool, rng):
        if len(items) == instances:
            break
        others = [i for i in range(len(pool)) if pool[i].key != pool[target].key]
        if vectors is not None and difficulty == "adversarial":
            others = _hardest(target, others, vectors, candidates - 1)
        elif len(others) >= candidates - 1:
            others = rng.sample(others, candidates - 1)
        if len(others) < candidates - 1:
            continue
        items.append(_item(len(items), pool, target, others, vectors, rng))
    if not items:
        raise EvaluationSetError(
            f"No title has {candidates - 1} images with other titles to distract from it"
            f"{' (less than 0.9 similar to it)' if difficulty == 'adversarial' else ''}: there are {len(pool)} titled "
            f"images of {len({one.key for one in pool})} titles. Give more images, or lower the number of candidates."
        )
    return EvaluationSet(name or difficulty, tuple(items))


def end_to_end_set(
    index: ClipFaissIndex,
    images: Sequence[TitledImage],
    *,
    candidates: int = 8,
    instances: int = 100,
    seed: int = 0,
    without: Sequence[TitledImage] = (),
    name: str | None = None,
) -> EvaluationSet:
    """Make a set of what the first stage finds for titles; it may miss the right image.

    One picture of each title is right and may be found; others of the same title are passed over, since nobody
    knows which of them a person would want.

    Args:
        index: The first stage.
        images: Titled images of it whose titles are asked.
        candidates: k, how many are retrieved, at least 2.
        instances: How many queries at most.
        seed: Chooses queries.
        without: Titled images that must not be retrieved, those of calibration samples above all.
        name: What reports call the set.

    Raises:
        EvaluationSetError: Fewer than two pictures are left to find for every title.
        InvalidRequestError: A number out of range, or images that are not of this index.
    """
    check_request(candidates, instances, "random")
    rng = Random(f"end to end {seed}")
    if any(one.row is None for one in (*images, *without)):
        raise InvalidRequestError("An end-to-end set takes titled images of its index.")
    asked = [images[i] for i in _targets(images, rng)][:instances]
    banned = {one.row for one in without}
    of_title: dict[str, set[int | None]] = {}
    for one in images:
        of_title.setdefault(one.key, set()).add(one.row)
    spare = len(banned) + max((len(rows) for rows in of_title.values()), default=0)
    items = []
    for number, (one, hits) in enumerate(
        zip(asked, index.search_many([one.title for one in asked], candidates + spare), strict=True)
    ):
        passed = banned | (of_title[one.key] - {one.row})
        found = [hit for hit in hits if hit.row not in passed][:candidates]
        if len(found) < 2:
            continue
        rows = [hit.row for hit in found]
        shown = tuple(Candidate(image=index.file(hit), id=hit.id, first_stage_score=hit.score) for hit in found)
        target = rows.index(one.row) if one.row in rows else None
        items.append(EvaluationItem(_name(number, one), one.title, shown, target, retrieved=target is not None))
    if not items:
        raise EvaluationSetError(f"The first stage finds no two pictures for any of {len(asked)} titles.")
    return EvaluationSet(name or "end to end", tuple(items))


def check_request(candidates: int, instances: int, difficulty: str) -> None:
    """Refuse numbers out of range.

    Raises:
        InvalidRequestError: Says which, and what is possible.
    """
    if isinstance(candidates, bool) or not 2 <= candidates <= MOST_CANDIDATES:
        raise InvalidRequestError(f"Sets have 2 to {MOST_CANDIDATES} candidates, got {candidates}.")
    if isinstance(instances, bool) or instances < 1:
        raise InvalidRequestError(f"A set needs at least one instance, got {instances}.")
    if difficulty not in DIFFICULTIES:
        raise InvalidRequestError(f"Unknown difficulty {difficulty!r}; choose one of {', '.join(DIFFICULTIES)}.")


def _targets(pool: Sequence[TitledImage], rng: Random) -> list[int]:
    """All pictures as targets: one of every title, in random order, then the second of every title that has one."""
    by_title: dict[str, list[int]] = {}
    for i in rng.sample(range(len(pool)), len(pool)):
        by_title.setdefault(pool[i].key, []).append(i)
    rounds = max(map(len, by_title.values()), default=0)
    return [own[r] for r in range(rounds) for own in by_title.values() if r < len(own)]


def _hardest(target: int, others: Sequence[int], vectors: Vectors, count: int) -> list[int]:
    """Others by similarity of their pictures to the target's, those with a similar title left out."""
    apart = vectors.titles[others] @ vectors.titles[target] < SIMILAR_TITLES
    similar = vectors.images[others] @ vectors.images[target]
    # Stable, so that equal similarities choose the same images on every machine.
    order = [int(i) for i in np.argsort(-similar, kind="stable") if apart[i]]
    return [others[i] for i in order[:count]]


def _item(
    number: int,
    pool: Sequence[TitledImage],
    target: int,
    others: Sequence[int],
    vectors: Vectors | None,
    rng: Random,
) -> EvaluationItem:
    chosen = rng.sample([target, *others], len(others) + 1)
    scores: list[float | None] = [None] * len(chosen)
    if vectors is not None:
        similar = vectors.images[chosen] @ vectors.titles[target]
        # From random order: a first stage that cannot tell two apart must not favour the target.
        order = np.argsort(-similar, kind="stable")
        chosen = [chosen[i] for i in order]
        scores = [float(similar[i]) for i in order]
    shown = tuple(
        Candidate(image=pool[i].image, id=pool[i].id, first_stage_score=score)
        for i, score in zip(chosen, scores, strict=True)
    )
    return EvaluationItem(_name(number, pool[target]), pool[target].title, shown, chosen.index(target))


def _name(number: int, one: TitledImage) -> str:
    return f"{number:04d} {one.id}"
