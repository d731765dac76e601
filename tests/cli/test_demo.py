from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import Result

from lad_rerank.bundled import shop
from lad_rerank.cli.demo_result import Choice, DemoResult, DemoSettings, MethodResult, QueryResult, examples
from lad_rerank.cli.demo_run import draw_queries
from lad_rerank.cli.report import page

SMALL = ("--products", "60", "--queries", "4", "--seed", "2")
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects what a page is made of, and checks that its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @classmethod
    def of(cls, text: str) -> Page:
        parsed = cls()
        parsed.feed(text)
        parsed.close()
        assert parsed.open == []
        return parsed


def check_self_contained(text: str) -> Page:
    parsed = Page.of(text)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed"}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset"):
                assert (value or "").startswith("data:image/"), (tag, value)
    assert not re.search(r"https?:|url\(|@import", text)
    return parsed


def test_the_whole_way(tmp_path: Path) -> None:
    report = tmp_path / "pages" / "demo.html"
    command = [sys.executable, "-m", "lad_rerank", "demo", *SMALL, "--report", str(report), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert (document["products"], document["queries"], document["candidates"], document["orders"]) == (60, 4, 8, 3)
    assert 0 <= document["retrieved"] <= 4
    rows = {row["method"]: row for row in document["methods"]}
    assert list(rows) == ["first_stage", "vanilla", "lad"]
    assert rows["first_stage"]["consistency"] is None
    for row in rows.values():
        assert 0 <= row["top1"] <= row["mrr"] <= 1
        assert row["top1"] <= document["retrieved"] / 4
    assert 0 <= rows["lad"]["consistency"] <= 1
    assert document["report"] == str(report)
    assert 0 < document["seconds"]["rerank_per_query"] < document["seconds"]["total"]
    assert len(document["examples"]) == 3

    parsed = check_self_contained(report.read_text(encoding="utf-8"))
    pictures = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert len(pictures) == 4 * 3 * 8
    assert all(attributes["alt"] for attributes in pictures)
    for example in document["examples"]:
        assert example["query"] in parsed.text


def test_people_see_a_table_and_three_examples(run: Callable[..., Result]) -> None:
    result = run("demo", *SMALL)
    assert result.exit_code == 0, result.stderr
    for name in ("First stage", "Vanilla", "LAD", "top-1", "MRR", "consistency", "canonical order", "Time per query"):
        assert name in result.stdout
    assert len(re.findall(r'^"', result.stdout, re.MULTILINE)) == 3


def test_queries_are_hard_by_what_the_shop_holds() -> None:
    items = shop.catalogue(400, 0, "held_out")
    queries = draw_queries(items, 40, 0)
    assert len(queries) == 40
    assert queries == draw_queries(items, 40, 0)
    assert queries != draw_queries(items, 40, 1)
    for query in queries:
        assert 2 <= len(query.wanted) <= 4
        assert sum(shop.satisfies(item.product, query.wanted) for item in items) == 1
        nearly = [sum(item.product.value(a) != v for a, v in query.wanted.items()) == 1 for item in items]
        assert sum(nearly) >= 8


def test_a_small_shop_is_asked_what_it_allows() -> None:
    items = shop.catalogue(8, 0, "held_out")
    queries = draw_queries(items, 20, 0)
    assert len(queries) == 20
    assert all(any(shop.satisfies(item.product, query.wanted) for item in items) for query in queries)


def result_of(*queries: QueryResult) -> DemoResult:
    methods = (
        MethodResult("first_stage", 0.5, 0.6, None, None),
        MethodResult("vanilla", 0.25, 0.5, 0.1, (0.75, 0.25)),
        MethodResult("lad", 1.0, 1.0, 0.9, (0.5, 0.5)),
    )
    return DemoResult(DemoSettings(products=2, queries=len(queries)), methods, queries, 0.001, 0.05, 2.0)


def query_of(text: str, right: tuple[bool, bool], firsts: dict[str, int]) -> QueryResult:
    image = shop.catalogue(1, 0)[0].image()
    choices = tuple(
        Choice(f"item-{i}", f"a mug <b>{i}</b>", image, right[i], 0.5, i + 1, 0.5, 0.5, 0.5) for i in range(2)
    )
    return QueryResult(text, choices, {method: (first, 1 - first) for method, first in firsts.items()})


@pytest.fixture
def made_up() -> list[QueryResult]:
    return [
        query_of("no right one", (False, False), {"first_stage": 0, "vanilla": 0, "lad": 0}),
        query_of("all right", (True, False), {"first_stage": 0, "vanilla": 0, "lad": 0}),
        query_of("vanilla wrong", (True, False), {"first_stage": 0, "vanilla": 1, "lad": 0}),
        query_of("LAD wrong", (True, False), {"first_stage": 0, "vanilla": 0, "lad": 1}),
        query_of("LAD corrects", (False, True), {"first_stage": 0, "vanilla": 0, "lad": 1}),
    ]


def test_examples_show_good_and_bad(made_up: list[QueryResult]) -> None:
    assert [q.query for q in examples(result_of(*made_up))] == ["LAD corrects", "vanilla wrong", "LAD wrong"]
    assert [q.query for q in examples(result_of(*made_up[:2]))] == ["no right one", "all right"]


def test_the_page_tells_what_changed(made_up: list[QueryResult]) -> None:
    parsed = check_self_contained(page(result_of(*made_up)))
    headings = ["LAD put a right product first", "The first stage had it right", "Right in both; vanilla is wrong"]
    headings += ["Right everywhere", "No right product was found"]
    places = [parsed.text.index(heading) for heading in headings]
    assert places == sorted(places)
    assert "For 1 the first stage found no right product" in parsed.text
    assert sum(tag == "details" and "open" in attributes for tag, attributes in parsed.tags) == 3
    firsts = [
        attributes["class"] for tag, attributes in parsed.tags if "mark" in (attributes.get("class") or "").split()
    ]
    assert len(firsts) == 5 * 3
    assert sum("ok" in (name or "").split() for name in firsts) == 1 + 2 + 2 + 3


def test_the_page_escapes_what_it_shows() -> None:
    query = query_of('<script>alert("x")</script> & more', (True, False), {"first_stage": 0, "vanilla": 0, "lad": 0})
    parsed = check_self_contained(page(result_of(query)))
    assert '<script>alert("x")</script> & more' in parsed.text
    assert not any(tag == "b" and "0" in attributes for tag, attributes in parsed.tags)
    assert {attributes["alt"] for tag, attributes in parsed.tags if tag == "img"} == {
        "a mug <b>0</b>, right",
        "a mug <b>1</b>",
    }
