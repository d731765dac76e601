from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.record import Calibration, CountCalibration, Provenance
from lad_rerank.debias.bias import PositionBias
from lad_rerank.errors import ObservationFileError
from lad_rerank.evaluation.orders import Instance, ObservedRuns, ShownObservation
from lad_rerank.evaluation.stored import KEY, ObservedSet, StoredObservations, load_observations, save_observations
from lad_rerank.evaluation.unseen import UnseenContents
from lad_rerank.records import FloatArray, Observation

LAYERS = (1, 3)
IDENTITY = BackboneIdentity(
    model_type="tiny",
    weights="0" * 16,
    prompt="p",
    chat_template="c",
    labels="digits",
    max_pixels=4096,
    spans="visual",
    dtype="float32",
    layers=LAYERS,
)


def observation(rng: np.random.Generator, n: int, *, null: bool = False, exact32: bool = True) -> Observation:
    def attention() -> FloatArray:
        drawn: FloatArray = rng.random((2, 3, n)) / n
        return drawn.astype(np.float32).astype(np.float64) if exact32 else drawn

    logits = rng.normal(size=n)
    return Observation(
        log_probs=logits - np.log(np.exp(logits).sum()),
        attention={"last": attention(), "query": attention()},
        layers=LAYERS,
        label_mass=float(rng.random()),
        prompt_tokens=int(rng.integers(100, 200)),
        passes=int(rng.integers(1, 3)),
        peaks={"last": attention()},
        lengths=tuple(rng.integers(1, 9, n).tolist()) if n != 3 else (),
        cut=tuple(rng.integers(0, 2, n).tolist()) if n == 4 else (),
        null=observation(rng, n) if null else None,
    )


def observed(counts: tuple[int, ...] = (4, 3, 4), orders: int = 2, **how: bool) -> ObservedSet:
    rng = np.random.default_rng(5)
    runs = [
        [ShownObservation(observation(rng, n, **how), tuple(rng.permutation(n).tolist())) for n in counts]
        for _ in range(orders)
    ]
    instances = [
        Instance(f"query {q} größe", UnseenContents(n), frozenset({q} if q < 2 else ()), f"id {q}", q < 2)
        for q, n in enumerate(counts)
    ]
    return ObservedSet("random, N=4", "ab" * 8, instances, ObservedRuns(runs, 0.125, 1024))


def assert_same(a: Observation, b: Observation) -> None:
    assert a.log_probs.dtype == b.log_probs.dtype == np.float64
    np.testing.assert_array_equal(a.log_probs, b.log_probs)
    for left, right in ((a.attention, b.attention), (a.peaks, b.peaks)):
        assert list(left) == list(right)
        for name in left:
            assert right[name].dtype == np.float64
            np.testing.assert_array_equal(left[name], right[name])
    for name in ("layers", "label_mass", "prompt_tokens", "passes", "lengths", "cut"):
        assert getattr(a, name) == getattr(b, name)
    assert (a.null is None) == (b.null is None)
    if a.null is not None and b.null is not None:
        assert_same(a.null, b.null)


@pytest.mark.parametrize("how", [{}, {"null": True}, {"exact32": False}])
def test_what_is_saved_is_loaded_exactly(tmp_path: Path, how: dict[str, Any]) -> None:
    one, two = observed(**how), observed((2, 2), 3)
    two = ObservedSet("hard", "cd" * 8, two.instances, two.observed, "text")
    stored = StoredObservations("tiny", IDENTITY, (one, two), settings={"orders": 2, "rows": ["lad"]})
    path = tmp_path / "kept" / "runs.safetensors"
    save_observations(stored, path)
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode
    loaded = load_observations(path)
    assert (loaded.model, loaded.identity, loaded.calibrations) == ("tiny", IDENTITY, ())
    assert (loaded.settings, loaded.created, loaded.versions) == (stored.settings, stored.created, stored.versions)
    assert set(loaded.versions) == {"lad-rerank", "transformers", "torch"}
    for before, after in zip(stored.sets, loaded.sets, strict=True):
        assert (after.name, after.digest, after.kind) == (before.name, before.digest, before.kind)
        assert after.observed.seconds_per_pass == before.observed.seconds_per_pass
        assert after.observed.peak_bytes == before.observed.peak_bytes
        assert after.observed.shown == before.observed.shown
        for i, j in zip(before.instances, after.instances, strict=True):
            assert (i.id, i.query, i.n, i.relevant, i.retrieved) == (j.id, j.query, j.n, j.relevant, j.retrieved)
        for run, again in zip(before.observed.runs, after.observed.runs, strict=True):
            for seen, same in zip(run, again, strict=True):
                assert_same(seen.observation, same.observation)
    with safe_open(path, framework="numpy") as file:
        types = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    narrow = {dtype for name, dtype in types.items() if "attention." in name and name.startswith("0/")}
    assert narrow == {np.dtype(np.float32 if how.get("exact32", True) else np.float64)}
    with pytest.raises(ObservationFileError, match="hold no pictures"):
        loaded.sets[0].instances[0].contents[0]


