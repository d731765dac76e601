"""Calibration samples: from JSON lines, or from titled images or grouped texts, so that nobody needs labels."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from lad_rerank.candidates import checked_score, open_content
from lad_rerank.contents import CandidateKind, Content, kind_of
from lad_rerank.errors import CalibrationSampleError, ImageError, InvalidRequestError
from lad_rerank.images import ImageLimits
from lad_rerank.prompt import clean_query, clean_text
from lad_rerank.records import Candidate, ImageSource

FIELDS = ("image", "text", "first_stage_score", "id", "metadata")
"""What a candidate may hold where it is written as a mapping."""


@dataclass(frozen=True)
class CalibrationSample:
    """A query, some candidates, and which of them is right.

    Attributes:
        query: What is asked.
        candidates: At least two, all different: images, or records with images, texts or both.
        target: Index of the right one.
    """

    query: str
    candidates: Sequence[Candidate | ImageSource]
    target: int

    @classmethod
    def of(cls, value: CalibrationSample | Mapping[str, Any], number: int) -> CalibrationSample:
        """Take a sample or a mapping of ``query``, ``target`` and either ``images`` or ``candidates``.

        Each of ``images`` is a picture in any form. Each of ``candidates`` may also be a mapping with ``image``,
        ``text`` and ``first_stage_score``. The target may be the path or the text of one of them.

        Raises:
            CalibrationSampleError: A field is missing or of the wrong kind; says which, in which sample.
        """
        query: Any
        target: Any
        if isinstance(value, CalibrationSample):
            query, candidates, target = value.query, value.candidates, value.target
        else:
            try:
                query, target = value["query"], value["target"]
                (field,) = (name for name in ("images", "candidates") if name in value)
                candidates = value[field]
            except (KeyError, TypeError, IndexError, ValueError):
                raise CalibrationSampleError(
                    f"Calibration sample {number} must have the fields query, target and one of images and candidates."
                ) from None
        if isinstance(candidates, (str, bytes)) or not isinstance(candidates, Sequence):
            raise CalibrationSampleError(f"Calibration sample {number}: its candidates must be a list.")
        records = [_record(item, f"Calibration sample {number}, candidate {i}") for i, item in enumerate(candidates)]
        index = _target_index(target, records)
        if index is None:
            raise CalibrationSampleError(
                f"Calibration sample {number}: target must be the index, path or text of the right candidate, "
                f"got {target!r}."
            )
        return cls(query, records, index)


@dataclass(frozen=True)
class OpenedSample:
    """A checked sample.

    Attributes:
        query: One line of text.
        contents: What is shown, all different.
        target: Index of the right one.
        first_stage_scores: One for each content; ``None`` unless all of them have one.
    """

    query: str
    contents: tuple[Content, ...]
    target: int
    first_stage_scores: tuple[float, ...] | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of its contents."""
        return tuple(content.digest for content in self.contents)

    @property
    def kind(self) -> CandidateKind:
        """What its candidates are."""
        return kind_of(self.contents)

    def reduced(self, n: int) -> OpenedSample:
        """The target and the first n - 1 other contents, in their order."""
        others = [i for i in range(len(self.contents)) if i != self.target][: n - 1]
        kept = sorted([*others, self.target])
        scores = self.first_stage_scores
        return OpenedSample(
            self.query,
            tuple(self.contents[i] for i in kept),
            kept.index(self.target),
            None if scores is None else tuple(scores[i] for i in kept),
        )


def open_samples(
    samples: Sequence[CalibrationSample | Mapping[str, Any]],
    *,
    allow_urls: bool = False,
    limits: ImageLimits | None = None,
) -> list[OpenedSample]:
    """Open and check calibration samples.

    Unlike a ranking, a calibration has no use for a half-good sample: anything wrong is an error.

    Args:
        samples: Samples, or mappings as :meth:`CalibrationSample.of` takes them.
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most; the defaults of :class:`lad_rerank.images.ImageLimits` otherwise.

    Raises:
        CalibrationSampleError: Says which sample and which candidate, and why.
    """
    limits = limits or ImageLimits()
    opened = [
        _opened(CalibrationSample.of(value, number), f"Calibration sample {number}", allow_urls, limits)
        for number, value in enumerate(samples)
    ]
    if not opened:
        raise CalibrationSampleError("There are no calibration samples; five are enough.")
    return opened


