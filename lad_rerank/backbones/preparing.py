"""What a processor makes of images: tensors, and the text that stands for each of them in a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.answers import render
from lad_rerank.backbones.frames import adds_start
from lad_rerank.errors import BackboneError
from lad_rerank.prompt import QUERY_MARK

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin

    from lad_rerank.backbones.families.base import Family, PixelBudget

TEXT_INPUTS = frozenset(
    {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "text_replacement_offsets"}
)

SMALLEST_SIDE = 28
"""One visual token of Qwen2.5-VL: nothing is to be seen in less."""


@dataclass(frozen=True)
class PreparedImage:
    """One image as the processor sees it, apart from any prompt.

    Attributes:
        digest: Digest of its pixels.
        text: What stands for it in the prompt: placeholders, delimiters and row marks.
        tokens: Visual tokens in that text.
        length: All tokens of that text.
        inputs: The image processor's tensors.
    """

    digest: str
    text: str
    tokens: int
    length: int
    inputs: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(value.nbytes for value in self.inputs.values())


class ImagePreparer:
    """Runs one processor over images.

    Args:
        processor: The model's processor.
        image_token_id: Placeholder id that stands for one visual token.
        family: How this family's processor wants its images.
        budget: Bound on the pixels of one image.
    """

    def __init__(self, processor: ProcessorMixin, image_token_id: int, family: Family, budget: PixelBudget) -> None:
        self.image_token_id = image_token_id
        self.budget = budget
        self.added = family.added(processor)
        self._processor = processor
        self._tokenizer: Any = processor.tokenizer
        self._family = family

    def prepare(self, image: Image, digest: str) -> PreparedImage:
        """Run the processor over one image, as if it were one of several.

        Args:
            image: RGB picture.
            digest: Digest of its pixels.

        Raises:
            BackboneError: The processor does not say what stands for the image, or made more of it than the budget.
        """
        output = self.process(self._rendered, [image] * self._family.alone)
        said = output.get("text_replacement_offsets")
        text = said[0][0]["replacement"] if said else self.text_alone(image)
        tensors = {name: value for name, value in output.items() if name not in TEXT_INPUTS}
        ids = self.ids(text)
        tensors = dict(self._family.first_image(tensors))
        self.check(tensors, 1)
        return PreparedImage(digest, text, self.count(ids), len(ids), tensors)

    def check(self, inputs: Mapping[str, Any], images: int) -> None:
        """Make sure that the processor obeyed, on what it made of some images together.

        Raises:
            BackboneError: It made more of an image than the budget allows.
        """
        processor: Any = self._processor
        self._family.check_pixels(processor, inputs, self.budget.pixels, images)

    def process(self, text: str, images: Sequence[Image]) -> dict[str, Any]:
        """Run the processor over a prompt.

        Returns:
            Its tensors and, from transformers 5.10 on, ``text_replacement_offsets``: what it wrote for each image.
        """
        says = {"return_text_replacement_offsets": True} if self._says_replacements else {}
        output = dict(
            self._processor(
                text=[text],
                images=[[self._family.shrunk(_grown(image), self.budget.pixels) for image in images]],
                images_kwargs=dict(self.budget.images_kwargs),
                add_special_tokens=adds_start(self._tokenizer, text),
                truncation=False,
                return_tensors="pt",
                **says,
            )
        )
        # PaliGemma's processor makes training labels where nobody asked for them.
        output.pop("labels", None)
        return output

    @cached_property
    def placeholder(self) -> str:
        """What the chat template writes for an image: not always the token that the model sees."""
        from PIL import Image

        alone = self._family.alone
        if self._says_replacements:
            output = self.process(self._rendered, [Image.new("RGB", (64, 64))] * alone)
            return str(output["text_replacement_offsets"][0][0]["text"])
        names = [getattr(self._processor, name, None) for name in ("boi_token", "image_token", "fake_image_token")]
        names.append(self._tokenizer.convert_ids_to_tokens(self.image_token_id))
        found: list[str] = [str(name) for name in names if name]
        return next(name for name in found if self._rendered.count(name) == alone)

    def text_alone(self, image: Image) -> str:
        """What stands for an image, where the processor does not say so itself: decoded from a prompt of it alone.

        Its visual tokens and nothing else, where the rest of that prompt does not come out of its ids as it went in.
        """
        alone = self._family.alone
        ids: list[int] = self.process(self._rendered, [image] * alone)["input_ids"][0].tolist()
        count = ids.count(self.image_token_id) // alone
        token: str = self._tokenizer.convert_ids_to_tokens(self.image_token_id)
        decoded = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        first, *between, last = self._rendered.split(self.placeholder)
        begin = decoded.find(first) + len(first)
        end = decoded.rfind(self.added.behind_images + last)
        text = str(decoded[begin : begin + max(0, end - begin - sum(map(len, between))) // alone])
        return text if self.ids(text).count(self.image_token_id) == count else token * count

    def ids(self, text: str) -> list[int]:
        """Token ids of the text that stands for an image."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def count(self, ids: Sequence[int]) -> int:
        """Visual tokens among those that stand for one image.

        Raises:
            BackboneError: There is none.
        """
        if not (count := ids.count(self.image_token_id)):
            raise BackboneError("The processor put no visual token in place of an image.")
        return count

    @cached_property
    def _rendered(self) -> str:
        """A prompt of as few images as are seen as one of several."""
        return render(self._processor, ((True, False),) * self._family.alone, "digits").replace(QUERY_MARK, "")

    @property
    def _says_replacements(self) -> bool:
        return hasattr(self._processor, "get_text_with_replacements")


def _grown(image: Image) -> Image:
    """A picture with sides of at least SMALLEST_SIDE pixels.

    Processors of transformers 4 take a side of one to three pixels for the colour channels, or refuse it.
    """
    shorter = min(image.size)
    if shorter >= SMALLEST_SIDE:
        return image
    width, height = (-(-side * SMALLEST_SIDE // shorter) for side in image.size)
    return image.resize((width, height))
