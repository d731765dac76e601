"""Which candidate a generated text answers with."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_OPENING = r"[\s*_`~#\"'“”‘’(\[{<$\\-]*"
"""What may stand before a label: quotes, brackets, emphasis, a bullet."""
_CLOSING = r"[\s*_`~\"'“”’)\]}>$.,:;!?]*"
_NOUN = (
    r"(?i:\b(?:answers?|images?|pictures?|photos?|options?|texts?|candidates?|choices?|index|numbers?|letters?|labels?|"
    r"numerals?|match(?:es)?|boxed)\b(?:[\s*_`]*\b(?:is|are|was|would be|should be|must be)\b)?"
    r"[\s:=*_`~#\"'“”‘’(\[{<>$\\-]*)"
)
"""A word that says that a label follows, such as "image" or "the best match is", and what may stand between."""
_END = r"(?!\w)(?![-/]\w)(?![.,]\d)"
"""Behind a label: "3" is not the beginning of "3rd", "3-4" or "3.5"."""
_LINK = r"\s*(?:,|&|\band\b|\bor\b|\bto\b)\s*"
_MARKED = r"[*_`\"'”’)\]}]*"
_EXPLAINED = re.compile(rf"{_MARKED}(?:[.,:;)\n]|\s+(?i:because|since)\b)")
_PRAISED = re.compile(rf"{_MARKED}\s+(?i:is|matches)\b")
_MARKER = re.compile(r"\banswer\b[^\w:\n]*(?:is\b[^\w:\n]*)?:", re.IGNORECASE)
"""The "Answer:" that a reasoning text ends with."""


def parse_label(text: str, labels: Sequence[str]) -> int | None:
    """The label that a text answers with.

    In this order: a first line that is a label and nothing else ("3", "(3).", "Image 3"); what stands behind the
    last "Answer:"; a label that the text begins with and then talks about ("3, because ..."); the one label that
    the text names ("the best match is image 3"). The longest label counts, so "12" is never "1".

    Args:
        text: What the model wrote. What stands before a closing ``</think>`` does not count.
        labels: N labels, in the order of the positions.

    Returns:
        The label's index; ``None`` where the text names none, or several.
    """
    reader = _reader(tuple(labels))
    text = unicodedata.normalize("NFKC", text).rpartition("</think>")[2].strip()
    markers = list(_MARKER.finditer(text))
    in_first_line = bool(markers) and "\n" not in text[: markers[0].start()]
    if not in_first_line and (whole := reader.whole(text)) is not None:
        return whole
    if markers and (answer := text[markers[-1].end() :].strip()):
        if (whole := reader.whole(answer)) is not None:
            return whole
        return _only(reader.leading(answer, expected=True) or reader.named(answer))
    return _only(reader.leading(text) or reader.named(text))


def _only(found: Sequence[int]) -> int | None:
    return found[0] if len(set(found)) == 1 else None


@dataclass(frozen=True)
class _Reader:
    """Finds labels in texts.

    Attributes:
        index: Of each label, by its text without case.
        any_case: Pattern of a label, however written.
        exact: Pattern of a label where single letters keep their case: "a" is mostly an article.
    """

    index: dict[str, int]
    any_case: str
    exact: str

    def whole(self, text: str) -> int | None:
        """The label that the first line consists of."""
        line = text.partition("\n")[0]
        found = re.fullmatch(f"{_OPENING}(?i:the\\s+)?(?:{_NOUN})*({self.any_case}){_CLOSING}", line)
        return self._of(found[1]) if found else None

    def leading(self, text: str, *, expected: bool = False) -> list[int]:
        """Labels that the text begins with: one that it goes on to talk about, or several; often none.

        Args:
            text: Without space before it.
            expected: A label is expected here: only letters and words need a sign that they are one.
        """
        found = re.match(f"{_OPENING}(?i:the\\s+)?(?:{_NOUN})*({self.exact}){_END}", text)
        if not found:
            return []
        first, rest = self._of(found[1]), text[found.end() :]
        if other := re.match(f"{_LINK}(?:{_NOUN})?{_OPENING}({self.exact}){_END}", rest):
            return [first, self._of(other[1])]
        if _PRAISED.match(rest):
            return [first, *self.named(rest)]
        if not (expected and found[1].isdecimal()) and not _EXPLAINED.match(rest):
            return []
        # "1. A red mug. 2. A blue one." counts the candidates, it does not choose one.
        points = re.findall(rf"\s[*_`#(\[-]{{0,4}}({self.exact})[.):]\s", rest)
        return [] if any(self._of(point) != first for point in points) else [first]

    def named(self, text: str) -> list[int]:
        """All labels behind a word that says that one follows."""
        link = f"(?:{_LINK}(?:{_NOUN})?{_OPENING}({self.exact}){_END})?"
        pairs = re.findall(f"{_NOUN}({self.exact}){_END}{link}", text)
        return [self._of(label) for pair in pairs for label in pair if label]

    def _of(self, written: str) -> int:
        return self.index[written.casefold()]


@lru_cache(maxsize=64)
def _reader(labels: tuple[str, ...]) -> _Reader:
    longest_first = sorted(labels, key=len, reverse=True)
    any_case = "|".join(f"(?i:{re.escape(label)})" for label in longest_first)
    exact = "|".join(re.escape(label) if len(label) == 1 else f"(?i:{re.escape(label)})" for label in longest_first)
    # Not preceded by a word's letter either: "image" ends with an "e" that is no label.
    index = {label.casefold(): i for i, label in enumerate(labels)}
    return _Reader(index, rf"(?<!\w)(?:{any_case})", rf"(?<!\w)(?:{exact})")
