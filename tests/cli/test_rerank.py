from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lad_rerank.bundled.shop import candidate_set


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
    assert list(document) == ["query", "model", "method", "passes", "results", "failed"]
    assert (document["query"], document["model"], document["method"]) == (query, "bundled", "lad")
    assert document["passes"] == 1
    assert document["failed"] == []
    results = document["results"]
    assert [result["rank"] for result in results] == list(range(1, 9))
    assert [result["id"] for result in results] == [paths[result["index"]] for result in results]
    assert results[0]["index"] == target
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
