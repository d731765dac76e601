from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lad_rerank.bundled.shop import candidate_set
from lad_rerank.cli.rerank import notes
from lad_rerank.records import RankedCandidate, Ranking


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, list[str], int]:
    """A query, eight files, and which of them is right."""
    chosen = candidate_set(8, seed=21, difficulty="random", side="held_out")
    paths = []
    for i, item in enumerate(chosen.candidates):
        paths.append(str(tmp_path / f"picture {i}.png"))
        item.image().save(paths[-1])
    return chosen.caption, paths, chosen.target


def test_prints_a_ranking_and_nothing_else(files: tuple[str, list[str], int]) -> None:
    query, paths, target = files
    command = [sys.executable, "-m", "lad_rerank", "rerank", query, *paths, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    told = ["query", "model", "method", "passes", "confidence", "confident", "results", "failed"]
    assert list(document) == told
    assert (document["query"], document["model"], document["method"]) == (query, "bundled", "auto")
    assert 0 <= document["confidence"] <= 1
    assert document["confident"] is (document["confidence"] >= 0.5)
    assert document["passes"] == 1
    assert document["failed"] == []
    results = document["results"]
    assert [result["rank"] for result in results] == list(range(1, 9))
    assert [result["id"] for result in results] == [paths[result["index"]] for result in results]
    assert results[0]["index"] == target
    assert {result["cut"] for result in results} == {0}
    assert sum(result["score"] for result in results) == pytest.approx(1)
    assert sum(result["evidence"] for result in results) == pytest.approx(1)
    assert done.stderr == ""


def test_the_order_of_the_files_does_not_matter(run: Callable[..., Result], files: tuple[str, list[str], int]) -> None:
    query, paths, _ = files
    one = json.loads(run("rerank", query, *paths, "--json").stdout)["results"]
    other = json.loads(run("rerank", query, *reversed(paths), "--json").stdout)["results"]
    assert [(r["id"], r["score"]) for r in one] == [(r["id"], r["score"]) for r in other]


def test_a_bad_image_does_not_lose_the_others(
    run: Callable[..., Result], files: tuple[str, list[str], int], tmp_path: Path
) -> None:
    query, paths, _ = files
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    result = run("rerank", query, bad, *paths[:3], "--method", "vanilla", "--top-n", "2", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert len(document["results"]) == 2
    assert all(r["index"] in (1, 2, 3) and r["evidence"] is None for r in document["results"])
    (failed,) = document["failed"]
    assert (failed["index"], failed["id"]) == (0, str(bad))
    assert failed["error"]
    assert str(bad) in result.stderr


def test_more_passes(run: Callable[..., Result], files: tuple[str, list[str], int]) -> None:
    query, paths, target = files
    two = json.loads(run("rerank", query, *paths, "--passes", "2", "--json").stdout)
    assert (two["passes"], two["results"][0]["index"]) == (2, target)
    once = json.loads(run("rerank", query, *paths, "--passes", "auto", "--mean-passes", "1", "--json").stdout)
    assert once["passes"] == 1
    twice = json.loads(run("rerank", query, *paths, "--passes", "auto", "--mean-passes", "2", "--json").stdout)
    assert twice["passes"] == 2
    windows = json.loads(run("rerank", query, *paths, "--window", "4", "--json").stdout)
    assert windows["passes"] > 1
    assert windows["results"][0]["index"] == target
    people = run("rerank", query, *paths, "--passes", "3")
    assert people.stdout.rstrip().endswith("3 passes.")


def test_texts_beside_images(run: Callable[..., Result], files: tuple[str, list[str], int]) -> None:
    query, paths, _ = files
    long = "a mug\nthat is " + "very " * 40 + "good"
    args = ("rerank", query, *paths[:2], "--text", "a red hat", "--text", long, "--method", "vanilla")
    document = json.loads(run(*args, "--max-text-tokens", "12", "--json").stdout)
    by_index = {result["index"]: result for result in document["results"]}
    assert [by_index[i]["id"] for i in range(4)] == [*paths[:2], "a red hat", long]
    assert by_index[3]["cut"] > 0
    assert [by_index[i]["cut"] for i in range(3)] == [0, 0, 0]
    people = run(*args, "--max-text-tokens", "12").stdout
    assert "candidate" in people
    assert " ".join(long.split())[:71] + "…" in people
    assert f"1 text was cut at the end by {by_index[3]['cut']} tokens" in people
    whole = json.loads(run(*args, "--max-text-tokens", "400", "--json").stdout)
    assert {result["cut"] for result in whole["results"]} == {0}


def test_texts_have_a_calibration_of_their_own(run: Callable[..., Result]) -> None:
    result = run("rerank", "a mug", "--text", "a red mug", "--text", "a hat", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "candidates (image in the calibration, text here)" in result.stderr
    plain = run("rerank", "a mug", "--text", "a red mug", "--text", "a hat", "--method", "vanilla")
    assert plain.exit_code == 0
    assert plain.stdout.split()[:2] == ["text", "score"]


def test_people_are_told_when_nothing_seems_right() -> None:
    hits = (RankedCandidate(1, 0, "a", 0.9, None, 3), RankedCandidate(2, 1, "b", 0.1, None, 7))
    assert notes(Ranking("a mug", hits, passes=2, confidence=0.31)) == [
        "Perhaps none of these: what was looked for does not seem to be among them (confidence 0.31, below 0.5).",
        "2 texts were cut at the end by 3, 7 tokens; --max-text-tokens shows more.",
        "2 passes.",
    ]
    assert notes(Ranking("a mug", (), passes=1, confidence=0.5)) == []
    assert notes(Ranking("a mug", (), passes=1)) == []


def test_nothing_but_bad_images_is_1(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("rerank", "a mug", tmp_path / "none.png", tmp_path / "nothing.png", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: None of 2 images could be ranked.")
    assert "none.png" in last
    assert "Traceback" not in result.stderr


def test_a_url_is_not_fetched_unasked(run: Callable[..., Result]) -> None:
    result = run("rerank", "a mug", "http://localhost:9/mug.png")
    assert result.exit_code == 1
    assert "URL" in result.stderr


def test_people_see_a_table(run: Callable[..., Result], files: tuple[str, list[str], int]) -> None:
    query, paths, target = files
    result = run("rerank", query, *paths)
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if ".png" in line]
    assert len(rows) == 8
    assert rows[0].split()[0] == "1"
    assert paths[target] in rows[0]
    assert all(any(path in row for row in rows) for path in paths)


def test_a_missing_calibration_names_the_command(
    run: Callable[..., Result], files: tuple[str, list[str], int], tmp_path: Path
) -> None:
    query, paths, _ = files
    result = run("rerank", query, *paths, "--dtype", "bfloat16", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "lad-rerank calibrate --model bundled" in result.stderr
    missing = run("rerank", query, *paths, "--calibration", tmp_path / "none.json")
    assert missing.exit_code == 1
    assert "none.json" in missing.stderr


def test_a_missing_model_is_1(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("rerank", "a mug", "a.png", "--model", tmp_path / "none")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
