"""From a query and pictures to token ids, with the positions of everything that is read later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError
from lad_rerank.prompt import LabelStyle, candidate_labels, chat_messages, question_parts, safe_text

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin

    from lad_rerank.backbones.label_scoring import Tokens

QUERY_MARK = "\ue000query\ue001"
"""Stands for the query while the chat is rendered: private-use characters that no template writes."""


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


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, ready for the model.

    Attributes:
        inputs: The processor's tensors; ``input_ids`` is (1, T).
        spans: Token positions of each candidate's visual tokens, delimiters left out.
        query: Token positions of the query's own tokens.
        answer: How the labels are written behind this prompt.
    """

    inputs: dict[str, Any]
    spans: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]
    answer: AnswerTokens

    @property
    def length(self) -> int:
        """T, tokens of the prompt."""
        return int(self.inputs["input_ids"].shape[1])


def render(processor: ProcessorMixin, n: int, style: LabelStyle, answer: str | None = None) -> str:
    """Render the chat with QUERY_MARK in place of the query, up to the answer or with an answer in it."""
    before, after = question_parts(n, style)
    messages = chat_messages(n, before + QUERY_MARK + after)
    if answer is not None:
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    text = processor.apply_chat_template(messages, add_generation_prompt=answer is None, tokenize=False)
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
    prompt = render(processor, n, style)
    special = set(processor.tokenizer.all_special_ids)
    sequences, end = [], processor.tokenizer.eos_token_id
    for label in candidate_labels(n, style):
        full = render(processor, n, style, label)
        # A template whose answer turn differs from its generation prompt gets the bare label instead.
        written = full[len(prompt) :] if full.startswith(prompt) else label
        ids = processor.tokenizer(written, add_special_tokens=False)["input_ids"]
        stop = next((i for i, token in enumerate(ids) if token in special), len(ids))
        if stop < len(ids):
            end = ids[stop]
        sequences.append(tuple(ids[:stop]))
    shared = 0
    while all(len(s) > shared + 1 and s[shared] == sequences[0][shared] for s in sequences):
        shared += 1
    if len(set(sequences)) != n or end is None:
        raise BackboneError(f"The tokenizer does not tell the {n} labels of style {style!r} apart; choose another one.")
    return AnswerTokens(tuple(s[shared:] for s in sequences), sequences[0][:shared], int(end))


def encode(
    processor: ProcessorMixin,
    image_token_id: int,
    query: str,
    images: Sequence[Image],
    style: LabelStyle,
    images_kwargs: Mapping[str, Any],
    answer: AnswerTokens,
) -> EncodedPrompt:
    """Encode one prompt and find every token that is read later.

    Args:
        processor: The model's own processor.
        image_token_id: Placeholder id that stands for one visual token.
        query: One line of text.
        images: N RGB pictures, in the order they are shown.
        style: How candidates are named.
        images_kwargs: Passed to the image processor: the pixel budget.
        answer: From :func:`answer_tokens`.

    Raises:
        BackboneError: Image spans or the query's tokens are not where they must be.
    """
    rendered = render(processor, len(images), style)
    head, tail = rendered.split(QUERY_MARK)
    tokenizer = processor.tokenizer
    safe = safe_text(query, tokenizer.get_added_vocab())
    inputs = dict(
        processor(
            text=[head + safe + tail],
            images=list(images),
            images_kwargs=dict(images_kwargs),
            truncation=False,
            return_text_replacement_offsets=True,
            return_tensors="pt",
        )
    )
    replacements = inputs.pop("text_replacement_offsets")[0]
    ids = inputs["input_ids"][0].tolist()
    spans = _image_spans(
        ids, image_token_id, [_count(tokenizer, r["replacement"], image_token_id) for r in replacements]
    )
    if len(spans) != len(images):
        raise BackboneError(f"The processor made {len(spans)} image spans of {len(images)} images.")
    behind = replacements[-1]["span"][1]
    query_positions = _query_positions(tokenizer, ids, head[behind:], safe, tail)
    _append(inputs, answer.forced)
    return EncodedPrompt(inputs, spans, query_positions, answer)


def _count(tokenizer: Any, replacement: str, image_token_id: int) -> int:
    """Visual tokens in the text that the processor put in place of one image."""
    ids: list[int] = tokenizer(replacement, add_special_tokens=False)["input_ids"]
    return ids.count(image_token_id)


def _image_spans(ids: list[int], image_token_id: int, counts: list[int]) -> tuple[tuple[int, ...], ...]:
    """Deal the placeholder's positions out to the images, in order."""
    positions = [i for i, token in enumerate(ids) if token == image_token_id]
    if sum(counts) != len(positions) or not all(counts):
        raise BackboneError(
            f"The prompt holds {len(positions)} visual tokens, but its images stand for {counts}; "
            "nothing was truncated, so the processor and the model's image token do not agree."
        )
    spans, start = [], 0
    for count in counts:
        spans.append(tuple(positions[start : start + count]))
        start += count
    return tuple(spans)


def _query_positions(tokenizer: Any, ids: list[int], before: str, query: str, after: str) -> tuple[int, ...]:
    """Positions of the query's tokens: the text behind the last image is tokenised again, with offsets.

    An image's placeholder is an added token and so always a boundary: what stands behind it tokenises
    as it does in place.
    """
    encoding = tokenizer(before + query + after, add_special_tokens=False, return_offsets_mapping=True)
    behind = encoding["input_ids"]
    first = len(ids) - len(behind)
    if first < 0 or ids[first:] != behind:
        raise BackboneError("The text behind the images tokenises differently on its own; the query is not found.")
    begin, end = len(before), len(before) + len(query)
    found = tuple(first + i for i, (a, b) in enumerate(encoding["offset_mapping"]) if begin < b and a < end and a < b)
    if not found:
        raise BackboneError("No token of the prompt belongs to the query.")
    return found


def _append(inputs: dict[str, Any], tokens: Tokens) -> None:
    """Put tokens of text behind the prompt, in every per-token tensor."""
    if not tokens:
        return
    import torch

    length = inputs["input_ids"].shape[1]
    for name, value in list(inputs.items()):
        if getattr(value, "shape", None) == (1, length):
            fill = {"input_ids": list(tokens), "attention_mask": [1] * len(tokens)}.get(name, [0] * len(tokens))
            inputs[name] = torch.cat([value, torch.tensor([fill], dtype=value.dtype)], dim=1)
