"""From contents and a query to the parts of a prompt whose candidates stand side by side.

A prompt is a prefix that all share, one block for each candidate, and a suffix with the question. The parts are
tokenised one by one, since blocks do not stand behind one another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from lad_rerank.backbones.answers import answer_tokens, render_chat
from lad_rerank.backbones.encoding import PromptEncoder
from lad_rerank.backbones.families.base import Added
from lad_rerank.backbones.frames import adds_start
from lad_rerank.backbones.preparing import PreparedImage
from lad_rerank.backbones.spans import TextPlaces, visual_spans, with_delimiters
from lad_rerank.contents import CandidateKind, Content
from lad_rerank.errors import BackboneError
from lad_rerank.prompt import QUERY_MARK, chat_messages, set_question_parts, text_mark

BLOCK_VERSION = "1"
"""Names how a candidate is written as a block; kept blocks of another version are made anew."""

HEADING = "Candidates:\n"
"""What a prompt begins with where nothing else stands before the candidates: a first token draws attention to itself,
and a candidate's must not."""


@dataclass(frozen=True)
class EncodedBlock:
    """One candidate, ready to be run behind the prefix.

    Attributes:
        ids: Its token ids.
        span: Which of them count as the candidate's own, ascending.
        image: Its image, if it has one.
        cut: Tokens of its text that were cut off.
    """

    ids: tuple[int, ...]
    span: tuple[int, ...]
    image: PreparedImage | None = None
    cut: int = 0


@dataclass(frozen=True)
class EncodedSuffix:
    """The question, ready to be run behind all candidates.

    Attributes:
        ids: Its token ids.
        query: Which of them are the query's own.
    """

    ids: tuple[int, ...]
    query: tuple[int, ...]


@dataclass(frozen=True)
class _Chat:
    """A rendered chat in parts.

    Attributes:
        prefix: What stands before the candidates.
        opening: What the template writes before each image, such as ``<|vision_start|>``.
        closing: What it writes behind each image.
    """

    prefix: str
    opening: str = ""
    closing: str = ""


class SetEncoder:
    """Encodes prompts whose candidates stand side by side.

    Args:
        encoder: Encodes prompts of the same processor in the paper's way; says how texts are cut and images written.

    Raises:
        BackboneError: The chat template numbers images, or does not pass texts through.
    """

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder
        self._added = encoder.preparer.added if encoder.preparer is not None else Added()
        self._chat = self._taken_apart()
        # In a closure of its own, so that it goes with the encoder.
        self._around = lru_cache(maxsize=128)(self._question)

    @property
    def block_settings(self) -> str:
        """All about this encoder that a block depends on beside its content, as text."""
        preparer = self._encoder.preparer
        return repr(
            (
                BLOCK_VERSION,
                self._chat.opening,
                self._chat.closing,
                self._encoder.max_text_tokens,
                self._encoder.delimited,
                None if preparer is None else (preparer.budget.pixels, dict(preparer.budget.images_kwargs)),
            )
        )

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """Token ids of what stands before all candidates; never empty."""
        tokenizer = self._encoder.tokenizer
        text = self._added.first + self._chat.prefix
        ids: list[int] = tokenizer(text, add_special_tokens=adds_start(tokenizer, text))["input_ids"]
        return tuple(ids or tokenizer(HEADING, add_special_tokens=False)["input_ids"])

    def block(self, content: Content, image: PreparedImage | None) -> EncodedBlock:
        """Encode a candidate: its image with the image's own marks, then a line with its text.

        Args:
            content: What is shown.
            image: Its image as the processor sees it, if it has one.

        Raises:
            BackboneError: Its tokens are not where they must be.
        """
        written, begin, cut = "", 0, 0
        if image is not None:
            written = self._chat.opening + image.text + self._chat.closing
        if content.text is not None:
            shown, cut = self._encoder.shown_text(content.text)
            begin = len(written) + 2
            written += f"- {shown}\n"
        ids, places = self._tokenised(written)
        span: set[int] = set()
        preparer = self._encoder.preparer
        if image is not None and preparer is not None:
            visual = visual_spans(ids, preparer.image_token_id, [image.tokens])
            if self._encoder.delimited:
                visual = with_delimiters(ids, visual, [preparer.ids(image.text)], preparer.image_token_id)
            span.update(visual[0])
        if content.text is not None:
            span.update(places(begin, len(written) - 1, "candidate's text"))
        return EncodedBlock(tuple(ids), tuple(sorted(span)), image, cut)

    def suffix(self, query: str, n: int, kind: CandidateKind) -> EncodedSuffix:
        """Encode the question, with what every answer begins with behind it.

        Args:
            query: One line of text.
            n: Number of candidates.
            kind: What they are.

        Raises:
            BackboneError: The query's tokens are not where they must be.
        """
        before, after = self._around(n, kind)
        shown = self._encoder.safe(query)
        ids, places = self._tokenised(before + shown + after)
        query_at = places(len(before), len(before) + len(shown), "query")
        return EncodedSuffix((*ids, *self._forced), query_at)

    def _taken_apart(self) -> _Chat:
        """Find what the template writes around candidates.

        Where the model sees images, they stand behind the same prefix as texts: what a chat with images and one
        without begin with alike.
        """
        head = self._rendered(text_mark(0) + QUERY_MARK).partition(text_mark(0))[0]
        if self._encoder.preparer is None:
            return _Chat(head)
        placeholder = self._encoder.preparer.placeholder
        rendered = render_chat(self._encoder.processor, chat_messages(3, QUERY_MARK))
        first, *between, last = rendered.split(placeholder)
        prefix = os.path.commonprefix([first, head])  # noqa: RUF071 - of any strings, not of paths
        opening = first[len(prefix) :]
        if len(between) != 2 or between[0] != between[1] or not between[0].endswith(opening):
            raise BackboneError(
                "The chat template writes something else at every image, so that images cannot stand side by side; "
                "use the sequence arrangement."
            )
        closing = between[0].removesuffix(opening)
        if not last.startswith(closing):
            raise BackboneError("The chat template ends its last image in another way than the others.")
        return _Chat(prefix, opening, closing)

    def _question(self, n: int, kind: CandidateKind) -> tuple[str, str]:
        """The suffix's text before and behind the query."""
        before, after = set_question_parts(n, kind)
        question = before + QUERY_MARK + after
        if self._encoder.preparer is None or kind != "image":
            behind = self._rendered(text_mark(0) + question).partition(text_mark(0))[2]
        else:
            rendered = render_chat(self._encoder.processor, chat_messages(2, question))
            behind = rendered.rpartition(self._encoder.preparer.placeholder)[2].removeprefix(self._chat.closing)
        first, mark, last = behind.partition(QUERY_MARK)
        if not mark:
            raise BackboneError("The model's chat template does not pass the user's text through unchanged.")
        return first, last + self._added.last

    @cached_property
    def _forced(self) -> tuple[int, ...]:
        """What every answer begins with is no answer yet: the last row is read behind it."""
        return answer_tokens(self._encoder.processor, 2, "digits").forced

    def _rendered(self, text: str) -> str:
        """A chat whose user says a text."""
        turn: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        return render_chat(self._encoder.processor, turn)

    def _tokenised(self, text: str) -> tuple[Sequence[int], TextPlaces]:
        """Ids of a part that stands behind others, and where its characters are among them."""
        encoding = self._encoder.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = list(encoding["input_ids"])
        return ids, TextPlaces(ids, ids, list(encoding["offset_mapping"]))
