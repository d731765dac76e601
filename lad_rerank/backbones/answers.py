"""How a model is asked and how it writes its answer: the rendered chat, and the tokens of each label behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError
from lad_rerank.prompt import (
    QUERY_MARK,
    LabelStyle,
    Shape,
    Wording,
    candidate_labels,
    chat_messages,
    labelled_messages,
    question_parts,
    shape_kind,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

    from lad_rerank.backbones.label_scoring import Tokens


@dataclass(frozen=True)
class AnswerTokens:
    """How the model writes its answer.

    Attributes:
        labels: Token sequence of each label, without what all labels begin with.
        forced: Tokens that every answer begins with (a space, for some models); part of the prompt.
        end: The token that ends an answer.
    """

    labels: tuple[Tokens, ...]
    forced: Tokens
    end: int


def shows_images(processor: ProcessorMixin | PreTrainedTokenizerBase) -> bool:
    """Whether it is the processor of a multimodal model; a plain language model's is its tokenizer."""
    return hasattr(processor, "tokenizer")


def tokenizer_of(processor: ProcessorMixin | PreTrainedTokenizerBase) -> Any:
    """The tokenizer of a processor, or the tokenizer that it is."""
    return getattr(processor, "tokenizer", processor)


def render(
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    shape: Shape,
    style: LabelStyle,
    wording: Wording = "paper",
    answer: str | None = None,
) -> str:
    """Render the chat with marks in place of query and texts, up to the answer or with an answer in it.

    A tokenizer without a chat template is that of a base model: it gets the question as plain text.

    Args:
        processor: The model's processor, or a plain language model's tokenizer.
        shape: What each candidate has.
        style: How candidates are named.
        wording: How the question is put.
        answer: What the model says, if the answer is to be in it.

    Raises:
        BackboneError: There is no chat template, or it changes the user's text.
    """
    n = len(shape)
    before, after = question_parts(n, style, shape_kind(shape), wording)
    question = before + QUERY_MARK + after
    messages = (
        chat_messages(n, question)
        if shape_kind(shape) == "image"
        else labelled_messages(candidate_labels(n, style), shape, question)
    )
    return render_chat(processor, messages, answer)


def render_chat(
    processor: ProcessorMixin | PreTrainedTokenizerBase, messages: list[dict[str, Any]], answer: str | None = None
) -> str:
    """Render turns in which QUERY_MARK stands for the query; see :func:`render`.

    Raises:
        BackboneError: There is no chat template, or it changes the user's text.
    """
    if answer is not None:
        messages = [*messages, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    if not shows_images(processor):
        # Templates of plain language models want strings.
        messages = [{**turn, "content": "".join(part["text"] for part in turn["content"])} for turn in messages]
        if getattr(processor, "chat_template", None) is None:
            # The space in front belongs to the answer's first token.
            return str(messages[0]["content"]).rstrip() + ("" if answer is None else f" {answer}\n")
    chat: Any = processor
    try:
        text: Any = chat.apply_chat_template(messages, add_generation_prompt=answer is None, tokenize=False)
    except ValueError as error:
        raise BackboneError(f"The model's processor renders no chat: {error}") from error
    if not isinstance(text, str) or text.count(QUERY_MARK) != 1:
        raise BackboneError("The model's chat template does not pass the user's text through unchanged.")
    return text


def answer_tokens(
    processor: ProcessorMixin | PreTrainedTokenizerBase, n: int, style: LabelStyle, wording: Wording = "paper"
) -> AnswerTokens:
    """Token sequences of the labels, from rendering the chat with each answer in it.

    ``convert_tokens_to_ids("1")`` would be wrong wherever a template or tokenizer puts something
    before the answer. What the candidates are makes no difference: the question stands between them and the answer.

    Raises:
        BackboneError: The tokenizer does not tell the labels apart.
    """
    tokenizer = tokenizer_of(processor)
    images = shows_images(processor)
    shape: Shape = ((images, not images),) * n
    prompt = render(processor, shape, style, wording)
    ends = {*tokenizer.all_special_ids, tokenizer.eos_token_id}
    if not images and getattr(processor, "chat_template", None) is None:
        # A base model ends its answer with the line.
        ends.add(_behind(tokenizer, prompt, " 1\n")[-1])
    sequences, end = [], tokenizer.eos_token_id
    for label in candidate_labels(n, style):
        full = render(processor, shape, style, wording, label)
        ids = _behind(tokenizer, prompt, full[len(prompt) :] if full.startswith(prompt) else label)
        stop = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        if stop < len(ids):
            end = ids[stop]
        sequences.append(tuple(ids[:stop]))
    shared = _shared(sequences)
    if len(set(sequences)) != n or end is None:
        raise BackboneError(f"The tokenizer does not tell the {n} labels of style {style!r} apart; choose another one.")
    return AnswerTokens(tuple(s[shared:] for s in sequences), sequences[0][:shared], int(end))


def _shared(sequences: Sequence[Tokens]) -> int:
    """Tokens that all of them begin with, each keeping one of its own."""
    shared = 0
    while all(len(s) > shared + 1 and s[shared] == sequences[0][shared] for s in sequences):
        shared += 1
    return shared


def _behind(tokenizer: Any, prompt: str, written: str) -> list[int]:
    """Ids of what is written behind a prompt, as they come out in place and not at the start of a text."""
    tail = prompt[-32:]
    before: list[int] = tokenizer(tail, add_special_tokens=False)["input_ids"]
    both: list[int] = tokenizer(tail + written, add_special_tokens=False)["input_ids"]
    if both[: len(before)] == before:
        return both[len(before) :]
    ids: list[int] = tokenizer(written, add_special_tokens=False)["input_ids"]
    return ids
