"""The vision tower: taught to tell the five attributes, from the pooled token and from every token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.bundled.shop import ATTRIBUTES, VALUES
from lad_rerank.bundled.train.config import HIDDEN, MERGE, VisionPlan
from lad_rerank.bundled.train.pictures import Pixels, patches

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and a line of figures."""


def silent(done: int, total: int, line: str) -> None:
    """A progress callback that does nothing."""


KIND_WEIGHT = 2.0
"""Outlines are learnt last by far: 97 % of the colours are right at step 40, 95 % of the kinds at step 240."""


def schedule(step: int, steps: int, warmup: int = 20) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a cosine to a hundredth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def make_optimisers(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for all else.

    AdamW alone learns the outlines in more steps; MODEL_CARD.md has the comparison.

    Args:
        parameters: Names and parameters; a layer's have ``blocks.`` or ``layers.`` in their names.
        rate: Peak learning rate of AdamW; Muon's is 2.5 times that.

    Raises:
        RuntimeError: This torch has no Muon.
    """
    import torch

    if not hasattr(torch.optim, "Muon"):
        raise RuntimeError(f"Training needs torch 2.9 or later, for torch.optim.Muon; this is {torch.__version__}.")
    named = list(parameters)
    is_inner = [p.ndim == 2 and ("blocks." in name or "layers." in name) for name, p in named]
    inner = [p for (_, p), chosen in zip(named, is_inner, strict=True) if chosen]
    outer = [p for (_, p), chosen in zip(named, is_inner, strict=True) if not chosen]
    found: list[torch.optim.Optimizer] = [
        torch.optim.Muon(inner, lr=2.5 * rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, weight_decay=0.02, betas=(0.9, 0.98)),
    ]
    for optimiser in found:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return found


def take_step(optimisers: list[torch.optim.Optimizer], loss: torch.Tensor, share: float) -> None:
    """One update at a share of the peak learning rates, gradients clipped to a norm of 1."""
    import torch

    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
    for group in groups:
        group["lr"] = share * group["peak"]
    for optimiser in optimisers:
        optimiser.step()


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
    optimisers = make_optimisers([*visual.named_parameters(), *heads.named_parameters()], plan.rate)
    rng = np.random.default_rng(plan.seed)
    order = np.concatenate([rng.permutation(len(pixels)) for _ in range(-(-plan.steps * plan.batch // len(pixels)))])
    targets = torch.from_numpy(labels)
    for step in range(plan.steps):
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
                part = F.cross_entropy(whole, wanted)
                part = part + 0.5 * F.cross_entropy(each.flatten(0, 1), repeated.flatten())
                loss = loss + (KIND_WEIGHT if name == "kind" else 1.0) * part
                right.append((whole.argmax(1) == wanted).float().mean().item())
        take_step(optimisers, loss, schedule(step, plan.steps))
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
