"""Models that come with code of their own and call SDPA past transformers' AttentionInterface."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, dynamic_module_utils

from lad_rerank.backbones import attention_tap, sdpa_patch
from lad_rerank.backbones.attention_tap import AttentionSink, ReadOut
from lad_rerank.backbones.decoder import full_attention_modules
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.label_scoring import label_log_probs
from lad_rerank.contents import Content, Showable
from lad_rerank.errors import AttentionNotSeenError, BackboneError
from lad_rerank.records import Observation
from tests.backbones.remote_code.saving import save_own_way
from tests.backbones.tiny import build
from tests.shop import shop_set

QUERIES = ("a red mug", "ein Krug, blau gestreift, auf dem Tisch")


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    sizes = [(56, 84), (64, 64), (90, 60), (120, 80), (56, 56)]
    return [Image.fromarray(rng.integers(0, 255, (*sizes[i % 5], 3), dtype=np.uint8)) for i in range(count)]


@pytest.fixture(scope="module")
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where transformers puts code that it copies from models."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        # transformers appends the folder to the path and imports from it; neither outlives these tests.
        patch.syspath_prepend(str(folder))
        yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def folder(code_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: weights, processor, configuration and code."""
    return save_own_way(tmp_path_factory.mktemp("models") / "own_way")


@pytest.fixture(scope="module")
def remote(folder: Path) -> HuggingFaceBackbone:
    return HuggingFaceBackbone.from_pretrained(folder, device="cpu", trust_remote_code=True)


@pytest.fixture(scope="module")
def eager(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, attn_implementation="eager", dtype=torch.float32
    )
    return model.eval()


