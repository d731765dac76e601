"""From the caller's list to what is shown: opened, equal pictures together, in canonical order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.images import ImageLimits, image_digest, open_image
from lad_rerank.records import Candidate, FailedCandidate, ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedCandidate:
    """A picture to show, and every candidate of the caller's that it stands for.

    Attributes:
        image: RGB picture.
        digest: Digest of its pixels.
        members: (index into the caller's list, id) of each candidate with exactly this picture.
    """

    image: Image
    digest: str
    members: tuple[tuple[int, str], ...]


def open_candidates(
    candidates: Sequence[Candidate | ImageSource], *, allow_urls: bool, limits: ImageLimits | None = None
) -> tuple[list[OpenedCandidate], list[FailedCandidate]]:
    """Open the candidates' pictures; a bad one becomes a named failure, the others go on.

    Candidates with the same pixels are shown once: a copy would take a position and split the
    probability of its twin.

    Args:
        candidates: Records, or bare images.
        allow_urls: Whether images may be fetched.
        limits: What images may be at most.

    Returns:
        The pictures in the caller's order of first appearance, and the failures.

    Raises:
        InvalidRequestError: Not a sequence of candidates at all.
    """
    if isinstance(candidates, (str, bytes)) or not isinstance(candidates, Sequence):
        raise InvalidRequestError(f"candidates must be a list of images, got {type(candidates).__name__}.")
    opened: dict[str, OpenedCandidate] = {}
    failed = []
    for index, value in enumerate(candidates):
        candidate = value if isinstance(value, Candidate) else Candidate(image=value)
        name = str(index) if candidate.id is None else str(candidate.id)
        try:
            if candidate.image is None:
                raise ImageError("The candidate has no image; this release ranks images.")
            image = open_image(candidate.image, allow_urls=allow_urls, limits=limits or ImageLimits())
        except ImageError as error:
            logger.warning("Candidate %s (index %d) is left out: %s", name, index, error)
            failed.append(FailedCandidate(index, name, str(error)))
            continue
        digest = image_digest(image)
        members = opened[digest].members if digest in opened else ()
        opened[digest] = OpenedCandidate(image, digest, (*members, (index, name)))
    return list(opened.values()), failed


def canonical_order(opened: Sequence[OpenedCandidate]) -> list[OpenedCandidate]:
    """The one order in which this set of pictures is always shown.

    The order follows the pixels' digests, which have nothing to do with what a first stage thinks:
    shown in retrieval order, a model that favours early positions would flatter the first stage.
    """
    return sorted(opened, key=lambda candidate: candidate.digest)
