"""Titled images: what sets and calibration samples are made of where nobody has labelled anything."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import PurePath
from random import Random
from typing import TYPE_CHECKING

from lad_rerank.errors import EvaluationSetError, ImageError
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from clip_faiss import ClipFaissIndex
    from lad_rerank.records import ImageSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TitledImage:
    """An image and what it is called.

    Attributes:
        title: What a query asks for; not blank.
        image: The picture.
        id: Its name in reports.
        row: Its row in the index that it comes from, where there is one.
    """

    title: str
    image: ImageSource
    id: str
    row: int | None = None

    @property
    def key(self) -> str:
        """What equal titles have in common."""
        return self.title.casefold()

    @property
    def pair(self) -> tuple[str, ImageSource]:
        """Title and image, as calibration samples are made of them."""
        return self.title, self.image


@dataclass(frozen=True)
class Split:
    """Titled images in two parts that share no picture and no title.

    Attributes:
        samples: For calibration samples.
        evaluated: For evaluation sets.
    """

    samples: tuple[TitledImage, ...]
    evaluated: tuple[TitledImage, ...]


def title_of(name: str) -> str:
    """The words of a file name: ``"mugs/red-mug_02.jpg"`` is ``"red mug"``."""
    return " ".join(re.findall(r"[^\W\d_]+", PurePath(name).stem))


def titled(images: Sequence[TitledImage | tuple[str, ImageSource]]) -> list[TitledImage]:
    """Titled images of (title, image) pairs, those without a title left out; the id is the path or the place."""
    made = []
    for place, one in enumerate(images):
        if not isinstance(one, TitledImage):
            title, image = one
            name = str(image) if isinstance(image, (str, PathLike)) and len(str(image)) < 1024 else str(place)
            one = TitledImage(title.strip(), image, name)
        if one.title:
            made.append(one)
    return made


def titled_folder(folder: str | PathLike[str]) -> list[TitledImage]:
    """Every image of a folder and of the folders in it whose file name has words in it.

    Args:
        folder: The folder; ids are paths relative to it.

    Raises:
        InvalidRequestError: No such folder.
    """
    from clip_faiss.collecting import collect

    found, _ = collect(folder, None, None, ())
    named = ((title_of(one.item.id), one) for one in found)
    return [TitledImage(title, one.source, one.item.id) for title, one in named if title and one.source is not None]


def titled_index(index: ClipFaissIndex) -> list[TitledImage]:
    """Every image of an index that has a title and a file.

    The title is the metadata's ``"title"``, or else the words of the id.
    """
    found = []
    for row, (name, metadata) in enumerate(zip(index.ids, index.metadata, strict=True)):
        path = index.file(row)
        given = metadata.get("title")
        title = given.strip() if isinstance(given, str) and given.strip() else title_of(name)
        if title and path is not None and path.is_file():
            found.append(TitledImage(title, path, name, row))
    return found


def distinct(
    images: Sequence[TitledImage], opener: CandidateOpener, progress: Callable[[int, int], None] | None = None
) -> list[TitledImage]:
    """Images that can be opened, each picture once: what shows the same pixels as one before it is left out.

    Args:
        images: Titled images.
        opener: Opens them.
        progress: Called with (images opened, images in all).
    """
    kept: dict[str, TitledImage] = {}
    failed = 0
    for done, one in enumerate(images, start=1):
        try:
            kept.setdefault(opener.digest(Candidate(image=one.image)), one)
        except ImageError as error:
            failed += 1
            logger.info("%s is left out: %s", one.id, error)
        if progress is not None:
            progress(done, len(images))
    if failed:
        logger.warning("%d of %d images are left out: they cannot be opened.", failed, len(images))
    return list(kept.values())


def split(images: Sequence[TitledImage], *, titles: int, seed: int = 0) -> Split:
    """Set some titles apart for calibration samples, with all their pictures.

    Args:
        images: Titled images, each picture once: see :func:`distinct`.
        titles: How many different titles the samples need.
        seed: Chooses which.

    Returns:
        Two parts in the order given. No picture is in both, and no title.

    Raises:
        EvaluationSetError: Nothing would be left to evaluate.
    """
    keys = sorted({one.key for one in images})
    if len(keys) <= titles:
        raise EvaluationSetError(
            f"{len(keys)} different titles are too few: {titles} are needed for calibration samples, which are never "
            "evaluated. Give more titled images, fewer candidates or fewer samples."
        )
    chosen = set(Random(f"split {seed}").sample(keys, titles))
    return Split(
        tuple(one for one in images if one.key in chosen), tuple(one for one in images if one.key not in chosen)
    )
