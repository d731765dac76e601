"""Candidates side by side: equal to one masked forward in every family, and indifferent to their order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.set_backbone import SetBackbone
from lad_rerank.contents import Content, Showable, as_contents
from lad_rerank.errors import BackboneError, InvalidRequestError, PromptTooLongError
from lad_rerank.records import Observation
from tests.backbones.set_oracle import BOTH_WAYS, in_one_forward
from tests.backbones.test_families import QUERIES, pictures
from tests.backbones.test_texts import cards, texts
from tests.backbones.tiny import FAMILIES, build
from tests.backbones.tiny.language import LANGUAGE, build_language

CAUSAL = [family for family in FAMILIES if family != "paligemma"]


def make(name: str, **settings: Any) -> SetBackbone:
    built = build_language(name) if name in LANGUAGE else build(name)
    return HuggingFaceBackbone(*built, name=name, verify=False).arranged("set", **settings)


@pytest.fixture(scope="module", params=CAUSAL)
def multimodal(request: pytest.FixtureRequest) -> SetBackbone:
    return make(request.param)


@pytest.fixture(scope="module", params=LANGUAGE)
def language(request: pytest.FixtureRequest) -> SetBackbone:
    return make(request.param)


@pytest.fixture(scope="module")
def reader() -> SetBackbone:
    return make("qwen2_5_vl")


def assert_same(seen: Observation, expected: Observation, atol: float = 1e-5) -> None:
    for name in ("last", "query"):
        np.testing.assert_allclose(seen.attention[name], expected.attention[name], atol=atol)
        np.testing.assert_allclose(seen.peaks[name], expected.peaks[name], atol=atol)
    np.testing.assert_array_equal(seen.log_probs, expected.log_probs)
    assert (seen.lengths, seen.prompt_tokens) == (expected.lengths, expected.prompt_tokens)


def assert_exact(seen: Observation, expected: Observation, order: Sequence[int]) -> None:
    """Bit for bit what was expected, in another order."""
    for name in ("last", "query"):
        np.testing.assert_array_equal(seen.attention[name], expected.attention[name][..., list(order)])
        np.testing.assert_array_equal(seen.peaks[name], expected.peaks[name][..., list(order)])
    assert seen.lengths == tuple(expected.lengths[i] for i in order)
    assert seen.cut == tuple(expected.cut[i] for i in order if expected.cut)


@pytest.mark.parametrize("kind", ["image", "text", "mixed"])
def test_equal_to_one_masked_forward(multimodal: SetBackbone, kind: str) -> None:
    shown: Sequence[Showable] = {"image": pictures, "text": texts, "mixed": cards}[kind](7)
    multimodal.forget()
    for query in QUERIES[:2]:
        assert_same(multimodal.observe(query, shown), in_one_forward(multimodal, query, shown))


def test_pixels_where_features_are_not_used(multimodal: SetBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multimodal.arranged("sequence"), "uses_features", False)
    multimodal.forget()
    assert_same(multimodal.observe(QUERIES[0], cards(4)), in_one_forward(multimodal, QUERIES[0], cards(4)))


def test_images_run_behind_the_kept_prefix_where_that_is_the_same(multimodal: SetBackbone) -> None:
    assert multimodal.blocks.images_behind_prefix == (multimodal.name not in BOTH_WAYS)


@pytest.mark.parametrize("n", [2, 5, 11])
def test_language_models(language: SetBackbone, n: int) -> None:
    language.forget()
    for query in QUERIES:
        assert_same(language.observe(query, texts(n)), in_one_forward(language, query, texts(n)))


def test_a_base_model_has_something_before_its_candidates() -> None:
    base = HuggingFaceBackbone(*build_language("qwen2", chat=False), name="base", verify=False).arranged("set")
    assert base.encoder.prefix
    assert_same(base.observe("a mug", texts(3)), in_one_forward(base, "a mug", texts(3)))


def test_several_requests_are_each_alone(multimodal: SetBackbone) -> None:
    images, mixed = pictures(5), cards(6)
    requests = [
        (QUERIES[0], images), (QUERIES[1], images[::-1]), (QUERIES[2], images), (QUERIES[0], images[:2]),
        (QUERIES[1], mixed), (QUERIES[1], texts(3)), (QUERIES[0], images[1:] + images[:1]),
    ]  # fmt: skip
    multimodal.forget()
    together = multimodal.observe_many(requests)
    for request, seen in zip(requests, together, strict=True):
        multimodal.forget()
        assert_same(seen, multimodal.observe(*request))
    assert_exact(together[6], together[0], [1, 2, 3, 4, 0])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), n=st.integers(2, 32), kept=st.booleans())
def test_the_order_does_not_matter(reader: SetBackbone, seed: int, n: int, kept: bool) -> None:
    random = Random(seed)
    pool: list[Content] = [*as_contents(pictures(6)), *texts(8), *cards(6)]
    shown = [random.choice(pool) for _ in range(n)]
    order = random.sample(range(n), n)
    reader.forget()
    first = reader.observe("a red mug", shown)
    if not kept:
        reader.forget()
    second = reader.observe("a red mug", [shown[i] for i in order])
    assert_exact(second, first, order)
    for i in range(n):
        for j in range(i):
            if shown[i].digest == shown[j].digest:
                assert_exact(first, first, [j if k == i else k for k in range(n)])
    assert sum(first.attention["last"].mean(axis=(0, 1))) <= 1 + 1e-6


def test_another_candidate_takes_its_share_from_all_alike(reader: SetBackbone) -> None:
    """In the first layer the question's last token has seen nothing yet: candidates stand to each other as always."""
    shown = texts(6)
    # The longest stays, so that the question stays where it is.
    longest = max(range(6), key=lambda i: reader.observe("a mug", shown).lengths[i])
    fewer = sorted({longest, 0, 1, 3})
    of_all = reader.observe("a mug", shown).attention["last"][0][:, fewer]
    of_some = reader.observe("a mug", [shown[i] for i in fewer]).attention["last"][0]
    assert (of_all < of_some).all()
    shares = [mass / mass.sum(axis=-1, keepdims=True) for mass in (of_all, of_some)]
    np.testing.assert_allclose(*shares, atol=1e-5)


