"""What differs between model families and cannot be read off a signature or configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin


class Family:
    """How a family's processor takes images. The defaults hold for most.

    Attributes:
        alone: How many copies of an image to process together so that it is treated as one of several.
    """

    alone: int = 1

    def nested(self, images: list[Image]) -> Any:
        """The ``images`` argument for one prompt."""
        return images

    def first_image(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first image's tensors, of those for :attr:`alone` copies."""
        return inputs

    def pixel_budget(self, processor: ProcessorMixin, wanted: int) -> tuple[int, dict[str, Any]]:
        """Bound the pixels of each image.

        Args:
            processor: The model's processor.
            wanted: Largest area of one image in pixels.

        Returns:
            The budget that holds, and the ``images_kwargs`` for it.

        Raises:
            BackboneError: The budget cannot be held.
        """
        return wanted, {}

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int) -> None:
        """Make sure that the processor obeyed.

        Raises:
            BackboneError: It made more pixels of an image than the budget allows.
        """
