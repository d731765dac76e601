"""What is made of each picture once: the processor's tensors and the vision tower's features."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.feature_store import FeatureStore
from lad_rerank.backbones.features import ImageFeatures, image_features, on_device
from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.backbones.preparing import ImagePreparer, PreparedImage

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)


class Pictures:
    """Pictures by the digest of their pixels, least recently used first to go.

    Args:
        model: The model whose vision tower sees them.
        preparer: Runs the processor over one picture; ``None`` where the model reads texts only.
        max_bytes: Kept at most, of prepared tensors and of features each.
        store: Features on disk, where wanted.
    """

    def __init__(self, model: Any, preparer: ImagePreparer | None, max_bytes: int, store: FeatureStore | None) -> None:
        self._model = model
        self._preparer = preparer
        self._store = store
        self._prepared: BoundedMemory[str, PreparedImage] = BoundedMemory(max_bytes, lambda p: p.nbytes)
        self._features: BoundedMemory[str, ImageFeatures] = BoundedMemory(max_bytes, lambda f: f.nbytes)

    def prepared(self, image: Image, digest: str) -> PreparedImage:
        """A picture as the processor sees it."""
        found = self._prepared.get(digest)
        if found is None:
            assert self._preparer is not None
            found = self._preparer.prepare(image, digest)
            self._prepared.put(digest, found)
        return found

    def features(self, image: PreparedImage) -> ImageFeatures:
        """What the vision tower says of a picture: from memory, from disk, or by running it."""
        found = self._features.get(image.digest)
        if found is not None:
            return found
        if self._store is not None:
            found = self._store.get(image.digest)
        if found is not None and found.tokens != image.tokens:
            logger.warning("Stored features of %d tokens do not fit a picture of %d.", found.tokens, image.tokens)
            found = None
        if found is None:
            found = image_features(self._model, on_device(self._model, image.inputs))
            if self._store is not None:
                self._store.put(image.digest, found)
        self._features.put(image.digest, found)
        return found

    def clear(self) -> None:
        """Forget what is in memory; what is on disk stays."""
        self._prepared.clear()
        self._features.clear()

    def __len__(self) -> int:
        return len(self._features)