def test_what_an_observation_says(reader: SetBackbone) -> None:
    seen = reader.observe("a mug", pictures(4))
    np.testing.assert_allclose(seen.log_probs, np.log([0.25] * 4))
    assert (seen.label_mass, seen.passes, seen.cut, seen.null) == (0.0, 1, (), None)
    assert seen.layers == reader.identity.layers
    assert reader.observe("a mug", texts(2)).cut == (0, 0)


def test_long_texts_are_cut_and_that_is_said() -> None:
    short = HuggingFaceBackbone(*build_language("qwen2"), name="short", max_text_tokens=4, verify=False).arranged("set")
    seen = short.observe("a mug", [Content.of(text="a mug"), Content.of(text="x" * 40)])
    assert seen.cut[1] > seen.cut[0]
    assert max(seen.lengths) <= 5


def test_identity_says_that_there_is_no_order(reader: SetBackbone) -> None:
    sequence = reader.arranged("sequence").identity
    assert reader.identity.differences(sequence) == {
        "prompt": ("lad-set-1", "lad-paper-1"),
        "arrangement": ("set", "sequence"),
    }
    assert [reader.identity.for_kind(kind).prompt for kind in ("image", "text", "mixed")] == [
        "lad-set-1", "lad-set-text-1", "lad-set-mixed-1",
    ]  # fmt: skip
    assert reader.identity.for_kind("text").arrangement == "set"
    assert reader.arranged("set") is reader
    # No labels are read: what they are called makes no other evidence.
    letters = reader.arranged("sequence").variant(labels="letters").arranged("set", verify=False)
    assert letters.identity == reader.identity


def test_all_candidates_fit_one_pass(reader: SetBackbone) -> None:
    assert reader.capacity("a mug", pictures(40)) == 40
    assert make("llama").observe("a mug", texts(11) * 9).n == 99


def test_context_bounds_the_longest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    small = make("qwen2")
    used = small.observe("a mug", texts(4)).prompt_tokens
    monkeypatch.setattr(small.arranged("sequence"), "_context", used - 10)
    small.observe("a mug", texts(4))
    monkeypatch.setattr(small.arranged("sequence"), "_context", 70)
    with pytest.raises(PromptTooLongError, match="max_text_tokens"):
        small.observe("a mug", texts(4))


def test_threads_share_one(reader: SetBackbone) -> None:
    requests: list[tuple[str, list[Showable]]] = [
        (query, shown) for query in QUERIES for shown in ([*pictures(4)], [*texts(5)], [*cards(6)])
    ]
    alone = [reader.observe(*request) for request in requests]
    reader.forget()
    with ThreadPoolExecutor(6) as pool:
        for seen, expected in zip(pool.map(lambda r: reader.observe(*r), requests * 2), alone * 2, strict=True):
            assert_same(seen, expected)


def test_what_cannot_stand_side_by_side_is_refused() -> None:
    both_ways = HuggingFaceBackbone(*build("paligemma"), name="paligemma", verify=False)
    with pytest.raises(BackboneError, match=r"tokens of its prompt see each other.*arrangement='sequence'"):
        both_ways.arranged("set")
    model, tokenizer = build_language("qwen2")
    hybrid = HuggingFaceBackbone(model, tokenizer, name="hybrid", verify=False)
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with pytest.raises(BackboneError, match="linear_attention"):
        hybrid.arranged("set")
    model, tokenizer = build_language("llama")
    model.config.sliding_window = 16
    with pytest.raises(BackboneError, match="16 tokens back only"):
        HuggingFaceBackbone(model, tokenizer, name="narrow", verify=False).arranged("set")


def test_a_prompt_seen_both_ways_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be in a family that nobody has described yet."""
    unknown = HuggingFaceBackbone(*build("paligemma"), name="unknown", verify=False)
    monkeypatch.setattr(unknown._family, "causal", True)
    with pytest.raises(BackboneError, match="not what one pass"):
        unknown.arranged("set")


def test_a_model_that_is_read_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = HuggingFaceBackbone(*build_language("llama"), name="llama", verify=False)
    forward = inner._model.forward

    def shifted(*args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        return forward(*args, position_ids=None if position_ids is None else position_ids * 2, **kwargs)

    monkeypatch.setattr(inner._model, "forward", shifted)
    with pytest.raises(BackboneError, match="not what one pass"):
        inner.arranged("set")


def test_settings_that_make_no_sense() -> None:
    inner = HuggingFaceBackbone(*build_language("llama"), name="llama", verify=False)
    with pytest.raises(InvalidRequestError, match="Unknown block_dtype 'int4'"):
        inner.arranged("set", block_dtype="int4")
    with pytest.raises(InvalidRequestError, match="max_block_bytes"):
        inner.arranged("set", max_block_bytes=-1)
    with pytest.raises(InvalidRequestError, match="Unknown arrangement 'circle'"):
        inner.arranged("circle")  # type: ignore[call-overload]  # what a caller may pass at run time
    assert inner.arranged("sequence") is inner
    with pytest.raises(InvalidRequestError, match="reads texts only"):
        inner.arranged("set").observe("a mug", pictures(2))
