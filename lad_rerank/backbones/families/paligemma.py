"""PaliGemma: its processor writes the start of the text behind the images, and an end of line behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.families.base import Added, FixedSize

if TYPE_CHECKING:
    from transformers import ProcessorMixin


class PaliGemma(FixedSize):
    """One size, and a prompt all of whose tokens see each other: its type inputs mark the answer, not images."""

    marks_images = False
    first_position = 1
    causal = False

    def __init__(self) -> None:
        super().__init__({})

    def added(self, processor: ProcessorMixin) -> Added:
        """``<bos>`` stands behind the images, not before them."""
        tokenizer: Any = processor.tokenizer
        return Added(behind_images=str(tokenizer.bos_token), last="\n")
