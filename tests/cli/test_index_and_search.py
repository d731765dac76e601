from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lad_rerank import CalibrationStore, LADReranker
from lad_rerank.bundled import shop


def test_people_are_told_what_comes_next(run: Callable[..., Result], pictures: Path, tmp_path: Path) -> None:
    result = run("index", pictures, "--out", tmp_path / "index")
    assert result.exit_code == 0
    assert "30 images indexed" in result.stdout
    assert f"lad-rerank search {tmp_path / 'index'}" in result.stdout
    assert "broken.jpg" in result.stderr


def test_a_folder_without_pictures_is_1(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    result = run("index", tmp_path, "--out", tmp_path / "index", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "nothing to index" in result.stderr
    assert not (tmp_path / "index").exists()


def test_an_unknown_encoder_is_1(run: Callable[..., Result], pictures: Path, tmp_path: Path) -> None:
    result = run("index", pictures, "--out", tmp_path / "index", "--encoder", "no-such-encoder")
    assert result.exit_code == 1
    assert "no-such-encoder" in result.stderr


def test_search_gives_both_ranks(run: Callable[..., Result], index: Path, products: list[shop.Item]) -> None:
    result = run("search", index, products[3].title, "-k", "8", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["model"], document["method"], document["encoder"]) == ("bundled", "auto", "bundled")
    assert document["passes"] == 1
    assert document["confident"] is (document["confidence"] >= 0.5)
    results = document["results"]
    assert [r["rank"] for r in results] == list(range(1, 9))
    assert sorted(r["first_stage_rank"] for r in results) == list(range(1, 9))
    assert all(r["index"] == r["first_stage_rank"] - 1 for r in results)
    by_first_stage = sorted(results, key=lambda r: r["first_stage_rank"])
    assert [r["first_stage_score"] for r in by_first_stage] == sorted(
        (r["first_stage_score"] for r in results), reverse=True
    )
    assert sum(r["score"] for r in results) == pytest.approx(1)
    assert all(Path(r["path"]).name == r["id"] and Path(r["path"]).is_file() for r in results)
    assert results[0]["id"].startswith("003_")


def test_search_without_reranking_is_the_first_stage(run: Callable[..., Result], index: Path) -> None:
    document = json.loads(run("search", index, "a mug", "-k", "5", "--no-rerank", "--top-n", "3", "--json").stdout)
    assert [document[name] for name in ("model", "method", "confidence", "confident")] == [None] * 4
    assert [(r["rank"], r["first_stage_rank"], r["score"]) for r in document["results"]] == [
        (1, 1, None),
        (2, 2, None),
        (3, 3, None),
    ]


def test_search_hands_on_the_scores_of_the_first_stage(run: Callable[..., Result], index: Path, tmp_path: Path) -> None:
    shipped = CalibrationStore().find(LADReranker.from_pretrained("bundled").backbone.identity)
    assert shipped is not None
    heavy = json.loads(shipped.to_json())
    heavy["counts"]["5"]["choice"]["first_stage_weight"] = 1e6
    (tmp_path / "heavy.json").write_text(json.dumps(heavy))
    args = ("search", index, "a mug", "-k", "5", "--json")
    document = json.loads(run(*args, "--calibration", tmp_path / "heavy.json").stdout)
    assert [r["first_stage_rank"] for r in document["results"]] == [1, 2, 3, 4, 5]


def test_search_looks_again(run: Callable[..., Result], index: Path) -> None:
    args = ("search", index, "a mug", "-k", "4", "--passes", "auto", "--mean-passes", "2", "--json")
    assert json.loads(run(*args).stdout)["passes"] == 2
    assert json.loads(run(*args[:5], "--passes", "4", "--json").stdout)["passes"] == 4


def test_search_names_pictures_that_are_gone(run: Callable[..., Result], pictures: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(pictures, tmp_path / "moved")
    run("index", moved, "--out", tmp_path / "index")
    first = json.loads(run("search", tmp_path / "index", "a mug", "--no-rerank", "-k", "3", "--json").stdout)
    Path(first["results"][0]["path"]).unlink()
    args = ("search", tmp_path / "index", "a mug", "-k", "3", "--method", "vanilla", "--json")
    document = json.loads(run(*args).stdout)
    assert [failed["id"] for failed in document["failed"]] == [first["results"][0]["id"]]
    assert sorted(r["first_stage_rank"] for r in document["results"]) == [2, 3]
    elsewhere = json.loads(run(*args, "--images", pictures).stdout)
    assert elsewhere["failed"] == []


def test_people_see_a_table(run: Callable[..., Result], index: Path) -> None:
    reranked = run("search", index, "a mug", "-k", "4")
    assert "attention" in reranked.stdout
    assert sum(".png" in line for line in reranked.stdout.splitlines()) == 4
    first = run("search", index, "a mug", "-k", "4", "--no-rerank")
    assert "attention" not in first.stdout
    assert sum(".png" in line for line in first.stdout.splitlines()) == 4


def test_a_missing_index_is_1(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("search", tmp_path / "none", "a mug", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
