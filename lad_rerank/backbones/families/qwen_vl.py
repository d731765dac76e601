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
        """Bound the area through ``size``, which the image processor of transformers 5 obeys at call time."""
        image_processor = processor.image_processor
        smallest, largest = int(image_processor.size["shortest_edge"]), int(image_processor.size["longest_edge"])
        budget = min(wanted or PAPER_PIXELS, largest // self._frames)
        cell = (image_processor.patch_size * image_processor.merge_size) ** 2
        if budget < cell:
            raise BackboneError(f"max_pixels={wanted} is less than one visual token of {cell} pixels; raise it.")
        longest = budget * self._frames
        shortest = min(smallest, longest)
        told: dict[str, Any] = {"size": {"shortest_edge": shortest, "longest_edge": longest}}
        if getattr(image_processor, "max_pixels", None) is not None:
            # Transformers 4 lets the checkpoint's own max_pixels win over any size that is given.
            told |= {"min_pixels": shortest, "max_pixels": longest}
        return PixelBudget(budget, told)

    def shrunk(self, image: Image, budget: int) -> Image:
        """The image as it is: the processor resizes it once."""
        return image

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Read the area off the grid.

        A very long, thin image keeps one cell of width, and a small one is enlarged to whole cells: either
        may exceed the area by less than a row or a column of cells.
        """
        image_processor = processor.image_processor
        merge = image_processor.merge_size
        for height, width in inputs["image_grid_thw"][:, 1:].tolist():
            pixels = height * width * image_processor.patch_size**2
            one_less = (height - merge) * (width - merge) * image_processor.patch_size**2
            if one_less > budget:
                raise BackboneError(f"The image processor made {pixels} pixels of an image, over max_pixels={budget}.")
