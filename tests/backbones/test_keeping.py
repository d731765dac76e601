"""What is kept between questions: within bounds, and never changing an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lad_rerank import contents as contents_module
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.contents import Content
from lad_rerank.errors import InvalidRequestError
from lad_rerank.images import image_digest
from lad_rerank.records import Observation
from tests.backbones.test_families import pictures
from tests.backbones.test_texts import texts
from tests.backbones.tiny import build
from tests.backbones.tiny.language import build_language


class Count:
    """Counts the pictures that a model's vision tower gets."""

    def __init__(self, backbone: HuggingFaceBackbone) -> None:
        self.images = 0
        tower = backbone._model.model.visual  # type: ignore[union-attr]
        self._hook = tower.register_forward_pre_hook(self._add, with_kwargs=True)

    def _add(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self.images += len(kwargs["grid_thw"])

    def __enter__(self) -> Count:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def backbone(family: str = "qwen2_5_vl", **settings: Any) -> HuggingFaceBackbone:
    model, processor = build(family)
    return HuggingFaceBackbone(model, processor, name=family, **settings)


def test_memory_lets_the_oldest_go() -> None:
    memory: BoundedMemory[str, bytes] = BoundedMemory(10, len)
    memory.put("a", b"1234")
    memory.put("b", b"1234")
    assert memory.get("a") == b"1234"
    memory.put("c", b"1234")
    assert memory.get("b") is None
    assert memory.get("a") == b"1234"
    assert memory.nbytes == 8
    memory.put("huge", b"x" * 11)
    assert memory.get("huge") is None
    memory.put("a", b"12")
    assert memory.nbytes == 6
    memory.clear()
    assert len(memory) == memory.nbytes == 0


def test_each_image_meets_the_vision_tower_once() -> None:
    reader = backbone()
    if not reader.uses_features:
        pytest.skip("this transformers takes no features in place of pixels")
    images = pictures(4)
    with Count(reader) as count:
        for shift in range(4):
            reader.observe("a mug", images[shift:] + images[:shift])
    assert count.images == 4


def test_bounds_of_zero_keep_nothing_and_change_nothing() -> None:
    images = pictures(3)
    frugal, lavish = backbone(max_feature_bytes=0, max_cache_bytes=0), backbone()
    for query in ("a mug", "another mug"):
        a, b = frugal.observe(query, images), lavish.observe(query, images)
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
    assert len(frugal._pictures) == len(frugal._runs.kept) == 0
    assert len(lavish._runs.kept) == 1


def test_a_kept_prefix_is_not_run_again() -> None:
    reader = backbone()
    images = pictures(3)
    lengths: list[int] = []
    reader._model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    reader.observe("a mug", images)
    reader.observe("a red cup", images)
    reader.observe("a red cup", images[::-1])
    assert lengths[1] < 40 < lengths[0]
    assert lengths[2] > lengths[1] * 2


@pytest.mark.parametrize("family", ["qwen3_vl", "ovis2", "idefics3"])
def test_features_on_disk_are_found_by_the_next_process(tmp_path: Path, family: str) -> None:
    images = pictures(3)
    first = backbone(family, feature_folder=tmp_path)
    if not first.uses_features:
        pytest.skip("this transformers takes no features in place of pixels")
    seen = first.observe("a mug", images)
    second = backbone(family, feature_folder=tmp_path)

    def never(**_: Any) -> None:
        raise AssertionError("the vision tower is not needed")

    second._model.get_image_features = never  # type: ignore[method-assign, assignment]
    again = second.observe("a mug", images)
    np.testing.assert_allclose(again.log_probs, seen.log_probs, atol=1e-6)


def test_a_damaged_feature_file_is_made_again(tmp_path: Path) -> None:
    images = pictures(2)
    first = backbone(feature_folder=tmp_path)
    if not first.uses_features:
        pytest.skip("this transformers takes no features in place of pixels")
    seen = first.observe("a mug", images)
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(b"no safetensors")
    again = backbone(feature_folder=tmp_path).observe("a mug", images)
    np.testing.assert_allclose(again.log_probs, seen.log_probs, atol=1e-6)


def test_a_folder_that_cannot_be_written_is_said_and_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    reader = backbone(feature_folder=tmp_path / "file")
    assert reader.uses_features == reader._traits.encoder_outputs
    assert np.isfinite(reader.observe("a mug", pictures(2)).log_probs).all()
    if reader.uses_features:
        assert "cannot be kept" in caplog.text


def test_other_settings_have_other_features(tmp_path: Path) -> None:
    for max_pixels in (None, 64 * 64):
        reader = backbone(feature_folder=tmp_path, max_pixels=max_pixels)
        if not reader.uses_features:
            pytest.skip("this transformers takes no features in place of pixels")
        reader.observe("a mug", pictures(2))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_batch_that_does_not_fit_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    reader = backbone()
    if not reader.uses_features:
        pytest.skip("this transformers runs prompts one at a time")
    whole = reader._passes.whole

    def small_memory(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("simulated: no machine here has a small GPU")
        return whole(prompts, *args, **kwargs)

    images = pictures(5)
    requests = [(f"mug {i}", images[i:] + images[:i]) for i in range(5)]
    expected = [backbone().observe(*request) for request in requests]
    reader._passes.whole = small_memory  # type: ignore[method-assign]
    for a, b in zip(reader.observe_many(requests), expected, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
    assert "do not fit the memory" in caplog.text


def lengths_of(reader: HuggingFaceBackbone) -> list[int]:
    """Tokens that each forward pass from now on is given."""
    lengths: list[int] = []
    reader._model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return lengths


def assert_alike(a: Observation, b: Observation) -> None:
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
    for row in a.attention:
        np.testing.assert_allclose(a.attention[row], b.attention[row], atol=1e-5)


def test_other_labels_or_wording_over_the_same_images_cost_the_suffix_only() -> None:
    reader = backbone()
    images = pictures(3)
    lengths = lengths_of(reader)
    reader.observe("a mug", images)
    variants = [reader.variant(labels="letters"), reader.variant(wording="fair"), reader.variant(wording="reasoning")]
    seen = [variant.observe("a mug", images) for variant in variants]
    tails = [v.encode("a mug", images).length - reader.encode("a mug", images).candidates_end for v in variants]
    # What else the prompts begin with alike is not run again either.
    assert all(0 < ran <= tail for ran, tail in zip(lengths[1:], tails, strict=True))
    assert len(lengths) == 4
    for variant, observation in zip(variants, seen, strict=True):
        reader.forget()
        assert_alike(observation, variant.observe("a mug", images))
    assert reader.identity.labels == "digits"
    assert variants[0].identity.differences(reader.identity).keys() == {"labels"}
    assert variants[1].identity.differences(reader.identity) == {"prompt": ("lad-fair-image-1", "lad-paper-1")}
    assert variants[1].identity.for_kind("mixed").prompt == "lad-fair-mixed-1"
    assert variants[1].variant(labels="letters").identity.prompt == "lad-fair-image-1"
    assert reader.variant().identity == reader.identity
    for wrong in ({"labels": "greek"}, {"wording": "rude"}):
        with pytest.raises(InvalidRequestError, match=r"Unknown (label style|wording)"):
            reader.variant(**wrong)  # type: ignore[arg-type]  # what a caller may pass at run time


def test_labels_between_texts_make_another_prefix_but_another_wording_does_not() -> None:
    reader = HuggingFaceBackbone(*build_language("llama"), name="llama")
    contents = texts(6)
    lengths = lengths_of(reader)
    letters, fair = reader.variant(labels="letters"), reader.variant(wording="fair")
    seen = [v.observe("a mug", contents) for v in (reader, letters, fair, letters, reader)]
    whole = [v.encode("a mug", contents).length for v in (reader, letters, fair)]
    assert lengths[:2] == whole[:2]
    assert lengths[2] <= whole[2] - fair.encode("a mug", contents).candidates_end
    assert lengths[3] < whole[1] / 2
    assert lengths[4] < whole[0] / 2
    assert_alike(seen[3], seen[1])
    assert_alike(seen[4], seen[0])
    reader.forget()
    assert_alike(fair.observe("a mug", contents), seen[2])


def test_a_picture_with_another_text_meets_the_vision_tower_once() -> None:
    reader = backbone()
    if not reader.uses_features:
        pytest.skip("this transformers takes no features in place of pixels")
    images = pictures(3)
    with Count(reader) as count:
        for text in (None, "a mug", "a cup"):
            reader.observe("a mug", [Content.of(image, text) for image in images])
    assert count.images == 3


def test_contents_are_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = backbone()
    hashed: list[Image.Image] = []

    def counting(image: Image.Image) -> str:
        hashed.append(image)
        return image_digest(image)

    monkeypatch.setattr(contents_module, "image_digest", counting)
    images = pictures(4)
    shown = [Content.of(image, "a mug" if i == 2 else None) for i, image in enumerate(images)]
    assert len(hashed) == 4
    reader.capacity("a mug", shown)
    reader.observe_many([("a mug", shown), ("a cup", shown[::-1])])
    assert len(hashed) == 4
    # Pictures by themselves: once a call, however often they are shown.
    reader.observe_many([("a mug", images), ("a cup", images[::-1])])
    assert len(hashed) == 8


def test_a_template_that_changes_its_beginning_is_run_anew() -> None:
    """A date, say: what was kept before it changed is of no use, and no error."""
    reader = HuggingFaceBackbone(*build_language("qwen2"), name="dated")
    contents = texts(3)
    reader.observe("a mug", contents)
    tokenizer: Any = reader._processor
    tokenizer.chat_template = "It is Tuesday. " + tokenizer.chat_template
    later = reader.variant()
    seen = later.observe("a mug", contents)
    reader.forget()
    assert_alike(later.observe("a mug", contents), seen)
