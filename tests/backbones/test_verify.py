"""The check at load: what is wrong is refused or switched off, and said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.errors import AttentionNotSeenError, BackboneError
from tests.backbones.test_families import pictures
from tests.backbones.tiny import build


def test_labels_without_probability_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    # Random weights spread their probability over the whole vocabulary.
    model, processor = build("qwen2_5_vl")
    backbone = HuggingFaceBackbone(model, processor, name="thinker")
    assert backbone.observe("a mug", pictures(3)).label_mass < 0.05
    assert "thinker puts" in caplog.text
    assert "would rather say" in caplog.text


def test_a_model_that_says_nothing_is_refused() -> None:
    model, processor = build("qwen2_5_vl")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    with pytest.raises(BackboneError, match="same probability"):
        HuggingFaceBackbone(model, processor, name="blank")


def test_attention_that_is_not_the_models_is_refused() -> None:
    model, processor = build("internvl")

    # A model that scales its attention in a way of its own: only eager attention knows of it.
    module = model.get_decoder().layers[1].self_attn
    forward = module.forward

    def own_scaling(*args: Any, **kwargs: Any) -> Any:
        from lad_rerank.backbones.attention_tap import TAP_NAME

        module.scaling = 0.05 if module.config._attn_implementation != TAP_NAME else 0.5
        return forward(*args, **kwargs)

    module.forward = own_scaling
    with pytest.raises(AttentionNotSeenError, match="differs from its eager attention"):
        HuggingFaceBackbone(model, processor, name="odd")


def test_a_short_cut_that_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = build("qwen2_5_vl")

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no features today")

    monkeypatch.setattr(model, "get_image_features", broken)
    backbone = HuggingFaceBackbone(model, processor, name="plain")
    assert not backbone.uses_features
    assert np.isfinite(backbone.observe("a mug", pictures(3)).log_probs).all()


def test_it_can_be_left_out() -> None:
    model, processor = build("qwen2_5_vl")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    HuggingFaceBackbone(model, processor, name="blank", verify=False)
