"""The first stage: pictures in, the nearest k for a query out."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from clip_faiss import _extras, storage
from clip_faiss.collecting import Images, Item, Pending, collect
from clip_faiss.encoder import ClipEncoder
from clip_faiss.encoding import encode_pending
from clip_faiss.errors import FirstStageError
from clip_faiss.fingerprint import EncoderFingerprint
from clip_faiss.progress import Progress
from lad_rerank.errors import InvalidRequestError
from lad_rerank.images import open_image
from lad_rerank.records import Candidate, FailedCandidate

if TYPE_CHECKING:
    from lad_rerank.records import ImageSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hit:
    """One picture that the first stage found.

    Attributes:
        rank: 1 is best.
        id: The picture's id.
        score: Cosine similarity of query and picture in [-1, 1]; comparable within one encoder only.
        metadata: What was given, and for an indexed folder ``"path"``, relative to it.
        row: Row of the picture in :attr:`ClipFaissIndex.vectors` and :attr:`ClipFaissIndex.ids`.
    """

    rank: int
    id: str
    score: float
    metadata: dict[str, Any]
    row: int


class ClipFaissIndex:
    """Vectors of pictures in a FAISS index, with their ids and metadata kept beside them.

    Made by :meth:`build` or :meth:`load`. Searching from several threads at once is safe; adding while
    others search is not.

    Attributes:
        encoder: What makes vectors of pictures and queries.
        failed: Pictures that could not be opened, by every :meth:`build` and :meth:`add` of this object;
            ``index`` is the place in the list that was given then. Not saved.

    Example:
        >>> index = ClipFaissIndex.build("photos")
        >>> index.save("photos.index")
        >>> for hit in ClipFaissIndex.load("photos.index").search("a red mug", k=3):
        ...     print(hit.rank, hit.id, round(hit.score, 2))
        1 mugs/17.jpg 0.61
        2 mugs/3.jpg 0.58
        3 cups/40.jpg 0.41
    """

    def __init__(self, encoder: ClipEncoder) -> None:
        """Start an empty index for the vectors of this encoder."""
        self.encoder = encoder
        self.failed: tuple[FailedCandidate, ...] = ()
        self._vectors = _extras.faiss().IndexFlatIP(encoder.dimension)
        self._items: list[Item] = []
        self._folder: Path | None = None
        self._moved: Path | None = None

    @classmethod
    def build(
        cls,
        images: Images,
        *,
        encoder: ClipEncoder | str = "bundled",
        ids: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        batch_size: int = 32,
        progress: Progress = None,
    ) -> ClipFaissIndex:
        """Index pictures.

        A picture that cannot be opened is logged and listed in :attr:`failed`; the others are indexed.

        Args:
            images: A folder (all pictures in it and below, the id is the relative path), or a list of
                image sources and :class:`~lad_rerank.records.Candidate`.
            encoder: A loaded encoder, or a name for :meth:`ClipEncoder.load`.
            ids: One unique text per picture. Default: a candidate's own id, or its place in the list.
            metadata: One mapping per picture, kept as JSON keeps it.
            batch_size: Pictures per pass of the model.
            progress: ``None`` shows a bar where stderr is a terminal, ``True`` always, ``False`` never;
                a function is called with (done, total).

        Returns:
            The index; empty where there was nothing to index.

        Raises:
            InvalidRequestError: No such folder, an id there twice, or ids or metadata that do not fit.
            FirstStageError: The encoder cannot be loaded.
            ImportError: The extra ``index`` is missing.
        """
        index = cls(ClipEncoder.load(encoder) if isinstance(encoder, str) else encoder)
        index.add(images, ids=ids, metadata=metadata, batch_size=batch_size, progress=progress)
        return index

    def add(
        self,
        images: Images,
        *,
        ids: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        batch_size: int = 32,
        progress: Progress = None,
    ) -> int:
        """Index more pictures: all that can be opened, or on an error none.

        Args:
            images: As for :meth:`build`, like all that follow.
            ids: Must not be in the index already.
            metadata: One mapping per picture.
            batch_size: Pictures per pass of the model.
            progress: See :meth:`build`.

        Returns:
            Number of pictures added.

        Raises:
            InvalidRequestError: See :meth:`build`.
        """
        if batch_size < 1:
            raise InvalidRequestError(f"batch_size must be at least 1, got {batch_size}.")
        pending, folder = collect(images, ids, metadata, self.ids)
        first = not self._items and self._folder is None
        if folder is not None and not first:
            # Relative paths belong to the first folder; those of others are kept whole.
            pending = [
                Pending(Item(p.item.id, str(folder / (p.item.file or "")), p.item.metadata), p.source) for p in pending
            ]
        vectors, items, failed = encode_pending(self.encoder, pending, batch_size, progress)
        known = len(self._items)
        self._items += items  # before the vectors: FAISS never returns a row without an item
        try:
            self._vectors.add(vectors)
        except BaseException:
            del self._items[known:]
            raise
        self.failed += tuple(failed)
        if first:
            self._folder = folder
        if failed:
            _log.warning("%d of %d pictures could not be indexed; see `failed`.", len(failed), len(pending))
        return len(items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"ClipFaissIndex({len(self)} pictures, encoder={self.encoder.name!r})"

    @property
    def ids(self) -> list[str]:
        """Ids of the pictures, one per row."""
        return [item.id for item in self._items]

    @property
    def metadata(self) -> list[dict[str, Any]]:
        """Copies of the pictures' metadata, one per row."""
        return [dict(item.metadata) for item in self._items]

    @property
    def vectors(self) -> NDArray[np.float32]:
        """A copy of the vectors, (n, dimension) float32, rows of length 1."""
        rows: NDArray[np.float32] = self._vectors.reconstruct_n(0, self._vectors.ntotal)
        return rows

    def search(self, query: str, k: SupportsIndex = 8) -> list[Hit]:
        """Find the pictures nearest to a text.

        Args:
            query: Any text but a blank one; cut with a warning where the encoder cannot read all of it.
            k: How many, any whole number (NumPy's too); all of them where there are fewer.

        Returns:
            At most k hits, best first; pictures with equal scores in the order they were indexed.

        Raises:
            InvalidRequestError: A blank query, or k below 1.
        """
        return self.search_many([query], k)[0]

    def search_many(self, queries: Sequence[str], k: SupportsIndex = 8) -> list[list[Hit]]:
        """:meth:`search` for several texts at once; one list of hits per query."""
        k = _checked_k(k)
        return self._nearest(self.encoder.encode_texts(queries), k)

    def search_image(self, image: ImageSource, k: SupportsIndex = 8) -> list[Hit]:
        """Find the pictures nearest to a picture.

        Args:
            image: Anything that :func:`lad_rerank.images.open_image` opens.
            k: How many.

        Raises:
            ImageError: The picture cannot be opened.
            InvalidRequestError: k below 1.
        """
        k = _checked_k(k)
        return self._nearest(self.encoder.encode_pictures([open_image(image)]), k)[0]

    def _nearest(self, queries: NDArray[np.float32], k: int) -> list[list[Hit]]:
        if not self._items:
            return [[] for _ in queries]
        scores, rows = self._vectors.search(queries, min(k, len(self._items)))
        return [self._hits(s, r) for s, r in zip(scores, rows, strict=True)]

    def _hits(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> list[Hit]:
        # FAISS pads with row -1, and orders equal scores as it likes.
        found = sorted((-float(s), int(r)) for s, r in zip(scores, rows, strict=True) if r >= 0)
        return [
            Hit(rank, self._items[row].id, -negative, dict(self._items[row].metadata), row)
            for rank, (negative, row) in enumerate(found, 1)
        ]

    def file(self, hit: Hit | int) -> Path | None:
        """Path of the picture of a hit or row, there or not; ``None`` where it was indexed from memory."""
        file = self._items[hit.row if isinstance(hit, Hit) else hit].file
        if file is None or self._folder is None:
            return None if file is None else Path(file)
        # An absolute path stands for itself: the folder before it is dropped by `/`.
        path = self._folder / file
        if self._moved is not None and not path.is_file() and (self._moved / file).is_file():
            return self._moved / file
        return path

    def image_path(self, hit: Hit | int) -> Path:
        """Where the picture of a hit or row is.

        Raises:
            FirstStageError: The picture was indexed from memory, or its file is gone.
        """
        path = self.file(hit)
        name = hit.id if isinstance(hit, Hit) else self._items[hit].id
        if path is None:
            raise FirstStageError(
                f"{name!r} was indexed from memory, so there is no file to open; index a folder or paths, "
                "or look the picture up by its id."
            )
        if not path.is_file():
            raise FirstStageError(
                f"The picture of {name!r} is gone: there is no file {path}. Put it back, or where the folder "
                "has moved load the index with `images=` its new place."
            )
        return path

    def candidates(self, hits: Iterable[Hit]) -> list[Candidate]:
        """Hits as a reranker takes them, one candidate each, in their order, with the scores of this first stage.

        A picture that is gone, or never was a file, is a candidate that the reranker lists as failed.
        """
        return [
            Candidate(image=self.file(hit), id=hit.id, metadata=hit.metadata, first_stage_score=hit.score)
            for hit in hits
        ]

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the index into a folder; an index that is there stays whole until this one is.

        Pictures are not copied: their paths are kept, absolute and relative to the index, so that either
        may move alone, or both together.

        Args:
            folder: Made where it is missing; other files in it are left alone.

        Raises:
            OSError: The folder cannot be written.
        """
        storage.write(Path(folder), self._vectors, self._items, self.encoder.fingerprint, self._folder)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        encoder: ClipEncoder | str | None = None,
        *,
        images: str | PathLike[str] | None = None,
    ) -> ClipFaissIndex:
        """Read an index, with everything that searching it needs.

        Args:
            folder: What :meth:`save` wrote.
            encoder: A loaded encoder or a name; ``None`` loads the one that made the index.
            images: Where the indexed folder is now, if it has moved.

        Returns:
            The index.

        Raises:
            FirstStageError: No index there, a damaged one, or another encoder than the one that made it;
                the message names both.
            ImportError: The extra ``index`` is missing.
        """
        place = Path(folder)
        manifest, vectors = storage.read(place)
        made_by = manifest.encoder
        if encoder is None:
            encoder = ClipEncoder.load(made_by.name, pretrained=made_by.pretrained)
        elif isinstance(encoder, str):
            encoder = ClipEncoder.load(encoder)
        _check_encoder(place, made_by, encoder.fingerprint)
        index = cls(encoder)
        index._vectors = vectors
        index._items = [Item(item.id, item.file, item.metadata) for item in manifest.items]
        if images is not None:
            index._folder = Path(images).resolve()
        elif manifest.images is not None:
            index._folder = Path(manifest.images.path)
            if manifest.images.relative is not None:
                index._moved = (place.resolve() / manifest.images.relative).resolve()
        return index


def _checked_k(k: SupportsIndex) -> int:
    """Make a plain int of k: FAISS refuses NumPy's."""
    try:
        number = 0 if isinstance(k, bool) else operator.index(k)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidRequestError(f"k must be a whole number of at least 1, got {k!r}.")
    return number


def _check_encoder(folder: Path, made_by: EncoderFingerprint, given: EncoderFingerprint) -> None:
    if differences := made_by.differences(given):
        raise FirstStageError(
            f"The index in {folder} was made with the encoder {made_by}, which is not the {given} at hand: "
            f"{'; '.join(differences)}. Load it with the encoder that made it, or build it again."
        )
