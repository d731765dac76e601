"""From a query and pictures to token ids, with the positions of everything that is read later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.answers import AnswerTokens, answer_tokens, render
from lad_rerank.errors import BackboneError
from lad_rerank.prompt import QUERY_MARK, LabelStyle, safe_text

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


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, ready for the model.

    Attributes:
        ids: Its T token ids.
        spans: Token positions of each candidate's visual tokens.
        query: Token positions of the query's own tokens.
        answer: How the labels are written behind this prompt.
        images: Its images in order.
        inputs: The processor's own tensors of the whole prompt, where it was asked; else ``None``.
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]
    answer: AnswerTokens
    images: tuple[PreparedImage, ...] = ()
    inputs: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """T, tokens of the prompt."""
        return len(self.ids)

    @property
    def images_end(self) -> int:
        """Index behind the last visual token."""
        return self.spans[-1][-1] + 1

    def with_answer(self, tokens: Sequence[int]) -> EncodedPrompt:
        """The same prompt with the beginning of an answer behind it."""
        return EncodedPrompt((*self.ids, *tokens), self.spans, self.query, self.answer, self.images, self.inputs)


class PromptEncoder:
    """Encodes prompts of one processor.

    Args:
        processor: The model's processor.
        image_token_id: Placeholder id that stands for one visual token.
        style: How candidates are named.
        family: How this family's processor wants its images.
        budget: Bound on the pixels of one image.
        delimited: Count each image's delimiters and row marks among its span.
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        image_token_id: int,
        style: LabelStyle,
        family: Family,
        budget: PixelBudget,
        delimited: bool = False,
    ) -> None:
        self.processor = processor
        self.tokenizer: Any = processor.tokenizer
        self._image_token_id = image_token_id
        self._style = style
        self._family = family
        self._budget = budget
        self._written = family.added(processor)
        self._delimited = delimited
        self._added = tuple(self.tokenizer.get_added_vocab())
        self.answer = lru_cache(maxsize=128)(lambda n: answer_tokens(processor, n, style))
        self._frame = lru_cache(maxsize=128)(lambda n: tuple(render(processor, n, style).split(QUERY_MARK)))

    def prepare(self, image: Image, digest: str) -> PreparedImage:
        """Run the processor over one image, as if it were one of several.

        Args:
            image: RGB picture.
            digest: Digest of its pixels.

        Raises:
            BackboneError: The processor does not say what stands for the image.
        """
        alone = self._family.alone
        output = self._process("".join(self._frame(alone)), [image] * alone)
        replacements = output["text_replacement_offsets"][0]
        text = replacements[0]["replacement"]
        tensors = {name: value for name, value in output.items() if name not in TEXT_INPUTS}
        inputs = self._family.first_image(tensors)
        ids = self._ids(text)
        return PreparedImage(digest, text, self._count(ids), len(ids), inputs)

    def encode(self, query: str, images: Sequence[PreparedImage]) -> EncodedPrompt:
        """Encode a prompt from prepared images: only text is tokenised.

        Raises:
            BackboneError: Image spans or the query's tokens are not where they must be.
        """
        head, tail = self._frame(len(images))
        safe = safe_text(query, self._added)
        parts = head.split(self._placeholder)
        if len(parts) != len(images) + 1:
            raise BackboneError(f"The chat template made {len(parts) - 1} placeholders of {len(images)} images.")
        before, after = self._written.behind_images + parts[-1], tail + self._written.last
        shown = "".join(part + image.text for part, image in zip(parts, images, strict=False))
        text = self._written.first + shown + before + safe + after
        ids = self.tokenizer(text, add_special_tokens=self._adds_bos(text))["input_ids"]
        return self._located(ids, before, safe, after, [i.text for i in images], tuple(images), None)

    def encode_plain(self, query: str, images: Sequence[Image]) -> EncodedPrompt:
        """Encode a prompt by the processor itself, pixels and all.

        Raises:
            BackboneError: Image spans or the query's tokens are not where they must be.
        """
        head, tail = self._frame(len(images))
        safe = safe_text(query, self._added)
        inputs = dict(self._process(head + safe + tail, list(images)))
        offsets = inputs.pop("text_replacement_offsets", None)
        texts = [r["replacement"] for r in offsets[0]] if offsets else [self._text_alone(image) for image in images]
        ids = inputs["input_ids"][0].tolist()
        before = self._written.behind_images + head.rpartition(self._placeholder)[2]
        prompt = self._located(ids, before, safe, tail + self._written.last, texts, (), inputs)
        if len(prompt.spans) != len(images):
            raise BackboneError(f"The processor made {len(prompt.spans)} image spans of {len(images)} images.")
        return prompt

    def _process(self, text: str, images: list[Image]) -> dict[str, Any]:
        # transformers 5.10 and newer say what they wrote for each image.
        says = {"return_text_replacement_offsets": True} if self._says_replacements else {}
        output = dict(
            self.processor(
                text=[text],
                images=[[self._family.shrunk(_grown(image), self._budget.pixels) for image in images]],
                images_kwargs=dict(self._budget.images_kwargs),
                add_special_tokens=self._adds_bos(text),
                truncation=False,
                return_tensors="pt",
                **says,
            )
        )
        # PaliGemma's processor makes training labels where nobody asked for them.
        output.pop("labels", None)
        return output

    @cached_property
    def _placeholder(self) -> str:
        """What the chat template writes for an image: not always the token that the model sees."""
        from PIL import Image

        alone = self._family.alone
        rendered = "".join(self._frame(alone))
        if self._says_replacements:
            output = self._process(rendered, [Image.new("RGB", (64, 64))] * alone)
            return str(output["text_replacement_offsets"][0][0]["text"])
        names = [getattr(self.processor, name, None) for name in ("boi_token", "image_token", "fake_image_token")]
        names.append(self.tokenizer.convert_ids_to_tokens(self._image_token_id))
        found: list[str] = [str(name) for name in names if name]
        return next(name for name in found if rendered.count(name) == alone)

    @property
    def _says_replacements(self) -> bool:
        return hasattr(self.processor, "get_text_with_replacements")

    def _text_alone(self, image: Image) -> str:
        """The visual tokens that stand for an image, where the processor does not say so itself."""
        alone = self._family.alone
        ids: list[int] = self._process("".join(self._frame(alone)), [image] * alone)["input_ids"][0].tolist()
        count = ids.count(self._image_token_id) // alone
        token: str = self.tokenizer.convert_ids_to_tokens(self._image_token_id)
        return token * count

    def _adds_bos(self, text: str) -> bool:
        """Whether the tokenizer may add what a template has not written already."""
        bos = self.tokenizer.bos_token
        return bos is None or not text.startswith(bos)

    def _ids(self, text: str) -> list[int]:
        """Token ids of the text that stands for an image."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _count(self, ids: Sequence[int]) -> int:
        """Visual tokens among those that stand for one image."""
        if not (count := ids.count(self._image_token_id)):
            raise BackboneError("The processor put no visual token in place of an image.")
        return count

    def _located(
        self,
        ids: Sequence[int],
        before: str,
        query: str,
        after: str,
        texts: Sequence[str],
        images: tuple[PreparedImage, ...],
        inputs: Mapping[str, Any] | None,
    ) -> EncodedPrompt:
        """Find candidates and query among a prompt's ids, and put the forced part of the answer behind it."""
        counts = [image.tokens for image in images] or [self._count(self._ids(text)) for text in texts]
        spans = _spans(ids, self._image_token_id, counts)
        if self._delimited:
            edges = [self._ids(text) for text in texts]
            spans = _with_delimiters(ids, spans, edges, self._image_token_id)
        positions = _query_positions(self.tokenizer, ids, before, query, after)
        answer = self.answer(len(texts))
        return EncodedPrompt((*ids, *answer.forced), spans, positions, answer, images, inputs)


