"""Language models in GGUF files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.errors import BackboneError
from tests.backbones.test_families import assert_same
from tests.backbones.test_texts import plain, texts
from tests.backbones.tiny.language import build_language


def test_gguf_without_its_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "gguf" else find(name, *more))
    with pytest.raises(ImportError, match=r"lad-rerank\[gguf\]"):
        HuggingFaceBackbone.from_pretrained(tmp_path / "model.gguf")


def test_a_gguf_file_that_is_none_is_said(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BackboneError, match="Cannot load the model"):
        HuggingFaceBackbone.from_pretrained(tmp_path / "model.gguf")
    with pytest.raises(BackboneError, match="There is no folder"):
        HuggingFaceBackbone.from_pretrained(tmp_path / "other.gguf")


def write_gguf(path: Path, model: Any, tokenizer: Any) -> None:
    """Write a Llama as llama.cpp's converter does."""
    import gguf

    config, state = model.config, {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    added = tokenizer.get_added_vocab()
    ordered = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_token_list(ordered)
    writer.add_token_types([gguf.TokenType.CONTROL if t in added else gguf.TokenType.NORMAL for t in ordered])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in state.items():
        for side, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if side in name:
                # llama.cpp turns pairs of neighbours, transformers the two halves of a head.
                halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
                tensor = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
        writer.add_tensor(str(names.get_name(name, try_suffixes=(".weight",))), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_read_like_the_model_it_was_made_of(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model, tokenizer = build_language("llama")
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    loaded = HuggingFaceBackbone.from_pretrained(tmp_path / "tiny.gguf", device="cpu", dtype="float32")
    built = HuggingFaceBackbone(model, tokenizer, name="built")
    assert loaded.identity.candidates == "text"
    assert loaded.encode("a mug", texts(5)).ids == built.encode("a mug", texts(5)).ids
    assert_same(loaded.observe("a mug", texts(5)), built.observe("a mug", texts(5)))
    assert_same(loaded.observe("a mug", texts(5)), plain(loaded, "a mug", texts(5)))
