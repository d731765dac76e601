from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lad_rerank.debias.choosing import CalibrationPasses, fitted
from lad_rerank.debias.presence import SIGNALS, Presence, fit_presence, signals
from lad_rerank.debias.reading import EvidenceSettings, FittedEvidence, Units
from lad_rerank.debias.recipe import PAPER, Recipe
from lad_rerank.errors import InvalidRequestError
from lad_rerank.records import Observation
from tests.debias.simulated import HEADS, LAYERS, Model

EVERYWHERE = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
MODEL = Model(planted={"last": EVERYWHERE}, gain=2.0)


def evidence_of(passes: CalibrationPasses, units: Units = "mass") -> FittedEvidence:
    evidence = fitted(Recipe("lad", EvidenceSettings(units=units, count=2)), passes).evidence
    assert evidence is not None
    return evidence


def absent(model: Model, count: int, seed: int) -> list[Observation]:
    """Passes in which nothing is looked for that is there."""
    return list(replace(model, planted={}).passes(count, seed).observations)


def scaled(observations: Sequence[Observation], factor: float) -> list[Observation]:
    return [replace(o, attention={row: a * factor for row, a in o.attention.items()}) for o in observations]


def auc(yes: Sequence[float], no: Sequence[float]) -> float:
    a, b = np.array(yes), np.array(no)
    return float((a[:, None] > b).mean() + 0.5 * (a[:, None] == b).mean())


@pytest.mark.parametrize("units", ["mass", "layers", "heads", "weighted"])
def test_passes_with_and_without_an_answer_are_told_apart(units: Units) -> None:
    passes = MODEL.passes(5, seed=1)
    presence = fit_presence(evidence_of(passes, units), passes.observations, absent(MODEL, 2, seed=2))
    assert presence is not None
    assert presence.separation > 0.9
    here = [presence.confidence(o) for o in MODEL.passes(10, seed=3).observations]
    not_here = [presence.confidence(o) for o in absent(MODEL, 10, seed=4)]
    assert auc(here, not_here) > 0.9
    assert np.mean(np.array(here) >= 0.5) > 0.8
    assert np.mean(np.array(not_here) < 0.5) > 0.7
    assert all(type(c) is float and 0 <= c <= 1 for c in (*here, *not_here))


def test_signals_are_what_they_say() -> None:
    passes = MODEL.passes(3, seed=1)
    for units in ("mass", "heads"):
        evidence = evidence_of(passes, units)  # type: ignore[arg-type]
        for observation in passes.observations[:5]:
            log_evidence = evidence.log_evidence(observation)
            attention = observation.attention["last"]
            rows = attention.mean(axis=1) if units == "mass" else attention.reshape(-1, 6)[evidence.units]
            mass = np.sort(rows.sum(axis=1))[-2:].mean()
            assert signals(observation, evidence) == {
                "peak": pytest.approx(log_evidence.max()),
                "level": pytest.approx(np.log(np.exp(log_evidence).mean())),
                "mass": pytest.approx(np.log(mass)),
            }
    assert set(signals(passes.observations[0], evidence)) == set(SIGNALS)


@pytest.mark.parametrize("factor", [1.2, 3.0])
def test_the_threshold_lies_between_the_medians(factor: float) -> None:
    passes = MODEL.passes(4, seed=1)
    evidence = evidence_of(passes)
    less = scaled(passes.observations, 1 / factor)
    presence = fit_presence(evidence, passes.observations, less)
    assert presence is not None
    here, there = ([signals(o, evidence)[presence.signal] for o in some] for some in (passes.observations, less))
    assert np.median(there) < presence.threshold < np.median(here)
    assert presence.scale == pytest.approx((np.median(here) - presence.threshold) / 2)
    # A usual pass with an answer is fairly sure.
    assert np.median([presence.confidence(o) for o in passes.observations]) == pytest.approx(
        1 / (1 + np.exp(-2)), abs=0.005
    )
    at = Presence(presence.signal, evidence, here[0], presence.scale, 1.0)
    assert at.confidence(passes.observations[0]) == 0.5
    # Attention is at most 1, so a confidence is monotone in it and never leaves [0, 1].
    grown = [presence.confidence(o) for o in scaled(passes.observations[:1] * 3, 0.5)]
    assert grown[0] < presence.confidence(passes.observations[0])


