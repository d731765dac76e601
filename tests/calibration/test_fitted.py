"""What calibration fitted, through a file and back, and files that were damaged."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.fitted import ChoiceRecord, EvidenceRecord, MemberRecord, PresenceRecord
from lad_rerank.calibration.record import Calibration, CountCalibration, Provenance, read_calibration
from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.choice import Choice
from lad_rerank.debias.choosing import choose, fitted
from lad_rerank.debias.mixing import MIXERS, WITHOUT_EVIDENCE
from lad_rerank.debias.presence import fit_presence
from lad_rerank.debias.reading import EvidenceSettings
from lad_rerank.debias.recipe import PAPER, Recipe
from lad_rerank.debias.scoring import score
from lad_rerank.errors import CalibrationFileError
from tests.debias.simulated import LAYERS, Model, bias_of, everything

N = 4
MODEL = Model(N, planted={"query": [(1, 2), (2, 3)], "last": [(0, 1)]}, gain=1.5, logit_gain=0.7)
PASSES = MODEL.passes(4, seed=1)
IDENTITY = BackboneIdentity("m", "w", "lad-paper-1", "t", "digits", 1, "visual", "float32", tuple(range(LAYERS)))
UNITS = ("mass", "layers", "heads", "weighted")


def whole_bias() -> PositionBias:
    """All that calibration fits, with members of every mixer and kind of units."""
    bias = bias_of(PASSES)(everything(PASSES))
    some = [
        Recipe(
            mixer,
            None
            if mixer in WITHOUT_EVIDENCE
            else EvidenceSettings(
                ("last", "query") if i % 2 else ("query",),
                "max" if i % 3 == 0 else "sum",
                0.5 * (i % 2),
                "none" if i == 5 else "position",
                UNITS[i % 4],  # type: ignore[arg-type]
                3,
                "arithmetic" if i % 2 else "geometric",
            ),
            2.0 + i,
        )
        for i, mixer in enumerate(MIXERS)
    ]
    members = tuple(fitted(recipe, PASSES, 0.35 + i) for i, recipe in enumerate([PAPER, *some]))
    choice = Choice(members, 1.4, 0.123456789012345, 0.875, 0.75, tuple(np.linspace(0, 3, 21) ** 2))
    evidence = fitted(PAPER, PASSES).evidence
    assert evidence is not None
    presence = fit_presence(evidence, PASSES.observations, MODEL.passes(2, seed=9).observations)
    if presence is None:
        presence = fit_presence(evidence, MODEL.passes(2, seed=9).observations, PASSES.observations)
    assert presence is not None
    return PositionBias(bias.profile, bias.log_gain, bias.attention_prior, bias.layers, bias.noise, choice, presence)


def calibration(bias: PositionBias | None = None, **changes: Any) -> Calibration:
    count = CountCalibration.of(bias or whole_bias(), samples=4, sample_digest="abc")
    provenance = Provenance(model="m", created="2026-01-01T00:00:00+00:00", versions={})
    return Calibration(identity=IDENTITY, provenance=provenance, counts={N: count.model_copy(update=changes)})


def through_a_file(made: Calibration, folder: Path) -> Calibration:
    path = folder / "c.json"
    path.write_text(made.to_json(), encoding="utf-8")
    return read_calibration(path)


def test_choice_and_presence_survive_the_file(tmp_path: Path) -> None:
    before, made = whole_bias(), calibration()
    read = through_a_file(made, tmp_path)
    assert read == made
    after = read.position_bias(N)
    assert after.choice is not None
    assert before.choice is not None
    assert [m.recipe for m in after.choice.members] == [m.recipe for m in before.choice.members]
    for observation in (*PASSES.observations, *MODEL.passes(2, seed=5).observations):
        for old, new in zip(before.choice.members, after.choice.members, strict=True):
            np.testing.assert_allclose(
                new.log_scores(observation, after), old.log_scores(observation, before), atol=1e-7, rtol=1e-8
            )
        np.testing.assert_allclose(
            score(observation, after, "auto").log_scores, score(observation, before, "auto").log_scores, atol=1e-8
        )
        np.testing.assert_allclose(after.choice.posterior(observation), before.choice.posterior(observation), atol=1e-8)
        assert before.presence is not None
        assert after.presence is not None
        assert after.presence.confidence(observation) == pytest.approx(
            before.presence.confidence(observation), abs=1e-7
        )
    np.testing.assert_allclose(after.choice.margins, before.choice.margins, atol=1e-8)
    for field in ("temperature", "first_stage_weight", "expected_accuracy", "expected_consistency"):
        assert getattr(after.choice, field) == getattr(before.choice, field)
    # Writing what was read changes nothing more.
    assert CountCalibration.of(after, 4, "abc") == read.counts[N]


def test_what_a_real_choice_is_survives_too(tmp_path: Path) -> None:
    bias = bias_of(PASSES)(everything(PASSES))
    choice = choose(PASSES, bias_of(PASSES))
    assert choice is not None
    read = through_a_file(
        calibration(PositionBias(bias.profile, bias.log_gain, bias.attention_prior, bias.layers, bias.noise, choice)),
        tmp_path,
    ).position_bias(N)
    assert read.choice is not None
    assert read.presence is None
    for observation in PASSES.observations:
        np.testing.assert_allclose(
            read.choice.log_scores(observation, read), choice.log_scores(observation, bias), atol=1e-7
        )


def test_small_attention_keeps_its_logarithm(tmp_path: Path) -> None:
    """Deep layers may give a candidate less than 1e-9, and evidence is a ratio to that."""
    bias = whole_bias()
    tiny = bias.attention_prior * 1e-11
    made = calibration(PositionBias(bias.profile, bias.log_gain, tiny, bias.layers, bias.noise))
    np.testing.assert_allclose(through_a_file(made, tmp_path).position_bias(N).attention_prior, tiny, rtol=1e-8)


def test_sums_that_round_above_one_are_one() -> None:
    bias = whole_bias()
    over = np.full_like(bias.attention_prior, 1 + 1e-7)
    made = calibration(PositionBias(bias.profile, bias.log_gain, over, bias.layers, bias.noise))
    assert made.counts[N].attention_prior == [[1.0] * N] * LAYERS


def test_the_file_says_in_words_what_was_chosen() -> None:
    data = json.loads(calibration().to_json())
    recipes = data["counts"][str(N)]["choice"]["recipes"]
    assert recipes[0] == "lad (tau 5) over 2 mass, last row, sum, position prior"
    assert recipes[1] == "vanilla"


Change = Callable[[dict[str, Any]], object]
CHOICE_DAMAGE: dict[str, tuple[Change, str]] = {
    "unknown mixer": (lambda c: c["members"][0].update(mixer="magic"), r"choice\.members\.0.*mixer must be one of"),
    "mixer without its evidence": (lambda c: c["members"][0].update(evidence=None), r"members\.0.*does not go with"),
    "evidence without use": (lambda c: c["members"][0].update(mixer="pride"), r"members\.0.*does not go with"),
    "temperature of zero": (lambda c: c["members"][0].update(temperature=0.0), r"members\.0\.temperature"),
    "temperature that is NaN": (lambda c: c.update(temperature=float("nan")), r"choice\.temperature"),
    "infinite tau": (lambda c: c["members"][0].update(tau=float("inf")), r"members\.0\.tau"),
    "no members": (lambda c: c.update(members=[]), r"choice\.members"),
    "NaN in a prior": (
        lambda c: c["members"][0]["evidence"]["log_prior"][0].__setitem__(1, float("nan")),
        r"members\.0\.evidence\.log_prior\.0\.1",
    ),
    "prior of another N": (
        lambda c: c["members"][0]["evidence"].update(log_prior=[[0.0] * (N + 1)] * LAYERS),
        r"counts\.4.*log_prior must have a column for each of the N candidates",
    ),
    "prior with a short row": (lambda c: c["members"][0]["evidence"]["log_prior"][1].pop(), r"log_prior must have"),
    "fewer weights than units": (lambda c: c["members"][0]["evidence"]["weights"].pop(), "must be equally long"),
    "weights that do not sum to 1": (
        lambda c: c["members"][0]["evidence"].update(weights=[0.1] * LAYERS),
        "weights must sum to 1",
    ),
    "a negative weight": (
        lambda c: c["members"][0]["evidence"]["weights"].__setitem__(0, -0.5),
        r"evidence\.weights\.0",
    ),
    "a unit twice": (lambda c: c["members"][3]["evidence"].update(chosen=[3, 3, 1]), "names a unit twice"),
    "units missing by mass": (
        lambda c: c["members"][0]["evidence"].update(chosen=[1, 2, 3, 4]),
        "chosen must list all units",
    ),
    "a negative unit": (lambda c: c["members"][0]["evidence"]["chosen"].__setitem__(0, -1), r"evidence\.chosen\.0"),
    "an unknown row": (lambda c: c["members"][0]["evidence"].update(rows=["first"]), r"evidence\.rows\.0"),
    "no row": (lambda c: c["members"][0]["evidence"].update(rows=[]), r"evidence\.rows"),
    "an unknown prior": (lambda c: c["members"][0]["evidence"].update(prior="posterior"), r"evidence\.prior"),
    "a count of zero": (lambda c: c["members"][0]["evidence"].update(count=0), r"evidence\.count"),
    "margins that fall": (lambda c: c.update(margins=[1.0, 0.5]), r"choice\.margins.*must ascend"),
    "one margin": (lambda c: c.update(margins=[1.0]), r"choice\.margins"),
    "a NaN margin": (lambda c: c["margins"].__setitem__(3, float("nan")), r"choice\.margins\.3"),
    "accuracy above 1": (lambda c: c.update(expected_accuracy=1.1), r"choice\.expected_accuracy"),
    "accuracy that is NaN": (lambda c: c.update(expected_accuracy=float("nan")), r"choice\.expected_accuracy"),
    "an infinite weight": (lambda c: c.update(first_stage_weight=float("inf")), r"choice\.first_stage_weight"),
    "an unknown field": (lambda c: c.update(more=1), r"choice\.more"),
    "no margins": (lambda c: c.pop("margins"), r"choice\.margins"),
}
PRESENCE_DAMAGE: dict[str, tuple[Change, str]] = {
    "unknown signal": (lambda p: p.update(signal="smell"), r"presence\.signal"),
    "scale of zero": (lambda p: p.update(scale=0.0), r"presence\.scale"),
    "NaN threshold": (lambda p: p.update(threshold=float("nan")), r"presence\.threshold"),
    "separation above 1": (lambda p: p.update(separation=1.01), r"presence\.separation"),
    "no evidence": (lambda p: p.update(evidence=None), r"presence\.evidence"),
    "prior of another N": (
        lambda p: p["evidence"].update(log_prior=[[0.0] * (N - 1)] * LAYERS),
        r"counts\.4.*log_prior must have a column",
    ),
}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(calibration().to_json())
    return data


@pytest.mark.parametrize(
    ("part", "damage"),
    [*(("choice", name) for name in CHOICE_DAMAGE), *(("presence", name) for name in PRESENCE_DAMAGE)],
)
def test_damage_is_refused_and_named(whole: dict[str, Any], tmp_path: Path, part: str, damage: str) -> None:
    data = copy.deepcopy(whole)
    change, says = (CHOICE_DAMAGE if part == "choice" else PRESENCE_DAMAGE)[damage]
    change(data["counts"][str(N)][part])
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationFileError, match=f"(?s)damaged at .*{says}"):
        read_calibration(path)


@pytest.mark.parametrize("version", [1, 3, "2", 2.5, None, [2]])
def test_another_schema_version_is_refused_with_what_to_do(
    whole: dict[str, Any], tmp_path: Path, version: object
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**whole, "schema_version": version}))
    with pytest.raises(CalibrationFileError, match=r"has schema version .*, this release reads 2; calibrate again\."):
        read_calibration(path)


def test_units_that_the_model_does_not_have_are_named_when_used() -> None:
    """A file cannot know how many heads a model has; the first pass can."""
    from lad_rerank.errors import InvalidRequestError

    evidence = EvidenceRecord.of(fitted(Recipe("lad", EvidenceSettings(units="heads")), PASSES).evidence)  # type: ignore[arg-type]
    far = evidence.model_copy(update={"chosen": [0, 10**6]})
    with pytest.raises(InvalidRequestError, match="calibrate again"):
        far.evidence().log_evidence(PASSES.observations[0])
    few = EvidenceRecord.of(fitted(PAPER, PASSES).evidence)  # type: ignore[arg-type]
    few = few.model_copy(update={"chosen": [0], "weights": [1.0], "log_prior": few.log_prior[:1]})
    with pytest.raises(InvalidRequestError, match="calibrate again"):
        few.evidence().log_evidence(PASSES.observations[0])


def test_merging_takes_the_newer_choice_whole() -> None:
    old = calibration()
    newer = calibration(whole_bias(), choice=None, presence=None)
    both = old.merged(newer)
    assert both.counts[N].choice is None
    assert newer.merged(old).counts[N] == old.counts[N]


def test_records_are_what_they_record() -> None:
    bias = whole_bias()
    assert bias.choice is not None
    assert bias.presence is not None
    assert asdict(ChoiceRecord.of(bias.choice).choice()).keys() == asdict(bias.choice).keys()
    member = MemberRecord.of(bias.choice.members[0]).member()
    assert member.recipe == PAPER
    presence = PresenceRecord.of(bias.presence).presence()
    assert presence.threshold == bias.presence.threshold
    assert presence.scale == bias.presence.scale
