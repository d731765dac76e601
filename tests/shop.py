"""Sets of shop pictures for tests."""

from __future__ import annotations

from PIL import Image

from lad_rerank.bundled.shop import candidate_set


def shop_set(n: int, seed: int) -> tuple[str, list[Image.Image], int]:
    """Query, pictures and target of n held-out products that differ a lot."""
    chosen = candidate_set(n, seed=seed, difficulty="random", side="held_out")
    return chosen.caption, [item.image() for item in chosen.candidates], chosen.target
