"""Rendered training pictures as arrays, and cut into the patches that the vision tower takes."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lad_rerank.bundled.shop import ATTRIBUTES, SIDE, VALUES, Item, Product, Split, catalogue
from lad_rerank.bundled.train.config import MERGE, PATCH

if TYPE_CHECKING:
    import torch

Pixels: TypeAlias = NDArray[np.uint8]

# CLIP's, which Qwen's image processor uses too.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)


def attribute_indices(product: Product) -> tuple[int, ...]:
    """The five attributes as numbers: for each, the index of its value."""
    return tuple(VALUES[name].index(product.value(name)) for name in ATTRIBUTES)


def _draw(items: list[Item]) -> Pixels:
    return np.stack([np.asarray(item.image()) for item in items])


def draw_pictures(size: int, seed: int, side: Split, workers: int = 1) -> tuple[Pixels, NDArray[np.int64]]:
    """Render a catalogue.

    Args:
        size: Number of pictures.
        seed: Of the catalogue.
        side: Side of the split.
        workers: Processes; 1 renders in this one.

    Returns:
        Pixels (size, 64, 64, 3) uint8 and attribute indices (size, 5).
    """
    items = catalogue(size, seed, side)
    labels = np.array([attribute_indices(item.product) for item in items])
    if workers <= 1:
        return _draw(items), labels
    chunks = [items[i : i + 500] for i in range(0, size, 500)]
    # Spawned, since forking after torch has started its threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return np.concatenate(list(pool.map(_draw, chunks))), labels


def patches(pixels: Pixels) -> torch.Tensor:
    """Normalise pictures and cut them as Qwen's image processor does, without the doubled frame.

    Args:
        pixels: (B, 64, 64, 3) uint8.

    Returns:
        (B, 64, 3 * 8 * 8) float32, the patches of each merged token next to each other.
    """
    import torch

    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    x = (x - torch.tensor(_MEAN).view(3, 1, 1)) / torch.tensor(_STD).view(3, 1, 1)
    cells = SIDE // PATCH // MERGE
    x = x.view(len(x), 3, cells, MERGE, PATCH, cells, MERGE, PATCH)
    return x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(len(x), cells * cells * MERGE * MERGE, -1)
