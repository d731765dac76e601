"""The support table in the documents is what the tests' models show now."""

from __future__ import annotations

import inspect

import pytest

from tests.backbones.support import DOCUMENT, OWN_WAY, Row, comparable, document, measure
from tests.backbones.tiny import FAMILIES, REFUSED, build
from tests.backbones.tiny.language import LANGUAGE


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    model, _ = build("qwen2_5_vl")
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters or "molmo2" not in FAMILIES:
        pytest.skip("the table is made with the newest transformers; this one has no image features or no Molmo 2")
    return measure()


def test_the_committed_table_is_what_comes_out_now(rows: list[Row]) -> None:
    assert comparable(DOCUMENT.read_text(encoding="utf-8")) == comparable(document(rows)), (
        "run python -m tests.backbones.support"
    )


def test_no_family_is_lost_by_writing_the_table_anew(rows: list[Row]) -> None:
    assert [row.family for row in rows] == [*FAMILIES, *REFUSED, OWN_WAY, *LANGUAGE]
    for row in rows:
        assert row.works.startswith("refused: ") if row.family in REFUSED else row.works == row.texts == "yes"
        assert row.side_by_side.startswith("refused: all tokens") == (row.family == "paligemma")
        assert row.side_by_side in ("yes", "–") or row.family == "paligemma"
        assert row.mixed == ("–" if row.family in (*REFUSED, *LANGUAGE) else "yes")


def test_the_readme_leads_to_the_table() -> None:
    assert "(docs/support.md)" in (DOCUMENT.parents[1] / "README.md").read_text(encoding="utf-8")
