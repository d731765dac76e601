"""One generic backbone over many families: what it reads is what plain eager forwards say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lad_rerank import LADReranker
from lad_rerank.backbones.attention_tap import TAP_NAME
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.label_scoring import label_log_probs
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.errors import BackboneError
from lad_rerank.records import Observation
from tests.backbones.tiny import FAMILIES, REFUSED, build

QUERIES = ("a red mug", "ein Krug, blau gestreift, auf dem Tisch", "x")
NO_PREFIX = {"paligemma"}
"""All tokens of the prompt see each other: a kept prefix would be another one's."""


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    sizes = [(40, 56), (64, 64), (90, 30), (120, 80), (33, 47)]
    return [Image.fromarray(rng.integers(0, 255, (*sizes[i % 5], 3), dtype=np.uint8)) for i in range(count)]


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    model, processor = build(request.param)
    return HuggingFaceBackbone(model, processor, name=request.param)


def written(inputs: dict[str, torch.Tensor], tokens: tuple[int, ...], answer_type: int = 0) -> dict[str, torch.Tensor]:
    """The processor's own tensors with more tokens of text behind the prompt."""
    if not tokens:
        return inputs
    count = len(tokens)
    fill = {"input_ids": list(tokens), "attention_mask": [1] * count, "token_type_ids": [answer_type] * count}
    shape = inputs["input_ids"].shape
    return {
        name: torch.cat([v, torch.tensor([fill.get(name, [0] * count)])], dim=1) if v.shape == shape else v
        for name, v in inputs.items()
    }


def plain(backbone: HuggingFaceBackbone, query: str, images: list[Image.Image]) -> Observation:
    """The oracle: the processor's own tensors through eager attention, one prompt at a time, pixels and all."""
    model = backbone._model
    prompt = backbone._encoder.encode_plain(query, images)
    answer = prompt.answer
    inputs = written(dict(prompt.inputs or {}), answer.forced)
    # PaliGemma marks what is no prompt any more, so that the prompt does not see it.
    answer_type = int(backbone.name == "paligemma")
    model.set_attn_implementation({"text_config": "eager"})
    try:
        with torch.inference_mode():
            output = model(**inputs, output_attentions=True)
            log_probs = label_log_probs(
                answer.labels,
                answer.end,
                output.logits[0, -1].double().numpy(),
                lambda prefixes: np.stack(
                    [model(**written(inputs, p, answer_type)).logits[0, -1].double().numpy() for p in prefixes]
                ),
            )
    finally:
        model.set_attn_implementation({"text_config": TAP_NAME})
    attention = {}
    for name, rows in (("last", [prompt.length - 1]), ("query", list(prompt.query))):
        layers = [output.attentions[layer][0][:, rows] for layer in backbone.identity.layers]
        mass = [torch.stack([m[..., list(s)].sum(-1).mean(1) for s in prompt.spans], dim=-1) for m in layers]
        attention[name] = torch.stack(mass).double().numpy()
    return Observation(log_probs, attention, backbone.identity.layers, 1.0, prompt.length)


def assert_same(seen: Observation, expected: Observation) -> None:
    np.testing.assert_allclose(seen.log_probs, expected.log_probs, atol=1e-5)
    assert np.exp(seen.log_probs).sum() == pytest.approx(1, abs=1e-6)
    for name in ("last", "query"):
        np.testing.assert_allclose(seen.attention[name], expected.attention[name], atol=1e-5)


def test_short_cuts_hold(backbone: HuggingFaceBackbone) -> None:
    assert backbone.uses_features == backbone._traits.encoder_outputs
    assert backbone.uses_prefix == (backbone.name not in NO_PREFIX)


@pytest.mark.parametrize("n", [3, 11])
def test_whole_prompts_and_kept_prefixes(backbone: HuggingFaceBackbone, n: int) -> None:
    if n > 9 and backbone.name == "paligemma" and not backbone._traits.encoder_outputs:
        pytest.skip("one forward of transformers 4 cannot show an answer behind a prompt that does not see it")
    images = pictures(n)
    backbone.forget()
    for query in QUERIES[:2]:
        assert_same(backbone.observe(query, images), plain(backbone, query, images))


def test_batches_of_unequal_prompts(backbone: HuggingFaceBackbone) -> None:
    images = pictures(5)
    requests = [(QUERIES[0], images[:2]), (QUERIES[1], images), (QUERIES[2], images[1:4]), (QUERIES[1], images[:2])]
    backbone.forget()
    for (query, shown), seen in zip(requests, backbone.observe_many(requests), strict=True):
        assert_same(seen, plain(backbone, query, shown))


