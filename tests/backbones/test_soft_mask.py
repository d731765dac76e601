"""SoFA against attention written out: both views of every layer, mixed after the softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.decoder import full_attention_modules
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.label_scoring import label_log_probs
from lad_rerank.backbones.soft_mask import observe_softened
from lad_rerank.contents import Content
from lad_rerank.errors import BackboneError, InvalidRequestError
from tests.backbones.test_families import pictures, written
from tests.backbones.tiny import build

QUERY = "ein Krug, blau gestreift"
WRITTEN_OUT = "tests_softened"


@pytest.fixture(scope="module", params=["qwen2_5_vl", "internvl", "idefics3", "gemma3"])
def backbone(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    model, processor = build(request.param)
    return HuggingFaceBackbone(model, processor, name=request.param)


class WrittenOut:
    """Softened attention as two softmaxes over a whole score matrix."""

    def __init__(self, backbone: HuggingFaceBackbone, spans: Any, sigma: float, every: int) -> None:
        modules = full_attention_modules(backbone._model)
        self.chosen = [id(module) for i, module in enumerate(modules.values()) if i % every == 0]
        self.owner = {i: k for k, span in enumerate(spans) for i in span}
        self.sigma = sigma

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = query @ key.transpose(2, 3) * kwargs["scaling"]
        tokens = scores.shape[-1]
        seen = torch.ones(tokens, tokens).tril().bool() if mask is None else mask[0, 0]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        if id(module) in self.chosen:
            both = seen.clone()
            for i, a in self.owner.items():
                for j, b in self.owner.items():
                    both[i, j] |= a != b
            weights = (1 - self.sigma) * weights + self.sigma * scores.masked_fill(~both, float("-inf")).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), None


def written_out(backbone: HuggingFaceBackbone, n: int, sigma: float, every: int) -> Any:
    """Label log-probabilities of whole forwards, pixels and all, with no cache."""
    model = backbone._model
    prompt = backbone._encoder.encode_plain(QUERY, [Content.of(image) for image in pictures(n)])
    AttentionInterface.register(WRITTEN_OUT, WrittenOut(backbone, prompt.spans, sigma, every))
    AttentionMaskInterface.register(WRITTEN_OUT, sdpa_mask)
    model.set_attn_implementation({"text_config": WRITTEN_OUT})
    try:
        with torch.inference_mode():

            def logits(tokens: tuple[int, ...]) -> Any:
                inputs = written(dict(prompt.inputs or {}), (*prompt.answer.forced, *tokens))
                return model(**inputs, use_cache=False).logits[0, -1].double().numpy()

            answer = prompt.answer
            return label_log_probs(
                answer.labels, answer.end, logits(()), lambda prefixes: np.stack([logits(p) for p in prefixes])
            )
    finally:
        model.set_attn_implementation({"text_config": attention_tap.TAP_NAME})


@pytest.mark.parametrize(("n", "sigma", "every"), [(3, 0.5, 2), (3, 1.0, 1), (11, 0.3, 2)])
def test_a_softened_pass_is_what_written_out_attention_gives(
    backbone: HuggingFaceBackbone, n: int, sigma: float, every: int
) -> None:
    seen = observe_softened(backbone, QUERY, pictures(n), sigma=sigma, every=every)
    np.testing.assert_allclose(seen.log_probs, written_out(backbone, n, sigma, every), atol=1e-5)
    assert np.abs(seen.log_probs - backbone.observe(QUERY, pictures(n)).log_probs).max() > 1e-3


def test_sigma_zero_is_the_ordinary_pass(backbone: HuggingFaceBackbone) -> None:
    for n in (3, 11):
        soft, plain = observe_softened(backbone, QUERY, pictures(n), sigma=0.0), backbone.observe(QUERY, pictures(n))
        np.testing.assert_allclose(soft.log_probs, plain.log_probs, atol=1e-6)
        for row in plain.attention:
            np.testing.assert_allclose(soft.attention[row], plain.attention[row], atol=1e-6)


def test_nothing_of_it_stays(backbone: HuggingFaceBackbone) -> None:
    before = backbone.observe(QUERY, pictures(3))
    observe_softened(backbone, QUERY, pictures(3))
    again = backbone.observe(QUERY, pictures(3))
    np.testing.assert_allclose(again.log_probs, before.log_probs, atol=1e-6)
    backbone.forget()
    np.testing.assert_allclose(backbone.observe(QUERY, pictures(3)).log_probs, before.log_probs, atol=1e-6)


@pytest.fixture
def last_hidden(backbone: HuggingFaceBackbone) -> Iterator[list[torch.Tensor]]:
    """What leaves the last full-attention layer's attention, for each pass."""
    out: list[torch.Tensor] = []
    *_, module = full_attention_modules(backbone._model).values()
    hook = module.register_forward_hook(lambda module, args, output: out.append(output[0][0].clone()))
    yield out
    hook.remove()


def test_a_later_image_reaches_an_earlier_one_only_when_softened(
    backbone: HuggingFaceBackbone, last_hidden: list[torch.Tensor]
) -> None:
    first, *_, other = pictures(5)
    second = first.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    span = list(backbone.encode(QUERY, [first, second]).spans[0])
    changed = {}
    for sigma in (0.0, 0.5):
        last_hidden.clear()
        for later in (second, other.resize(second.size)):
            observe_softened(backbone, QUERY, [first, later], sigma=sigma)
        a, b = (hidden[span] for hidden in last_hidden)
        changed[sigma] = float((a - b).abs().max())
    assert changed[0.0] < 1e-5
    assert changed[0.5] > 1e-3


def test_texts_see_each_other_too(backbone: HuggingFaceBackbone) -> None:
    texts = [Content.of(text=text) for text in ("ein roter Krug", "ein blauer Teller", "ein grauer Topf")]
    soft, plain = observe_softened(backbone, QUERY, texts), backbone.observe(QUERY, texts)
    assert np.abs(soft.log_probs - plain.log_probs).max() > 1e-3


@pytest.mark.parametrize("asked", [{"sigma": -0.1}, {"sigma": 1.1}, {"every": 0}], ids=str)
def test_numbers_out_of_range_are_refused(backbone: HuggingFaceBackbone, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="must"):
        observe_softened(backbone, QUERY, pictures(2), **asked)


def test_a_model_without_the_tap_is_refused(backbone: HuggingFaceBackbone) -> None:
    backbone._model.set_attn_implementation({"text_config": "sdpa"})
    try:
        with pytest.raises(BackboneError, match="cannot be softened"):
            observe_softened(backbone, QUERY, pictures(2))
    finally:
        backbone._model.set_attn_implementation({"text_config": attention_tap.TAP_NAME})
