from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lad_rerank.debias.evidence import layers_by_mass, log_softmax, purified_log_evidence
from lad_rerank.debias.reading import EvidenceSettings, FittedEvidence, fit_evidence, log_attention, readable
from lad_rerank.debias.scoring import head_mean
from lad_rerank.errors import InvalidRequestError
from lad_rerank.records import Observation
from tests.debias.simulated import HEADS, LAYERS, Model

LENGTHS = (4, 9, 2, 16)


def seen(seed: int = 0, n: int = 4) -> Observation:
    """A pass in which every row and pooling differs."""
    rng = np.random.default_rng(seed)
    rows = {row: rng.dirichlet(np.ones(n + 1), size=(3, 2))[:, :, :n] for row in ("last", "query")}
    peaks = {row: values * rng.uniform(0.1, 1, values.shape) for row, values in rows.items()}
    return Observation(log_softmax(rng.normal(size=n)), rows, (0, 1, 2), 1.0, 10, peaks=peaks, lengths=LENGTHS[:n])


def fitted(settings: EvidenceSettings, observations: list[Observation], targets: list[int]) -> FittedEvidence:
    log = np.stack([log_attention(o, settings) for o in observations])
    return fit_evidence(settings, log, np.array(targets), np.arange(len(targets)))


@pytest.mark.parametrize("pooling", ["sum", "max"])
@pytest.mark.parametrize("rows", [("last",), ("query",), ("last", "query")])
def test_units_are_rows_by_layers_by_heads(rows: tuple[str, ...], pooling: str) -> None:
    observation = seen()
    source = observation.attention if pooling == "sum" else observation.peaks
    by_head = log_attention(observation, EvidenceSettings(rows, pooling, units="heads"))  # type: ignore[arg-type]
    expected = [np.log(source[row][layer, head]) for row in rows for layer in range(3) for head in range(2)]
    np.testing.assert_allclose(by_head, expected)
    by_layer = log_attention(observation, EvidenceSettings(rows, pooling, units="layers"))  # type: ignore[arg-type]
    expected = [np.log(source[row][layer].mean(axis=0)) for row in rows for layer in range(3)]
    np.testing.assert_allclose(by_layer, expected)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_attention_is_divided_by_a_power_of_the_length(exponent: float) -> None:
    plain = log_attention(seen(), EvidenceSettings())
    normalised = log_attention(seen(), EvidenceSettings(length_exponent=exponent))
    np.testing.assert_allclose(np.exp(normalised), np.exp(plain) / np.array(LENGTHS) ** exponent)


def test_the_null_prior_is_the_same_candidates_under_a_query_that_says_nothing() -> None:
    settings = EvidenceSettings(("query",), units="heads", prior="null", length_exponent=1.0)
    both = replace(seen(0), null=seen(1))
    got = log_attention(both, settings)
    ratio = seen(0).attention["query"] / seen(1).attention["query"]
    np.testing.assert_allclose(np.exp(got), ratio.reshape(-1, 4))
    # A pass that looks as it does for the null query is no evidence, and no position prior is taken out besides.
    same = fitted(settings, [replace(seen(0), null=seen(0))] * 4, [0, 1, 2, 3])
    np.testing.assert_allclose(same.log_evidence(replace(seen(0), null=seen(0))), 0, atol=1e-12)
    np.testing.assert_array_equal(same.log_prior, 0)
    with pytest.raises(InvalidRequestError, match="null query, which was not asked"):
        log_attention(seen(), settings)


@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_mass_units_are_the_papers_evidence(mean: str, count: int) -> None:
    observations = [seen(i) for i in range(8)]
    evidence = fitted(EvidenceSettings(mean=mean, count=count), observations, [0, 1, 2, 3] * 2)  # type: ignore[arg-type]
    prior = np.mean([head_mean(o) for o in observations], axis=0)
    for observation in (*observations, seen(99)):
        attention = head_mean(observation)
        layers = layers_by_mass(attention, count)
        expected = purified_log_evidence(attention, prior, layers, mean)  # type: ignore[arg-type]
        np.testing.assert_allclose(evidence.log_evidence(observation), expected, atol=1e-12)


@pytest.mark.parametrize("units", ["mass", "layers", "heads", "weighted"])
@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_many_passes_at_once_are_each_alone(units: str, mean: str) -> None:
    settings = EvidenceSettings(("last", "query"), units=units, count=3, mean=mean)  # type: ignore[arg-type]
    observations = [seen(i) for i in range(6)]
    evidence = fitted(settings, observations, [0, 1, 2, 3, 0, 1])
    together = evidence.of(np.stack([log_attention(o, settings) for o in observations]))
    np.testing.assert_allclose(together, [evidence.log_evidence(o) for o in observations], atol=1e-12)


@pytest.mark.parametrize("units", ["heads", "weighted"])
@pytest.mark.parametrize("row", ["last", "query"])
def test_planted_heads_are_found_among_noise(units: str, row: str) -> None:
    planted = [(0, 1), (2, 3), (3, 5)]
    passes = Model(planted={row: planted}).passes(5, seed=1)
    settings = EvidenceSettings(("last", "query"), units=units, count=3)  # type: ignore[arg-type]
    log = np.stack([log_attention(o, settings) for o in passes.observations])
    evidence = fit_evidence(settings, log, passes.targets, passes.samples)
    start = {"last": 0, "query": LAYERS * HEADS}[row]
    assert set(evidence.units.tolist()) == {start + layer * HEADS + head for layer, head in planted}
    assert evidence.weights.sum() == pytest.approx(1)
    right = evidence.of(log).argmax(axis=1) == passes.targets
    assert right.mean() > 0.85


