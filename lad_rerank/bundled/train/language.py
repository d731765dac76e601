"""The language model: taught where to look, and to answer on small sets.

The forward pass here is the model's own layers, called one by one so that the losses can see the
attention of the last prompt tokens (a test compares it with the model's forward).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

from lad_rerank.bundled.shop import ATTRIBUTES, VALUES
from lad_rerank.bundled.shop.products import WORDS
from lad_rerank.bundled.train.config import HIDDEN, TOKENS_PER_IMAGE, LanguagePlan
from lad_rerank.bundled.train.packing import BLOCK, Packed, Packer, token_id
from lad_rerank.bundled.train.sets import SetMaker, TrainingSet
from lad_rerank.bundled.train.vision import Progress, make_optimisers, schedule, silent, take_step

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from lad_rerank.prompt import LabelStyle

READ_AFTER = 2
"""Layers after which attributes and picture numbers must be readable."""
GROUNDED = (2, 3)
"""Layers whose attention is taught to lie on the right picture."""

WEIGHTS = {"answer": 1.0, "end": 0.2, "grounding": 1.0, "ordinal": 0.3, "parse": 0.3}


@dataclass(frozen=True)
class Pass:
    """What the losses need from one forward pass.

    Attributes:
        logits: (B, J, 2, V) at each question's last prompt token and at its answer.
        mass: (B, len(GROUNDED), J, n) head-averaged attention of the last prompt token to each picture.
        words: (B, J, HIDDEN) the last prompt token after READ_AFTER layers.
        images: (B, n, HIDDEN) the mean of each picture's tokens after READ_AFTER layers.
    """

    logits: torch.Tensor
    mass: torch.Tensor
    words: torch.Tensor
    images: torch.Tensor


def _heads(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


def forward(model: Any, packed: Packed, features: torch.Tensor) -> Pass:
    """Run the decoder over packed sequences.

    Args:
        model: ``Qwen2_5_VLForConditionalGeneration``.
        packed: B sequences about n pictures each.
        features: (B, n, 16, 128) of the pictures, from the vision tower.
    """
    import torch
    from torch.nn import functional as F
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb

    decoder = model.model.language_model
    batch, questions = packed.ends.shape
    n, start = packed.n, packed.first_image
    span = slice(start - 1, start - 1 + n * BLOCK)
    h = decoder.embed_tokens(packed.ids)
    shown = F.pad(features.to(h.dtype), (0, 0, 1, 1)).flatten(1, 2)
    is_image = F.pad(torch.ones(n, TOKENS_PER_IMAGE, dtype=torch.bool), (1, 1)).flatten()[None, :, None]
    h = torch.cat([h[:, : span.start], torch.where(is_image, shown, h[:, span]), h[:, span.stop :]], 1)
    cos, sin = (t.to(torch.float32) for t in decoder.rotary_emb(h, packed.positions))
    # The rows that are read: each question's last prompt token, then its answer.
    read = torch.cat([packed.ends, packed.ends + 1], 1)
    index = read[..., None].expand(-1, -1, h.shape[-1])
    may = packed.mask[0, 0][read][:, None]
    words = images = h
    mass = []
    last = len(decoder.layers) - 1
    for number, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        size = attention.head_dim
        x = layer.input_layernorm(h)
        k = _heads(attention.k_proj(x), size)
        v = _heads(attention.v_proj(x), size)
        if number < last:
            q = _heads(attention.q_proj(x), size)
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        else:
            # Nothing after the last layer looks at the other rows.
            k, _ = apply_rotary_pos_emb(k, k, cos, sin)
            q = _heads(attention.q_proj(x.gather(1, index)), size)
            at = read[..., None].expand(-1, -1, size)
            row_cos, row_sin = (t.expand(batch, -1, -1).gather(1, at) for t in (cos, sin))
            q, _ = apply_rotary_pos_emb(q, q, row_cos, row_sin)
            h = h.gather(1, index)
        q, k = q.to(v.dtype), k.to(v.dtype)
        k, v = (t.repeat_interleave(attention.num_key_value_groups, 1) for t in (k, v))
        if number in GROUNDED or number == last:
            rows = q if number == last else q.gather(2, packed.ends[:, None, :, None].expand(-1, q.shape[1], -1, size))
            scores = (rows @ k.transpose(2, 3)).float() * attention.scaling
            allowed = may if number == last else may[:, :, :questions]
            weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
            if number in GROUNDED:
                each = weights[:, :, :questions, span].unflatten(-1, (n, BLOCK))[..., 1:-1].sum(-1)
                mass.append(each.mean(1))
        if number == last:
            out = weights.to(v.dtype) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=packed.mask, scale=attention.scaling)
        h = h + attention.o_proj(out.transpose(1, 2).flatten(2))
        h = h + layer.mlp(layer.post_attention_layernorm(h))
        if number + 1 == READ_AFTER:
            words = h.gather(1, index[:, :questions])
            images = h[:, span].unflatten(1, (n, BLOCK))[:, :, 1:-1].mean(2)
    logits = model.lm_head(decoder.norm(h)).unflatten(1, (2, questions)).transpose(1, 2)
    return Pass(logits, torch.stack(mass, 1), words, images)


def training_heads(largest: int) -> nn.ModuleDict:
    """Read-outs that exist in training only: attributes of the caption, number of the picture."""
    from torch import nn

    heads = {name: nn.Linear(HIDDEN, 1 + len(VALUES[name])) for name in ATTRIBUTES}
    return nn.ModuleDict({**heads, "ordinal": nn.Linear(HIDDEN, largest)})


def losses(
    seen: Pass, packed: Packed, sets: list[TrainingSet], heads: nn.ModuleDict, end: int, answered: int
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The five losses, and how often answer and attention are right.

    Args:
        seen: The forward pass.
        packed: What it ran on.
        sets: What was packed.
        heads: From :func:`training_heads`.
        end: Id of the token after an answer.
        answered: Largest set whose answers are trained.
    """
    import torch
    from torch.nn import functional as F

    right = torch.tensor([[q.right for q in s.questions] for s in sets])
    stated = torch.tensor([[q.stated for q in s.questions] for s in sets])
    on_right = (seen.mass * right[:, None]).sum(-1)
    found = {"grounding": -on_right.clamp(min=1e-6).log().mean()}
    figures = {"attention": _hit_rate(seen.mass.mean(1), right)}
    parts = [
        F.cross_entropy(heads[name](seen.words).float().flatten(0, 1), stated[..., i].flatten())
        for i, name in enumerate(ATTRIBUTES)
    ]
    found["parse"] = torch.stack(parts).sum()
    numbers = torch.arange(packed.n).repeat(len(sets))
    found["ordinal"] = F.cross_entropy(heads["ordinal"](seen.images).float().flatten(0, 1), numbers)
    if packed.n <= answered:
        logs = seen.logits[:, :, 0].float().log_softmax(-1)[..., packed.answers]
        found["answer"] = -logs.masked_fill(~right, float("-inf")).logsumexp(-1).mean()
        ends = torch.full(packed.ends.shape, end)
        found["end"] = F.cross_entropy(seen.logits[:, :, 1].float().flatten(0, 1), ends.flatten())
        figures["answer"] = _hit_rate(logs, right)
    return found, figures


