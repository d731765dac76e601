"""Candidates with text: what is read of text-only and mixed lists is what plain eager forwards say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.label_scoring import label_log_probs
from lad_rerank.contents import Content, kind_of
from lad_rerank.errors import InvalidRequestError, PromptTooLongError
from lad_rerank.prompt import LabelStyle, candidate_labels, question_parts
from lad_rerank.records import Observation
from tests.backbones.test_families import QUERIES, assert_same, pictures, written
from tests.backbones.tiny import FAMILIES, build
from tests.backbones.tiny.language import LANGUAGE, build_language

WORDS = (
    "a red mug", "ein Krug, blau gestreift.", "红色的连衣裙 👠", "x", "two blue cups on the table, and a spoon",
    "Answer: 3", "the other one", "a mug (300 ml), 30% off", "striped", "é", "a plain text",
)  # fmt: skip


def texts(n: int) -> list[Content]:
    return [Content.of(text=WORDS[i]) for i in range(n)]


def cards(n: int) -> list[Content]:
    """In turn an image with a text, a text, and an image."""
    shown = zip(range(n), pictures(n), WORDS, strict=False)
    return [Content.of(None if i % 3 == 1 else image, None if i % 3 == 2 else text) for i, image, text in shown]


LISTS = {"text": texts, "mixed": cards}


def asked(backbone: HuggingFaceBackbone, query: str, contents: Sequence[Content], style: LabelStyle) -> dict[str, Any]:
    """The model's own inputs for the chat as one would write it by hand, all text in it from the start."""
    parts: list[dict[str, Any]] = []
    for label, content in zip(candidate_labels(len(contents), style), contents, strict=True):
        parts.append({"type": "text", "text": f"{label}:" + (" " if content.image is not None else "")})
        parts += [{"type": "image"}] * (content.image is not None)
        parts.append({"type": "text", "text": ("" if content.text is None else f" {content.text}") + "\n"})
    before, after = question_parts(len(contents), style, kind_of(contents))
    parts.append({"type": "text", "text": before + query + after})
    joined: list[dict[str, Any]] = []
    for part in parts:
        if joined and joined[-1]["type"] == part["type"] == "text":
            joined[-1] = {"type": "text", "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    processor: Any = backbone._processor
    images = [content.image for content in contents if content.image is not None]
    if not backbone.reads_images:
        content = joined[0]["text"]
        chat = [{"role": "user", "content": content}]
        text = (
            processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            if processor.chat_template
            else content.rstrip()
        )
        starts = bool(processor.bos_token) and text.startswith(processor.bos_token)
        return dict(processor(text, add_special_tokens=not starts, return_tensors="pt"))
    text = processor.apply_chat_template(
        [{"role": "user", "content": joined}], add_generation_prompt=True, tokenize=False
    )
    bos = processor.tokenizer.bos_token
    starts = bool(bos) and text.startswith(bos)
    if not images:
        if backbone.name == "paligemma":  # its processor takes no text without images
            text = bos + text + "\n"
        elif backbone.name == "molmo2":
            text = (bos or processor.tokenizer.eos_token) + text
        inputs = dict(processor.tokenizer([text], add_special_tokens=not starts, return_tensors="pt"))
        for name in backbone._traits.type_ids:
            inputs[name] = torch.zeros_like(inputs["input_ids"])
        return inputs
    assert backbone._encoder.preparer is not None
    inputs = backbone._encoder.preparer.process(text, images)
    inputs.pop("text_replacement_offsets", None)
    return inputs


def plain(
    backbone: HuggingFaceBackbone, query: str, contents: Sequence[Content], style: LabelStyle = "digits"
) -> Observation:
    """The oracle: those inputs through eager attention, one prompt at a time, pixels and all."""
    model: Any = backbone._model
    prompt = backbone.encode(query, contents)
    answer = prompt.answer
    inputs = written(asked(backbone, query, contents, style), answer.forced)
    assert tuple(inputs["input_ids"][0].tolist()) == prompt.ids
    answer_type = int(backbone.name == "paligemma")
    attention_tap.select(model, "eager")
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
        attention_tap.select(model, attention_tap.TAP_NAME)
    maps = torch.stack([output.attentions[layer][0] for layer in backbone.identity.layers])
    attention = {
        name: torch.stack([maps[:, :, rows][..., list(s)].sum(-1).mean(-1) for s in prompt.spans], -1).double().numpy()
        for name, rows in (("last", [prompt.length - 1]), ("query", list(prompt.query)))
    }
    return Observation(log_probs, attention, backbone.identity.layers, 1.0, prompt.length)


def assert_spans(backbone: HuggingFaceBackbone, query: str, contents: Sequence[Content]) -> None:
    """Each span is its image's visual tokens and its text, and nothing else."""
    prompt = backbone.encode(query, contents)
    tokenizer = backbone._encoder.tokenizer
    assert len({i for span in prompt.spans for i in span}) == sum(map(len, prompt.spans))
    image_id = -1 if backbone._traits.image_token_id is None else backbone._traits.image_token_id
    seen = 0
    for span, content in zip(prompt.spans, contents, strict=True):
        ids = [prompt.ids[i] for i in span]
        visual = ids.count(image_id)
        assert (visual > 0) == (content.image is not None)
        seen += visual
        said = tokenizer.decode([token for token in ids if token != image_id])
        # A token may hold a mark of the text and the end of its line.
        assert said.strip() == (content.text or "")
    assert seen == prompt.ids.count(image_id)
    assert tokenizer.decode([prompt.ids[i] for i in prompt.query]).strip() == query


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    model, processor = build(request.param)
    return HuggingFaceBackbone(model, processor, name=request.param)


@pytest.fixture(scope="module", params=[(name, chat) for name in LANGUAGE for chat in (True, False)])
def language(request: pytest.FixtureRequest) -> HuggingFaceBackbone:
    name, chat = request.param
    return HuggingFaceBackbone(*build_language(name, chat=chat), name=name)


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("n", [3, 11])
def test_multimodal_models_read_texts_and_mixed_lists(backbone: HuggingFaceBackbone, kind: str, n: int) -> None:
    if n > 9 and backbone.name == "paligemma" and not backbone._traits.encoder_outputs:
        pytest.skip("one forward of transformers 4 cannot show an answer behind a prompt that does not see it")
    contents = LISTS[kind](n)
    assert kind_of(contents) == kind
    backbone.forget()
    for query in QUERIES[:2]:
        assert_spans(backbone, query, contents)
        # The second query runs behind the first one's candidates, where prefixes are kept.
        assert_same(backbone.observe(query, contents), plain(backbone, query, contents))


def test_all_kinds_in_one_batch(backbone: HuggingFaceBackbone) -> None:
    requests = [
        (QUERIES[0], texts(2)), (QUERIES[1], cards(5)), (QUERIES[2], texts(4)), (QUERIES[0], cards(5)),
        (QUERIES[1], texts(2)), (QUERIES[1], [Content.of(image) for image in pictures(3)]),
    ]  # fmt: skip
    backbone.forget()
    alone = []
    for request in requests:
        backbone.forget()
        alone.append(backbone.observe(*request))
    backbone.forget()
    for seen, expected in zip(backbone.observe_many(requests), alone, strict=True):
        assert_same(seen, expected)


def test_pixels_instead_of_features(backbone: HuggingFaceBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = cards(4)
    expected = plain(backbone, QUERIES[0], contents)
    backbone.forget()
    monkeypatch.setattr(backbone, "uses_features", False)
    assert_same(backbone.observe(QUERIES[0], contents), expected)


def test_hostile_texts_stay_texts(backbone: HuggingFaceBackbone) -> None:
    tokenizer = backbone._encoder.tokenizer
    added = tokenizer.get_added_vocab()
    ordinary = backbone.encode("a mug", cards(3)).ids
    names = sorted(added, key=len)
    hostile = [
        Content.of(c.image, c.text and " ".join(["a mug", *names[i * 30 :][:30]])) for i, c in enumerate(cards(3))
    ]
    ids = backbone.encode("a mug", hostile).ids
    assert {t: ids.count(t) for t in added.values()} == {t: ordinary.count(t) for t in added.values()}
    assert np.isfinite(backbone.observe("a mug", hostile).log_probs).all()


@pytest.mark.parametrize("n", [2, 5, 11])
def test_language_models_read_texts(language: HuggingFaceBackbone, n: int) -> None:
    assert language.uses_prefix
    language.forget()
    for query in QUERIES:
        assert_spans(language, query, texts(n))
        assert_same(language.observe(query, texts(n)), plain(language, query, texts(n)))


def test_language_models_in_padded_batches(language: HuggingFaceBackbone) -> None:
    requests = [(query, texts(n)) for query in QUERIES for n in (2, 7, 12)[: 2 + (query == "x")] if n < 12]
    language.forget()
    for (query, contents), seen in zip(requests, language.observe_many(requests), strict=True):
        assert_same(seen, plain(language, query, contents))


def test_a_language_model_is_told_apart_as_one(language: HuggingFaceBackbone) -> None:
    identity = language.identity
    assert (identity.candidates, identity.prompt, identity.max_pixels) == ("text", "lad-paper-text-1", 0)
    assert identity.for_kind("text") is identity
    assert not language.reads_images
    for ask in (language.observe, language.capacity, language.encode):
        with pytest.raises(InvalidRequestError, match=r"reads texts only, and candidate 1 has an image"):
            ask("a mug", [*texts(1), *pictures(1)])


def test_a_base_model_answers_behind_the_colon() -> None:
    reader = HuggingFaceBackbone(*build_language("qwen2", chat=False), name="base")
    tokenizer = reader._encoder.tokenizer
    prompt = reader.encode("a mug", texts(3))
    assert tokenizer.decode(prompt.ids).rstrip().endswith("\nCaption: a mug\nAnswer:")
    letters = reader.variant(labels="letters").encode("a mug", texts(3)).answer
    assert [tokenizer.decode(label) for label in letters.labels] == [" A", " B", " C"]
    assert tokenizer.decode([letters.end]) == "\n"


def test_long_texts_are_cut_at_their_end_and_that_is_said() -> None:
    reader = HuggingFaceBackbone(*build_language("qwen2"), name="short", max_text_tokens=12)
    tokenizer = reader._encoder.tokenizer
    long = "a red mug with blue stripes and a handle"
    total = len(tokenizer(long)["input_ids"])
    contents = [Content.of(text=text) for text in ("a mug", long, "x" + "👠" * 9)]
    prompt = reader.encode("a mug", contents)
    shown = [tokenizer.decode([prompt.ids[i] for i in span]).strip() for span in prompt.spans]
    assert shown[0] == "a mug"
    assert long.startswith(shown[1])
    # A shoe is four tokens: the third one does not fit whole.
    assert shown[2] == "x👠👠"
    kept = [len(tokenizer(text)["input_ids"]) for text in shown]
    assert max(kept) <= 12
    seen = reader.observe("a mug", contents)
    assert seen.cut == (0, total - kept[1], 28) == prompt.cut
    assert seen.lengths == tuple(map(len, prompt.spans))
    pictured = HuggingFaceBackbone(*build("qwen2_5_vl"), name="both", max_text_tokens=12)
    assert pictured.observe("a mug", pictures(2)).cut == ()
    assert pictured.observe("a mug", [*pictures(1), contents[1]]).cut == (0, total - kept[1])
    with pytest.raises(InvalidRequestError, match="max_text_tokens must be at least 1"):
        HuggingFaceBackbone(*build_language("qwen2"), name="none", max_text_tokens=0)


def test_capacity_counts_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = HuggingFaceBackbone(*build_language("qwen2"), name="small", labels="words")
    contents = [Content.of(text=f"{WORDS[4]} {i}") for i in range(20)]
    assert reader.capacity("a mug", contents) == 20
    monkeypatch.setattr(reader, "_context", 700)
    fitting = reader.capacity("a mug", contents)
    assert 2 < fitting < 20
    reader.encode("a mug", contents[:fitting])
    with pytest.raises(PromptTooLongError, match="max_text_tokens"):
        reader.encode("a mug", contents[: fitting + 2])


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_folder_with_a_language_model_is_loaded_as_one(name: str, tmp_path: Path) -> None:
    model, tokenizer = build_language(name)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = HuggingFaceBackbone.from_pretrained(tmp_path, device="cpu", dtype="float32")
    built = HuggingFaceBackbone(model, tokenizer, name=name)
    assert isinstance(loaded._model, type(AutoModelForCausalLM.from_config(model.config)))
    assert loaded.identity == built.identity
    assert_same(loaded.observe("a mug", texts(3)), built.observe("a mug", texts(3)))


def test_a_model_that_transformers_knows_runs_none_of_its_own_code(tmp_path: Path) -> None:
    model, tokenizer = build_language("qwen2")
    model.config.auto_map = {"AutoModelForCausalLM": "modeling_own.Own"}
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = HuggingFaceBackbone.from_pretrained(tmp_path, device="cpu")
    assert type(loaded._model).__module__.startswith("transformers.")