def test_the_threshold_is_nearer_to_what_spreads_less() -> None:
    passes = replace(MODEL, salience=0.0).passes(4, seed=1)
    evidence = evidence_of(passes)
    rng = np.random.default_rng(0)
    steady = passes.observations
    spread = [scaled([o], f)[0] for o, f in zip(steady, np.exp(rng.normal(-2, 0.5, len(steady))), strict=True)]
    presence = fit_presence(evidence, steady, spread)
    assert presence is not None
    here, there = ([signals(o, evidence)[presence.signal] for o in some] for some in (steady, spread))
    assert presence.threshold > (np.median(here) + np.median(there)) / 2


def test_nothing_to_compare_and_nothing_to_tell() -> None:
    passes = MODEL.passes(3, seed=1)
    evidence = evidence_of(passes)
    assert fit_presence(evidence, passes.observations, []) is None
    assert fit_presence(evidence, [], passes.observations) is None
    assert fit_presence(evidence, passes.observations, passes.observations) is None
    # Less attention where there is an answer is nothing to go by.
    assert fit_presence(evidence, scaled(passes.observations, 0.2), passes.observations) is None


def test_a_median_that_is_higher_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of passes with an answer may be higher although most pairs say otherwise."""
    from lad_rerank.debias import presence as module

    passes = MODEL.passes(3, seed=1).observations
    yes, no = [-9.0, -9.0, 1.0, 1.1, 1.2], [0.0, 0.0, 0.9, 5.0, 5.0]
    values = {id(o): v for o, v in zip(passes, (*yes, *no), strict=False)}
    monkeypatch.setattr(module, "signals", lambda o, evidence: dict.fromkeys(SIGNALS, values[id(o)]))
    assert auc(yes, no) < 0.5
    assert np.median(yes) > np.median(no)
    assert fit_presence(evidence_of(MODEL.passes(3, seed=1)), passes[:5], passes[5:10]) is None


def test_extreme_attention_stays_in_bounds() -> None:
    passes = MODEL.passes(3, seed=1)
    presence = fit_presence(evidence_of(passes), passes.observations, absent(MODEL, 2, seed=2))
    assert presence is not None
    for factor in (0.0, 1e-30, 1e3, 1e200):
        (odd,) = scaled(passes.observations[:1], factor)
        assert 0 <= presence.confidence(odd) <= 1
    assert presence.confidence(scaled(passes.observations[:1], 0.0)[0]) < 0.01


def test_one_pass_of_each_kind_is_enough() -> None:
    passes = MODEL.passes(1, seed=1)
    presence = fit_presence(evidence_of(passes), passes.observations[:1], scaled(passes.observations[:1], 0.3))
    assert presence is not None
    assert presence.separation == 1
    assert presence.scale > 0


def test_evidence_against_the_null_query_needs_it() -> None:
    passes = MODEL.passes(3, seed=1)
    both = [replace(o, null=scaled([o], 0.5)[0]) for o in passes.observations]
    evidence = fitted(Recipe("lad", EvidenceSettings(prior="null")), replace(passes, observations=both)).evidence
    assert evidence is not None
    presence = fit_presence(evidence, both, [replace(o, null=o) for o in passes.observations])
    assert presence is not None
    assert presence.needs_null
    assert presence.confidence(both[0]) > 0.5
    with pytest.raises(InvalidRequestError, match="null query"):
        presence.confidence(passes.observations[0])
    plain = fitted(PAPER, passes).evidence
    assert plain is not None
    assert not Presence("mass", plain, 0.0, 1.0, 1.0).needs_null