def _hit_rate(scores: torch.Tensor, right: torch.Tensor) -> float:
    return float(right.gather(-1, scores.argmax(-1, keepdim=True)).float().mean())


def start_weights(model: Any, tokenizer: Any, classifiers: nn.ModuleDict, features: torch.Tensor) -> None:
    """Begin where matching words with pictures is easy.

    Words of one attribute value start as the vision classifier's row of that value; from the second
    layer on, queries start equal to keys, so that tokens look at what is like them.

    Args:
        model: The model, changed in place.
        tokenizer: Its tokenizer.
        classifiers: From :func:`~lad_rerank.bundled.train.vision.train_vision`.
        features: Some pictures' features; embeddings get their size.
    """
    import torch

    size = features[:1000].float().pow(2).mean().sqrt().item()
    meanings: dict[str, set[tuple[str, int]]] = {}
    for name, values in WORDS.items():
        for number, phrases in enumerate(values.values()):
            for word in {word for phrase in phrases for word in phrase.split()}:
                meanings.setdefault(word, set()).add((name, number))
    with torch.no_grad():
        embeddings = model.model.language_model.embed_tokens.weight
        embeddings.normal_(0, size)
        model.lm_head.weight.normal_(0, 0.02)
        for word, meaning in meanings.items():
            if len(meaning) > 1:  # "on", "a", "with"
                continue
            ((name, number),) = meaning
            row = cast("torch.Tensor", classifiers[name].weight)[number]
            for text in (word, f" {word}"):
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                if len(ids) <= 2:
                    embeddings[ids[-1]] = row / row.pow(2).mean().sqrt() * size
        for layer in model.model.language_model.layers[1:]:
            attention = layer.self_attn
            for q, k in (
                (attention.q_proj.weight, attention.k_proj.weight),
                (attention.q_proj.bias, attention.k_proj.bias),
            ):
                shared = k.unflatten(0, (-1, attention.head_dim))
                q.copy_(shared.repeat_interleave(attention.num_key_value_groups, 0).flatten(0, 1))


