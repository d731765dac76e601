from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lad_rerank.debias import choosing
from lad_rerank.debias.choice import Choice, margin
from lad_rerank.debias.choosing import (
    LEAST_SAMPLES,
    TEMPERATURES,
    CalibrationPasses,
    LeftOut,
    best_temperature,
    careful_temperature,
    choose,
    first_stage_weight,
    fitted,
    leave_one_out,
)
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.mixing import MIXERS
from lad_rerank.debias.reading import EvidenceSettings
from lad_rerank.debias.recipe import PAPER, FittedRecipe, Recipe, recipes
from lad_rerank.records import FloatArray
from tests.debias.simulated import HEADS, LAYERS, Model, bias_of, everything

EVERYWHERE = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
QUERY_HEADS = Recipe("attention", EvidenceSettings(("query",), units="heads", count=8))
WORLDS = {
    "query heads": Model(planted={"query": [(1, 2), (2, 3), (3, 0)]}),
    "one query head": Model(planted={"query": [(2, 3)]}, gain=3.0),
    "all of the last row": Model(planted={"last": EVERYWHERE}, gain=1.0, logit_gain=1.0),
    "both rows": Model(planted={"last": [(1, 2)], "query": [(2, 2), (3, 3)]}, gain=1.5, logit_gain=0.5),
    "labels only": Model(logit_gain=2.5),
    "weak": Model(planted={"query": [(1, 2), (2, 3)], "last": [(0, 1)]}, gain=0.7, logit_gain=0.7),
}


@cache
def calibrated(world: str, seed: int, samples: int = 5) -> tuple[CalibrationPasses, Choice]:
    """Passes of a world with biases of its own, and what is chosen on them."""
    passes = replace(WORLDS[world], seed=seed).passes(samples, seed)
    choice = choose(passes, bias_of(passes))
    assert choice is not None
    return passes, choice


@cache
def left_out(world: str, seed: int) -> list[LeftOut]:
    """All recipes on the same passes, left out."""
    passes, _ = calibrated(world, seed)
    return leave_one_out(passes, bias_of(passes))


def accuracy(recipe: FittedRecipe | Choice, passes: CalibrationPasses, test: CalibrationPasses) -> float:
    bias = bias_of(passes)(everything(passes))
    return float(np.mean([recipe.log_scores(o, bias).argmax() for o in test.observations] == test.targets))


def test_recipes_are_all_different_and_begin_with_the_papers() -> None:
    for lengths_differ in (False, True):
        for null in (False, True):
            some = list(recipes(lengths_differ=lengths_differ, null=null))
            assert some[0] == PAPER
            assert len(set(some)) == len(some)
            assert {r.mixer for r in some} == set(MIXERS)
            assert any(r.evidence and r.evidence.prior == "null" for r in some) == null
            assert any(r.evidence and r.evidence.length_exponent for r in some) == lengths_differ
            assert len({str(r) for r in some}) == len(some)


def test_the_left_out_sample_has_no_say() -> None:
    """Only fitting looks at targets. Other targets in one sample change all scores but that sample's own."""
    passes = WORLDS["both rows"].passes(4, seed=3)
    some = [
        PAPER,
        Recipe("pride"),
        Recipe("profile"),
        *(
            Recipe("lad", EvidenceSettings(("query", "last"), units=u, count=4))
            for u in ("layers", "heads", "weighted")
        ),
    ]
    before = leave_one_out(passes, bias_of(passes), some)
    for s in range(4):
        own = passes.samples == s
        other = replace(passes, targets=np.where(own, (passes.targets + 2) % 6, passes.targets))
        for old, new in zip(before, leave_one_out(other, bias_of(other), some), strict=True):
            np.testing.assert_array_equal(old.log_scores[own], new.log_scores[own])
            if old.recipe.mixer != "pride":
                assert not np.allclose(old.log_scores[~own], new.log_scores[~own])


