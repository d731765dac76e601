"""Candidates' keys and values: run once, kept in memory and on disk, and never used where they do not belong."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lad_rerank.backbones.blocks import Block, BlockFacts, pack, unpack
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.set_backbone import SetBackbone
from lad_rerank.contents import Content
from lad_rerank.records import Observation
from tests.backbones.test_families import pictures
from tests.backbones.test_texts import cards, texts
from tests.backbones.tiny import build
from tests.backbones.tiny.language import build_language


def make(folder: Path | None = None, *, max_pixels: int | None = None, seed: int = 0, **settings: Any) -> SetBackbone:
    model, processor = build("qwen2_5_vl", seed=seed)
    inner = HuggingFaceBackbone(model, processor, name="tiny", max_pixels=max_pixels, verify=False)
    return inner.arranged("set", block_folder=folder, **settings)


def runs_of(backbone: SetBackbone) -> list[tuple[int, ...]]:
    """Shapes of the tokens that each forward pass from now on is given."""
    shapes: list[tuple[int, ...]] = []
    backbone.arranged("sequence")._model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def largest_difference(a: Observation, b: Observation) -> float:
    return max(float(np.abs(a.attention[row] - b.attention[row]).max()) for row in a.attention)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_a_query_over_kept_candidates_runs_its_own_tokens_only() -> None:
    backbone = make()
    images = pictures(4)
    backbone.observe("a mug", images)
    shapes = runs_of(backbone)
    backbone.observe("a red cup", images[::-1])
    suffix = backbone.encoder.suffix("a red cup", 4, "image")
    assert shapes == [(1, len(suffix.ids))]
    # One of three is new: it runs, and nothing else does.
    backbone.observe("a red cup", [*images[:2], pictures(5)[4]])
    assert [shape[0] for shape in shapes] == [1, 1, 1]
    assert shapes[1][1] < shapes[2][1] == len(suffix.ids)
    report = backbone.cache_report()
    assert (report.made, report.memory_hits, report.disk_hits) == (5, 4 + 2, 0)


def test_requests_over_the_same_candidates_share_a_pass() -> None:
    backbone = make()
    images = pictures(4)
    shapes = runs_of(backbone)
    seen = backbone.observe_many([("a mug", images), ("a mug", images[::-1]), ("a red cup", images)])
    # The prefix, the candidates (one at a time where they come as pixels), and both different questions at once.
    together = backbone.arranged("sequence").uses_features
    assert [shape[0] for shape in shapes] == [1, *([4] if together else [1] * 4), 2]
    np.testing.assert_array_equal(seen[0].attention["last"], seen[1].attention["last"][..., ::-1])


def test_candidates_on_disk_are_found_by_the_next_process(tmp_path: Path) -> None:
    first = make(tmp_path)
    seen = first.observe("a mug", cards(5))
    assert len(files(tmp_path)) == 5
    second = make(tmp_path)
    shapes = runs_of(second)
    again = second.observe("a mug", cards(5))
    prefix, suffix = second.encoder.prefix, second.encoder.suffix("a mug", 5, "mixed")
    assert shapes == [(1, len(prefix)), (1, len(suffix.ids))]
    assert largest_difference(seen, again) < 1e-6
    assert (again.lengths, again.cut, again.prompt_tokens) == (seen.lengths, seen.cut, seen.prompt_tokens)
    report = second.cache_report()
    assert (report.disk_hits, report.made, report.refused) == (5, 0, 0)
    assert report.bytes_read == first.cache_report().bytes_written == report.bytes_in_memory > 0


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def one_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(bytes(data))


def no_safetensors(path: Path) -> None:
    path.write_bytes(b"keys and values")


def changed(path: Path, **said: str) -> None:
    with safe_open(path, framework="pt") as stored:
        metadata = dict(stored.metadata())
        tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118 - no mapping
    save_file(tensors, path, metadata | said)


def of_another_candidate(path: Path) -> None:
    changed(path, digest="another")


def with_foreign_facts(path: Path) -> None:
    changed(path, facts=json.dumps({"span": [0, 5000], "end": 3, "cut": 0}))


def without_facts(path: Path) -> None:
    changed(path, facts="[]")


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [cut_off, one_byte, no_safetensors, of_another_candidate, with_foreign_facts, without_facts, empty]
)
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    images = pictures(3)
    seen = make(tmp_path).observe("a mug", images)
    damage(files(tmp_path)[1])
    second = make(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert largest_difference(second.observe("a mug", images), seen) < 1e-6
    assert "not used and made again" in caplog.text
    report = second.cache_report()
    assert (report.disk_hits, report.made, report.refused) == (2, 1, 1)
    # It was written anew.
    third = make(tmp_path)
    third.observe("a mug", images)
    assert third.cache_report().disk_hits == 3


def test_a_file_under_another_name_is_not_taken_for_it(tmp_path: Path) -> None:
    first = make(tmp_path)
    images = pictures(2)
    seen = first.observe("a mug", images)
    a, b = files(tmp_path)
    a.write_bytes(b.read_bytes())
    second = make(tmp_path)
    assert largest_difference(second.observe("a mug", images), seen) < 1e-6
    assert second.cache_report().refused == 1


def test_other_settings_and_other_weights_have_other_files(tmp_path: Path) -> None:
    images = pictures(4)
    variants: list[dict[str, Any]] = [{}, {"max_pixels": 64 * 64}, {"seed": 1}, {"block_dtype": "bfloat16"}]
    for done, settings in enumerate(variants):
        backbone = make(tmp_path, **settings)
        backbone.observe("a mug", images)
        assert (backbone.cache_report().made, backbone.cache_report().disk_hits) == (4, 0)
        assert len(list(tmp_path.iterdir())) == done + 1
    # A folder put in another's place is not used either.
    ours, other = (make(tmp_path, **settings)._store.folder for settings in variants[:2])
    assert ours is not None
    assert other is not None
    for path in files(ours):
        path.write_bytes((other / path.name).read_bytes())
    backbone = make(tmp_path)
    backbone.observe("a mug", images)
    assert (backbone.cache_report().refused, backbone.cache_report().made) == (4, 4)


def test_a_folder_that_cannot_be_written_is_said_and_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    backbone = make(tmp_path / "file")
    assert np.isfinite(backbone.observe("a mug", pictures(2)).attention["last"]).all()
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-2), ("int8", 4e-2)])
def test_packed_blocks_are_near_and_do_not_depend_on_being_kept(tmp_path: Path, dtype: Any, bound: float) -> None:
    plain, packed = make(), make(tmp_path, block_dtype=dtype)
    images = pictures(5)
    expected = plain.observe("a mug", images)
    seen = packed.observe("a mug", images)
    assert 0 < largest_difference(seen, expected) < bound
    for other in (packed, make(tmp_path, block_dtype=dtype)):
        np.testing.assert_array_equal(other.observe("a mug", images).attention["last"], seen.attention["last"])
    assert packed.cache_report().bytes_in_memory < 0.75 * plain.cache_report().bytes_in_memory


def test_packing_restores_what_it_can() -> None:
    torch.manual_seed(0)
    layers = tuple((torch.randn(1, 2, 40, 8) * 10, torch.randn(1, 2, 40, 8)) for _ in range(3))
    layers[0][0][..., 3] = 0
    block = Block(layers, BlockFacts((0, 1), 40, 0))
    whole = unpack(pack(block, "model"), layers)
    assert all(torch.equal(a, b) for x, y in zip(whole.layers, layers, strict=True) for a, b in zip(x, y, strict=True))
    for rounded in (unpack(pack(block, "int8"), layers), unpack(pack(block, "bfloat16"), layers)):
        for x, y in zip(rounded.layers, layers, strict=True):
            for a, b in zip(x, y, strict=True):
                assert ((a - b).abs() <= b.abs().amax(dim=2, keepdim=True) / 200).all()
    assert (unpack(pack(block, "int8"), layers).layers[0][0][..., 3] == 0).all()
    for foreign in (layers[:2], (*layers, layers[0]), tuple((k[:, :1], v) for k, v in layers)):
        with pytest.raises(ValueError, match="fit"):
            unpack(pack(block, "model"), foreign)


def test_memory_is_bounded_and_that_changes_nothing() -> None:
    frugal, lavish = make(max_block_bytes=0), make()
    for query in ("a mug", "another mug"):
        assert largest_difference(frugal.observe(query, cards(6)), lavish.observe(query, cards(6))) == 0
    assert (frugal.cache_report().made, frugal.cache_report().bytes_in_memory) == (12, 0)
    size = lavish.cache_report().bytes_in_memory
    tight = make(max_block_bytes=size // 2)
    tight.observe("a mug", cards(6))
    assert 0 < tight.cache_report().bytes_in_memory <= size // 2
    lavish.forget()
    assert lavish.cache_report().bytes_in_memory == 0


def test_a_batch_that_does_not_fit_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    backbone = make()
    expected = backbone.observe_many([(f"mug {i}", pictures(5)) for i in range(4)])
    backbone.forget()
    blocks, suffixes = backbone.passes.blocks, backbone.passes.suffixes

    def small(run: Any, at: int) -> Any:
        def limited(*args: Any) -> Any:
            if len(args[at]) > 2:
                raise torch.OutOfMemoryError("simulated: no machine here has a small GPU")
            return run(*args)

        return limited

    backbone.passes.blocks = small(blocks, 2)  # type: ignore[method-assign]
    backbone.passes.suffixes = small(suffixes, 2)  # type: ignore[method-assign]
    for seen, wanted in zip(
        backbone.observe_many([(f"mug {i}", pictures(5)) for i in range(4)]), expected, strict=True
    ):
        assert largest_difference(seen, wanted) < 1e-5
    assert "do not fit the memory" in caplog.text


def test_precompute_says_what_it_did_and_goes_on_where_it_was(tmp_path: Path) -> None:
    images = pictures(11)
    done: list[int] = []

    class Stopped(Exception):
        pass

    def stop(count: int) -> None:
        done.append(count)
        raise Stopped

    with pytest.raises(Stopped):
        make(tmp_path).precompute(iter(images), progress=stop)
    assert done == [8]
    assert len(files(tmp_path)) == 8
    backbone = make(tmp_path)
    report = backbone.precompute(images, progress=done.append)
    assert (report.made, report.found, done) == (3, 8, [8, 8, 11])
    assert report.bytes == sum(path.stat().st_size for path in files(tmp_path))
    shapes = runs_of(backbone)
    backbone.observe("a mug", images)
    assert len(shapes) == 1
    again = backbone.precompute([*images, images[0]])
    assert (again.made, again.found, again.bytes) == (0, 12, report.bytes)
    assert backbone.precompute([]).made == 0


def test_precompute_without_a_folder_says_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    backbone = make(max_block_bytes=1)
    report = backbone.precompute(texts(3))
    assert (report.made, report.bytes) == (3, 0)
    assert "3 of 3 candidates do not fit" in caplog.text
    roomy = make()
    assert roomy.precompute(texts(3)).bytes == roomy.cache_report().bytes_in_memory > 0


def test_kept_candidates_need_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = make(tmp_path).observe("a mug", pictures(3))
    second = make(tmp_path)

    def never(*_: Any) -> Any:
        raise AssertionError("neither processor nor vision tower is needed")

    monkeypatch.setattr(second.arranged("sequence")._pictures, "prepared", never)
    monkeypatch.setattr(second.arranged("sequence")._pictures, "features", never)
    assert largest_difference(second.observe("a mug", pictures(3)), seen) < 1e-6


def test_a_digest_is_no_path(tmp_path: Path) -> None:
    model, tokenizer = build_language("llama")
    inner = HuggingFaceBackbone(model, tokenizer, name="llama", verify=False)
    backbone = inner.arranged("set", block_folder=tmp_path / "kept")
    strange = [Content(None, "a mug", "../../outside"), Content(None, "a cup", "/absolute\n")]
    backbone.observe("a mug", strange)
    assert len(files(tmp_path / "kept")) == len(files(tmp_path)) == 2


def test_threads_may_write_the_same_folder(tmp_path: Path) -> None:
    backbones = [make(tmp_path) for _ in range(3)]
    expected = make().observe("a mug", cards(6))
    with ThreadPoolExecutor(6) as pool:
        for seen in pool.map(lambda i: backbones[i % 3].observe("a mug", cards(6)), range(9)):
            assert largest_difference(seen, expected) < 1e-5
    assert len(files(tmp_path)) == 6
    assert not list(tmp_path.rglob("*.tmp"))
    fresh = make(tmp_path)
    fresh.observe("a mug", cards(6))
    assert fresh.cache_report().disk_hits == 6
