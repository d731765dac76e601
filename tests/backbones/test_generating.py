"""Generation: transformers' own loop says what a plain loop of whole eager forwards says."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from lad_rerank.backbones.attention_tap import TAP_NAME
from lad_rerank.backbones.generating import generate
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.contents import Content, Showable
from lad_rerank.errors import InvalidRequestError, PromptTooLongError
from tests.backbones.test_families import pictures, written
from tests.backbones.tiny import FAMILIES, build
from tests.backbones.tiny.language import LANGUAGE, build_language
from tests.shop import shop_set

QUERY = "ein Krug, blau gestreift"
NEW_TOKENS = 6
NOT_CAUSAL = {"paligemma"}
"""What is written is marked otherwise than the prompt, and sees it otherwise: no plain loop over one prompt."""


@pytest.fixture(scope="module", params=[name for name in FAMILIES if name not in NOT_CAUSAL])
def backbone(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    model, processor = build(request.param)
    return HuggingFaceBackbone(model, processor, name=request.param)


def plain_greedy(backbone: HuggingFaceBackbone, query: str, candidates: Sequence[Showable]) -> str:
    """The likeliest tokens, each from the whole prompt again: eager attention, pixels and all, no cache."""
    model = backbone._model
    prompt = backbone._encoder.encode_plain(query, candidates)
    plain = prompt.inputs or {"input_ids": torch.tensor([prompt.ids[: prompt.length - len(prompt.answer.forced)]])}
    ends = {backbone._encoder.tokenizer.eos_token_id, prompt.answer.end}
    tokens: list[int] = []
    model.set_attn_implementation({"text_config": "eager"})
    try:
        with torch.inference_mode():
            while len(tokens) < NEW_TOKENS and not ends & set(tokens):
                inputs = written(dict(plain), tuple(tokens))
                tokens.append(int(model(**inputs, use_cache=False).logits[0, -1].argmax()))
    finally:
        model.set_attn_implementation({"text_config": TAP_NAME})
    text = [token for token in tokens if token not in ends]
    return str(backbone._encoder.tokenizer.decode(text, skip_special_tokens=True))


def test_greedy_text_is_that_of_plain_forwards(backbone: HuggingFaceBackbone) -> None:
    for n in (2, 3):
        (text,) = generate(backbone, QUERY, pictures(n), max_new_tokens=NEW_TOKENS)
        assert text == plain_greedy(backbone, QUERY, pictures(n))


def test_lists_with_texts(backbone: HuggingFaceBackbone) -> None:
    first, second = pictures(2)
    candidates = [Content.of(first, "ein roter Krug"), Content.of(text="ein Teller"), Content.of(second)]
    (text,) = generate(backbone, QUERY, candidates, max_new_tokens=NEW_TOKENS)
    assert text == plain_greedy(backbone, QUERY, candidates)


@pytest.mark.parametrize("family", LANGUAGE)
def test_plain_language_models(family: str) -> None:
    backbone = HuggingFaceBackbone(*build_language(family), name=family)
    candidates = [Content.of(text=text) for text in ("ein roter Krug", "ein Teller", "ein Topf")]
    (text,) = generate(backbone, QUERY, candidates, max_new_tokens=NEW_TOKENS)
    assert text == plain_greedy(backbone, QUERY, candidates)
    assert len(generate(backbone, QUERY, candidates, max_new_tokens=2, samples=3, temperature=1.0)) == 3


def test_the_checkpoints_settings_do_not_touch_the_logits(backbone: HuggingFaceBackbone) -> None:
    plain = generate(backbone, QUERY, pictures(2), max_new_tokens=NEW_TOKENS)
    config = backbone._model.generation_config
    before = config.to_dict()
    first = backbone._encoder.tokenizer(plain[0], add_special_tokens=False)["input_ids"]
    config.update(repetition_penalty=5.0, suppress_tokens=first, no_repeat_ngram_size=1)
    try:
        assert generate(backbone, QUERY, pictures(2), max_new_tokens=NEW_TOKENS) == plain
        assert backbone._model.generation_config is config
        assert config.repetition_penalty == 5.0
    finally:
        config.update(**{name: before.get(name) for name in ("repetition_penalty", "suppress_tokens")})
        config.update(no_repeat_ngram_size=before.get("no_repeat_ngram_size"))


def test_samples_follow_their_seed_and_leave_torchs_generator(backbone: HuggingFaceBackbone) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    drawn = [
        generate(backbone, QUERY, pictures(2), max_new_tokens=NEW_TOKENS, samples=3, temperature=1.5, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.rand(3), expected)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 1


def test_observations_are_what_they_were_before(backbone: HuggingFaceBackbone) -> None:
    before = backbone.observe(QUERY, pictures(3))
    generate(backbone, "x", pictures(2), max_new_tokens=2)
    backbone.forget()
    assert (backbone.observe(QUERY, pictures(3)).log_probs == before.log_probs).all()


@pytest.mark.parametrize(
    "asked",
    [{"max_new_tokens": 0}, {"samples": 0}, {"samples": 2}, {"temperature": -1.0}],
    ids=lambda asked: str(asked),
)
def test_numbers_out_of_range_are_refused(backbone: HuggingFaceBackbone, asked: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError, match=r"at least 1|temperature"):
        generate(backbone, QUERY, pictures(2), **{"max_new_tokens": 1, **asked})  # type: ignore[arg-type]


class TestBundled:
    @pytest.fixture
    def backbone(self, reranker: object) -> HuggingFaceBackbone:
        return reranker.backbone  # type: ignore[attr-defined,no-any-return]

    def test_it_says_its_likeliest_label(self, backbone: HuggingFaceBackbone) -> None:
        for n in (3, 8):
            query, images, _ = shop_set(n, seed=n)
            (text,) = generate(backbone, query, images, max_new_tokens=4)
            assert text.strip() == str(int(backbone.observe(query, images).log_probs.argmax()) + 1)

    def test_a_full_context_leaves_no_room(
        self, backbone: HuggingFaceBackbone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query, images, _ = shop_set(2, seed=1)
        monkeypatch.setattr(backbone, "_context", backbone.encode(query, images).length)
        with pytest.raises(PromptTooLongError, match="no room"):
            generate(backbone, query, images, max_new_tokens=4)

    def test_threads_write_what_one_alone_writes(self, backbone: HuggingFaceBackbone) -> None:
        work = [shop_set(n, seed=n) for n in (2, 5, 3)]
        options = {"max_new_tokens": 4, "samples": 3, "temperature": 3.0, "seed": 3}
        alone = [generate(backbone, query, images, **options) for query, images, _ in work]  # type: ignore[arg-type]
        together: dict[int, list[str]] = {}

        def run(i: int) -> None:
            query, images, _ = work[i]
            together[i] = generate(backbone, query, images, **options)  # type: ignore[arg-type]

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [together[i] for i in range(len(work))] == alone