def test_a_head_that_knows_one_sample_by_heart_does_not_help_it() -> None:
    """Each sample has a head that finds its target and no other's: fitted on all it is a wonder, left out it is not."""
    passes = Model(salience=0.0).passes(4, seed=5)
    for p, (sample, target) in enumerate(zip(passes.samples, passes.targets, strict=True)):
        passes.observations[p].attention["query"][0, sample, target] = 1.0
    recipe = Recipe("attention", EvidenceSettings(("query",), units="weighted", count=24))
    in_sample = accuracy(fitted(recipe, passes), passes, passes)
    (tried,) = leave_one_out(passes, bias_of(passes), [recipe])
    assert in_sample > 0.9
    assert tried.accuracy < 0.45


def test_nothing_but_noise_is_no_better_than_chance() -> None:
    # Without salience every pass is a draw of its own.
    passes = Model(salience=0.0).passes(10, seed=6)
    tried = leave_one_out(passes, bias_of(passes))
    assert np.mean([t.accuracy for t in tried]) == pytest.approx(1 / 6, abs=0.04)
    assert max(t.log_likelihood for t in tried) < np.log(1 / 6) + 0.1


def test_left_out_scores_are_those_of_a_recipe_fitted_on_the_others() -> None:
    passes = WORLDS["both rows"].passes(3, seed=7)
    recipe = Recipe("lad_profile", EvidenceSettings(("query",), "max", 0.0, "position", "heads", 8), 2.0)
    (tried,) = leave_one_out(passes, bias_of(passes), [recipe])
    for s in range(3):
        kept = passes.samples != s
        others = CalibrationPasses(
            [o for o, k in zip(passes.observations, kept, strict=True) if k],
            passes.samples[kept],
            passes.targets[kept],
            passes.shown[kept],
        )
        fit, bias = fitted(recipe, others), bias_of(others)(everything(others))
        for p in np.flatnonzero(~kept):
            np.testing.assert_allclose(tried.log_scores[p], fit.log_scores(passes.observations[p], bias), atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_query_heads_win_where_the_last_row_is_noise(seed: int) -> None:
    passes, choice = calibrated("query heads", seed)
    reading = [m.evidence.settings for m in choice.members if m.evidence is not None]
    assert len(reading) == len(choice.members)
    assert all("query" in s.rows and s.by_head for s in reading)
    test = replace(WORLDS["query heads"], seed=seed).passes(20, seed + 100)
    got = accuracy(choice, passes, test)
    assert got > accuracy(fitted(PAPER, passes), passes, test) + 0.4
    assert choice.expected_accuracy == pytest.approx(got, abs=0.15)


def test_the_papers_recipe_stays_where_nothing_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    perfect = Model(planted={"last": EVERYWHERE}, gain=6.0, logit_gain=4.0, salience=0.1).passes(5, seed=1)
    choice = choose(perfect, bias_of(perfect))
    assert choice is not None
    assert [m.recipe for m in choice.members] == [PAPER]
    assert choice.expected_accuracy == 1.0
    assert choice.expected_consistency == 1.0
    # As good as the paper's is not better.
    twins = [PAPER, Recipe("lad", PAPER.evidence, 5.01), Recipe("vanilla")]
    monkeypatch.setattr(choosing, "recipes", lambda **_: iter(twins))
    passes = WORLDS["all of the last row"].passes(5, seed=2)
    choice = choose(passes, bias_of(passes))
    assert choice is not None
    assert [m.recipe for m in choice.members] == [PAPER]


@pytest.mark.parametrize("world", WORLDS)
def test_the_choice_is_no_worse_than_the_best_single_recipe(world: str) -> None:
    """By more than three points, over models with biases of their own; and no worse than the paper's."""
    gaps, to_paper = [], []
    for seed in range(3):
        passes, choice = calibrated(world, seed)
        test = replace(WORLDS[world], seed=seed).passes(20, seed + 100)
        single = max(left_out(world, seed), key=lambda t: t.log_likelihood)
        got = accuracy(choice, passes, test)
        gaps.append(got - accuracy(fitted(single.recipe, passes), passes, test))
        to_paper.append(got - accuracy(fitted(PAPER, passes), passes, test))
    # Three points: what 20 test samples of three seeds can tell.
    assert np.mean(gaps) > -0.03
    assert min(to_paper) > -0.02


def test_members_read_different_evidence_and_are_nearly_as_good_as_the_best() -> None:
    for world in WORLDS:
        passes, choice = calibrated(world, 0)
        assert 1 <= len(choice.members) <= choosing.MOST_MEMBERS
        assert len({m.recipe.evidence for m in choice.members}) == len(choice.members)
        tried = {t.recipe: t for t in left_out(world, 0)}
        best = max(tried.values(), key=lambda t: t.log_likelihood)
        if choice.members[0].recipe != PAPER:
            for member in choice.members:
                behind = choosing.by_sample(best, passes) - choosing.by_sample(tried[member.recipe], passes)
                assert behind.mean() <= max(choosing.LEAST_GAIN, behind.std(ddof=1) / np.sqrt(len(behind)))


@pytest.mark.parametrize("samples", [1, 2])
def test_too_few_samples_leave_the_papers_recipe(samples: int) -> None:
    passes = WORLDS["query heads"].passes(samples, seed=1)
    assert samples < LEAST_SAMPLES
    assert choose(passes, bias_of(passes)) is None


def test_backbones_that_give_only_the_last_row_can_be_calibrated() -> None:
    passes = WORLDS["all of the last row"].passes(3, seed=1)
    observations = [
        replace(o, attention={"last": o.attention["last"]}, peaks={}, lengths=()) for o in passes.observations
    ]
    bare = replace(passes, observations=observations)
    choice = choose(bare, bias_of(bare))
    assert choice is not None
    assert choice.expected_accuracy > 0.5


def test_the_null_query_is_tried_where_it_was_asked() -> None:
    """What a candidate draws whatever is asked hides the target, and the null query shows it."""
    model = Model(planted={"query": EVERYWHERE}, gain=1.0, salience=2.0)
    passes = model.passes(4, seed=2)
    # The null query sees the same bias and salience: the same pass without what is planted.
    observations = []
    for o, target in zip(passes.observations, passes.targets, strict=True):
        rows = {row: values.copy() for row, values in o.attention.items()}
        rows["query"][..., target] /= np.exp(1.0)
        observations.append(replace(o, null=replace(o, attention=rows, peaks=rows)))
    asked = replace(passes, observations=observations)
    choice = choose(asked, bias_of(asked))
    assert choice is not None
    assert choice.needs_null
    assert choice.expected_accuracy > 0.95
    without = choose(passes, bias_of(passes))
    assert without is not None
    assert not without.needs_null


def test_the_choice_repeats_exactly() -> None:
    passes, choice = calibrated("weak", 1)
    again = choose(passes, bias_of(passes))
    assert again is not None
    assert [m.recipe for m in again.members] == [m.recipe for m in choice.members]
    assert again.margins == choice.margins


def test_margins_are_ascending_quantiles_of_left_out_passes() -> None:
    for world in WORLDS:
        _, choice = calibrated(world, 0)
        assert len(choice.margins) == choosing.QUANTILES
        assert list(choice.margins) == sorted(choice.margins)
        assert choice.margins[0] >= 0


def test_expectations_are_those_of_the_left_out_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "recipes", lambda **_: iter([PAPER, Recipe("pride")]))
    passes = WORLDS["all of the last row"].passes(5, seed=4)
    choice = choose(passes, bias_of(passes))
    assert choice is not None
    assert [m.recipe for m in choice.members] == [PAPER]
    scores = leave_one_out(passes, bias_of(passes), [PAPER])[0].log_scores
    best = scores.argmax(axis=1)
    assert choice.expected_accuracy == (best == passes.targets).mean()
    images = passes.shown[np.arange(len(best)), best].reshape(5, 6)
    assert choice.expected_consistency == np.mean([len(set(row.tolist())) == 1 for row in images])
    total = choice.members[0].temperature * choice.temperature
    np.testing.assert_allclose(choice.margins, np.quantile(margin(scores / total), np.linspace(0, 1, 21)), atol=1e-9)


