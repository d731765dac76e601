from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from lad_rerank.contents import Content
from lad_rerank.evaluation import html, plots, reports, tables
from lad_rerank.evaluation.measuring import slice_report
from lad_rerank.evaluation.orders import Instance
from lad_rerank.evaluation.permutations import cyclic_orders
from lad_rerank.evaluation.reports import Evaluation, SliceReport, to_document
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import identity

HOSTILE = '<script>alert("1")</script> & $x^{2}$ --> [bold]'
VOID = {"meta", "br", "img", "link"}


def one_set(n: int, name: str = "photos") -> SliceReport:
    """One query for each position; vanilla always takes the first position, auto the target."""
    contents = [Content.of(text=str(i)) for i in range(n)]
    instances = [Instance.of("q", contents, {i}) for i in range(n)]
    shown = [[order] * n for order in cyclic_orders(n)]
    by_target = [[(i, *(j for j in range(n) if j != i)) for i in range(n)] for _ in shown]
    sure = [[tuple(0.7 if c == r[0] else 0.3 / (n - 1) for c in range(n)) for r in run] for run in shown]
    rows = [
        identity(instances, n),
        RowResult("vanilla", shown),
        RowResult("lad", by_target, sure, seconds=0.04, peak_bytes=5_000_000_000),
        RowResult("auto", by_target, sure, seconds=1.5),
        RowResult(HOSTILE, by_target, passes=8.0),
    ]
    return slice_report(
        name,
        instances,
        rows,
        set_digest=f"set-{n}",
        calibration_digest="calibration-1",
        shown=shown,
        left_out={"sofa": HOSTILE},
    )


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    settings = {"orders": 4, "labels": HOSTILE, "candidates": [4, 13], "nested": {"a": [{"b": 1}]}}
    return Evaluation(HOSTILE, settings, "2026-01-02T03:04:05Z", (one_set(4), one_set(13)))


class Page(HTMLParser):
    """Checks that elements close; collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_the_page_needs_nothing_but_itself(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    html.write(evaluation, path)
    text = path.read_text(encoding="utf-8")
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "img"}
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    for _, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset"):
                assert value is not None
                assert value.removeprefix("#") in ids
    assert not re.search(r"https?:|url\((?!#)|@import|<!--|<\?xml", text)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)


def test_the_page_says_it_all(evaluation: Evaluation) -> None:
    text = html.page(evaluation)
    parsed = Page()
    parsed.feed(text)
    assert "<script" not in text
    # Model, settings, a row, a reason: each stands there as it was given.
    assert parsed.text.count(HOSTILE) >= 6
    for said in ("set-4", "set-13", "calibration-1", "sofa", '{"a": [{"b": 1}]}', "4, 13", "2026-01-02T03:04:05Z"):
        assert said in parsed.text
    told = [attributes["aria-label"] or "" for tag, attributes in parsed.tags if tag == "svg"]
    assert [t.split(":")[0].split(",")[0] for t in told] == [
        "Accuracy in percent against candidates",
        *[
            "Target position by chosen position",
            "Recall by target position",
            "Accuracy in percent against passes per query",
        ]
        * 2,
    ]
    # Vanilla takes whatever is first: one position of four is right.
    assert "vanilla: recall by position 100, 0, 0, 0; auto: recall by position 100, 100, 100, 100" in told[1]


def test_pictures_take_the_pages_colours(evaluation: Evaluation) -> None:
    style = (Path(html.__file__).parent / "report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for name in plots.COLOURS:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
    picture = plots.recall(evaluation.slices[0], "1")
    assert picture is not None
    assert {"var(--vanilla)", "var(--lad)", "var(--ours)", "var(--line)"} <= set(re.findall(r"var\([^)]*\)", picture))
    assert not any(colour in picture for colour in plots.COLOURS.values())


def test_pictures_that_nothing_can_be_drawn_of() -> None:
    instances = [Instance.of("q", [Content.of(text=t) for t in "ab"], {0})]
    empty = slice_report("set", instances, [identity(instances, 1)], set_digest="d")
    assert plots.confusion(empty, "1") is plots.recall(empty, "1") is plots.by_cost(empty, "1") is None
    assert plots.by_count("set", [empty], "1") is None
    text = html.page(Evaluation("model", {}, "now", (empty,)))
    assert "<svg" not in text
    assert "identity" in text


def test_the_document_is_strict_json(evaluation: Evaluation) -> None:
    document = json.loads(json.dumps(to_document(evaluation), allow_nan=False))
    assert document["schema"] == reports.SCHEMA
    assert (document["model"], document["created"]) == (HOSTILE, "2026-01-02T03:04:05Z")
    assert document["settings"]["nested"] == {"a": [{"b": 1}]}
    first = document["slices"][0]
    assert (first["n"], first["set_digest"], first["calibration_digest"]) == (4, "set-4", "calibration-1")
    assert first["left_out"] == {"sofa": HOSTILE}
    rows = {row["name"]: row for row in first["rows"]}
    assert list(rows) == ["identity", "vanilla", "lad", "auto", HOSTILE]
    assert rows["vanilla"]["confusion"] == [[1, 0, 0, 0]] * 4
    assert rows["vanilla"]["recall_by_position"] == [1, 0, 0, 0]
    assert rows["vanilla"]["recall_std"] == pytest.approx(50.0)
    assert rows["auto"]["recall_at"] == {"1": 1.0, "3": 1.0, "5": 1.0}
    assert rows["identity"]["confusion"] is rows["identity"]["ece"] is None
    assert len(rows["lad"]["accuracy_interval"]) == 2


def _shown(evaluation: Evaluation, width: int, terminal: bool) -> str:
    stream = io.StringIO()
    tables.show(Console(file=stream, width=width, force_terminal=terminal, color_system=None), evaluation)
    return stream.getvalue()


def test_the_table_in_a_file_has_every_column(evaluation: Evaluation) -> None:
    text = _shown(evaluation, 40, terminal=False)
    for column in tables.COLUMNS:
        assert column.title in text
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "25.0 ± 0.0" in lines["vanilla"] or "7.7 ± 0.0" in lines["vanilla"]
    assert HOSTILE in lines
    assert text.count(f"left out: sofa. {HOSTILE}") == 2
    assert "set set-4, calibration calibration-1" in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_terminal_has_fewer_columns_and_says_so(evaluation: Evaluation, width: int) -> None:
    lines = _shown(evaluation, width, terminal=True).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.strip().startswith("row ") and "accuracy" in line for line in lines) == 2
    assert any(line.startswith("no room here for ") for line in lines)


def test_what_was_not_found_is_told() -> None:
    contents = [Content.of(text=t) for t in "ab"]
    instances = [
        Instance.of("q", contents, {0}),
        Instance.of("q", contents, (), retrieved=False),
        Instance.of("q", contents, ()),
    ]
    one = slice_report("end to end", instances, [identity(instances, 1)], set_digest="d")
    told = _shown(Evaluation("model", {}, "now", (one,)), 300, terminal=False)
    assert "target not retrieved by the first stage: 1, a miss for every row (at most 50.0 % can be right)" in told
    assert "without a right answer: 1" in told
    assert "not retrieved by the first stage: 1" in html.page(Evaluation("model", {}, "now", (one,)))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from lad_rerank.evaluation import plots, tables\n"
        "try: plots._figure(1, 1)\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "lad-rerank[plots]"' in done.stdout


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, lad_rerank.evaluation.html, lad_rerank.evaluation.tables\n"
        "print(sorted({'matplotlib', 'torch', 'transformers', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
