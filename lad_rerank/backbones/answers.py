"""How a model writes its answer: the tokens of each label behind the generation prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError
from lad_rerank.prompt import QUERY_MARK, LabelStyle, candidate_labels, chat_messages, question_parts

if TYPE_CHECKING:
    from transformers import ProcessorMixin

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


def render(processor: ProcessorMixin, n: int, style: LabelStyle, answer: str | None = None) -> str:
    """Render the chat with QUERY_MARK in place of the query, up to the answer or with an answer in it.

    Raises:
        BackboneError: There is no chat template, or it changes the user's text.
    """
    before, after = question_parts(n, style)
    messages = chat_messages(n, before + QUERY_MARK + after)
    if answer is not None:
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    try:
        text: Any = processor.apply_chat_template(messages, add_generation_prompt=answer is None, tokenize=False)
    except ValueError as error:
        raise BackboneError(f"The model's processor renders no chat: {error}") from error
    if not isinstance(text, str) or text.count(QUERY_MARK) != 1:
        raise BackboneError("The model's chat template does not pass the user's text through unchanged.")
    return text


def answer_tokens(processor: ProcessorMixin, n: int, style: LabelStyle) -> AnswerTokens:
    """Token sequences of the labels, from rendering the chat with each answer in it.

    ``convert_tokens_to_ids("1")`` would be wrong wherever a template or tokenizer puts something
    before the answer.

    Raises:
        BackboneError: The tokenizer does not tell the labels apart.
    """
    tokenizer: Any = processor.tokenizer
    prompt = render(processor, n, style)
    ends = {*tokenizer.all_special_ids, tokenizer.eos_token_id}
    sequences, end = [], tokenizer.eos_token_id
    for label in candidate_labels(n, style):
        full = render(processor, n, style, label)
        ids = _behind(tokenizer, prompt, full[len(prompt) :] if full.startswith(prompt) else label)
        stop = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        if stop < len(ids):
            end = ids[stop]
        sequences.append(tuple(ids[:stop]))
    shared = 0
    while all(len(s) > shared + 1 and s[shared] == sequences[0][shared] for s in sequences):
        shared += 1
    if len(set(sequences)) != n or end is None:
        raise BackboneError(f"The tokenizer does not tell the {n} labels of style {style!r} apart; choose another one.")
    return AnswerTokens(tuple(s[shared:] for s in sequences), sequences[0][:shared], int(end))


def _behind(tokenizer: Any, prompt: str, written: str) -> list[int]:
    """Ids of what is written behind a prompt, as they come out in place and not at the start of a text."""
    tail = prompt[-32:]
    before: list[int] = tokenizer(tail, add_special_tokens=False)["input_ids"]
    both: list[int] = tokenizer(tail + written, add_special_tokens=False)["input_ids"]
    if both[: len(before)] == before:
        return both[len(before) :]
    ids: list[int] = tokenizer(written, add_special_tokens=False)["input_ids"]
    return ids