# Temperature and first stage.


def simulated_scores(sharpness: float, passes: int = 4000, n: int = 5) -> tuple[FloatArray, np.ndarray]:
    """Log scores whose calibrated form is theirs divided by ``sharpness``."""
    rng = np.random.default_rng(0)
    true = log_softmax(rng.normal(0, 1.5, (passes, n)))
    targets = np.array([rng.choice(n, p=np.exp(row)) for row in true])
    return true * sharpness, targets


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0, 12.0])
def test_the_best_temperature_makes_probabilities_true(sharpness: float) -> None:
    scores, targets = simulated_scores(sharpness)
    likelihood, temperature = best_temperature(scores, targets)
    assert temperature == sharpness
    assert likelihood == pytest.approx(log_softmax(scores / sharpness)[np.arange(4000), targets].mean())


def test_scores_that_say_nothing_keep_temperature_one() -> None:
    assert best_temperature(np.zeros((6, 3)), np.array([0, 1, 2, 0, 1, 2])) == (pytest.approx(-np.log(3)), 1.0)


def of(scores: FloatArray, targets: np.ndarray, samples: int) -> CalibrationPasses:
    passes, n = scores.shape
    return CalibrationPasses([], np.arange(passes) * samples // passes, targets, np.tile(np.arange(n), (passes, 1)))


def test_a_handful_without_a_mistake_is_not_certainty() -> None:
    n, samples = 8, 5
    targets = np.tile(np.arange(n), samples)
    scores = np.zeros((n * samples, n))
    scores[np.arange(n * samples), targets] = 10.0
    few = careful_temperature(scores, of(scores, targets, samples))
    assert best_temperature(scores, targets)[1] < few
    assert few < TEMPERATURES[-1]
    assert 0.85 < np.exp(log_softmax(scores / few)[0, 0]) < 0.995
    # More samples without a mistake are more certain.
    many = np.tile(scores, (20, 1))
    assert careful_temperature(many, of(many, np.tile(targets, 20), 100)) < few


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0])
def test_with_many_samples_care_changes_nothing(sharpness: float) -> None:
    scores, targets = simulated_scores(sharpness)
    assert careful_temperature(scores, of(scores, targets, 500)) == sharpness