def plain(backbone: HuggingFaceBackbone, eager: Any, query: str, images: Sequence[Showable]) -> Observation:
    """The oracle: the same code's eager attention, all maps, one prompt at a time."""
    prompt = backbone._encoder.encode_plain(query, images)
    pixels = {name: prompt.inputs[name] for name in ("pixel_values", "image_grid_thw")} if prompt.inputs else {}

    def run(ids: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            return eager(input_ids=torch.tensor([ids]), output_attentions=True, **pixels)

    def behind(prefixes: Any) -> np.ndarray:
        return np.stack([run((*prompt.ids, *p)).logits[0, -1].double().numpy() for p in prefixes])

    output = run(prompt.ids)
    answer = prompt.answer
    log_probs = label_log_probs(answer.labels, answer.end, output.logits[0, -1].double().numpy(), behind)
    maps = torch.cat(list(output.attentions))
    attention = {
        name: torch.stack([maps[:, :, rows][..., list(s)].sum(-1).mean(-1) for s in prompt.spans], -1).double().numpy()
        for name, rows in (("last", [prompt.length - 1]), ("query", list(prompt.query)))
    }
    return Observation(log_probs, attention, backbone.identity.layers, 1.0, prompt.length)


def assert_same(seen: Observation, expected: Observation) -> None:
    np.testing.assert_allclose(seen.log_probs, expected.log_probs, atol=1e-5)
    for name in ("last", "query"):
        np.testing.assert_allclose(seen.attention[name], expected.attention[name], atol=1e-5)


@pytest.mark.parametrize("n", [2, 5, 11])
def test_what_is_read_equals_the_codes_own_eager_attention(remote: HuggingFaceBackbone, eager: Any, n: int) -> None:
    images = pictures(n)
    remote.forget()
    for query in QUERIES:
        # The second one runs behind the first one's images.
        assert_same(remote.observe(query, images), plain(remote, eager, query, images))


def test_texts_and_mixed_lists(remote: HuggingFaceBackbone, eager: Any) -> None:
    cards = [Content.of(i, text) for i, text in zip(pictures(3), ("a mug", None, "a cup"), strict=True)]
    words = [Content.of(text=text) for text in ("a mug", "a blue cup", "a spoon")]
    remote.forget()
    for query in QUERIES:
        assert_same(remote.observe(query, cards), plain(remote, eager, query, cards))
        assert_same(remote.observe(query, words), plain(remote, eager, query, words))


def test_without_kept_prefixes_too(remote: HuggingFaceBackbone, eager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote.uses_prefix
    monkeypatch.setattr(remote, "uses_prefix", False)
    for query in QUERIES:
        assert_same(remote.observe(query, pictures(11)), plain(remote, eager, query, pictures(11)))


def test_several_requests_at_once(remote: HuggingFaceBackbone, eager: Any) -> None:
    images = pictures(5)
    requests = [(QUERIES[0], images[:2]), (QUERIES[1], images), (QUERIES[1], images[:2]), ("x", images[:2])]
    remote.forget()
    for (query, shown), seen in zip(requests, remote.observe_many(requests), strict=True):
        assert_same(seen, plain(remote, eager, query, shown))


def test_traits_of_such_a_model(remote: HuggingFaceBackbone) -> None:
    traits = remote._traits
    assert (traits.keeps_logits, traits.rope_index, traits.encoder_outputs, traits.type_ids) == (False,) * 3 + ((),)
    assert traits.cache_keyword == "past_key_values"
    assert attention_tap.install(remote._model) == "patch"


def test_the_check_at_load_says_what_it_leaves_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lad_rerank"):
        HuggingFaceBackbone.from_pretrained(folder, device="cpu", trust_remote_code=True)
    assert "calls SDPA itself; its own eager attention is not compared" in caplog.text


def test_code_runs_only_when_the_user_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    refusal = r"needs remote code.* pass trust_remote_code=True"
    with pytest.raises(BackboneError, match=refusal):
        HuggingFaceBackbone.from_pretrained(folder, device="cpu")
    with pytest.raises(BackboneError, match=refusal):
        HuggingFaceBackbone.from_pretrained(folder, device="cpu", trust_remote_code=False)
    assert list(tmp_path.iterdir()) == []


def test_code_that_does_not_import_is_named(folder: Path, tmp_path: Path, code_folder: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    code = broken / "modeling_own_way.py"
    code.write_text(code.read_text().replace("import DynamicCache,", "import DynamicCache, NoSuchCache,"))
    with pytest.raises(BackboneError, match=r"does not run with transformers \d+\.\d+.*NoSuchCache"):
        HuggingFaceBackbone.from_pretrained(broken, device="cpu", trust_remote_code=True)


def test_a_model_with_neither_way_is_refused(eager: Any, remote: HuggingFaceBackbone) -> None:
    with pytest.raises(BackboneError, match=r"attn_implementation='sdpa'"):
        HuggingFaceBackbone(eager, remote._processor, name="eager")


def test_threads_do_not_mix(remote: HuggingFaceBackbone, backbone: HuggingFaceBackbone, eager: Any) -> None:
    """Two on the patched model, with other images each, and one beside them on a model of the interface."""
    shown = [pictures(3), pictures(5)[2:]]
    expected = [plain(remote, eager, QUERIES[i], shown[i]) for i in range(2)]
    shop = shop_set(3, seed=4)[:2]
    undisturbed = backbone.observe(*shop)
    seen: dict[int, list[Observation]] = {0: [], 1: [], 2: []}
    begin = threading.Barrier(3)

    def work(i: int) -> None:
        begin.wait()
        for _ in range(8):
            if i < 2:
                remote.forget()
            seen[i].append(remote.observe(QUERIES[i], shown[i]) if i < 2 else backbone.observe(*shop))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(seen[i]) for i in range(3)] == [8, 8, 8]
    for i, truth in enumerate([*expected, undisturbed]):
        for observation in seen[i]:
            assert_same(observation, truth)


def test_sdpa_is_wrapped_once_and_left_alone_otherwise(remote: HuggingFaceBackbone) -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    modules = full_attention_modules(remote._model)
    hooks = [len(module._forward_pre_hooks) for module in modules.values()]
    assert attention_tap.install(remote._model) == "patch"
    assert torch.nn.functional.scaled_dot_product_attention is sdpa
    assert [len(module._forward_pre_hooks) for module in modules.values()] == hooks
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    expected = torch.softmax(q @ k.transpose(2, 3) * 0.5, dim=-1) @ v
    sink = AttentionSink({id(m): i for i, m in modules.items()}, [ReadOut({"last": [4]}, [[0], [1]])])
    with attention_tap.open_sink(sink):
        # No decoder attention module runs here, so nothing of it is read.
        torch.testing.assert_close(sdpa(q, k, v, scale=0.5), expected)
    with pytest.raises(AttentionNotSeenError):
        sink.results([0])


def test_a_failed_layer_is_over(remote: HuggingFaceBackbone) -> None:
    module = full_attention_modules(remote._model)[0]
    with pytest.raises(RuntimeError):
        module(torch.zeros(1, 4, 3), None, torch.arange(4), None)
    assert sdpa_patch._RUNNING.get() is None


class Calls(torch.nn.Module):
    """Calls SDPA in one of the ways there are."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        twice = kwargs.pop("twice", False)
        if twice:
            torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


class CallsByTheInterface(Calls):
    """A class over another one may go the other way."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        output: torch.Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](self, *args, **kwargs)[0]
        return output


class CallsNothing(torch.nn.Module):
    pass


def test_who_calls_sdpa_itself() -> None:
    assert sdpa_patch.calls_sdpa_itself(Calls())
    assert not sdpa_patch.calls_sdpa_itself(CallsByTheInterface())
    assert not sdpa_patch.calls_sdpa_itself(CallsNothing())
    native, _ = build("internvl")
    assert not any(map(sdpa_patch.calls_sdpa_itself, full_attention_modules(native).values()))
    assert attention_tap.install(native) == "interface"


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 6), (3, 6)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", ["causal", "none", "bool", "float", "2d", "per head alike"])
def test_every_way_to_mask_is_read_as_sdpa_takes_it(queries: int, keys: int, kv_heads: int, mask: str) -> None:
    """Against SDPA itself: with values that mark their key, its output is the attention."""
    module = Calls()
    sdpa_patch.install([module])
    generator = torch.Generator().manual_seed(queries + kv_heads)
    query = torch.randn(2, 4, queries, 8, generator=generator)
    key = torch.randn(2, kv_heads, keys, 8, generator=generator)
    value = torch.eye(keys).expand(2, kv_heads, -1, -1)
    visible = torch.rand(2, 1, queries, keys, generator=generator) > 0.4
    visible[..., 0] = True
    ways: dict[str, dict[str, Any]] = {
        "causal": {"is_causal": True},
        "none": {},
        "bool": {"attn_mask": visible},
        "float": {"attn_mask": torch.randn(2, 1, queries, keys, generator=generator)},
        "2d": {"attn_mask": visible[0, 0]},
        "per head alike": {"attn_mask": visible.repeat(1, 4, 1, 1)},
    }
    rows = list(range(queries))
    read_outs = [ReadOut({str(row): [row] for row in rows}, [[i] for i in range(keys)])] * 2
    sink = AttentionSink({id(module): 0}, read_outs)
    with attention_tap.open_sink(sink):
        output = module(query, key, value, scale=0.7, enable_gqa=kv_heads < 4, **ways[mask])
    for b, result in enumerate(sink.results([0])):
        for row in rows:
            np.testing.assert_allclose(result.mass[str(row)][0], output[b, :, row].numpy(), atol=1e-6)


def test_what_cannot_be_told_apart_is_refused() -> None:
    module = Calls()
    sdpa_patch.install([module])
    q = torch.randn(1, 4, 6, 8)
    sink = AttentionSink({id(module): 0}, [ReadOut({"last": [5]}, [[0], [1]])])
    with attention_tap.open_sink(sink):
        with pytest.raises(BackboneError, match="differs between heads"):
            module(q, q, q, attn_mask=torch.randn(1, 4, 6, 6))
        with pytest.raises(BackboneError, match="more than once"):
            module(q, q, q, twice=True)
    torch.testing.assert_close(module(q, q, q, twice=True), module(q, q, q))


def test_candidates_side_by_side(remote: HuggingFaceBackbone, eager: Any) -> None:
    side_by_side = remote.arranged("set")
    assert side_by_side.blocks.images_behind_prefix
    images = pictures(4)
    seen, turned = side_by_side.observe("a mug", images), side_by_side.observe("a mug", images[::-1])
    np.testing.assert_array_equal(turned.attention["last"], seen.attention["last"][..., ::-1])
    # One candidate alone is a prompt like any other: the same code's eager attention says what it must be.
    content = Content.of(images[0])
    with torch.inference_mode():
        alone = side_by_side.see([content], ["a mug"]).attention[0]
        block = side_by_side.blocks.encoded(content)
        before, suffix = side_by_side.encoder.prefix, side_by_side.encoder.suffix("a mug", 1, "image")
        ids = (*before, *block.ids, *suffix.ids)
        assert block.image is not None
        pixels = {name: block.image.inputs[name] for name in ("pixel_values", "image_grid_thw")}
        maps = torch.cat(list(eager(input_ids=torch.tensor([ids]), output_attentions=True, **pixels).attentions))
    expected = maps[:, :, -1][..., [len(before) + i for i in block.span]].sum(-1, keepdim=True)
    np.testing.assert_allclose(alone.mass["last"], expected.numpy(), atol=1e-5)
