"""Catalogues to search in, and candidate sets with exactly one right answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

from lad_rerank.bundled.shop.captions import caption, satisfies, wanted
from lad_rerank.bundled.shop.products import ATTRIBUTES, VALUES, Product, Split, all_products, split
from lad_rerank.bundled.shop.render import render

if TYPE_CHECKING:
    from PIL.Image import Image

Difficulty: TypeAlias = Literal["random", "adversarial"]


@dataclass(frozen=True)
class Item:
    """One picture in the shop.

    Attributes:
        id: Unique within its catalogue or set.
        product: What it shows.
        seed: Fixes place, size, rotation and light of the rendering.
    """

    id: str
    product: Product
    seed: int

    def image(self) -> Image:
        """The picture, 64 x 64 RGB."""
        return render(self.product, self.seed)

    @property
    def title(self) -> str:
        """The exact caption in the plainest words."""
        return caption(self.product, self.seed, synonyms=False)


@dataclass(frozen=True)
class CandidateSet:
    """A query and its candidates, of which exactly one is right.

    Attributes:
        caption: The query.
        attributes: What the query states: attribute -> value.
        candidates: The pictures, in random order.
        target: Index of the right one.
    """

    caption: str
    attributes: Mapping[str, str]
    candidates: tuple[Item, ...]
    target: int


def catalogue(size: int, seed: int, side: Split | None = None) -> list[Item]:
    """Draw a catalogue: different products as long as there are any, then different pictures of them.

    Args:
        size: Number of items.
        seed: Chooses products and renderings.
        side: Only products of this side of the split; ``None`` for all.
    """
    rng = Random(f"catalogue {seed} {side}")
    pool = list(all_products(side))
    products: list[Product] = []
    while len(products) < size:
        products += rng.sample(pool, len(pool))
    return [Item(f"item-{i:05d}", p, rng.getrandbits(32)) for i, p in enumerate(products[:size])]


@lru_cache(maxsize=4096)
def _variants(product: Product, changed: tuple[str, ...], side: Split | None) -> tuple[Product, ...]:
    """All products that differ from this one in exactly these attributes, on one side of the split."""
    found = [product]
    for name in changed:
        found = [
            Product(**{n: v if n == name else p.value(n) for n in ATTRIBUTES})
            for p in found
            for v in VALUES[name]
            if v != product.value(name)
        ]
    return tuple(p for p in found if side is None or split(p) == side)


_NEAR = tuple(c for size in (1, 2) for c in combinations(ATTRIBUTES, size))


def _neighbour(rng: Random, product: Product, side: Split | None) -> Product:
    """A product that differs in one or two attributes; which ones is drawn before their values."""
    while True:
        # 5 single changes and 10 double ones: as many of the first kind as of the second.
        changed = rng.choice(_NEAR[:5] if rng.random() < 0.5 else _NEAR[5:])
        if variants := _variants(product, changed, side):
            return rng.choice(variants)


def candidate_set(
    n: int,
    seed: int,
    difficulty: Difficulty,
    side: Split | None = None,
    attributes: Collection[str] | None = None,
) -> CandidateSet:
    """Draw a query and n candidates with exactly one right answer.

    Args:
        n: Number of candidates, at least 2.
        seed: Fixes everything.
        difficulty: ``"random"``: the others are any products. ``"adversarial"``: each differs from the
            right one in one or two of the five attributes, like the neighbours a retriever returns.
        side: Side of the split that all candidates come from; ``None`` for both.
        attributes: Names of the attributes that the caption states; ``None`` for all five.

    Returns:
        A set in which every candidate but the target violates the caption and all products differ.

    Raises:
        ValueError: Fewer than 2 candidates, an unknown difficulty, or more candidates than there are
            products that violate the caption.
    """
    if n < 2:
        raise ValueError(f"A set needs at least 2 candidates, got {n}.")
    if difficulty not in ("random", "adversarial"):
        raise ValueError(f"Unknown difficulty {difficulty!r}; choose 'random' or 'adversarial'.")
    rng = Random(f"set {n} {seed} {difficulty} {side}")
    pool = all_products(side)
    right = rng.choice(pool)
    stated = wanted(right, attributes)
    draw: Callable[[], Product] = (
        (lambda: rng.choice(pool)) if difficulty == "random" else (lambda: _neighbour(rng, right, side))
    )
    products = [right]
    for _ in range(200 * n):
        if len(products) == n:
            break
        other = draw()
        if other not in products and not satisfies(other, stated):
            products.append(other)
    else:
        raise ValueError(f"Found only {len(products)} of {n} candidates that violate {stated}.")
    rng.shuffle(products)
    items = tuple(Item(f"set-{seed}-{i}", p, rng.getrandbits(32)) for i, p in enumerate(products))
    return CandidateSet(caption(right, rng.getrandbits(32), attributes), stated, items, products.index(right))


def random_set(n: int, seed: int, side: Split | None = None, attributes: Collection[str] | None = None) -> CandidateSet:
    """:func:`candidate_set` with any other products as distractors."""
    return candidate_set(n, seed, "random", side, attributes)


def adversarial_set(
    n: int, seed: int, side: Split | None = None, attributes: Collection[str] | None = None
) -> CandidateSet:
    """:func:`candidate_set` with distractors that differ in one or two attributes."""
    return candidate_set(n, seed, "adversarial", side, attributes)


hard_set = adversarial_set
