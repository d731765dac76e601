from __future__ import annotations

import time

import pytest

from lad_rerank.evaluation.generated import parse_label
from lad_rerank.prompt import LabelStyle, candidate_labels


def parsed(text: str, n: int, style: LabelStyle) -> str | None:
    labels = candidate_labels(n, style)
    found = parse_label(text, labels)
    return None if found is None else labels[found]


@pytest.mark.parametrize(
    "text",
    [
        "3", "3.", " 3\n", "(3)", "[3]", "#3", '"3"', "“3”", "`3`", "**3**", "- 3", "３", "$\\boxed{3}$", "Image 3",
        "image: 3", "Text 3", "The image 3.", "The answer is 3", "The answer is: **3**.", "Final answer - 3",
        "<answer>3</answer>",
        "3\n\nCaption: a mug\nAnswer: 5", "3, because it is red", "3. It shows a mug.", "3 is the right one",
        "The best match is image 3.", "Image 1 is red.\nImage 2 is not.\n**Answer:** 3", "Answer: 1? No.\nAnswer: 3",
        "1. A mug.\n2. A cup.\nAnswer: 3", "<think>Maybe 1, maybe 2.</think>\n\n3", "Answer: the red mug in image 3.",
        "Answer: 3 The red mug", "Reasoning: it is blue. ANSWER: 3", "Answer: none but image 3",
    ],
)  # fmt: skip
def test_one_digit_is_said(text: str) -> None:
    assert parsed(text, 12, "digits") == "3"


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "Answer:", "none of them", "0", "13", "3 or 4", "3, 4", "3 and 4", "3-4", "3/4", "3.5", "3rd", "3 4",
        "image3", "1. A mug.\n2. A cup.", "Answer: 3 or 5", "Answer: none", "Image 3 is red, image 5 is blue.",
        "Images 1 and 3 look alike.", "Given 12 images indexed from 1 to 12", "3 is red, image 4 is blue", "mug",
    ],
)  # fmt: skip
def test_no_digit_or_several_are_said(text: str) -> None:
    assert parsed(text, 12, "digits") is None


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [("12", 12, "12"), ("Image 12", 12, "12"), ("Answer: 12.", 12, "12"), ("1", 12, "1"), ("12", 8, None)],
)
def test_the_longest_label_counts(text: str, n: int, expected: str | None) -> None:
    assert parsed(text, n, "digits") == expected


@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ("B", "letters", "B"),
        ("b.", "letters", "B"),
        ("(c)", "letters", "C"),
        ("Option D is best", "letters", "D"),
        ("The answer is (B).", "letters", "B"),
        ("Answer: **B** because", "letters", "B"),
        ("A", "lower", "a"),
        ("A red mug", "letters", None),
        ("Answer: A red mug", "letters", None),
        ("A red mug is in image 3", "letters", None),
        ("a mug and a cup", "lower", None),
        ("IV", "roman", "IV"),
        ("viii.", "roman", "VIII"),
        ("I think it is image IV", "roman", "IV"),
        ("Answer: I", "roman", "I"),
        ("twenty-one", "words", "twenty-one"),
        ("Twenty", "words", "twenty"),
        ("Image one", "words", "one"),
        ("one of them", "words", None),
        ("Answer: one of them", "words", None),
        ("I see no one", "words", None),
    ],
)
def test_labels_of_letters_and_words(text: str, style: LabelStyle, expected: str | None) -> None:
    assert parsed(text, 26 if style in ("words", "letters") else 12, style) == expected


@pytest.mark.parametrize("style", ["digits", "letters", "lower", "roman", "words", "auto"])
@pytest.mark.parametrize("wrapped", ["{}", "{}.", "Image {}", "Answer: {}", "It shows a mug.\nAnswer: {}\n", "({})"])
def test_every_label_is_read_back(style: LabelStyle, wrapped: str) -> None:
    labels = candidate_labels(26, style)
    assert [parse_label(wrapped.format(label), labels) for label in labels] == list(range(26))


@pytest.mark.parametrize("piece", ["(", " answer is ", " image", "answer:", " 1.", "one ", "image 1, ", "\n"])
def test_long_nonsense_takes_no_time(piece: str) -> None:
    started = time.perf_counter()
    for style in ("digits", "words"):
        parse_label(piece * (20_000 // len(piece)) + "!", candidate_labels(26, style))
    assert time.perf_counter() - started < 2
