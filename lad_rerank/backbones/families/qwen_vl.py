"""Qwen2-VL, Qwen2.5-VL and their kin: dynamic resolution with a pixel budget per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from transformers import ProcessorMixin

MODEL_TYPES = frozenset({"qwen2_vl", "qwen2_5_vl"})


def pixel_budget(processor: ProcessorMixin, wanted: int) -> tuple[int, dict[str, Any]]:
    """Bound the pixels of each image.

    ``size`` is what the image processor obeys at call time; ``max_pixels`` is deprecated there and has
    been ignored in more than one release.

    Args:
        processor: The model's processor.
        wanted: Largest area of one image in pixels.

    Returns:
        The budget that holds (never above the processor's own) and the ``images_kwargs`` for it.

    Raises:
        BackboneError: The budget is below the processor's smallest image.
    """
    size = processor.image_processor.size
    smallest, largest = int(size["shortest_edge"]), int(size["longest_edge"])
    budget = min(wanted, largest)
    if budget < smallest:
        raise BackboneError(f"max_pixels={wanted} is below this model's smallest image of {smallest} pixels; raise it.")
    return budget, {"size": {"shortest_edge": smallest, "longest_edge": budget}}


def check_pixels(processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int) -> None:
    """Make sure that the processor obeyed.

    A very long, thin image keeps one cell of width and may so exceed its area; that is allowed.

    Raises:
        BackboneError: An image's grid covers more pixels than the budget.
    """
    image_processor = processor.image_processor
    for height, width in inputs["image_grid_thw"][:, 1:].tolist():
        pixels = height * width * image_processor.patch_size**2
        if pixels > budget and min(height, width) > image_processor.merge_size:
            raise BackboneError(f"The image processor made {pixels} pixels of an image, over max_pixels={budget}.")
