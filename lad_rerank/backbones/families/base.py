"""What differs between model families and cannot be read off a signature or configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin

PAPER_PIXELS = 336 * 336
"""The paper's image size; an area here, since aspect ratios are kept."""


@dataclass(frozen=True)
class PixelBudget:
    """Bound on the pixels of one image.

    Attributes:
        pixels: Largest area of one image.
        images_kwargs: How the image processor is told.
    """

    pixels: int
    images_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Added:
    """Text that a processor writes into a prompt on its own.

    Attributes:
        first: Before everything.
        behind_images: Right behind the last image.
        last: At the end.
    """

    first: str = ""
    behind_images: str = ""
    last: str = ""


class Family:
    """How a family's processor takes images. These defaults hold for processors nobody has described yet.

    Attributes:
        alone: How many copies of an image to process together so that it is treated as one of several.
        marks_images: Whether per-token type inputs mark image tokens with a 1.
        first_position: Position id of a prompt's first token.
        causal: Whether a token of the prompt sees only what stands before it, images aside.
    """

    alone: int = 1
    first_position: int = 0
    marks_images: bool = True
    causal: bool = True

    def added(self, processor: ProcessorMixin) -> Added:
        """Text that the processor adds to a rendered chat."""
        return Added()

    def first_image(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first image's tensors, of those for :attr:`alone` copies."""
        return inputs

    def pixel_budget(self, processor: ProcessorMixin, wanted: int | None) -> PixelBudget:
        """Bound the pixels of each image.

        Args:
            processor: The model's processor.
            wanted: Largest area of one image in pixels; ``None`` means the paper's where it can be chosen.

        Raises:
            BackboneError: The processor cannot hold this budget.
        """
        return PixelBudget(wanted or PAPER_PIXELS, {})

    def shrunk(self, image: Image, budget: int) -> Image:
        """The image as it goes to the processor: within the budget, since nobody knows what it would do."""
        if image.width * image.height <= budget:
            return image
        scale = math.sqrt(budget / (image.width * image.height))
        return image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Make sure that the processor obeyed, on what it made of some images together.

        Raises:
            BackboneError: It made more of an image than the budget allows.
        """


class FixedSize(Family):
    """Families that see every image at one size once tiling is off.

    Args:
        images_kwargs: What turns tiling off.
        images_axis: Axis of ``pixel_values`` that would grow with tiles.
    """

    def __init__(self, images_kwargs: Mapping[str, Any], images_axis: int = 0) -> None:
        self._images_kwargs = images_kwargs
        self._axis = images_axis

    def pixel_budget(self, processor: ProcessorMixin, wanted: int | None) -> PixelBudget:
        """The processor's own size; a smaller budget cannot be held and is an error."""
        pixels = _area(processor.image_processor)
        if wanted is not None and wanted < pixels:
            raise BackboneError(
                f"This model sees every image at {pixels} pixels; max_pixels={wanted} cannot be held. Leave it out."
            )
        return PixelBudget(pixels, self._images_kwargs)

    def shrunk(self, image: Image, budget: int) -> Image:
        """The image as it is: the processor brings it to its one size."""
        return image

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Count the pictures that the vision tower gets: one for each image."""
        tiles = inputs["pixel_values"].shape[self._axis]
        if tiles > images:
            raise BackboneError(f"The image processor made {tiles} tiles of {images} images though tiling is off.")


def _area(image_processor: Any) -> int:
    """Pixels of a fixed-size image processor's one size."""
    for name in ("crop_size", "max_image_size", "size"):
        size = getattr(image_processor, name, None)
        if size is None:
            continue
        # A dict in transformers 4, a record that can be indexed in 5.
        sides = dict(size)
        if sides.get("height") and sides.get("width"):
            return int(sides["height"]) * int(sides["width"])
        if sides.get("longest_edge"):
            return int(sides["longest_edge"]) ** 2
    raise BackboneError(f"{type(image_processor).__name__} does not say at which size it sees images.")
