"""From a query and candidates to token ids, with the positions of everything that is read later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.answers import AnswerTokens, answer_tokens, render, tokenizer_of
from lad_rerank.backbones.families.base import Added
from lad_rerank.backbones.frames import QUERY, Frame, Slot, Written, adds_start, put_together, taken_apart
from lad_rerank.backbones.preparing import ImagePreparer, PreparedImage
from lad_rerank.backbones.spans import TextPlaces, visual_spans, with_delimiters
from lad_rerank.contents import Content, Showable, as_contents
from lad_rerank.errors import BackboneError, InvalidRequestError
from lad_rerank.prompt import LabelStyle, Shape, Wording, safe_text, shape_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, ready for the model.

    Attributes:
        ids: Its T token ids.
        spans: Token positions of each candidate's visual tokens and text tokens, ascending.
        query: Token positions of the query's own tokens.
        answer: How the labels are written behind this prompt.
        images: Its images in order.
        inputs: The processor's own tensors of the whole prompt, where it was asked; else ``None``.
        cut: Tokens of each candidate's text that were cut off; empty where no candidate has a text.
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]
    answer: AnswerTokens
    images: tuple[PreparedImage, ...] = ()
    inputs: Mapping[str, Any] | None = field(default=None, repr=False)
    cut: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """T, tokens of the prompt."""
        return len(self.ids)

    @property
    def candidates_end(self) -> int:
        """Index behind the last token of a candidate."""
        return max(span[-1] for span in self.spans) + 1

    def with_answer(self, tokens: Sequence[int]) -> EncodedPrompt:
        """The same prompt with the beginning of an answer behind it."""
        ids = (*self.ids, *tokens)
        return EncodedPrompt(ids, self.spans, self.query, self.answer, self.images, self.inputs, self.cut)


class PromptEncoder:
    """Encodes prompts of one processor.

    Args:
        processor: The model's processor, or the tokenizer of a plain language model.
        style: How candidates are named.
        preparer: What the processor makes of images; ``None`` where the model reads texts only.
        wording: How the question is put.
        delimited: Count each image's delimiters and row marks among its span.
        max_text_tokens: Tokens of one candidate's text at most; the rest is cut off.
    """

    def __init__(
        self,
        processor: ProcessorMixin | PreTrainedTokenizerBase,
        style: LabelStyle,
        *,
        preparer: ImagePreparer | None = None,
        wording: Wording = "paper",
        delimited: bool = False,
        max_text_tokens: int = 256,
    ) -> None:
        self.processor = processor
        self.tokenizer = tokenizer_of(processor)
        self.preparer = preparer
        self.delimited = delimited
        self.max_text_tokens = max_text_tokens
        self._known = tuple(self.tokenizer.get_added_vocab())
        self.answer = lru_cache(maxsize=128)(lambda n: answer_tokens(processor, n, style, wording))
        # In closures of their own, so that they go with the encoder.
        self._frame = lru_cache(maxsize=128)(lambda shape: self._framed(shape, style, wording))
        self.shown_text = lru_cache(maxsize=1024)(self._cut_text)

    def variant(self, style: LabelStyle, wording: Wording) -> PromptEncoder:
        """The same encoder with other labels or another wording."""
        return PromptEncoder(
            self.processor,
            style,
            preparer=self.preparer,
            wording=wording,
            delimited=self.delimited,
            max_text_tokens=self.max_text_tokens,
        )

    def check_readable(self, contents: Sequence[Content], name: str) -> None:
        """Make sure that the model can be shown these contents.

        Args:
            contents: What is to be shown.
            name: The model's, for the message.

        Raises:
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        pictured = next((i for i, content in enumerate(contents) if content.image is not None), None)
        if self.preparer is None and pictured is not None:
            raise InvalidRequestError(
                f"{name} is a language model that reads texts only, and candidate {pictured} has an image. "
                "Give its text alone, or choose a multimodal model."
            )

    def encode(self, query: str, contents: Sequence[Content], images: Sequence[PreparedImage] = ()) -> EncodedPrompt:
        """Encode a prompt from prepared images: only text is tokenised.

        Args:
            query: One line of text.
            contents: What is shown, in order.
            images: The images of those that have one, in order.

        Raises:
            BackboneError: Candidates or the query's tokens are not where they must be.
        """
        frame, fill = self._frame(shape_of(contents)), self._fill(query, contents)
        pictured = [Slot("image", i) for i, content in enumerate(contents) if content.image is not None]
        fill |= {slot: image.text for slot, image in zip(pictured, images, strict=True)}
        written = put_together(frame, fill, self.preparer.added if self.preparer else Added())
        ids, offsets = self._tokenised(written.text)
        places = TextPlaces(ids, ids, offsets)
        return self._located(ids, places, written, contents, [i.tokens for i in images], tuple(images), None)

    def encode_plain(self, query: str, candidates: Sequence[Showable]) -> EncodedPrompt:
        """Encode a prompt by the processor itself, pixels and all.

        Raises:
            BackboneError: Candidates or the query's tokens are not where they must be.
        """
        contents = as_contents(candidates)
        pictures = {Slot("image", i): c.image for i, c in enumerate(contents) if c.image is not None}
        if self.preparer is None or not pictures:
            return self.encode(query, contents)
        frame, fill = self._frame(shape_of(contents)), self._fill(query, contents)
        given = put_together(frame, fill | dict.fromkeys(pictures, self.preparer.placeholder), Added())
        inputs = self.preparer.process(given.text, list(pictures.values()))
        self.preparer.check(inputs, len(pictures))
        said = inputs.pop("text_replacement_offsets", None)
        texts = [r["replacement"] for r in said[0]] if said else list(map(self.preparer.text_alone, pictures.values()))
        if len(texts) != len(pictures):
            raise BackboneError(f"The processor made {len(texts)} image spans of {len(pictures)} images.")
        written = put_together(frame, fill | dict(zip(pictures, texts, strict=True)), self.preparer.added)
        ids: list[int] = inputs["input_ids"][0].tolist()
        places = TextPlaces(ids, *self._tokenised(written.text))
        counts = [self.preparer.count(self.preparer.ids(text)) for text in texts]
        return self._located(ids, places, written, contents, counts, (), inputs)

    def safe(self, text: str) -> str:
        """A text from outside without any added token of the tokenizer in it."""
        return safe_text(text, self._known)

    def most_tokens(self, content: Content, images: Sequence[PreparedImage]) -> int:
        """Tokens that a content takes at most, the label before it left out; ``images`` is its own, if it has one."""
        # A character is never more than four tokens.
        text = "" if content.text is None else self.shown_text(content.text)[0]
        return sum(image.length for image in images) + 4 * len(text)

    def _framed(self, shape: Shape, style: LabelStyle, wording: Wording) -> Frame:
        rendered = render(self.processor, shape, style, wording)
        pictured = self.preparer is not None and any(image for image, _ in shape)
        return taken_apart(rendered, shape, self.preparer.placeholder if self.preparer and pictured else None)

    def _fill(self, query: str, contents: Sequence[Content]) -> dict[Slot, str]:
        """What goes into a frame, images left out."""
        texts = {Slot("text", i): self.shown_text(c.text)[0] for i, c in enumerate(contents) if c.text is not None}
        return {QUERY: self.safe(query)} | texts

    def _cut_text(self, text: str) -> tuple[str, int]:
        """A candidate's text as it is shown, and how many of its tokens were cut off its end."""
        safe = self.safe(text)
        encoding = self.tokenizer(safe, add_special_tokens=False, return_offsets_mapping=True)
        total = len(encoding["input_ids"])
        if total <= self.max_text_tokens:
            return safe, 0
        # A character of several tokens that is cut in two counts as a whole: then it goes too.
        for kept in range(self.max_text_tokens, 0, -1):
            shorter = safe[: encoding["offset_mapping"][kept - 1][1]].rstrip()
            length = len(self.tokenizer(shorter, add_special_tokens=False)["input_ids"])
            if shorter and length <= self.max_text_tokens:
                return shorter, total - length
        raise BackboneError(f"max_text_tokens={self.max_text_tokens} leaves nothing of a candidate's text; raise it.")

    def _tokenised(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a prompt's whole text, and the characters of each."""
        adds = adds_start(self.tokenizer, text)
        encoding = self.tokenizer(text, add_special_tokens=adds, return_offsets_mapping=True)
        return list(encoding["input_ids"]), list(encoding["offset_mapping"])

    def _located(
        self,
        ids: Sequence[int],
        places: TextPlaces,
        written: Written,
        contents: Sequence[Content],
        counts: Sequence[int],
        images: tuple[PreparedImage, ...],
        inputs: Mapping[str, Any] | None,
    ) -> EncodedPrompt:
        """Find candidates and query among a prompt's ids, and put the forced part of the answer behind it.

        Args:
            ids: The prompt's ids.
            places: Where its text is among them.
            written: Its text.
            contents: What is shown.
            counts: Visual tokens of each image.
            images: See :class:`EncodedPrompt`.
            inputs: See :class:`EncodedPrompt`.
        """
        spans: dict[int, list[int]] = {i: [] for i in range(len(contents))}
        if self.preparer is not None and counts:
            visual = visual_spans(ids, self.preparer.image_token_id, counts)
            pictured = [slot for slot in written.places if slot.kind == "image"]
            if self.delimited:
                edges = [self.preparer.ids(written.text[slice(*written.places[slot])]) for slot in pictured]
                visual = with_delimiters(ids, visual, edges, self.preparer.image_token_id)
            for slot, span in zip(pictured, visual, strict=True):
                spans[slot.owner] += span
        for slot, (begin, end) in written.places.items():
            if slot.kind == "text":
                spans[slot.owner] += places(begin, end, f"text of candidate {slot.owner}")
        cut = tuple(0 if c.text is None else self.shown_text(c.text)[1] for c in contents)
        answer = self.answer(len(contents))
        return EncodedPrompt(
            ids=(*ids, *answer.forced),
            spans=tuple(tuple(sorted(set(span))) for span in spans.values()),
            query=places(*written.places[QUERY], "query"),
            answer=answer,
            images=images,
            inputs=inputs,
            cut=cut if any(c.text is not None for c in contents) else (),
        )
