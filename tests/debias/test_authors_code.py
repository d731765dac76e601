"""In the compatible mode our scores are those of the authors' code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lad_rerank.debias.bias import position_bias
from lad_rerank.debias.evidence import layers_by_mass
from lad_rerank.debias.scoring import ScoringSettings, score
from lad_rerank.records import Observation

OWN = Path(__file__).with_name("authors_code_n4.json")
SHARED = Path(__file__).parents[3] / "shared" / "golden"


def centred(values: Any) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array - array.mean()


def test_numbers_of_the_authors_code() -> None:
    golden = json.loads(OWN.read_text())
    layers = tuple(golden["layers"])
    bias = position_bias(
        np.array([p["label_scores"] for p in golden["passes"]]),
        np.array(golden["layer_scores"]),
        np.array([p["target"] for p in golden["passes"]]),
        layers,
    )
    np.testing.assert_allclose(bias.profile, golden["profile"], atol=1e-6)
    assert bias.log_gain == pytest.approx(golden["log_gain"], abs=1e-6)
    np.testing.assert_allclose(bias.attention_prior, golden["attention_prior"], atol=1e-6)
    # Their matrix is shifted by a constant, which no score depends on.
    np.testing.assert_allclose(centred(bias.bias), centred(golden["bias"]), atol=1e-6)
    for sample in golden["samples"]:
        attention = np.array(sample["layer_scores"])
        chosen = [layers[i] for i in layers_by_mass(attention, 2)]
        assert chosen == sorted(sample["selected_layers"])
        seen = Observation(np.array(sample["joint"]), {"last": attention[:, None]}, layers, 1.0, 0)
        scores = score(seen, bias, "lad", ScoringSettings.authors_code())
        np.testing.assert_allclose(scores.posterior, sample["pi"], atol=1e-6)
        np.testing.assert_allclose(centred(scores.log_scores), centred(sample["final"]), atol=1e-6)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared golden files are not beside this checkout")
@pytest.mark.parametrize("name", ["agd_n4", "agd_n12"])
def test_all_numbers_of_the_authors_code(name: str) -> None:
    golden = json.loads((SHARED / f"{name}.json").read_text())
    passes = [(int(i), row) for i, rows in golden["calibration"]["joint_by_gt"].items() for row in rows]
    layers = tuple(golden["layers"])
    bias = position_bias(
        np.array([row for _, row in passes]),
        np.array(golden["calibration"]["layer_scores"]),
        np.array([i for i, _ in passes]),
        layers,
    )
    for sample in golden["samples"]:
        seen = Observation(np.array(sample["joint"]), {"last": np.array(sample["layer_scores"])[:, None]}, layers, 1, 0)
        scores = score(seen, bias, "lad", ScoringSettings.authors_code())
        np.testing.assert_allclose(centred(scores.log_scores), centred(sample["final"]), atol=1e-6)
        assert int(scores.log_scores.argmax()) == sample["argmax"]