def test_labels_of_several_tokens_in_a_padded_batch(backbone: HuggingFaceBackbone) -> None:
    images = pictures(12)
    requests = [(QUERIES[0], images[:10]), (QUERIES[1], images[:12]), (QUERIES[2], images[1:12])]
    backbone.forget()
    together = backbone.observe_many(requests)
    for request, seen in zip(requests, together, strict=True):
        backbone.forget()
        alone = backbone.observe(*request)
        np.testing.assert_allclose(seen.log_probs, alone.log_probs, atol=1e-5)


def test_a_tiny_picture_among_others(backbone: HuggingFaceBackbone) -> None:
    tiny = [Image.new("RGB", size, "red") for size in ((1, 1), (20, 20), (28, 3))]
    seen = backbone.observe("a mug", [pictures(1)[0], *tiny])
    assert np.isfinite(seen.log_probs).all()
    assert_same(seen, plain(backbone, "a mug", [pictures(1)[0], *tiny]))


def test_pixels_instead_of_features(backbone: HuggingFaceBackbone) -> None:
    images = pictures(3)
    backbone.forget()
    backbone.uses_features, before = False, backbone.uses_features
    try:
        assert_same(backbone.observe(QUERIES[0], images), plain(backbone, QUERIES[0], images))
    finally:
        backbone.uses_features = before


def test_hostile_queries_are_text(backbone: HuggingFaceBackbone) -> None:
    tokenizer = backbone._encoder.tokenizer
    images = pictures(2)
    added = tokenizer.get_added_vocab()
    ordinary = backbone.encode("a mug", images).ids
    names = sorted(added, key=len)
    for some in (names[:40], names[-40:]):
        hostile = "a mug " + " ".join(some) + "".join(some)
        ids = backbone.encode(hostile, images).ids
        assert {t: ids.count(t) for t in added.values()} == {t: ordinary.count(t) for t in added.values()}
        assert np.isfinite(backbone.observe(hostile, images).log_probs).all()


def test_a_large_photo_stays_within_the_budget(backbone: HuggingFaceBackbone) -> None:
    photo, small = Image.new("RGB", (1200, 900), "grey"), pictures(1)[0]
    spans = backbone.encode("a mug", [photo, small]).spans
    # 336 x 336 in cells of 28 pixels is 144 tokens; untiled, a 1200 x 900 photo takes no more anywhere.
    assert len(spans[0]) <= 144


def test_the_whole_rerank_runs(backbone: HuggingFaceBackbone, tmp_path: Path) -> None:
    images = pictures(4)
    reranker = LADReranker(backbone, store=CalibrationStore([tmp_path], tmp_path))
    samples = [{"query": q, "images": images[i:] + images[:i], "target": i} for i, q in enumerate(QUERIES)]
    reranker.calibrate(samples, candidate_counts=[3, 4])
    ranking = reranker.rerank("a red mug", images)
    assert sorted(hit.index for hit in ranking) == [0, 1, 2, 3]
    assert sum(hit.score for hit in ranking) == pytest.approx(1)
    turned = reranker.rerank("a red mug", images[::-1])
    assert [hit.index for hit in turned] == [3 - hit.index for hit in ranking]
    assert len(reranker.rerank("a red mug", pictures(5)[1:], top_n=2)) == 2


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_read_is_refused(family: str) -> None:
    model, processor = build(family)
    with pytest.raises(BackboneError, match=r"cross-attention|full-attention layer"):
        HuggingFaceBackbone(model, processor, name=family)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "gemma3", "ovis2"])
def test_delimiters_count_where_they_are_wanted(family: str) -> None:
    images = pictures(3)
    visual, delimited = (
        HuggingFaceBackbone(*build(family), name=family, spans=spans, verify=False) for spans in ("visual", "delimited")
    )
    inner, outer = (b._encoder.encode_plain("a mug", images).spans for b in (visual, delimited))
    assert all(set(a) < set(b) for a, b in zip(inner, outer, strict=True))
    assert len({i for span in outer for i in span}) == sum(map(len, outer))
    a, b = (reader.observe("a mug", images) for reader in (visual, delimited))
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-6)
    assert (a.attention["last"] <= b.attention["last"] + 1e-9).all()
    assert visual.identity.differences(delimited.identity).keys() == {"spans"}
