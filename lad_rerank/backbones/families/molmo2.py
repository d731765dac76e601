"""Molmo 2: a low-resolution view and crops; its processor puts the start of text first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import Added, FixedSize
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from transformers import ProcessorMixin

VIEWS = 2
"""With one crop the tower still gets two pictures: the whole image, small, and the crop."""


class Molmo2(FixedSize):
    """One crop an image."""

    def __init__(self) -> None:
        super().__init__({"max_crops": 1})

    def added(self, processor: ProcessorMixin) -> Added:
        """The start of text, whatever the template wrote."""
        tokenizer: Any = processor.tokenizer
        return Added(first=str(tokenizer.bos_token or tokenizer.eos_token))

    def check_pixels(self, processor: ProcessorMixin, inputs: Mapping[str, Any], budget: int, images: int) -> None:
        """Count the pictures of each image."""
        crops = inputs["image_num_crops"].max().item()
        if crops > VIEWS:
            raise BackboneError(f"The image processor cut an image into {crops} pictures though max_crops is 1.")
