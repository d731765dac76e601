"""From the caller's list to what is shown: opened, equal contents together, in canonical order."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lad_rerank.contents import Content
from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.images import ImageLimits, open_image
from lad_rerank.prompt import clean_text
from lad_rerank.records import Candidate, FailedCandidate, ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedCandidate:
    """Something to show, and every candidate of the caller's that it stands for.

    Attributes:
        content: The picture, the text, or both.
        members: (index into the caller's list, id) of each candidate with exactly this content.
        first_stage_score: The best that the first stage gave to one of them; ``None`` where it gave none.
    """

    content: Content
    members: tuple[tuple[int, str], ...]
    first_stage_score: float | None = None

    @property
    def image(self) -> Image | None:
        """RGB picture, if it has one."""
        return self.content.image

    @property
    def digest(self) -> str:
        """Digest of the pixels and the text."""
        return self.content.digest


def open_candidates(
    candidates: Sequence[Candidate | ImageSource], *, allow_urls: bool, limits: ImageLimits | None = None
) -> tuple[list[OpenedCandidate], list[FailedCandidate]]:
    """Open the candidates' pictures and texts; a bad one becomes a named failure, the others go on.

    Candidates with the same pixels and text are shown once: a copy would take a position and split the
    probability of its twin.

    Args:
        candidates: Records, or bare images.
        allow_urls: Whether images may be fetched.
        limits: What images may be at most.

    Returns:
        What is to be shown, in the caller's order of first appearance, and the failures.

    Raises:
        InvalidRequestError: Not a sequence of candidates at all.
    """
    if isinstance(candidates, (str, bytes)) or not isinstance(candidates, Sequence):
        raise InvalidRequestError(f"candidates must be a list of candidates, got {type(candidates).__name__}.")
    limits = limits or ImageLimits()
    opened: dict[str, OpenedCandidate] = {}
    failed = []
    for index, value in enumerate(candidates):
        candidate = value if isinstance(value, Candidate) else Candidate(image=value)
        name = str(index) if candidate.id is None else str(candidate.id)
        try:
            content = open_content(candidate, allow_urls=allow_urls, limits=limits)
        except (ImageError, InvalidRequestError) as error:
            logger.warning("Candidate %s (index %d) is left out: %s", name, index, error)
            failed.append(FailedCandidate(index, name, str(error)))
            continue
        score = checked_score(candidate.first_stage_score, f"Candidate {name} (index {index})")
        twin = opened.get(content.digest)
        if twin is None:
            opened[content.digest] = OpenedCandidate(content, ((index, name),), score)
        else:
            scores = [s for s in (twin.first_stage_score, score) if s is not None]
            members = (*twin.members, (index, name))
            opened[content.digest] = OpenedCandidate(twin.content, members, max(scores, default=None))
    return list(opened.values()), failed


def open_content(candidate: Candidate, *, allow_urls: bool, limits: ImageLimits) -> Content:
    """Open one candidate's picture and make one line of its text; a text of nothing but white space is none.

    Args:
        candidate: The record.
        allow_urls: Whether its image may be fetched.
        limits: What its image may be at most.

    Raises:
        ImageError: The picture does not open. Its text is not shown in its place: the model would see another
            candidate than the caller named.
        InvalidRequestError: It has neither an image nor a text, or its text is no string.
    """
    if candidate.text is not None and not isinstance(candidate.text, str):
        raise InvalidRequestError(f"The candidate's text must be a string, got {type(candidate.text).__name__}.")
    text = clean_text(candidate.text or "") or None
    if candidate.image is None:
        if text is None:
            raise InvalidRequestError("The candidate has neither an image nor a text; give it one of them.")
        return Content.of(text=text)
    try:
        image = open_image(candidate.image, allow_urls=allow_urls, limits=limits)
    except ImageError as error:
        if text is None:
            raise
        raise ImageError(f"{error} Its text is not ranked without its image; leave the image out for that.") from error
    return Content.of(image, text)


def checked_score(score: object, name: str) -> float | None:
    """A first-stage score as a finite float; anything else is no score, and that is said.

    Args:
        score: What the caller gave.
        name: Whose it is, for the message.
    """
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, (str, bytes, bool)) else float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        logger.warning("%s: first_stage_score %r is no finite number and is not used.", name, score)
        return None
    return number


def canonical_order(opened: Sequence[OpenedCandidate]) -> list[OpenedCandidate]:
    """The one order in which this set of contents is always shown.

    The order follows the contents' digests, which have nothing to do with what a first stage thinks:
    shown in retrieval order, a model that favours early positions would flatter the first stage.
    """
    return sorted(opened, key=lambda candidate: candidate.digest)
