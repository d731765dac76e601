from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from lad_rerank.evaluation.set_files import write_set
from lad_rerank.evaluation.shop_sets import shop_set

# Another floating point type than the one that the shipped calibration is for, so that there is none.
SMALL = ("--candidates", "3", "--instances", "6", "--orders", "2", "--samples", "2", "--dtype", "bfloat16")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAD_RERANK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_shop_and_its_passes_scored_again(run: Callable[..., Result], tmp_path: Path, home: Path) -> None:
    passes, page = tmp_path / "kept" / "runs.safetensors", tmp_path / "pages" / "report.html"
    made = document(run("evaluate", "--shop", *SMALL, "--save", passes, "--report", page, "--json"))
    assert [one["name"] for one in made["slices"]] == ["shop, random", "shop, adversarial"]
    names = [row["name"] for row in made["slices"][0]["rows"]]
    assert {"identity", "random", "vanilla", "pride", "lad", "auto"} <= set(names)
    assert made["verdicts"][0].startswith("shop, random, 3 candidates: as it is, the model's first choice is right in")
    assert "With" in made["verdicts"][0]
    assert "Calibrated for 3 candidates on 2 samples" in made["settings"]["calibration"]
    assert made["settings"]["source"] == "held-out products of the bundled shop"
    assert not home.exists()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = document(run("evaluate", "--observations", passes, "--json"))
    assert [one["rows"] for one in again["slices"]] == [one["rows"] for one in made["slices"]]
    people = run("evaluate", "--observations", passes, "--rows", "vanilla,auto")
    assert people.exit_code == 0
    assert people.stdout.startswith(made["verdicts"][0])
    assert "right at position, in %" in people.stdout
    assert "vanilla: the model's answer as it is; auto: what calibration chose." in people.stdout
    assert made["slices"][0]["set_digest"] in people.stdout


def test_a_folder_of_titled_images(run: Callable[..., Result], pictures: Path) -> None:
    args = ("evaluate", "--images", pictures, *SMALL, "--rows", "vanilla", "--json")
    made = document(run(*args))
    assert [(one["name"], one["instances"]) for one in made["slices"]] == [("random", 6), ("adversarial", 6)]
    assert made["slices"][0]["set_digest"] == document(run(*args))["slices"][0]["set_digest"]
    assert made["slices"][0]["set_digest"] != document(run(*args, "--seed", "1"))["slices"][0]["set_digest"]


def test_an_index_end_to_end(run: Callable[..., Result], index: Path) -> None:
    args = ("evaluate", "--index", index, *SMALL, "--json")
    (one,) = document(run(*args, "--end-to-end", "-k", "4", "--rows", "identity,lad"))["slices"]
    assert (one["name"], one["n"]) == ("end to end", 4)
    assert [row["name"] for row in one["rows"]] == ["identity", "lad"]
    found = document(run(*args, "--difficulty", "adversarial", "--unanswerable", "--rows", "identity"))
    assert [(one["name"], one["n"]) for one in found["slices"]] == [
        ("adversarial", 3),
        ("adversarial, half without answer", 2),
    ]


def test_a_set_of_ones_own(run: Callable[..., Result], tmp_path: Path) -> None:
    write_set(shop_set(candidates=3, instances=8), tmp_path / "mine.jsonl")
    made = document(run("evaluate", "--set", tmp_path / "mine.jsonl", *SMALL, "--rows", "lad", "--json"))
    (one,) = made["slices"]
    assert (one["name"], one["instances"]) == ("mine", 6)
    assert (made["settings"]["samples"], made["settings"]["items taken out"]) == (2, 2)
    # Nothing is taken out where no samples are wanted, or needed.
    none = document(run("evaluate", "--set", tmp_path / "mine.jsonl", *SMALL, "--samples", "0", "--json"))
    assert none["settings"]["items taken out"] == 0
    lines = (tmp_path / "mine.jsonl").read_text().splitlines()
    (tmp_path / "rest.jsonl").write_text("\n".join(lines[2:]))
    samples = [json.loads(line) for line in lines[:2]]
    kept = [
        {"query": s["query"], "images": [c["image"] for c in s["candidates"]], "target": s["target"]} for s in samples
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, kept)))
    own = ("--sample-file", tmp_path / "samples.jsonl", "--rows", "lad", "--json")
    (rest,) = document(run("evaluate", "--set", tmp_path / "rest.jsonl", *SMALL, *own))["slices"]
    assert [row["name"] for row in rest["rows"]] == ["lad"]
    shared = run("evaluate", "--set", tmp_path / "mine.jsonl", *SMALL, *own)
    assert shared.exit_code == 1
    assert "must not be calibrated on" in shared.stderr


def test_annotations(run: Callable[..., Result], tmp_path: Path) -> None:
    records = []
    (tmp_path / "images").mkdir()
    for number, item in enumerate(shop_set(candidates=3, instances=6).items):
        for i, candidate in enumerate(item.candidates):
            candidate.image.save(tmp_path / "images" / f"COCO_val2014_{10 * number + i:012d}.jpg")  # type: ignore[union-attr]
        records.append({"image_ids": [10 * number + i for i in range(3)], "index": item.target, "caption": item.query})
    (tmp_path / "a.json").write_text(json.dumps(records))
    args = ("evaluate", "--annotations", tmp_path / "a.json", "--image-folder", tmp_path / "images", *SMALL)
    (one,) = document(run(*args, "--rows", "vanilla", "--samples", "0", "--json"))["slices"]
    assert (one["name"], one["instances"], one["calibration_digest"]) == ("a", 6, None)


def test_pictures_without_their_extra_are_1_before_any_pass(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "matplotlib" else find(name, *more)
    )
    result = run("evaluate", "--shop", "--instances", "100000", "--report", tmp_path / "bias.html")
    assert result.exit_code == 1
    assert "lad-rerank[plots]" in result.stderr


def test_what_cannot_be_read_is_1(run: Callable[..., Result], tmp_path: Path) -> None:
    for args in (
        ("--set", tmp_path / "none.jsonl"),
        ("--index", tmp_path / "none"),
        ("--observations", tmp_path / "none.safetensors"),
        ("--shop", "--sample-file", tmp_path / "none.jsonl"),
    ):
        result = run("evaluate", *args, "--json")
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "none" in result.stderr
        assert result.stderr.startswith("Error: ")
