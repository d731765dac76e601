"""A shop of rendered products: five attributes each, pictures and captions deterministic by seed."""

from __future__ import annotations

from lad_rerank.bundled.shop.captions import caption, random_attributes, satisfies, vocabulary, wanted
from lad_rerank.bundled.shop.catalogue import (
    CandidateSet,
    Item,
    adversarial_set,
    candidate_set,
    catalogue,
    hard_set,
    random_set,
)
from lad_rerank.bundled.shop.products import ATTRIBUTES, VALUES, Product, Split, all_products, split
from lad_rerank.bundled.shop.render import SIDE, render

__all__ = [
    "ATTRIBUTES",
    "SIDE",
    "VALUES",
    "CandidateSet",
    "Item",
    "Product",
    "Split",
    "adversarial_set",
    "all_products",
    "candidate_set",
    "caption",
    "catalogue",
    "hard_set",
    "random_attributes",
    "random_set",
    "render",
    "satisfies",
    "split",
    "vocabulary",
    "wanted",
]