def _grown(image: Image) -> Image:
    """A picture with sides of at least SMALLEST_SIDE pixels.

    Processors of transformers 4 take a side of one to three pixels for the colour channels, or refuse it.
    """
    shorter = min(image.size)
    if shorter >= SMALLEST_SIDE:
        return image
    width, height = (-(-side * SMALLEST_SIDE // shorter) for side in image.size)
    return image.resize((width, height))


def _spans(ids: Sequence[int], image_token_id: int, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Deal the placeholder's positions out to the images, in order.

    Never by runs of the placeholder: adjacent images would be one run.
    """
    positions = [i for i, token in enumerate(ids) if token == image_token_id]
    if sum(counts) != len(positions):
        raise BackboneError(
            f"The prompt holds {len(positions)} visual tokens, but its images stand for {list(counts)}; "
            "nothing was truncated, so the processor and the model's image token do not agree."
        )
    spans, start = [], 0
    for count in counts:
        spans.append(tuple(positions[start : start + count]))
        start += count
    return tuple(spans)


def _with_delimiters(
    ids: Sequence[int], spans: Sequence[tuple[int, ...]], texts: Sequence[Sequence[int]], image_token_id: int
) -> tuple[tuple[int, ...], ...]:
    """Widen each span to all that the processor wrote for its image, and to the marks right beside it.

    The marks beside it (``<|vision_start|>``) stand in the template for some families, in the
    replacement for others.
    """
    widened = []
    for span, text in zip(spans, texts, strict=True):
        lead = text.index(image_token_id)
        trail = len(text) - 1 - max(i for i, token in enumerate(text) if token == image_token_id)
        first, last = span[0] - lead, span[-1] + trail
        if lead == trail == 0:
            first, last = max(first - 1, 0), min(last + 1, len(ids) - 1)
        widened.append(tuple(range(first, last + 1)))
    return tuple(widened)


def _query_positions(tokenizer: Any, ids: Sequence[int], before: str, query: str, after: str) -> tuple[int, ...]:
    """Positions of the query's tokens: the text behind the last image is tokenised again, with offsets.

    An image's placeholder is an added token and so always a boundary: what stands behind it tokenises
    as it does in place.
    """
    encoding = tokenizer(before + query + after, add_special_tokens=False, return_offsets_mapping=True)
    behind = list(encoding["input_ids"])
    offsets = list(encoding["offset_mapping"])
    # A tokenizer that marks the start of its text puts a token there which the prompt does not have.
    while behind and list(ids[len(ids) - len(behind) :]) != behind and offsets[0][0] == offsets[0][1]:
        behind, offsets = behind[1:], offsets[1:]
    first = len(ids) - len(behind)
    if first < 0 or list(ids[first:]) != behind:
        raise BackboneError("The text behind the images tokenises differently on its own; the query is not found.")
    begin, end = len(before), len(before) + len(query)
    found = tuple(first + i for i, (a, b) in enumerate(offsets) if begin < b and a < end and a < b)
    if not found:
        raise BackboneError("No token of the prompt belongs to the query.")
    return found
