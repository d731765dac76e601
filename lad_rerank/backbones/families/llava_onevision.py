"""LLaVA-OneVision: a lone image is tiled, one of several is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import FixedSize

if TYPE_CHECKING:
    from transformers import ProcessorMixin


class LlavaOneVision(FixedSize):
    """Processes an image beside a copy of itself, so that it is seen as one of several candidates."""

    alone = 2

    def __init__(self) -> None:
        super().__init__({}, images_axis=1)

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Each image has an axis of tiles of its own: one."""
        super().check_pixels(processor, inputs, budget, 1)

    def first_image(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first copy, still counted as one of two."""
        import torch

        first = {name: value[:1] for name, value in inputs.items() if name in ("pixel_values", "image_sizes")}
        return first | {"batch_num_images": torch.tensor([self.alone])}
