"""Training the tiny CLIP on the shop: contrastive, with attribute classifiers that exist in training only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lad_rerank.bundled.shop import (
    ATTRIBUTES,
    VALUES,
    Item,
    caption,
    catalogue,
    random_attributes,
    satisfies,
    wanted,
)
from lad_rerank.bundled.train.clip_model import CONTEXT, build_clip_tokenizer, new_clip, save_clip
from lad_rerank.bundled.train.pictures import Pixels, draw_pictures

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and a line of figures."""

IMAGES = 16_000
STEPS = 300
BATCH = 192
RATE = 1.5e-3
WARMUP = 40
ATTRIBUTE_WEIGHT = 0.3
UNKNOWN_SHARE = 0.25

_CATALOGUE_SEED = 11


def train_clip(
    out: Path,
    *,
    steps: int = STEPS,
    seed: int = 1,
    images: int = IMAGES,
    workers: int = 1,
    measured: int = 2000,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train from nothing, save, and measure what was saved.

    The same arguments, library versions and number of torch threads give the same weights.

    Args:
        out: Folder for the model.
        steps: Optimiser steps of 192 pairs each.
        seed: Fixes weights, order of pictures and captions.
        images: Rendered training pictures.
        workers: Processes that render.
        measured: Size of the held-out catalogue that the figures are measured on; 0 measures nothing.
        progress: Called after every step with steps done, steps in all, and a line of figures.

    Returns:
        The figures of :func:`measure_clip`, empty where nothing was measured.
    """
    import torch

    items = catalogue(images, _CATALOGUE_SEED, "train")
    pixels, labels = draw_pictures(images, _CATALOGUE_SEED, "train", workers)
    torch.manual_seed(seed)
    model = new_clip()
    _fit(model, items, pixels, labels, steps, seed, progress or (lambda done, total, line: None))
    save_clip(model, out)
    return measure_clip(out, measured) if measured else {}


def _fit(
    model: Any,
    items: Sequence[Item],
    pixels: Pixels,
    labels: NDArray[np.int64],
    steps: int,
    seed: int,
    progress: Progress,
) -> None:
    """Train in place: symmetric cross-entropy within the batch, plus the pictures' attributes."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    heads = nn.ModuleDict({name: nn.Linear(_embedding(model), len(VALUES[name])) for name in ATTRIBUTES})
    parameters = [*model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.02, betas=(0.9, 0.98))
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(items)) for _ in range(-(-steps * BATCH // len(items)))])
    tokenizer = build_clip_tokenizer()
    targets = torch.from_numpy(labels)
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = _rate(step, steps)
        rows = order[step * BATCH : (step + 1) * BATCH]
        drawn = seed * 1_000_003 + step * BATCH
        stated = [_stated(drawn + i) for i in range(len(rows))]
        captions = [
            _among_unknown_words(caption(items[r].product, drawn + i, stated[i]), drawn + i) for i, r in enumerate(rows)
        ]
        named = torch.tensor([[name in names for name in ATTRIBUTES] for names in stated])
        tokens = _tokens(tokenizer, captions)
        with torch.autocast("cpu", torch.bfloat16):
            seen = model.encode_image(_normalised(pixels[rows]))
            read = model.encode_text(tokens)
        seen, read, wanted_values = seen.float(), read.float(), targets[rows]
        logits = model.logit_scale.exp() * F.normalize(read, dim=-1) @ F.normalize(seen, dim=-1).T
        contrast = contrast_loss(logits, wanted_values, named)
        told = [F.cross_entropy(heads[name](seen), wanted_values[:, i]) for i, name in enumerate(ATTRIBUTES)]
        told += [
            F.cross_entropy(heads[name](read[named[:, i]]), wanted_values[named[:, i], i])
            for i, name in enumerate(ATTRIBUTES)
        ]
        loss = contrast + ATTRIBUTE_WEIGHT * torch.stack(told).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=np.log(100.0))  # as CLIP does, against a runaway temperature
        progress(step + 1, steps, f"loss {loss.item():.2f}  contrast {contrast.item():.2f}")
    model.eval()


def _rate(step: int, steps: int) -> float:
    """Learning rate at a step: linear warm-up, then a cosine to a hundredth."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP))))


def _embedding(model: Any) -> int:
    """Length of the model's vectors."""
    return int(model.text_projection.shape[1])


def _stated(seed: int) -> tuple[str, ...]:
    """Half of the captions name all five attributes, the others one to four."""
    partial = Random(f"partial {seed}").random() < 0.5
    return random_attributes(seed, least=1) if partial else ATTRIBUTES


def contrast_loss(logits: torch.Tensor, values: torch.Tensor, named: torch.Tensor) -> torch.Tensor:
    """Symmetric cross-entropy of caption i and picture i within a batch.

    A picture that has everything a caption names is no wrong answer to it, so it is left out unless it
    is the caption's own: partial captions fit several pictures of a batch.

    Args:
        logits: (B, B), captions by pictures.
        values: (B, 5) attribute indices of the pictures.
        named: (B, 5) bool, whether the caption names the attribute.
    """
    import torch
    from torch.nn import functional as F

    same = values[:, None, :] == values[None, :, :]
    fits = (same | ~named[:, None, :]).all(-1)
    own = torch.eye(len(values), dtype=torch.bool)
    logits = logits.masked_fill(fits & ~own, float("-inf"))
    pairs = torch.arange(len(values))
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2


def _tokens(tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    encoded = tokenizer(list(texts), padding="max_length", truncation=True, max_length=CONTEXT, return_tensors="pt")
    return encoded.input_ids  # type: ignore[no-any-return]


def _among_unknown_words(text: str, seed: int) -> str:
    """Put one to three words from outside the vocabulary into a quarter of the captions, so that they say nothing."""
    rng = Random(f"unknown {seed}")
    words = text.split()
    if rng.random() < UNKNOWN_SHARE:
        for _ in range(rng.randint(1, 3)):
            words.insert(rng.randint(0, len(words)), "<unk>")
    return " ".join(words)


def _normalised(pixels: Pixels) -> torch.Tensor:
    """What the model's preprocessing makes of 64 x 64 pictures: (B, 3, 64, 64) float32 in [-1, 1]."""
    import torch

    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def measure_clip(folder: Path, size: int = 2000, seed: int = 20_261) -> dict[str, float]:
    """Search a held-out catalogue with a saved model, loaded through open_clip from its folder.

    Args:
        folder: The model.
        size: Pictures in the catalogue; each is asked for once by all five attributes and once by some.
        seed: Chooses pictures and wordings. The number of steps was chosen on other seeds than the default.

    Returns:
        Shares in [0, 1]: ``exact@k`` the very picture is among the first k for a full caption,
        ``partial_exact@k`` the same for a partial one, ``right@k`` / ``partial_right@k`` a picture that
        has every stated attribute is.
    """
    import open_clip
    import torch

    name = f"local-dir:{folder}"
    model = open_clip.create_model(name, require_pretrained=True).eval()
    tokenizer = open_clip.get_tokenizer(name)
    items = catalogue(size, seed, "held_out")
    pixels, _ = draw_pictures(size, seed, "held_out")
    figures: dict[str, float] = {}
    with torch.inference_mode():
        pictures = torch.cat(
            [model.encode_image(_normalised(pixels[i : i + 256]), normalize=True) for i in range(0, size, 256)]
        )
        for prefix in ("", "partial_"):
            drawn = range(seed * 1_000_003, seed * 1_000_003 + size)
            stated = [random_attributes(i) if prefix else ATTRIBUTES for i in drawn]
            texts = [caption(item.product, drawn[i], stated[i]) for i, item in enumerate(items)]
            scores = model.encode_text(tokenizer(texts), normalize=True) @ pictures.T
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :12].numpy()
            asked = [wanted(item.product, stated[i]) for i, item in enumerate(items)]
            right = np.array(
                [[satisfies(items[c].product, a) for c in row] for a, row in zip(asked, order, strict=True)]
            )
            exact = order == np.arange(size)[:, None]
            for k in (1, 8, 12):
                figures[f"{prefix}exact@{k}"] = float(exact[:, :k].any(1).mean())
                figures[f"{prefix}right@{k}"] = float(right[:, :k].any(1).mean())
    return figures
