"""From the caller's list to what is shown."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.candidates import canonical_order, open_candidates
from lad_rerank.contents import kind_of
from lad_rerank.errors import InvalidRequestError
from lad_rerank.images import image_digest
from lad_rerank.records import Candidate


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (shade, 0, 0))


def test_an_image_a_text_or_both() -> None:
    given: list[Any] = [picture(1), Candidate(picture(1), text=" a\x00 red\n\tmug "), Candidate(text="a cup", id="cup")]
    opened, failed = open_candidates(given, allow_urls=False)
    assert not failed
    assert [c.content.text for c in opened] == [None, "a red mug", "a cup"]
    assert [c.image is None for c in opened] == [False, False, True]
    assert [c.members for c in opened] == [((0, "0"),), ((1, "1"),), ((2, "cup"),)]
    assert opened[0].digest == image_digest(picture(1))
    assert len({c.digest for c in opened}) == 3
    assert kind_of([c.content for c in opened]) == "mixed"
    assert kind_of([opened[0].content]) == "image"
    assert kind_of([opened[2].content]) == "text"
    assert canonical_order(opened) == canonical_order(opened[::-1])


def test_equal_contents_are_shown_once() -> None:
    given = [
        Candidate(picture(1), text="a mug", first_stage_score=0.25),
        Candidate(picture(1)),
        Candidate(picture(1), text="a  mug", first_stage_score=0.5),
        Candidate(text="a mug"),
        Candidate(picture(1), text=" "),
        Candidate(text="a mug\n", id="copy"),
    ]
    opened, _ = open_candidates(given, allow_urls=False)
    assert [[index for index, _ in c.members] for c in opened] == [[0, 2], [1, 4], [3, 5]]
    assert [c.first_stage_score for c in opened] == [0.5, None, None]


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        (Candidate(), "neither an image nor a text"),
        (Candidate(text=" \u2028\x00"), "neither an image nor a text"),
        (Candidate(text=b"mug"), "text must be a string, got bytes"),  # type: ignore[arg-type]  # as at run time
        (Candidate(picture(2), text=7), "text must be a string, got int"),  # type: ignore[arg-type]
        (Candidate(b"no image", text="a mug"), "Its text is not ranked without its image"),
    ],
)
def test_a_bad_candidate_is_a_named_failure(candidate: Candidate, says: str) -> None:
    opened, (failure,) = open_candidates([picture(1), candidate, Candidate(text="x")], allow_urls=False)
    assert len(opened) == 2
    assert (failure.index, failure.id) == (1, "1")
    assert says in failure.error


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "0.5", True, [1], 10**400])
def test_a_score_that_is_no_number_is_said_and_not_used(score: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        (opened,), failed = open_candidates([Candidate(text="x", first_stage_score=score)], allow_urls=False)
    assert opened.first_stage_score is None
    assert not failed
    assert "first_stage_score" in caplog.text


@pytest.mark.parametrize("score", [1, np.float32(1), np.int64(1)])
def test_any_number_is_a_score(score: Any) -> None:
    (opened,), _ = open_candidates([Candidate(text="x", first_stage_score=score)], allow_urls=False)
    assert opened.first_stage_score == 1.0


@pytest.mark.parametrize("candidates", ["ab", b"ab", None, 7])
def test_what_is_no_list_is_refused(candidates: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be a list of candidates"):
        open_candidates(candidates, allow_urls=False)
