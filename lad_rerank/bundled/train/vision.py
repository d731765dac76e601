"""The vision tower: taught to tell the five attributes, from the pooled token and from every token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.bundled.shop import ATTRIBUTES, VALUES
from lad_rerank.bundled.train.config import HIDDEN, MERGE, PATCH, VisionPlan
from lad_rerank.bundled.train.pictures import Pixels, patches

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and a line of figures."""


def silent(done: int, total: int, line: str) -> None:
    """A progress callback that does nothing."""


def schedule(step: int, steps: int, rate: float, warmup: int = 40) -> float:
    """Learning rate at a step: linear warm-up, then a cosine to a hundredth."""
    if step < warmup:
        return rate * (step + 1) / warmup
    return rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def tower_features(visual: Any, x: torch.Tensor) -> torch.Tensor:
    """Run the tower on pictures of 64 x 64 as one batch.

    The model's own forward loops over pictures; for pictures of one window this is the same function
    without the loop (a test compares the two).

    Args:
        visual: ``Qwen2_5_VisionTransformerPretrainedModel``.
        x: (B, 64, 192) from :func:`~lad_rerank.bundled.train.pictures.patches`.

    Returns:
        (B, 16, 128): what takes the place of the image tokens' embeddings.
    """
    import torch
    from torch.nn import functional as F
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
    from transformers.vision_utils import get_vision_position_ids

    batch, count, _ = x.shape
    side = math.isqrt(count)
    positions = get_vision_position_ids(torch.tensor([[1, side, side]]), MERGE)
    cos, sin = (t.to(x.dtype) for t in visual.rotary_pos_emb(x, positions))
    # Both frames of a picture are the same, so the kernel's two halves can be added up.
    kernel = visual.patch_embed.proj.weight.sum(2).flatten(1)
    h = F.linear(x, kernel)
    for block in visual.blocks:
        attention = block.attn
        qkv = attention.qkv(block.norm1(h)).view(batch, count, 3, attention.num_heads, -1)
        q, k, v = qkv.unbind(2)
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        h = h + attention.proj(out.transpose(1, 2).flatten(2))
        h = h + block.mlp(block.norm2(h))
    return visual.merger(h.reshape(-1, h.shape[-1])).view(batch, count // MERGE**2, -1)  # type: ignore[no-any-return]


def attribute_heads() -> nn.ModuleDict:
    """One linear classifier per attribute; they exist in training only."""
    from torch import nn

    return nn.ModuleDict({name: nn.Linear(HIDDEN, len(VALUES[name])) for name in ATTRIBUTES})


def train_vision(
    visual: Any,
    pixels: Pixels,
    labels: NDArray[np.int64],
    plan: VisionPlan,
    progress: Progress = silent,
) -> nn.ModuleDict:
    """Train the tower in place.

    Args:
        visual: The model's ``model.visual``.
        pixels: (images, 64, 64, 3) uint8.
        labels: (images, 5) attribute indices.
        plan: Budget.
        progress: Called after every step.

    Returns:
        The classifiers, whose rows later start the embeddings of the attributes' words.
    """
    import torch
    from torch.nn import functional as F

    torch.manual_seed(plan.seed)
    heads = attribute_heads()
    parameters = [*visual.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=plan.rate, weight_decay=0.02, betas=(0.9, 0.98))
    rng = np.random.default_rng(plan.seed)
    order = np.concatenate([rng.permutation(len(pixels)) for _ in range(-(-plan.steps * plan.batch // len(pixels)))])
    targets = torch.from_numpy(labels)
    for step in range(plan.steps):
        for group in optimiser.param_groups:
            group["lr"] = schedule(step, plan.steps, plan.rate)
        rows = order[step * plan.batch : (step + 1) * plan.batch]
        with torch.autocast("cpu", torch.bfloat16):
            features = tower_features(visual, patches(pixels[rows]))
            pooled = features.mean(1)
            loss = torch.zeros(())
            right = []
            for i, name in enumerate(ATTRIBUTES):
                wanted = targets[rows, i]
                whole = heads[name](pooled).float()
                each = heads[name](features).float()
                repeated = wanted[:, None].expand(-1, each.shape[1])
                loss = loss + F.cross_entropy(whole, wanted)
                loss = loss + 0.5 * F.cross_entropy(each.flatten(0, 1), repeated.flatten())
                right.append((whole.argmax(1) == wanted).float().mean().item())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        figures = " ".join(f"{n[:4]} {100 * r:.0f}" for n, r in zip(ATTRIBUTES, right, strict=True))
        progress(step + 1, plan.steps, f"loss {loss.item():.2f}  {figures}")
    return heads


def attribute_accuracy(
    visual: Any, heads: nn.ModuleDict, pixels: Pixels, labels: NDArray[np.int64]
) -> dict[str, float]:
    """Share of pictures whose attribute the pooled token tells, per attribute."""
    import torch

    hits = []
    with torch.inference_mode():
        for start in range(0, len(pixels), 256):
            pooled = tower_features(visual, patches(pixels[start : start + 256])).mean(1)
            hits.append(torch.stack([heads[name](pooled).argmax(1) for name in ATTRIBUTES], 1).numpy())
    means = (np.concatenate(hits) == labels).mean(0)
    return {name: float(mean) for name, mean in zip(ATTRIBUTES, means, strict=True)}


def compute_features(visual: Any, pixels: Pixels) -> torch.Tensor:
    """Features of all pictures, (images, 16, 128) float16: the tower is frozen from here on."""
    import torch

    found = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(pixels), 256):
            found.append(tower_features(visual, patches(pixels[start : start + 256])).half())
    return torch.cat(found).clone()


__all__ = [
    "PATCH",
    "Progress",
    "attribute_accuracy",
    "attribute_heads",
    "compute_features",
    "schedule",
    "silent",
    "tower_features",
    "train_vision",
]
