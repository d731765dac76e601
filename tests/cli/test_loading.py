"""Models that come with code of their own, from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lad_rerank.bundled.shop import candidate_set
from tests.backbones.remote_code.saving import save_own_way


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: weights, processor, configuration and code."""
    return save_own_way(tmp_path_factory.mktemp("models") / "own_way")


def program(home: Path, *args: object) -> subprocess.CompletedProcess[str]:
    # In a process of its own: code that transformers copies and imports cannot be forgotten again.
    environment = {**os.environ, "HF_MODULES_CACHE": str(home / "modules"), "LAD_RERANK_HOME": str(home / "kept")}
    command = [sys.executable, "-m", "lad_rerank", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_code_of_a_model_runs_only_when_asked_for(folder: Path, tmp_path: Path) -> None:
    chosen = candidate_set(2, seed=31, difficulty="random", side="held_out")
    names = [f"{i}.png" for i in range(2)]
    for name, item in zip(names, chosen.candidates, strict=True):
        item.image().save(tmp_path / name)
    sample = {"query": chosen.caption, "images": names, "target": chosen.target}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample))
    images = [tmp_path / name for name in names]
    rerank = ("rerank", chosen.caption, *images, "--model", folder, "--device", "cpu", "--json")
    refused = program(tmp_path, *rerank)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "needs remote code" in refused.stderr
    assert not (tmp_path / "modules").exists() or not list((tmp_path / "modules").rglob("modeling_own_way.py"))
    loading = ("--model", folder, "--device", "cpu", "--trust-remote-code")
    made = program(tmp_path, "calibrate", "--samples", tmp_path / "samples.jsonl", *loading, "--json")
    assert made.returncode == 0, made.stderr
    ranked = program(tmp_path, *rerank, "--trust-remote-code")
    assert ranked.returncode == 0, ranked.stderr
    assert len(json.loads(ranked.stdout)["results"]) == 2
