"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V: dynamic resolution with a pixel budget per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import Family
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from transformers import ProcessorMixin


class QwenVL(Family):
    """Families whose image processor keeps the aspect ratio within an area."""

    def pixel_budget(self, processor: ProcessorMixin, wanted: int) -> tuple[int, dict[str, Any]]:
        """Bound the area through ``size``, which the image processor obeys at call time.

        ``max_pixels`` is deprecated there and has been ignored in more than one release.
        """
        size = processor.image_processor.size
        smallest, largest = int(size["shortest_edge"]), int(size["longest_edge"])
        budget = min(wanted, largest)
        if budget < smallest:
            raise BackboneError(f"max_pixels={wanted} is below this model's smallest image of {smallest}; raise it.")
        return budget, {"size": {"shortest_edge": smallest, "longest_edge": budget}}

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int) -> None:
        """Read the area off the grid.

        A very long, thin image keeps one cell of width and may so exceed its area; that is allowed.
        """
        image_processor = processor.image_processor
        for height, width in inputs["image_grid_thw"][:, 1:].tolist():
            pixels = height * width * image_processor.patch_size**2
            if pixels > budget and min(height, width) > image_processor.merge_size:
                raise BackboneError(f"The image processor made {pixels} pixels of an image, over max_pixels={budget}.")
