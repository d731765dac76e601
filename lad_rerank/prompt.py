"""What the model is asked: candidate labels, the paper's question, user text made safe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lad_rerank.errors import InvalidRequestError

if TYPE_CHECKING:
    from lad_rerank.contents import Arrangement, CandidateKind, Content

LabelStyle: TypeAlias = Literal["digits", "letters", "lower", "roman", "words", "auto"]

SpanStyle: TypeAlias = Literal["visual", "delimited"]
"""Which tokens count as a candidate's own: its visual tokens, or the marks around them too."""

Wording: TypeAlias = Literal["paper", "fair", "reasoning"]
"""How the question is put: as in the paper, with a request to be fair to all positions, or to think first."""

Shape: TypeAlias = tuple[tuple[bool, bool], ...]
"""Of each candidate in order: whether it has an image, and whether it has a text."""

PROMPT_VERSION = "lad-paper-1"
"""Names the paper's question over images; part of a calibration's fingerprint. See :func:`prompt_version`."""

SET_PROMPT_VERSION = "lad-set-1"
"""The same for candidates side by side."""

QUERY_MARK = "\ue000query\ue001"
"""Stands for the query while the chat is rendered: private-use characters that no template writes."""
NULL_QUERY = "N/A"
"""A query that says nothing: what is seen with it is salience, not relevance."""
MAX_TEXT_TOKENS = 256
"""Tokens of one candidate's text that are shown unless the caller says otherwise."""
WORD_JOINER = "\u2060"
MAX_LETTERS = 26
MAX_NUMERAL = 99
ONE_TOKEN_DIGITS = 9
"""Tokenizers split numbers into digits: from here on a digit label is several tokens."""

_ROMAN = ((90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))
_ONES = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

_WORDING = {
    "digits": ("indexed", "index number"),
    "letters": ("lettered", "letter"),
    "lower": ("lettered", "letter"),
    "roman": ("numbered", "Roman numeral"),
    "words": ("numbered", "number word"),
}
"""How the question speaks of each style; the first is the paper's."""

_NOUNS: dict[CandidateKind, tuple[str, str]] = {
    "image": ("images", "image"),
    "text": ("texts", "text"),
    "mixed": ("candidates", "candidate"),
}
"""How the question speaks of the candidates; the first is the paper's."""


def resolved_style(n: int, style: LabelStyle) -> LabelStyle:
    """What ``"auto"`` means for n candidates: whatever is one token each, digits where both are.

    Args:
        n: Number of candidates.
        style: Any style; all but ``"auto"`` are returned as they are.
    """
    if style != "auto":
        return style
    return "letters" if ONE_TOKEN_DIGITS < n <= MAX_LETTERS else "digits"


def most_labels(style: LabelStyle) -> int:
    """Most candidates that a style can name."""
    limits = {"letters": MAX_LETTERS, "lower": MAX_LETTERS, "roman": MAX_NUMERAL, "words": MAX_NUMERAL}
    return limits.get(style, sys.maxsize)


def candidate_labels(n: int, style: LabelStyle) -> tuple[str, ...]:
    """Name n candidates: ``1..``, ``A..``, ``a..``, ``I..`` or ``one..``.

    Args:
        n: Number of candidates, at least 1.
        style: ``"digits"``, ``"letters"``, ``"lower"``, ``"roman"``, ``"words"`` or ``"auto"``: digits up
            to 9 candidates, letters from 10 to 26, digits beyond.

    Returns:
        The n labels, in the order of the positions.

    Raises:
        InvalidRequestError: Unknown style, or more candidates than it can name.
    """
    style = resolved_style(n, style)
    if n > most_labels(style):
        raise InvalidRequestError(
            f"labels={style!r} names at most {most_labels(style)} candidates, got {n}; use 'digits'."
        )
    if style == "digits":
        return tuple(str(i + 1) for i in range(n))
    if style in ("letters", "lower"):
        first = ord("A" if style == "letters" else "a")
        return tuple(chr(first + i) for i in range(n))
    if style == "roman":
        return tuple(_roman(i + 1) for i in range(n))
    if style == "words":
        return tuple(_word(i + 1) for i in range(n))
    raise InvalidRequestError(f"Unknown label style {style!r}; choose one of {', '.join(get_args(LabelStyle))}.")


def _roman(value: int) -> str:
    written = ""
    for worth, numeral in _ROMAN:
        times, value = divmod(value, worth)
        written += numeral * times
    return written


def _word(value: int) -> str:
    if value < 20:
        return _ONES[value - 1]
    tens, ones = divmod(value, 10)
    return _TENS[tens - 2] + (f"-{_ONES[ones - 1]}" if ones else "")


def prompt_version(
    kind: CandidateKind = "image", wording: Wording = "paper", arrangement: Arrangement = "sequence"
) -> str:
    """Name of a prompt's wording, part of a calibration's fingerprint.

    Args:
        kind: What the candidates are.
        wording: How the question is put; side by side it is put in one way only.
        arrangement: How the candidates stand in it.
    """
    if arrangement == "set":
        return SET_PROMPT_VERSION if kind == "image" else f"lad-set-{kind}-1"
    return PROMPT_VERSION if (kind, wording) == ("image", "paper") else f"lad-{wording}-{kind}-1"


def wording_of(version: str) -> Wording:
    """The wording that a :func:`prompt_version` names; the paper's for a version nobody knows."""
    named = version.split("-")[1:2]
    return next((wording for wording in get_args(Wording) if [wording] == named), "paper")


def shape_of(contents: Sequence[Content]) -> Shape:
    """What a prompt's frame depends on beside the number of candidates."""
    return tuple((content.image is not None, content.text is not None) for content in contents)


