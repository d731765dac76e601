"""Running many prompts: in batches, one at a time, or in halves where the memory is too small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


def batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut items into runs of at most ``size``."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def each(items: Sequence[T], run: Callable[[Sequence[T]], list[R]]) -> list[R]:
    """Run every item by itself."""
    return [result for item in items for result in run([item])]


def halving(items: Sequence[T], run: Callable[[Sequence[T]], list[R]]) -> list[R]:
    """Run items together; where they do not fit the device's memory, half of them at a time, and say so.

    Raises:
        torch.OutOfMemoryError: One item alone does not fit.
    """
    import torch

    try:
        return run(items)
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise
    # Outside the handler: inside it the exception would hold on to the tensors of the failed pass.
    half = len(items) // 2
    logger.warning("%d prompts do not fit the memory at once; going on with %d.", len(items), half)
    return [*halving(items[:half], run), *halving(items[half:], run)]
