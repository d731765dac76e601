"""Candidates' keys and values: found where they were kept, and run where they were not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lad_rerank.backbones.batching import batches, halving
from lad_rerank.backbones.block_store import BlockStore
from lad_rerank.backbones.blocks import Block, Layers
from lad_rerank.backbones.features import ImageFeatures
from lad_rerank.backbones.pictures import Pictures
from lad_rerank.backbones.set_encoding import EncodedBlock, SetEncoder
from lad_rerank.backbones.set_passes import SetPasses
from lad_rerank.contents import Content


class BlockRuns:
    """Makes blocks of contents. Threads may share one.

    Args:
        encoder: Writes candidates.
        passes: Runs the model.
        store: Keeps blocks.
        pictures: What is made of each picture once.
        uses_features: Whether image features are given to the model in place of pixels.
        batch_size: Blocks in one forward pass at most.

    Attributes:
        images_behind_prefix: Whether images run behind the prefix's kept keys and values. Else the prefix runs
            before each of them again: some models let an image see itself both ways in a prompt's first pass only.
    """

    def __init__(
        self,
        encoder: SetEncoder,
        passes: SetPasses,
        store: BlockStore,
        pictures: Pictures,
        uses_features: Callable[[], bool],
        batch_size: int,
    ) -> None:
        self._encoder = encoder
        self._passes = passes
        self._store = store
        self._pictures = pictures
        self._uses_features = uses_features
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._prefix: Layers | None = None
        self.images_behind_prefix = False

    def prefix(self) -> Layers:
        """Keys and values of what stands before all candidates; run once."""
        import torch

        with self._lock, torch.inference_mode():
            if self._prefix is None:
                self._prefix = self._passes.prefix(self._encoder.prefix)
            return self._prefix

    def encoded(self, content: Content) -> EncodedBlock:
        """A candidate's tokens."""
        image = None if content.image is None else self._pictures.prepared(content.image, content.pixels)
        return self._encoder.block(content, image)

    def found(self, contents: Sequence[Content]) -> tuple[dict[str, Block], int]:
        """Blocks of contents: kept ones, and the others run in batches and kept; in inference mode.

        A batch that does not fit the memory is halved, and that is logged.

        Returns:
            Blocks by the digest of their content, and how many of them had to be run.
        """
        prefix = self.prefix()
        found: dict[str, Block] = {}
        missing: dict[str, EncodedBlock] = {}
        for content in contents:
            if content.digest in found or content.digest in missing:
                continue
            block = self._store.get(content.digest, prefix)
            if block is not None:
                found[content.digest] = block
            else:
                missing[content.digest] = self.encoded(content)
        # Like lengths together, for less padding. Whatever the order of contents was, the batches are the same.
        ordered = sorted(missing.items(), key=lambda one: (one[1].image is not None, len(one[1].ids), one[0]))
        apart = [] if self._uses_features() else [[one] for one in ordered if one[1].image is not None]
        together = [one for one in ordered if one[1].image is None or self._uses_features()]
        for batch in [*batches(together, self._batch_size), *apart]:
            made = halving([block for _, block in batch], self._run)
            for (digest, _), block in zip(batch, made, strict=True):
                found[digest] = self._store.put(digest, block, prefix)
        return found, len(missing)

    def _run(self, blocks: Sequence[EncodedBlock]) -> list[Block]:
        images = [block.image for block in blocks if block.image is not None]
        features: list[ImageFeatures] = []
        if self._uses_features():
            features = [self._pictures.features(image) for image in images]
        prefix = self.prefix() if self.images_behind_prefix or not images else None
        return self._passes.blocks(self._encoder.prefix, prefix, blocks, features)