def test_weights_follow_what_a_head_says_above_chance() -> None:
    n, passes = 4, 12
    targets = np.arange(passes) % n
    log = np.full((passes, 3, n), np.log(0.2))
    log[np.arange(passes), 0, targets] += 2.0
    log[np.arange(passes), 1, targets] += 1.0
    log[np.arange(passes), 2, targets] -= 1.0  # a head that looks away
    evidence = fit_evidence(EvidenceSettings(units="weighted", count=3), log, targets, np.arange(passes) // n)
    # The position prior takes out the same from all positions here, so quality is the log-softmax of the gain.
    gains = {0: 2.0, 1: 1.0, 2: -1.0}
    above = [max(gains[u] - np.log(np.exp(gains[u]) + n - 1) + np.log(n), 0.0) for u in evidence.units.tolist()]
    np.testing.assert_allclose(evidence.weights, np.array(above) / sum(above))
    assert evidence.weights[evidence.units.tolist().index(2)] == 0


def test_where_no_head_is_above_chance_all_count_alike() -> None:
    log = np.full((4, 2, 4), np.log(0.2))
    log[np.arange(4), :, np.arange(4)] -= 1.0
    evidence = fit_evidence(EvidenceSettings(units="weighted", count=2), log, np.arange(4), np.zeros(4, dtype=int))
    np.testing.assert_allclose(evidence.weights, 0.5)


def test_heads_are_chosen_by_place_not_by_mean() -> None:
    """One head is splendid on one sample and lost on four; another is good on all. The mean likes the first."""
    n, samples = 4, 5
    targets, of_sample = np.tile(np.arange(n), samples), np.repeat(np.arange(samples), n)
    gains = np.zeros((samples, 3))
    gains[:, 0] = [9.0, 0.0, 0.0, 0.0, 0.0]
    gains[:, 1] = 0.2
    gains[:, 2] = -0.3
    log = np.full((n * samples, 3, n), np.log(0.1))
    for p, target in enumerate(targets):
        log[p, :, target] += gains[of_sample[p]]
    prior = np.log(np.exp(log).mean(axis=0))
    mean = log_softmax(log - prior)[np.arange(len(targets)), :, targets].mean(axis=0)
    assert mean.argmax() == 0
    evidence = fit_evidence(EvidenceSettings(units="heads", count=1), log, targets, of_sample)
    assert evidence.units.tolist() == [1]


def test_more_units_than_there_are_means_all() -> None:
    evidence = fitted(EvidenceSettings(units="heads", count=99), [seen(i) for i in range(4)], [0, 1, 2, 3])
    assert sorted(evidence.units.tolist()) == list(range(6))
    assert evidence.log_prior.shape == (6, 4)


def test_no_attention_at_all_gives_no_nan() -> None:
    dark = replace(
        seen(),
        attention={row: np.zeros((3, 2, 4)) for row in ("last", "query")},
        peaks={row: np.zeros((3, 2, 4)) for row in ("last", "query")},
    )
    lit = [seen(i) for i in range(4)]
    for units, prior, mean in itertools.product(
        ("mass", "layers", "heads", "weighted"), ("position", "null", "none"), ("geometric", "arithmetic")
    ):
        for pooling in ("sum", "max"):
            settings = EvidenceSettings(("last", "query"), pooling, 0.5, prior, units, 3, mean)  # type: ignore[arg-type]
            bright = fitted(settings, [replace(o, null=dark) for o in lit], [0, 1, 2, 3])
            blind = fitted(settings, [replace(dark, null=o) for o in lit], [0, 1, 2, 3])
            for evidence in (bright, blind):
                for observation in (dark, lit[0]):
                    assert np.isfinite(evidence.log_evidence(replace(observation, null=dark))).all(), settings


def test_what_a_pass_does_not_hold_is_named() -> None:
    short = replace(seen(), attention={"last": seen().attention["last"]}, peaks={}, lengths=())
    for settings in (EvidenceSettings(("query",)), EvidenceSettings(pooling="max"), EvidenceSettings(prior="null")):
        assert readable(replace(seen(), null=seen()), settings)
        assert not readable(short, settings)
        with pytest.raises(InvalidRequestError):
            log_attention(short, settings)
    assert readable(short, EvidenceSettings())
    assert not readable(short, EvidenceSettings(length_exponent=1.0))
    assert not readable(replace(seen(), null=short), EvidenceSettings(("query",), prior="null"))


@pytest.mark.parametrize("units", ["mass", "layers", "heads"])
def test_other_layers_heads_or_candidates_are_an_error(units: str) -> None:
    settings = EvidenceSettings(units=units, count=9)  # type: ignore[arg-type]
    evidence = fitted(settings, [seen(i) for i in range(4)], [0, 1, 2, 3])

    def of(take: tuple[NDArray[np.int64] | slice, ...]) -> Observation:
        rows = {row: values[take] for row, values in seen().attention.items()}
        return replace(seen(), attention=rows, lengths=LENGTHS[: rows["last"].shape[2]])

    assert np.isfinite(evidence.log_evidence(of((slice(None),)))).all()
    for other in ((slice(0, 2),), (slice(None), slice(None), slice(0, 3))):
        with pytest.raises(InvalidRequestError, match="calibrate again"):
            evidence.log_evidence(of(other))
    if units == "mass":
        with pytest.raises(InvalidRequestError, match="calibrate again"):
            evidence.log_evidence(of((np.array([0, 1, 2, 2]),)))
