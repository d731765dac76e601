from __future__ import annotations

import numpy as np
import pytest

from lad_rerank.debias.choice import Choice, margin
from lad_rerank.debias.choosing import fitted
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.reading import EvidenceSettings
from lad_rerank.debias.recipe import PAPER, Recipe
from lad_rerank.debias.scoring import score
from tests.debias.simulated import Model, bias_of, everything

PASSES = Model(planted={"query": [(1, 2), (2, 3)]}, logit_gain=1.0).passes(4, seed=1)
BIAS = bias_of(PASSES)(everything(PASSES))
QUERY = Recipe("attention", EvidenceSettings(("query",), units="heads", count=2), 2.0)


def choice(*recipes: Recipe, temperature: float = 1.0, margins: tuple[float, ...] = (0.0, 1.0)) -> Choice:
    members = tuple(fitted(recipe, PASSES, 1.0 + i) for i, recipe in enumerate(recipes))
    return Choice(members, temperature, 0.0, 0.9, 0.8, margins)


def test_the_paper_alone_is_the_scorer_of_the_paper() -> None:
    for observation in PASSES.observations:
        expected = score(observation, BIAS, "lad")
        np.testing.assert_allclose(
            choice(PAPER).log_scores(observation, BIAS), log_softmax(expected.log_scores), atol=1e-9
        )
        np.testing.assert_allclose(choice(PAPER).posterior(observation), expected.posterior, atol=1e-9)


def test_members_vote_with_their_log_posteriors() -> None:
    observation = PASSES.observations[3]
    both = choice(PAPER, QUERY, Recipe("vanilla"), temperature=2.0)
    alone = [log_softmax(member.log_scores(observation, BIAS)) for member in both.members]
    np.testing.assert_allclose(
        both.log_scores(observation, BIAS), log_softmax((alone[0] + alone[1] + alone[2]) / 6), atol=1e-12
    )
    assert np.exp(both.log_scores(observation, BIAS)).sum() == pytest.approx(1)


def test_a_members_temperature_divides_its_scores() -> None:
    cold, warm = fitted(PAPER, PASSES, 1.0), fitted(PAPER, PASSES, 4.0)
    observation = PASSES.observations[0]
    np.testing.assert_allclose(cold.log_scores(observation, BIAS), 4 * warm.log_scores(observation, BIAS))


def test_the_posterior_is_the_mean_of_those_that_read_attention() -> None:
    observation = PASSES.observations[5]
    ours = choice(PAPER, QUERY, Recipe("pride"))
    shares = [
        np.exp(log_softmax(m.recipe.tau * m.evidence.log_evidence(observation))) for m in ours.members if m.evidence
    ]
    assert len(shares) == 2
    np.testing.assert_allclose(ours.posterior(observation), (shares[0] + shares[1]) / 2)
    assert choice(Recipe("pride"), Recipe("profile")).posterior(observation) is None


def test_only_members_that_read_it_need_the_null_query() -> None:
    assert not choice(PAPER, QUERY, Recipe("vanilla")).needs_null
    settings = EvidenceSettings(prior="none")
    assert not choice(Recipe("attention", settings)).needs_null


def test_margin_is_the_lead_of_the_best() -> None:
    log_scores = np.log([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(margin(log_scores), np.log([2, 8]))
    assert margin(np.array([1.0, 1.0])) == 0
    # A constant of the pass makes no difference.
    np.testing.assert_allclose(margin(log_scores + 5), margin(log_scores))


def test_below_the_threshold_is_the_wanted_share() -> None:
    rng = np.random.default_rng(0)
    margins = rng.exponential(2.0, 2000)
    ours = choice(PAPER, margins=tuple(np.quantile(margins, np.linspace(0, 1, 21)).tolist()))
    for mean_passes in (1.05, 1.1, 1.25, 1.3, 1.5, 1.9):
        below = (margins < ours.uncertain_below(mean_passes)).mean()
        assert below == pytest.approx(mean_passes - 1, abs=0.01)
    thresholds = [ours.uncertain_below(m) for m in np.linspace(1, 2, 50)]
    assert thresholds == sorted(thresholds)


def test_one_pass_is_never_two_and_two_are_never_one() -> None:
    for margins in ((0.0, 1.0), (0.0, 0.0), (3.0, 3.0, 3.0)):
        ours = choice(PAPER, margins=margins)
        assert ours.uncertain_below(1.0) <= 0
        assert ours.uncertain_below(2.0) > 1e9
        # What lies outside is taken as the nearest end.
        assert ours.uncertain_below(0.5) == ours.uncertain_below(1.0)
        assert ours.uncertain_below(7.0) == ours.uncertain_below(2.0)
