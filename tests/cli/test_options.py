from __future__ import annotations

import pytest
import typer

from lad_rerank.cli.options import METHODS, Looking, parse_counts, parse_passes
from lad_rerank.debias.scoring import SCORERS


def test_the_methods_are_the_scorers() -> None:
    assert len(METHODS) == len(SCORERS)
    assert set(METHODS) == set(SCORERS)


@pytest.mark.parametrize(("text", "passes"), [("1", 1), ("12", 12), ("auto", "auto")])
def test_numbers_of_passes(text: str, passes: int | str) -> None:
    assert parse_passes(text) == passes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "two", "Auto", "²", "99999"])
def test_what_is_no_number_of_passes(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_passes(text)


def test_how_often_goes_with_the_method() -> None:
    assert Looking().arguments("lad") == {"passes": 1, "mean_passes": None, "window": None}
    auto = Looking(passes="auto", mean_passes=1.5, window=4)
    assert auto.arguments("auto") == {"passes": "auto", "mean_passes": 1.5, "window": 4}
    with pytest.raises(typer.BadParameter, match="--method auto"):
        auto.arguments("lad")
    with pytest.raises(typer.BadParameter, match="--passes auto"):
        Looking(passes="2", mean_passes=1.5).arguments("auto")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (None, None),
        ("8", [8]),
        ("2-5", [2, 3, 4, 5]),
        ("4, 2,8", [2, 4, 8]),
        ("2-4,4-5 , 12", [2, 3, 4, 5, 12]),
        ("256", [256]),
    ],
)
def test_numbers_of_candidates(text: str | None, counts: list[int] | None) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", ",", "1", "0-4", "5-2", "2-", "-3", "eight", "2..4", "2-257", "2-99999999", "²"])
def test_what_is_no_number_of_candidates(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_counts(text)