def calibration() -> Calibration:
    bias = PositionBias(np.eye(4), 0.5, np.full((2, 4), 0.25), LAYERS)
    provenance = Provenance(model="tiny", created="2026-01-01T00:00:00+00:00", versions={})
    return Calibration(identity=IDENTITY, provenance=provenance, counts={4: CountCalibration.of(bias, 3, "ef" * 8)})


def test_the_calibration_goes_with_the_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "runs.safetensors"
    save_observations(StoredObservations("tiny", IDENTITY, (observed(),), (calibration(),)), path)
    assert load_observations(path).calibrations == (calibration(),)
    change(path, lambda head: head["calibrations"][0].update(schema_version=99))
    assert load_observations(path).calibrations == ()
    assert "of another release" in caplog.text


def change(path: Path, edit: Any = None, tensors: Any = None) -> None:
    """Write a file anew, its head or its arrays edited."""
    with safe_open(path, framework="numpy") as file:
        head = json.loads(file.metadata()[KEY])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if edit is not None:
        edit(head)
    if tensors is not None:
        tensors(arrays)
    save_file(arrays, path, metadata={KEY: json.dumps(head)})


def transposed(name: str) -> Any:
    return lambda arrays: arrays.update({name: np.ascontiguousarray(arrays[name].T)})


@pytest.mark.parametrize(
    ("edit", "tensors", "told"),
    [
        (lambda h: h.update(schema_version=2), None, "schema version 2"),
        (lambda h: h.pop("identity"), None, "damaged at identity"),
        (lambda h: h.update(sets=[]), None, "names of their own"),
        (lambda h: h["sets"][0].update(orders=3), None, "3 passes are missing"),
        (lambda h: h["sets"][0]["instances"][0].update(n=5), None, "5 candidates once each"),
        (lambda h: h["sets"][0]["instances"][0].update(relevant=[4]), None, "relevant"),
        (None, lambda a: a.pop("0/0/log_probs"), "log_probs"),
        (None, lambda a: a.pop("0/0/shown"), "shown is missing"),
        (None, lambda a: a.pop("0/0/cut"), "cut is missing"),
        (None, lambda a: a["0/0/log_probs"].fill(np.nan), "log_probs"),
        (None, lambda a: a["0/0/shown"].fill(0), "once each"),
        (None, lambda a: a["0/0/place"].fill(0), "twice"),
        (None, transposed("0/0/attention.last"), "attention.last"),
        (None, transposed("0/0/layers"), "is no attention of"),
        (None, lambda a: a.update({"0/0/label_mass": a["0/0/label_mass"][:1]}), "label_mass"),
    ],
)
def test_damage_is_told(tmp_path: Path, edit: Any, tensors: Any, told: str) -> None:
    path = tmp_path / "runs.safetensors"
    save_observations(StoredObservations("tiny", IDENTITY, (observed(),)), path)
    change(path, edit, tensors)
    with pytest.raises(ObservationFileError) as caught:
        load_observations(path)
    assert told in str(caught.value)
    assert "runs.safetensors" in str(caught.value)


def test_foreign_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.safetensors"
    with pytest.raises(ObservationFileError, match="no file"):
        load_observations(path)
    with pytest.raises(ObservationFileError, match="no file"):
        load_observations(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ObservationFileError, match="no safetensors file"):
        load_observations(path)
    save_observations(StoredObservations("tiny", IDENTITY, (observed(),)), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ObservationFileError, match="no safetensors file, or a damaged one"):
        load_observations(path)
    save_file({"weights": np.zeros(3)}, path)
    with pytest.raises(ObservationFileError, match="holds no observations"):
        load_observations(path)
    save_file({"weights": np.zeros(3)}, path, metadata={KEY: "{"})
    with pytest.raises(ObservationFileError, match="no JSON"):
        load_observations(path)
    (tmp_path / "file").touch()
    with pytest.raises(ObservationFileError, match="Cannot write"):
        save_observations(StoredObservations("tiny", IDENTITY, (observed(),)), tmp_path / "file" / "runs.safetensors")
