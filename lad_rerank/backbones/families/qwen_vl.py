"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V: dynamic resolution within an area."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import PAPER_PIXELS, Family, PixelBudget
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin


class QwenVL(Family):
    """Families whose image processor keeps the aspect ratio within an area.

    Args:
        frames: How many frames the processor counts an image as: GLM-4V's area is that of two.
    """

    def __init__(self, frames: int = 1) -> None:
        self._frames = frames

    def pixel_budget(self, processor: ProcessorMixin, wanted: int | None) -> PixelBudget:
        """Bound the area through ``size``, which the image processor obeys at call time.

        ``max_pixels`` is deprecated there and has been ignored in more than one release.
        """
        size = processor.image_processor.size
        smallest, largest = int(size["shortest_edge"]), int(size["longest_edge"]) // self._frames
        budget = min(wanted or PAPER_PIXELS, largest)
        if budget < smallest // self._frames:
            raise BackboneError(f"max_pixels={wanted} is below this model's smallest image of {smallest}; raise it.")
        return PixelBudget(budget, {"size": {"shortest_edge": smallest, "longest_edge": budget * self._frames}})

    def shrunk(self, image: Image, budget: int) -> Image:
        """The image as it is: the processor resizes it once."""
        return image

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Read the area off the grid.

        A very long, thin image keeps one cell of width and may so exceed its area; that is allowed.
        """
        image_processor = processor.image_processor
        for height, width in inputs["image_grid_thw"][:, 1:].tolist():
            pixels = height * width * image_processor.patch_size**2
            if pixels > budget and min(height, width) > image_processor.merge_size:
                raise BackboneError(f"The image processor made {pixels} pixels of an image, over max_pixels={budget}.")
