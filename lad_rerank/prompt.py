"""What the model is asked: candidate labels, the paper's question, user text made safe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

from lad_rerank.errors import InvalidRequestError

LabelStyle: TypeAlias = Literal["digits", "letters", "lower", "roman", "words", "auto"]

SpanStyle: TypeAlias = Literal["visual", "delimited"]
"""Which tokens count as a candidate's own: its visual tokens, or the marks around them too."""

PROMPT_VERSION = "lad-paper-1"
"""Names the wording below; part of a calibration's fingerprint."""

QUERY_MARK = "\ue000query\ue001"
"""Stands for the query while the chat is rendered: private-use characters that no template writes."""
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


def question_parts(n: int, style: LabelStyle) -> tuple[str, str]:
    """The text around the query, which stands after the n images (paper, appendix E).

    Returns:
        What comes before the query and what comes after it.
    """
    labels = candidate_labels(n, style)
    named, answer = _WORDING[resolved_style(n, style)]
    before = (
        f"Given {n} images {named} from {labels[0]} to {labels[-1]}, identify the image that best matches "
        f"the provided caption. Respond with the {answer} only and nothing else.\nCaption: "
    )
    return before, "\nAnswer: "


def chat_messages(n: int, text: str) -> list[dict[str, Any]]:
    """One user turn: n images, in order, then the text."""
    content: list[dict[str, Any]] = [{"type": "image"} for _ in range(n)]
    content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def clean_query(query: str) -> str:
    """Make one line of a query: line breaks and control characters become spaces.

    A query with line breaks could otherwise open a prompt section of its own ("Answer: 3").

    Raises:
        InvalidRequestError: Nothing is left, or it is not a string.
    """
    if not isinstance(query, str):
        raise InvalidRequestError(f"The query must be a string, got {type(query).__name__}.")
    line = " ".join(
        "".join(" " if ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029" else c for c in query).split()
    )
    # A lone surrogate is no text: no tokenizer can encode it.
    line = line.encode("utf-8", "replace").decode("utf-8")
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
    tokens = sorted((t for t in added_tokens if len(t) > 1 and t.strip()), key=len, reverse=True)
    if not tokens:
        return text
    pattern = re.compile("|".join(map(re.escape, tokens)))
    while (broken := pattern.sub(lambda m: m[0][0] + WORD_JOINER + m[0][1:], text)) != text:
        text = broken
    return text
