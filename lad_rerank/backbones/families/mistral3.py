"""Mistral 3 and Pixtral: dynamic resolution within a longest edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import PAPER_PIXELS, Family, PixelBudget
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin


SMALLEST_SIDE = 28
"""Side of one visual token in pixels: patches of 14, two by two merged."""


class Mistral3(Family):
    """The processor bounds each side; a square of that side is the budget."""

    def pixel_budget(self, processor: ProcessorMixin, wanted: int | None) -> PixelBudget:
        """The largest edge whose square is within the budget."""
        edge = min(math.isqrt(wanted or PAPER_PIXELS), int(processor.image_processor.size["longest_edge"]))
        return PixelBudget(edge**2, {"size": {"longest_edge": edge}})

    def shrunk(self, image: Image, budget: int) -> Image:
        """The image as it is, since the processor resizes it; only one that would be a single token is enlarged.

        The model cannot make features of a lone token.
        """
        longer = max(image.size)
        if longer > SMALLEST_SIDE:
            return image
        return image.resize([max(1, side * 2 * SMALLEST_SIDE // longer) for side in image.size])

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Read the area off the sizes; sides are rounded up to whole patches."""
        edge = math.isqrt(budget)
        patch = processor.image_processor.patch_size
        slack = max(patch.values()) if isinstance(patch, Mapping) else getattr(patch, "height", patch)
        for height, width in inputs["image_sizes"].tolist():
            if max(height, width) >= edge + 2 * int(slack):
                raise BackboneError(
                    f"The image processor made {height} x {width} pixels of an image, over max_pixels={budget}."
                )