def test_scores_that_are_always_wrong_are_flattened() -> None:
    scores = np.zeros((8, 4))
    scores[:, 0] = 5.0
    assert careful_temperature(scores, of(scores, np.ones(8, dtype=int), 4)) == TEMPERATURES[-1]


@pytest.mark.parametrize("unit", [1.0, 0.01, 300.0])
def test_an_informative_first_stage_gets_a_weight_in_its_own_unit(unit: float) -> None:
    passes = replace(WORLDS["weak"], seed=1).passes(8, seed=1, first_stage=2.5)
    assert passes.first_stage is not None
    passes = replace(passes, first_stage=passes.first_stage * unit + 7)
    choice = choose(passes, bias_of(passes))
    assert choice is not None
    assert choice.first_stage_weight > 0
    alone = choose(replace(passes, first_stage=None), bias_of(passes))
    assert alone is not None
    assert alone.first_stage_weight == 0
    assert choice.expected_accuracy > alone.expected_accuracy + 0.05
    spread = passes.first_stage.std(axis=1).mean()
    assert 0.05 < choice.first_stage_weight * spread * choice.temperature <= 8


def test_a_first_stage_of_noise_is_left_out() -> None:
    weights = []
    for seed in range(8):
        passes = replace(WORLDS["weak"], seed=seed).passes(5, seed=seed, first_stage=0.0)
        votes = leave_one_out(passes, bias_of(passes), [QUERY_HEADS])[0].log_scores
        weights.append(first_stage_weight(votes, passes))
    assert np.mean([w == 0 for w in weights]) >= 0.75
    assert max(weights) < 1.5


def test_a_misleading_or_constant_first_stage_is_left_out() -> None:
    passes = WORLDS["weak"].passes(5, seed=1, first_stage=-3.0)
    votes = log_softmax(leave_one_out(passes, bias_of(passes), [QUERY_HEADS])[0].log_scores)
    assert first_stage_weight(votes, passes) == 0
    constant = replace(passes, first_stage=np.full_like(votes, 0.3))
    assert first_stage_weight(votes, constant) == 0
    assert first_stage_weight(votes, replace(passes, first_stage=None)) == 0