def _opened(sample: CalibrationSample, name: str, allow_urls: bool, limits: ImageLimits) -> OpenedSample:
    records = [_record(item, name) for item in sample.candidates]
    n = len(records)
    if n < 2:
        raise CalibrationSampleError(f"{name} has {n} candidates; it needs two.")
    if not 0 <= sample.target < n:
        raise CalibrationSampleError(f"{name}: target {sample.target} is no index into its {n} candidates.")
    try:
        query = clean_query(sample.query)
    except InvalidRequestError as error:
        raise CalibrationSampleError(f"{name}: {error}") from error
    contents, scores = [], []
    for i, record in enumerate(records):
        try:
            contents.append(open_content(record, allow_urls=allow_urls, limits=limits))
        except (ImageError, InvalidRequestError) as error:
            raise CalibrationSampleError(f"{name}, candidate {i}: {error}") from error
        scores.append(checked_score(record.first_stage_score, f"{name}, candidate {i}"))
    if len({content.digest for content in contents}) < n:
        raise CalibrationSampleError(f"{name} holds the same picture or text twice; remove one of them.")
    known = tuple(score for score in scores if score is not None)
    return OpenedSample(query, tuple(contents), sample.target, known if len(known) == n else None)


def samples_digest(samples: Sequence[OpenedSample]) -> str:
    """16 hexadecimal digits over queries, contents and targets."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(json.dumps([sample.query, sample.digests, sample.target]).encode())
    return digest.hexdigest()[:16]


def samples_from_titles(
    titled: Sequence[tuple[str, ImageSource]], *, count: int = 5, candidates: int = 8, seed: int = 0
) -> list[CalibrationSample]:
    """Make samples from titled images: the title is the query, its image the target, others distract.

    Args:
        titled: (title, image) pairs; an image whose title equals the query's is never a distractor.
        count: Number of samples.
        candidates: Images per sample.
        seed: Chooses which.

    Raises:
        CalibrationSampleError: Too few titled images with different titles.
    """
    _check_numbers(candidates, count)
    rng = random.Random(seed)
    usable = [(title.strip(), image) for title, image in titled if title and title.strip()]
    by_title: dict[str, list[ImageSource]] = {}
    for title, image in usable:
        by_title.setdefault(title.casefold(), []).append(image)
    if len(by_title) < max(candidates, count):
        raise CalibrationSampleError(
            f"{len(by_title)} different titles are too few for {count} samples of {candidates} candidates; "
            "give more titled images or lower the number of candidates."
        )
    spelled = {title.casefold(): title for title, _ in reversed(usable)}
    samples = []
    for title in rng.sample(sorted(by_title), count):
        others = rng.sample(sorted(t for t in by_title if t != title), candidates - 1)
        images = [rng.choice(by_title[t]) for t in (title, *others)]
        order = rng.sample(range(candidates), candidates)
        samples.append(CalibrationSample(spelled[title], [images[i] for i in order], order.index(0)))
    return samples


def samples_from_texts(
    groups: Sequence[Sequence[str]], *, count: int = 5, candidates: int = 8, seed: int = 0
) -> list[CalibrationSample]:
    """Make samples from groups of texts that say the same, such as several captions of one picture.

    One text of a group is the query and another the target; one text each of other groups distract.

    Args:
        groups: Texts that say the same, a group each. A group of one text only distracts, and a group that
            shares a text with the query's never does.
        count: Number of samples, each with a query of another group.
        candidates: Texts per sample.
        seed: Chooses which.

    Raises:
        CalibrationSampleError: Too few groups with different texts.
    """
    _check_numbers(candidates, count)
    rng = random.Random(seed)
    # What differs in case only is no other text; the first spelling stands for it.
    cleaned = [{line.casefold(): line for text in reversed(group) if (line := clean_text(text))} for group in groups]
    asking = [i for i, texts in enumerate(cleaned) if len(texts) > 1]
    samples: list[CalibrationSample] = []
    for i in rng.sample(asking, len(asking)):
        if len(samples) == count:
            break
        query, target = rng.sample(sorted(cleaned[i]), 2)
        shown = {target: cleaned[i][target]}
        for j in rng.sample(range(len(cleaned)), len(cleaned)):
            fresh = sorted(cleaned[j].keys() - shown.keys())
            if fresh and len(shown) < candidates and not cleaned[j].keys() & cleaned[i].keys():
                chosen = rng.choice(fresh)
                shown[chosen] = cleaned[j][chosen]
        if len(shown) == candidates:
            records = [Candidate(text=text) for text in shown.values()]
            order = rng.sample(range(candidates), candidates)
            samples.append(CalibrationSample(cleaned[i][query], [records[k] for k in order], order.index(0)))
    if len(samples) < count:
        raise CalibrationSampleError(
            f"{len(cleaned)} groups of texts, {len(asking)} of them of two texts and more, are too few for {count} "
            f"samples of {candidates} candidates; give more groups or lower the number of candidates."
        )
    return samples


def _check_numbers(candidates: int, count: int) -> None:
    if candidates < 2 or count < 1:
        raise CalibrationSampleError(
            f"A sample needs at least 2 candidates and a calibration 1 sample; got {candidates} and {count}."
        )


def read_samples(path: Path) -> list[CalibrationSample]:
    """Read samples from JSON lines ``{"query": ..., "images": [...], "target": index or path}``.

    In place of ``images`` there may be ``candidates``, each the path of an image or a mapping
    ``{"image": path, "text": ..., "first_stage_score": ...}``; the target may then be a text.
    The file is UTF-8, with or without a byte order mark. Image paths are relative to it.

    Raises:
        CalibrationSampleError: The file cannot be read, or a line is no sample.
    """
    try:
        # str.splitlines() would also split at U+2028 and U+0085, which JSON strings may hold as they are.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationSampleError(f"Cannot read calibration samples from {path}: {error}.") from error
    samples = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            sample = CalibrationSample.of(json.loads(line), number)
        except ValueError as error:
            raise CalibrationSampleError(f"{path}, line {number + 1}: {error}") from error
        except RecursionError as error:
            raise CalibrationSampleError(f"{path}, line {number + 1}: too deeply nested to be a sample.") from error
        records = [_record(item, "") for item in sample.candidates]
        beside = [dataclasses.replace(r, image=_beside(path, r.image)) for r in records]
        samples.append(CalibrationSample(sample.query, beside, sample.target))
    return samples


def _record(item: Any, name: str) -> Candidate:
    """A candidate from whatever stands for one: a record, a mapping, or a picture in any form."""
    if isinstance(item, Candidate):
        return item
    if not isinstance(item, Mapping):
        return Candidate(image=item)
    if unknown := [field for field in item if field not in FIELDS]:
        raise CalibrationSampleError(f"{name} has the unknown field {unknown[0]!r}; it may have {', '.join(FIELDS)}.")
    return Candidate(**item)


def _beside(path: Path, image: ImageSource | None) -> ImageSource | None:
    """A relative path means relative to the samples' file; anything else is left as it is."""
    if not isinstance(image, str) or len(image) >= 1024:
        return image
    beside = path.parent / image
    try:
        return beside if beside.is_file() else image
    except OSError:  # a name too long for the file system: base64 text, say
        return image


def _target_index(target: object, records: Sequence[Candidate]) -> int | None:
    """Index that a target stands for, in range or not; ``None`` where it is no index, path or text of a candidate."""
    if isinstance(target, (str, PathLike)):
        # Only paths are compared: `==` with an array has no single truth value.
        images = [r.image for r in records]
        paths = [fspath(image) if isinstance(image, (str, PathLike)) else None for image in images]
        texts = [r.text for r in records]
        return next((known.index(fspath(target)) for known in (paths, texts) if fspath(target) in known), None)
    if isinstance(target, bool):
        return None
    try:
        return operator.index(target)  # type: ignore[arg-type]
    except TypeError:
        return None
