"""Candidates opened when they are shown, and kept within bounds: a set may hold more photos than memory does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload
from weakref import WeakValueDictionary

from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.candidates import open_content
from lad_rerank.contents import Content
from lad_rerank.images import ImageLimits
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from collections.abc import Hashable

MEBIBYTE = 2**20


class CandidateOpener:
    """Opens candidates, remembers what each showed by its digest, and keeps the last pictures.

    Args:
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most.
        max_bytes: Bytes of decoded pictures kept at most.
    """

    def __init__(
        self, *, allow_urls: bool = False, limits: ImageLimits | None = None, max_bytes: int = 512 * MEBIBYTE
    ) -> None:
        self._allow_urls = allow_urls
        self._limits = limits or ImageLimits()
        # What a caller still holds is not opened a second time, however little is kept.
        self._held: WeakValueDictionary[Hashable, Content] = WeakValueDictionary()
        self._pictures: BoundedMemory[Hashable, Content] = BoundedMemory(max_bytes, _nbytes)
        # The source is kept beside its digest: an object's id names it only while it lives.
        self._digests: dict[Hashable, tuple[object, str]] = {}

    def content(self, candidate: Candidate) -> Content:
        """What the model is shown of a candidate.

        Raises:
            ImageError: Its picture cannot be opened.
            InvalidRequestError: It has neither a picture nor a text.
        """
        key = _key(candidate)
        content = self._pictures.get(key) or self._held.get(key)
        if content is None:
            content = open_content(candidate, allow_urls=self._allow_urls, limits=self._limits)
            self._digests[key] = (candidate.image, content.digest)
            self._held[key] = content
            self._pictures.put(key, content)
        return content

    def digest(self, candidate: Candidate) -> str:
        """Digest of what a candidate shows; opens it only where it was never opened before.

        Raises:
            ImageError: Its picture cannot be opened.
            InvalidRequestError: It has neither a picture nor a text.
        """
        known = self._digests.get(_key(candidate))
        return self.content(candidate).digest if known is None else known[1]


class LazyContents(Sequence[Content]):
    """Contents of candidates, each opened when it is asked for."""

    def __init__(self, candidates: Sequence[Candidate], opener: CandidateOpener) -> None:
        self._candidates = candidates
        self._opener = opener

    def __len__(self) -> int:
        return len(self._candidates)

    @overload
    def __getitem__(self, item: int) -> Content: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[Content]: ...
    def __getitem__(self, item: int | slice) -> Content | Sequence[Content]:
        if isinstance(item, slice):
            return LazyContents(self._candidates[item], self._opener)
        return self._opener.content(self._candidates[item])


def _key(candidate: Candidate) -> Hashable:
    """Names a candidate's picture and text; not its id, which says nothing of what is shown."""
    source = candidate.image
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source), candidate.text
    return id(source), candidate.text


def _nbytes(content: Content) -> int:
    """Bytes of a decoded RGB picture, and a little for what else there is."""
    pixels = 0 if content.image is None else 3 * content.image.width * content.image.height
    return pixels + 1024