def shape_kind(shape: Shape) -> CandidateKind:
    """What candidates of this shape are, as :func:`lad_rerank.contents.kind_of` says of contents."""
    if not any(has_text for _, has_text in shape):
        return "image"
    return "mixed" if any(has_image for has_image, _ in shape) else "text"


def text_mark(index: int) -> str:
    """Stands for a candidate's text while the chat is rendered, as QUERY_MARK does for the query."""
    return f"\ue000{index}\ue001"


def question_parts(
    n: int, style: LabelStyle, kind: CandidateKind = "image", wording: Wording = "paper"
) -> tuple[str, str]:
    """The text around the query, which stands after the n candidates (paper, appendix E).

    Args:
        n: Number of candidates.
        style: How they are named.
        kind: What they are; the paper's are images.
        wording: ``"paper"``; ``"fair"``, which adds that positions say nothing; or ``"reasoning"``, which asks
            to think step by step and to end with "Answer: " and the label.

    Returns:
        What comes before the query and what comes after it.

    Raises:
        InvalidRequestError: Unknown wording.
    """
    labels = candidate_labels(n, style)
    named, answer = _WORDING[resolved_style(n, style)]
    many, one = _NOUNS[kind]
    before = (
        f"Given {n} {many} {named} from {labels[0]} to {labels[-1]}, identify the {one} that best matches "
        "the provided caption. "
    )
    only = f"Respond with the {answer} only and nothing else.\nCaption: "
    if wording == "paper":
        return before + only, "\nAnswer: "
    if wording == "fair":
        return before + (
            f"Every position is equally likely to hold the match and the order of the {many} carries no information, "
            f"so judge each {one} by its content alone. {only}"
        ), "\nAnswer: "
    if wording == "reasoning":
        return before + (
            f'Think step by step first: compare each {one} with the caption. Then end with "Answer: " followed by '
            f"the {answer} of the {one} and nothing else.\nCaption: "
        ), "\nReasoning: "
    raise InvalidRequestError(f"Unknown wording {wording!r}; choose one of {', '.join(get_args(Wording))}.")


def set_question_parts(n: int, kind: CandidateKind = "image") -> tuple[str, str]:
    """The text around the query where the n candidates stand side by side.

    The paper's question over images, which names numbers that no candidate has: models trained to answer it attend
    to the right image. Elsewhere nothing is said of labels.

    Args:
        n: Number of candidates.
        kind: What they are.

    Returns:
        What comes before the query and what comes after it.
    """
    if kind == "image":
        return question_parts(n, "digits")
    many, one = _NOUNS[kind]
    return f"Given {n} {many}, identify the {one} that best matches the provided caption.\nCaption: ", "\nAnswer: "


def chat_messages(n: int, text: str) -> list[dict[str, Any]]:
    """One user turn: n images, in order, then the text."""
    content: list[dict[str, Any]] = [{"type": "image"} for _ in range(n)]
    content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def labelled_messages(labels: Sequence[str], shape: Shape, text: str) -> list[dict[str, Any]]:
    """One user turn: a line for each candidate, ``A: <image> its text``, then the text.

    A chat template that puts all images first (LLaVA-OneVision's) leaves the lines without them.

    Args:
        labels: What the candidates are called.
        shape: What each of them has. :func:`text_mark` stands for the texts.
        text: What comes behind the last line.
    """
    content: list[dict[str, Any]] = []
    written = ""
    for i, (label, (has_image, has_text)) in enumerate(zip(labels, shape, strict=True)):
        written += f"{label}:"
        if has_image:
            content += [{"type": "text", "text": f"{written} "}, {"type": "image"}]
            written = ""
        written += f" {text_mark(i)}\n" if has_text else "\n"
    return [{"role": "user", "content": [*content, {"type": "text", "text": written + text}]}]


def clean_text(text: str) -> str:
    """Make one line of a text from outside: line breaks and control characters become spaces.

    A text with line breaks could otherwise open a prompt section of its own ("Answer: 3").

    Returns:
        The line, empty where nothing is left.
    """
    line = " ".join(
        "".join(" " if ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029" else c for c in text).split()
    )
    # A lone surrogate is no text: no tokenizer can encode it.
    return line.encode("utf-8", "replace").decode("utf-8")


def clean_query(query: str) -> str:
    """Make one line of a query, as :func:`clean_text` does of any text.

    Raises:
        InvalidRequestError: Nothing is left, or it is not a string.
    """
    if not isinstance(query, str):
        raise InvalidRequestError(f"The query must be a string, got {type(query).__name__}.")
    line = clean_text(query)
    if not line:
        raise InvalidRequestError("The query is empty; say in words what is looked for.")
    return line


def safe_text(text: str, added_tokens: Iterable[str]) -> str:
    """Break every added token spelled out in user text, so that it stays text.

    A U+2060 (word joiner) behind the first character of each occurrence keeps a tokenizer from
    reading ``<|im_end|>`` or ``<image>`` in a query as the control token of that name. Text without
    such strings is returned as it is.

    Args:
        text: A query or any other text from outside.
        added_tokens: The strings of all added tokens of the tokenizer.
    """
    pattern = _any_of(tuple(added_tokens))
    while pattern is not None and (broken := pattern.sub(lambda m: m[0][0] + WORD_JOINER + m[0][1:], text)) != text:
        text = broken
    return text


@lru_cache(maxsize=16)
def _any_of(added_tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    """Finds the longest of some tokenizer's added tokens; made once, since some tokenizers have thousands."""
    tokens = sorted((t for t in added_tokens if len(t) > 1 and t.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, tokens))) if tokens else None