def draw_size(rng: Random, plan: LanguagePlan) -> int:
    """How many pictures a step's sets hold: half of the steps sizes whose answers are trained."""
    chance = rng.random()
    if chance < 0.45:
        return rng.randint(2, plan.answered)
    if chance < 0.9 or plan.largest <= plan.grounded:
        return rng.randint(plan.answered + 1, plan.grounded)
    return rng.randint(plan.grounded + 1, plan.largest)


def train_language(
    model: Any,
    tokenizer: Any,
    features: torch.Tensor,
    labels: NDArray[np.int64],
    classifiers: nn.ModuleDict,
    plan: LanguagePlan,
    progress: Progress = silent,
) -> dict[str, float]:
    """Train decoder, embeddings and head in place; the vision tower is not touched.

    Args:
        model: ``Qwen2_5_VLForConditionalGeneration``.
        tokenizer: Its tokenizer.
        features: (images, 16, 128) of all training pictures.
        labels: (images, 5) their attribute indices.
        classifiers: From :func:`~lad_rerank.bundled.train.vision.train_vision`.
        plan: Budget.
        progress: Called after every step.

    Returns:
        The last loss and running hit rates of attention and answers.
    """
    import torch

    torch.manual_seed(plan.seed)
    start_weights(model, tokenizer, classifiers, features)
    heads = training_heads(plan.largest)
    trained = (model.model.language_model, model.lm_head, heads)
    optimisers = make_optimisers([pair for part in trained for pair in part.named_parameters()], plan.rate)
    rng, maker, packer = Random(plan.seed), SetMaker(labels), Packer(tokenizer)
    end = token_id(tokenizer, "<|im_end|>")
    running: dict[str, float] = {}
    for step in range(plan.steps):
        n = draw_size(rng, plan)
        style: LabelStyle = "digits" if rng.random() < 0.6 else "letters"
        sets = [maker.draw(rng, n, plan.segments) for _ in range(plan.sequences)]
        packed = packer.pack(sets, style)
        shown = features[torch.tensor([s.rows for s in sets])].float()
        with torch.autocast("cpu", torch.bfloat16):
            seen = forward(model, packed, shown)
            found, figures = losses(seen, packed, sets, heads, end, plan.answered)
        loss = torch.stack([WEIGHTS[name] * value for name, value in found.items()]).sum()
        take_step(optimisers, loss, schedule(step, plan.steps))
        for name, value in {
            **{k: v.item() for k, v in found.items()},
            **{f"{k} %": 100 * v for k, v in figures.items()},
        }.items():
            running[name] = 0.95 * running.get(name, value) + 0.05 * value
        progress(step + 1, plan.steps, "  ".join(f"{k} {v:.2f}" for k, v in running.items()))
    return {"loss": float(loss.detach()), **running}
