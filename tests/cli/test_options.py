from __future__ import annotations

import pytest
import typer

from lad_rerank.cli.options import parse_counts


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
