from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lad_rerank.bundled.shop import candidate_set
from lad_rerank.calibration.record import read_calibration
from lad_rerank.evaluation.titled import title_of

# Another floating point type than the one that the shipped calibration is for.
OTHER = ("--dtype", "bfloat16")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAD_RERANK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three samples of three and four pictures, their paths relative to the file."""
    lines = []
    for seed, n in ((31, 4), (32, 4), (33, 3)):
        chosen = candidate_set(n, seed=seed, difficulty="random", side="held_out")
        names = [f"{seed}-{i}.png" for i in range(n)]
        for name, item in zip(names, chosen.candidates, strict=True):
            item.image().save(tmp_path / name)
        target: int | str = names[chosen.target] if seed == 32 else chosen.target
        lines.append(json.dumps({"query": chosen.caption, "images": names, "target": target}))
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_of_samples_is_found_again(run: Callable[..., Result], samples: Path, home: Path) -> None:
    images = sorted(samples.parent.glob("31-*.png"))
    before = run("rerank", "a mug", *images[:3], *OTHER)
    assert before.exit_code == 1
    result = run("calibrate", "--model", "bundled", "--samples", samples, "--candidates", "3-4", *OTHER, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["model"] == "bundled"
    assert document["candidates"] == [3, 4]
    assert document["kind"] == "image"
    assert document["passes"] == 3 * 3 + 2 * 4
    assert [(one["candidates"], one["samples"]) for one in document["counts"]] == [(3, 3), (4, 2)]
    chosen = document["counts"][0]
    assert 0 <= chosen["expected_consistency"] <= 1
    assert 0 <= chosen["expected_accuracy"] <= 1
    assert chosen["recipes"][0].startswith("lad (tau 5)")
    assert 0.5 <= chosen["presence"]["separation"] <= 1
    assert Path(document["path"]).parent == home / "calibrations"
    assert read_calibration(Path(document["path"])).covers == (3, 4)
    assert run("rerank", "a mug", *images[:3], *OTHER).exit_code == 0
    assert run("rerank", "a mug", *images[:2], *OTHER).exit_code == 1


def test_of_samples_covers_all_they_can(run: Callable[..., Result], samples: Path, tmp_path: Path, home: Path) -> None:
    out = tmp_path / "kept" / "mine.json"
    result = run("calibrate", "--model", "bundled", "--samples", samples, "--out", out, "--labels", "letters", "--json")
    document = json.loads(result.stdout)
    assert document["candidates"] == [2, 3, 4]
    assert document["labels"] == "letters"
    assert document["path"] == str(out)
    assert not home.exists()
    images = sorted(samples.parent.glob("31-*.png"))
    given = run("rerank", "a mug", *images, "--labels", "letters", "--calibration", out)
    assert given.exit_code == 0
    refused = run("rerank", "a mug", *images, "--calibration", out)
    assert refused.exit_code == 1
    assert "labels" in refused.stderr


def test_of_other_spans_and_a_revision(run: Callable[..., Result], samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    loading = ("--spans", "delimited", "--revision", "v7")
    made = run("calibrate", "--model", "bundled", "--samples", samples, "--candidates", "3", "--out", out, *loading)
    assert made.exit_code == 0, made.stderr
    calibration = read_calibration(out)
    assert calibration.identity.spans == "delimited"
    assert calibration.provenance.revision == "v7"
    images = sorted(samples.parent.glob("31-*.png"))[:3]
    assert run("rerank", "a mug", *images, *loading, "--calibration", out).exit_code == 0
    refused = run("rerank", "a mug", *images, "--calibration", out)
    assert refused.exit_code == 1
    assert "spans" in refused.stderr


def test_of_an_index_needs_no_labels(run: Callable[..., Result], index: Path, home: Path) -> None:
    args = ("calibrate", "--model", "bundled", "--from-index", index, "--candidates", "3", "--count", "4", *OTHER)
    document = json.loads(run(*args, "--json").stdout)
    assert (document["candidates"], document["samples"], document["passes"]) == ([3], 4, 12)
    first = read_calibration(Path(document["path"]))
    assert first.counts[3].samples == 4
    again = json.loads(run(*args, "--seed", "0", "--json").stdout)
    assert read_calibration(Path(again["path"])).counts == first.counts
    other = json.loads(run(*args, "--seed", "1", "--json").stdout)
    assert other["path"] == document["path"]
    assert read_calibration(Path(other["path"])).counts[3].sample_digest != first.counts[3].sample_digest
    people = run(*args)
    assert people.exit_code == 0
    assert people.stdout.startswith("bundled is calibrated for 3 images (4 samples, 12 passes, ")
    assert document["counts"][0]["recipes"][0] in people.stdout
    assert f"{100 * document['counts'][0]['expected_accuracy']:.1f} %" in people.stdout
    assert "presence: how often" in people.stdout
    assert document["path"] in people.stdout


def test_of_texts(run: Callable[..., Result], tmp_path: Path) -> None:
    lines = []
    for seed in (31, 32, 33):
        chosen = candidate_set(3, seed=seed, difficulty="random", side="held_out")
        texts = [{"text": item.title, "first_stage_score": i / 10} for i, item in enumerate(chosen.candidates)]
        lines.append(json.dumps({"query": chosen.caption, "candidates": texts, "target": chosen.target}))
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    made = run("calibrate", "--model", "bundled", "--samples", tmp_path / "texts.jsonl", "--candidates", "3", "--json")
    document = json.loads(made.stdout)
    assert document["kind"] == "text"
    ranked = run("rerank", "a mug", "--text", "a red mug", "--text", "a hat", "--text", "a lamp", "--json")
    assert ranked.exit_code == 0, ranked.stderr
    assert json.loads(ranked.stdout)["method"] == "auto"


def test_one_sample_leaves_no_choice_and_it_says_so(run: Callable[..., Result], samples: Path, tmp_path: Path) -> None:
    one = samples.parent / "one.jsonl"
    one.write_text(samples.read_text().splitlines()[0])
    args = ("calibrate", "--model", "bundled", "--samples", one, "--candidates", "2,4", "--out", tmp_path / "mine.json")
    document = json.loads(run(*args, "--json").stdout)
    assert [one["recipes"] for one in document["counts"]] == [None, None]
    assert [one["expected_accuracy"] for one in document["counts"]] == [None, None]
    people = run(*args)
    assert people.stdout.startswith("bundled is calibrated for 2, 4 images (1 sample,")
    assert "the paper's recipe is used" in people.stdout


def test_too_few_titles_is_1(run: Callable[..., Result], index: Path) -> None:
    result = run("calibrate", "--model", "bundled", "--from-index", index, "--candidates", "100", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "titles" in result.stderr


@pytest.mark.parametrize("line", ["nothing", '{"query": "a mug"}', '{"query": "", "images": ["a", "b"], "target": 0}'])
def test_a_bad_sample_is_1(run: Callable[..., Result], tmp_path: Path, line: str) -> None:
    (tmp_path / "samples.jsonl").write_text(line)
    result = run("calibrate", "--model", "bundled", "--samples", tmp_path / "samples.jsonl", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("mugs/red-mug_02.jpg", "red mug"),
        ("Golden Delicious (3).JPEG", "Golden Delicious"),
        ("größe.klein.png", "größe klein"),
        ("IMG_0001.jpg", "IMG"),
        ("0001.png", ""),
    ],
)
def test_titles_of_file_names(name: str, title: str) -> None:
    assert title_of(name) == title


def test_files_without_words_have_no_titles_and_it_says_so(run: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    for i, item in enumerate(candidate_set(6, 3, "random", "held_out").candidates):
        item.image().save(folder / f"{i}.png")
    assert run("index", folder, "--out", tmp_path / "index").exit_code == 0
    result = run("calibrate", "--model", "bundled", "--from-index", tmp_path / "index")
    assert result.exit_code == 1
    assert "0 of 6 images of the index have a title" in result.stderr
    assert "--samples FILE.jsonl" in result.stderr
