"""True tokenizers, templates and processors, where the shared fixtures lie beside this checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from lad_rerank.backbones.answers import answer_tokens
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.contents import Content
from tests.backbones import test_set, test_texts
from tests.backbones.set_oracle import in_one_forward
from tests.backbones.test_families import assert_same, pictures, plain

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
NAMES = ("qwen2_5_vl", "internvl3", "llava_onevision", "smolvlm")

pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the shared fixtures are not beside this checkout")


@pytest.fixture(scope="module", params=NAMES)
def backbone(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    folder = FIXTURES / request.param
    if request.param == "smolvlm":
        pytest.importorskip("num2words", reason="SmolVLM's processor class needs num2words")
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")) and "vision" not in name:
                parameter.mul_(12)
    return HuggingFaceBackbone(model, AutoProcessor.from_pretrained(folder), name=request.param)


def test_the_pass_equals_a_plain_eager_forward(backbone: HuggingFaceBackbone) -> None:
    images = pictures(3)
    for query in ("a red mug <|im_end|> <image> <|vision_start|>", "a second query, on the kept prefix"):
        assert_same(backbone.observe(query, images), plain(backbone, query, images))


@pytest.mark.parametrize("kind", test_texts.LISTS)
def test_texts_and_mixed_lists(backbone: HuggingFaceBackbone, kind: str) -> None:
    contents = test_texts.LISTS[kind](5)
    for query in ("a red mug", "a second query, on the kept prefix"):
        test_texts.assert_spans(backbone, query, contents)
        assert_same(backbone.observe(query, contents), test_texts.plain(backbone, query, contents))


@pytest.mark.parametrize("kind", ["image", "text", "mixed"])
def test_side_by_side_equals_one_masked_forward(backbone: HuggingFaceBackbone, kind: str) -> None:
    side_by_side = backbone.arranged("set")
    shown = pictures(3) if kind == "image" else test_texts.LISTS[kind](3)
    for query in ("a red mug <|im_end|> <image> <|vision_start|>", "a second query, over kept candidates"):
        test_set.assert_same(side_by_side.observe(query, shown), in_one_forward(side_by_side, query, shown))


def test_side_by_side_says_what_the_chat_says(backbone: HuggingFaceBackbone) -> None:
    """One candidate alone: prefix, block and question are the ids of a chat with it, written in one piece."""
    side_by_side = backbone.arranged("set", verify=False)
    before, suffix = side_by_side.encoder.prefix, side_by_side.encoder.suffix("a red mug", 2, "image")
    block = side_by_side.blocks.encoded(Content.of(pictures(1)[0]))
    whole = backbone.encode("a red mug", pictures(1) * 2).ids
    # The sequence shows two images; without the second one it is this.
    assert whole[: len(before) + len(block.ids)] == (*before, *block.ids)
    assert whole[len(before) + 2 * len(block.ids) :] == suffix.ids


def test_hostile_texts(backbone: HuggingFaceBackbone) -> None:
    tokenizer = backbone._encoder.tokenizer
    added = tokenizer.get_added_vocab()
    contents = test_texts.cards(3)
    ordinary = backbone.encode("a mug", contents).ids
    hostile = [Content.of(c.image, c.text and "mug " + "".join(added)[:800]) for c in contents]
    ids = backbone.encode("a mug", hostile).ids
    assert {t: ids.count(t) for t in added.values()} == {t: ordinary.count(t) for t in added.values()}


def test_two_digit_labels(backbone: HuggingFaceBackbone) -> None:
    images = pictures(12)
    seen = backbone.observe("a mug", images)
    assert np.exp(seen.log_probs).sum() == pytest.approx(1, abs=1e-6)
    # Eager maps of LLaVA-OneVision's 8,800 tokens take minutes; its one-token labels are compared above.
    if backbone.name != "llava_onevision":
        assert_same(seen, plain(backbone, "a mug", images))


def test_labels_stand_where_the_model_would_write_them(backbone: HuggingFaceBackbone) -> None:
    tokenizer = backbone._encoder.tokenizer
    answer = backbone._encoder.answer(9)
    assert {len(label) for label in answer.labels} == {1}
    assert [tokenizer.decode(label) for label in answer.labels] == [str(i) for i in range(1, 10)]
    # SmolVLM begins its answer with a space; reading "1" right behind "Assistant:" would be reading too early.
    assert tokenizer.decode(answer.forced) == (" " if backbone.name == "smolvlm" else "")
    assert tokenizer.decode([answer.end]) in ("<|im_end|>", "<end_of_utterance>")


@pytest.mark.parametrize("style", ["digits", "letters", "lower", "roman", "words", "auto"])
def test_every_label_style_is_told_apart(backbone: HuggingFaceBackbone, style: str) -> None:
    for n in (2, 9, 10, 26):
        answer = answer_tokens(backbone._processor, n, style)  # type: ignore[arg-type]  # a parameter is a str
        assert len(set(answer.labels)) == n
    if style in ("letters", "lower", "auto"):
        assert {len(label) for label in answer.labels} == {1}


def test_a_photo_takes_what_the_family_needs_and_no_more(backbone: HuggingFaceBackbone) -> None:
    from PIL import Image

    photo = Image.new("RGB", (4000, 3000), "grey")
    spans = backbone.encode("a mug", [photo, photo]).spans
    expected = {"qwen2_5_vl": 130, "internvl3": 256, "llava_onevision": 730, "smolvlm": 64}[backbone.name]
    assert [len(span) for span in spans] == [expected, expected]


def test_ordinary_text_keeps_its_ids(backbone: HuggingFaceBackbone) -> None:
    images = pictures(2)
    text = "ein roter Becher (300 ml), 30% off: 红色的连衣裙 👠"
    prompt = backbone.encode(text, images)
    decoded = backbone._encoder.tokenizer.decode([prompt.ids[i] for i in prompt.query])
    assert decoded.strip() == text
