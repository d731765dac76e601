from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.record import Calibration, CountCalibration, Provenance, read_calibration
from lad_rerank.calibration.store import CalibrationStore, search_folders, user_folder
from lad_rerank.debias.bias import position_bias
from lad_rerank.errors import CalibrationFileError, CalibrationMismatchError, CalibrationMissingError

IDENTITY = BackboneIdentity(
    model_type="qwen2_5_vl",
    weights="0123456789abcdef",
    prompt="lad-paper-1",
    chat_template="fedcba9876543210",
    labels="digits",
    max_pixels=112896,
    spans="visual",
    dtype="float32",
    layers=(0, 1),
)


def count(n: int, seed: int = 0) -> CountCalibration:
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet(np.ones(n + 1), size=(n, 2))[:, :, :n]
    bias = position_bias(rng.normal(size=(n, n)), attention, np.arange(n), (0, 1))
    return CountCalibration.of(bias, samples=1, sample_digest="abc")


def calibration(*counts: int, identity: BackboneIdentity = IDENTITY, seed: int = 0) -> Calibration:
    provenance = Provenance(model="org/Some Model", created="2026-01-01T00:00:00+00:00", versions={"torch": "2"})
    return Calibration(identity=identity, provenance=provenance, counts={n: count(n, seed) for n in counts})


def test_round_trip_through_readable_json(tmp_path: Path) -> None:
    made = calibration(2, 3)
    path = CalibrationStore([tmp_path], tmp_path).save(made)
    assert read_calibration(path) == made
    text = path.read_text()
    # One matrix row a line: the file can be read and diffed.
    assert sum(line.strip().startswith("[") and line.strip(" ,").endswith("]") for line in text.splitlines()) >= 9
    bias = read_calibration(path).position_bias(3)
    np.testing.assert_allclose(bias.profile, made.position_bias(3).profile)
    assert bias.layers == (0, 1)


def test_saving_again_keeps_other_numbers_of_candidates(tmp_path: Path) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    store.save(calibration(2, 3, seed=0))
    path = store.save(calibration(3, 4, seed=1))
    assert len(list(tmp_path.glob("*.json"))) == 1
    found = read_calibration(path)
    assert found.covers == (2, 3, 4)
    assert found.counts[2] == count(2, 0)
    assert found.counts[3] == count(3, 1)


def test_found_by_identity_whatever_the_model_is_called(tmp_path: Path) -> None:
    store = CalibrationStore([tmp_path / "empty", tmp_path], tmp_path)
    store.save(calibration(2))
    assert store.find(IDENTITY) is not None
    assert store.find(replace(IDENTITY, max_pixels=1)) is None


def test_each_kind_of_candidates_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    kinds = ("image", "text", "mixed")
    for seed, kind in enumerate(kinds):
        store.save(calibration(2, 3, identity=IDENTITY.for_kind(kind), seed=seed))  # type: ignore[arg-type]
    assert len(list(tmp_path.glob("*.json"))) == 3
    for seed, kind in enumerate(kinds):
        # From whichever kind the backbone's own identity starts.
        for own in kinds:
            found = store.find(IDENTITY.for_kind(own).for_kind(kind))  # type: ignore[arg-type]
            assert found is not None
            assert found.identity.candidates == kind
            assert found.counts[3] == count(3, seed)
    images, texts = calibration(2), calibration(2, identity=IDENTITY.for_kind("text"))
    with pytest.raises(CalibrationMismatchError, match=r"candidates \(text in the calibration, image here\)"):
        images.merged(texts)


def test_a_missing_one_names_the_command_and_the_near_miss(tmp_path: Path) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    store.save(calibration(2))
    error = store.missing(replace(IDENTITY, max_pixels=999, dtype="bfloat16"), "org/Some Model", 5)
    assert isinstance(error, CalibrationMissingError)
    message = str(error)
    assert "lad-rerank calibrate --model 'org/Some Model'" in message
    assert "max_pixels (112896 in the calibration, 999 here)" in message
    assert "dtype (float32 in the calibration, bfloat16 here)" in message


def test_a_mismatch_names_every_field() -> None:
    with pytest.raises(CalibrationMismatchError, match=r"weights \(.*prompt \("):
        calibration(2).check(replace(IDENTITY, weights="other", prompt="other"), "given")


def test_an_uncovered_number_is_named() -> None:
    with pytest.raises(CalibrationMissingError, match="covers 2 to 4 candidates, not 7"):
        calibration(2, 3, 4).position_bias(7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"counts": {"2": {}}}, "damaged at counts"),
        ({"unknown": 1}, "damaged at unknown"),
    ],
)
def test_a_damaged_file_says_where(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**json.loads(calibration(2).to_json()), **change}))
    with pytest.raises(CalibrationFileError, match=says):
        read_calibration(path)


def test_nan_and_wrong_shapes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    data = json.loads(calibration(2).to_json())
    data["counts"]["2"]["log_gain"] = float("nan")
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationFileError, match="log_gain"):
        read_calibration(path)
    data = json.loads(calibration(2).to_json())
    data["counts"]["3"] = data["counts"]["2"]
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationFileError, match="2 candidates"):
        read_calibration(path)


def test_no_json_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(CalibrationFileError, match="no JSON"):
        read_calibration(tmp_path / "c.json")
    with pytest.raises(CalibrationFileError, match="No such file"):
        read_calibration(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    path = store.save(calibration(2))
    before = path.read_text()

    def full_disk(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(CalibrationFileError, match="No space"):
        store.save(calibration(3))
    assert path.read_text() == before
    assert [p.name for p in tmp_path.glob("*.*") if not p.name.endswith(".lock")] == [path.name]


def test_folders_complement_one_another(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    CalibrationStore([shipped], shipped).save(calibration(2, 3, 8, seed=0))
    store = CalibrationStore([own, shipped], own)
    store.save(calibration(8, seed=1))
    found = store.find(IDENTITY)
    assert found is not None
    assert found.covers == (2, 3, 8)
    assert found.counts[8] == count(8, 1)
    assert found.counts[3] == count(3, 0)
    assert "covers (8,) candidates" in str(store.missing(IDENTITY, "org/Some Model", 5))


def test_a_file_that_cannot_be_read_is_named_and_replaced(tmp_path: Path) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    path = store.save(calibration(2))
    for damage in ('{"schema_version": 0}', "", "[" * 200_000):
        path.write_text(damage)
        with pytest.raises(CalibrationFileError):
            store.find(IDENTITY)
        assert store.save(calibration(3)) == path
        assert read_calibration(path).covers == (3,)


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from tests.calibration.test_record_and_store import calibration;"
        "from lad_rerank.calibration.store import CalibrationStore; folder = Path(sys.argv[2]);"
        "[CalibrationStore([folder], folder).save(calibration(n)) for n in map(int, sys.argv[3:])]"
    )
    root = str(Path(__file__).parents[2])
    workers = [
        subprocess.Popen([sys.executable, "-c", program, root, str(tmp_path), *map(str, counts)])
        for counts in (range(2, 6), range(6, 10))
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    (path,) = tmp_path.glob("*.json")
    assert read_calibration(path).covers == tuple(range(2, 10))


def test_home_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAD_RERANK_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "calibrations"
    assert search_folders()[0] == tmp_path / "calibrations"
    assert CalibrationStore().save_to == tmp_path / "calibrations"
    assert len(search_folders()) == 3
