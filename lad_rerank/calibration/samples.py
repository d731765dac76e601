"""Calibration samples: from JSON lines, or from any set of titled images, so that nobody needs labels."""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import CalibrationSampleError, ImageError, InvalidRequestError
from lad_rerank.images import ImageLimits, image_digest, open_image
from lad_rerank.prompt import clean_query
from lad_rerank.records import ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class CalibrationSample:
    """A query, some images, and which of them is right.

    Attributes:
        query: What is asked.
        images: At least two images, all different.
        target: Index of the right one.
    """

    query: str
    images: Sequence[ImageSource]
    target: int

    @classmethod
    def of(cls, value: CalibrationSample | Mapping[str, Any], number: int) -> CalibrationSample:
        """Take a sample or a ``{query, images, target}`` mapping, whose target may be a path among its images.

        Raises:
            CalibrationSampleError: A field is missing or of the wrong kind; says which, in which sample.
        """
        query: Any
        images: Any
        target: Any
        if isinstance(value, CalibrationSample):
            query, images, target = value.query, value.images, value.target
        else:
            try:
                query, images, target = value["query"], value["images"], value["target"]
            except (KeyError, TypeError, IndexError):
                raise CalibrationSampleError(
                    f"Calibration sample {number} must have the fields query, images and target."
                ) from None
        if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
            raise CalibrationSampleError(f"Calibration sample {number}: images must be a list.")
        index = _target_index(target, images)
        if index is None:
            raise CalibrationSampleError(
                f"Calibration sample {number}: target must be the index or path of the right image, got {target!r}."
            )
        return cls(query, images, index)


@dataclass(frozen=True)
class OpenedSample:
    """A checked sample: one line of query, RGB pictures, their digests, the target's index."""

    query: str
    images: tuple[Image, ...]
    digests: tuple[str, ...]
    target: int

    def reduced(self, n: int) -> OpenedSample:
        """The target and the first n - 1 other images, in their order."""
        others = [i for i in range(len(self.images)) if i != self.target][: n - 1]
        kept = sorted([*others, self.target])
        return OpenedSample(
            self.query,
            tuple(self.images[i] for i in kept),
            tuple(self.digests[i] for i in kept),
            kept.index(self.target),
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
        samples: Samples, or mappings with ``query``, ``images`` and ``target``.
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most; the defaults of :class:`lad_rerank.images.ImageLimits` otherwise.

    Raises:
        CalibrationSampleError: Says which sample and which image, and why.
    """
    limits = limits or ImageLimits()
    opened = []
    for number, value in enumerate(samples):
        sample = CalibrationSample.of(value, number)
        if len(sample.images) < 2:
            raise CalibrationSampleError(f"Calibration sample {number} has {len(sample.images)} images; it needs two.")
        if not 0 <= sample.target < len(sample.images):
            raise CalibrationSampleError(
                f"Calibration sample {number}: target {sample.target} is no index into its {len(sample.images)} images."
            )
        try:
            query = clean_query(sample.query)
        except InvalidRequestError as error:
            raise CalibrationSampleError(f"Calibration sample {number}: {error}") from error
        images = []
        for i, source in enumerate(sample.images):
            try:
                images.append(open_image(source, allow_urls=allow_urls, limits=limits))
            except ImageError as error:
                raise CalibrationSampleError(f"Calibration sample {number}, image {i}: {error}") from error
        digests = tuple(image_digest(image) for image in images)
        if len(set(digests)) < len(digests):
            raise CalibrationSampleError(
                f"Calibration sample {number} holds the same picture twice; remove one of them."
            )
        opened.append(OpenedSample(query, tuple(images), digests, sample.target))
    if not opened:
        raise CalibrationSampleError("There are no calibration samples; five are enough.")
    return opened


def samples_digest(samples: Sequence[OpenedSample]) -> str:
    """16 hexadecimal digits over queries, pictures and targets."""
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
    if candidates < 2 or count < 1:
        raise CalibrationSampleError(
            f"A sample needs at least 2 candidates and a calibration 1 sample; got {candidates} and {count}."
        )
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


def read_samples(path: Path) -> list[CalibrationSample]:
    """Read samples from JSON lines ``{"query": ..., "images": [...], "target": index or path}``.

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
        images = [_beside(path, image) for image in sample.images]
        samples.append(CalibrationSample(sample.query, images, sample.target))
    return samples


def _beside(path: Path, image: ImageSource) -> ImageSource:
    """A relative path means relative to the samples' file; anything else is left as it is."""
    if not isinstance(image, str) or len(image) >= 1024:
        return image
    beside = path.parent / image
    try:
        return beside if beside.is_file() else image
    except OSError:  # a name too long for the file system: base64 text, say
        return image


def _target_index(target: object, images: Sequence[ImageSource]) -> int | None:
    """Index that a target stands for, in range or not; ``None`` where it is neither an index nor a path in images."""
    if isinstance(target, (str, PathLike)):
        # Only paths are compared: `==` with an array has no single truth value.
        paths = [fspath(image) if isinstance(image, (str, PathLike)) else None for image in images]
        return paths.index(fspath(target)) if fspath(target) in paths else None
    if isinstance(target, bool):
        return None
    try:
        return operator.index(target)  # type: ignore[arg-type]
    except TypeError:
        return None
