"""The stages of training in order, each from what the one before it left on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.bundled.train.config import LanguagePlan, VisionPlan, model_config
from lad_rerank.bundled.train.language import train_language
from lad_rerank.bundled.train.packing import token_id
from lad_rerank.bundled.train.pictures import draw_pictures
from lad_rerank.bundled.train.save import save_mllm
from lad_rerank.bundled.train.tokenizer import SPECIAL, build_processor, build_tokenizer
from lad_rerank.bundled.train.vision import (
    Progress,
    attribute_accuracy,
    attribute_heads,
    compute_features,
    silent,
    train_vision,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VISION_FILE = "vision.safetensors"
FEATURES_FILE = "features.safetensors"


def new_model(seed: int) -> tuple[Any, Any]:
    """An untrained model and its processor."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    tokenizer = build_tokenizer()
    special = {text: token_id(tokenizer, text) for text in SPECIAL}
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(model_config(len(tokenizer), special)), build_processor(tokenizer)


def vision_stage(work: Path, plan: VisionPlan, progress: Progress = silent) -> dict[str, float]:
    """Render, train the vision tower, and keep tower, classifiers and features in ``work``.

    Returns:
        Accuracy per attribute on held-out products.
    """
    import torch
    from safetensors.torch import save_file

    pixels, labels = draw_pictures(plan.images, plan.seed, "train", plan.workers)
    model, _ = new_model(plan.seed)
    visual = model.model.visual
    heads = train_vision(visual, pixels, labels, plan, progress)
    work.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            **{f"visual.{name}": t.contiguous() for name, t in visual.state_dict().items()},
            **{f"heads.{name}": t.contiguous() for name, t in heads.state_dict().items()},
        },
        work / VISION_FILE,
    )
    features = compute_features(visual, pixels)
    save_file({"features": features, "labels": torch.from_numpy(labels)}, work / FEATURES_FILE)
    held_out = draw_pictures(min(1000, plan.images), plan.seed + 1, "held_out")
    return attribute_accuracy(visual, heads, *held_out)


def language_stage(work: Path, out: Path, plan: LanguagePlan, progress: Progress = silent) -> dict[str, float]:
    """Train the language model on what :func:`vision_stage` left in ``work``; save the whole to ``out``.

    Returns:
        Running figures of the last steps.

    Raises:
        FileNotFoundError: The vision stage has not run.
    """
    from safetensors.torch import load_file

    for name in (VISION_FILE, FEATURES_FILE):
        if not (work / name).is_file():
            raise FileNotFoundError(f"{work / name} is missing; run the stage 'vision' first.")
    tower, cached = load_file(work / VISION_FILE), load_file(work / FEATURES_FILE)
    model, processor = new_model(plan.seed)
    heads = attribute_heads()
    for part, state in ((model.model.visual, "visual."), (heads, "heads.")):
        part.load_state_dict({k.removeprefix(state): t for k, t in tower.items() if k.startswith(state)})
    labels: NDArray[np.int64] = cached["labels"].numpy()
    figures = train_language(model, processor.tokenizer, cached["features"], labels, heads, plan, progress)
    save_mllm(model, processor, out)
    return figures


Stage = Callable[[Progress], dict[str, Any]]
