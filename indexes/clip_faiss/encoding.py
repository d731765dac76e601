"""Pictures to vectors, batch by batch; a bad picture costs itself and no other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clip_faiss.collecting import Item, Pending
from clip_faiss.encoder import ClipEncoder
from clip_faiss.progress import Progress, reporting
from lad_rerank.errors import ImageError
from lad_rerank.images import open_image
from lad_rerank.records import FailedCandidate

if TYPE_CHECKING:
    from PIL.Image import Image

_log = logging.getLogger(__name__)


def encode_pending(
    encoder: ClipEncoder, pending: Sequence[Pending], batch_size: int, progress: Progress
) -> tuple[NDArray[np.float32], list[Item], list[FailedCandidate]]:
    """Open and encode pictures batch by batch.

    Args:
        encoder: What makes the vectors.
        pending: The pictures.
        batch_size: Pictures per pass of the model.
        progress: See :data:`clip_faiss.progress.Progress`.

    Returns:
        Vectors (n, dimension) float32, their n items, and the pictures that could not be opened.
    """
    parts: list[NDArray[np.float32]] = [np.empty((0, encoder.dimension), np.float32)]
    items: list[Item] = []
    failed: list[FailedCandidate] = []
    with reporting(progress, len(pending), "Indexing") as report:
        for start in range(0, len(pending), batch_size):
            pictures: list[Image] = []
            for i, one in enumerate(pending[start : start + batch_size], start):
                try:
                    if one.source is None:
                        raise ImageError("The candidate has no image.")
                    pictures.append(open_image(one.source))
                    items.append(one.item)
                except ImageError as error:
                    _log.info("Picture %d (%s) is left out: %s", i, one.item.id, error)
                    failed.append(FailedCandidate(i, one.item.id, str(error)))
            parts.append(encoder.encode_pictures(pictures))
            report(min(start + batch_size, len(pending)))
    return np.concatenate(parts), items, failed
