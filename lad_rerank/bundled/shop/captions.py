"""From a product to a sentence, and whether a product is what a sentence asks for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from random import Random

from lad_rerank.bundled.shop.products import ATTRIBUTES, WORDS, Product

_TEMPLATES = (
    "a {colour} {pattern} {kind} {logo} {background}",
    "a {pattern} {colour} {kind} {logo} {background}",
    "a {colour} {pattern} {kind} {background}, {logo}",
    "{background}, a {colour} {pattern} {kind} {logo}",
    "photo of a {pattern} {colour} {kind} {background} {logo}",
    "{kind}, {colour}, {pattern}, {logo}, {background}",
)


def caption(product: Product, seed: int, attributes: Collection[str] | None = None, synonyms: bool = True) -> str:
    """Say what a product is.

    Args:
        product: The product.
        seed: Chooses template and synonyms.
        attributes: Names of the attributes to state; the kind is always named. ``None`` states all five.
        synonyms: Whether to choose among all wordings, or to take the plainest and the first template.

    Returns:
        One line of lower-case text.

    Raises:
        ValueError: An unknown attribute name.

    Example:
        >>> caption(Product("mug", "red", "striped", "wood", "star"), 0, synonyms=False)
        'a red striped mug with a star logo on a wooden table'
    """
    stated = set(ATTRIBUTES if attributes is None else attributes) | {"kind"}
    if unknown := stated - set(ATTRIBUTES):
        raise ValueError(f"No such attribute: {', '.join(sorted(unknown))}; there are {', '.join(ATTRIBUTES)}.")
    rng = Random(f"caption {seed}")
    template = rng.choice(_TEMPLATES)
    words = {name: rng.choice(WORDS[name][product.value(name)]) for name in ATTRIBUTES}
    if not synonyms:
        template = _TEMPLATES[0]
        words = {name: WORDS[name][product.value(name)][0] for name in ATTRIBUTES}
    text = template.format(**{name: words[name] if name in stated else "" for name in ATTRIBUTES})
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(?: ?,)+", ",", text).strip(" ,")
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def random_attributes(seed: int, least: int = 2, most: int = 4) -> tuple[str, ...]:
    """Draw which attributes a partial caption names: ``least`` to ``most`` of them, the kind always."""
    rng = Random(f"attributes {seed}")
    others = rng.sample(ATTRIBUTES[1:], rng.randint(least, most) - 1)
    return tuple(name for name in ATTRIBUTES if name == "kind" or name in others)


def wanted(product: Product, attributes: Collection[str] | None = None) -> dict[str, str]:
    """What a caption of this product that names these attributes asks for: attribute -> value."""
    names = set(ATTRIBUTES if attributes is None else attributes) | {"kind"}
    return {name: product.value(name) for name in ATTRIBUTES if name in names}


def satisfies(product: Product, attributes: Mapping[str, str]) -> bool:
    """Whether a product has every stated attribute (attribute -> value)."""
    return all(product.value(name) == value for name, value in attributes.items())


def vocabulary() -> tuple[str, ...]:
    """All words that captions are made of, sorted; hyphenated words are one word."""
    texts = [*_TEMPLATES, *(w for values in WORDS.values() for words in values.values() for w in words)]
    bare = re.sub(r"\{\w+\}", " ", " ".join(texts))
    return tuple(sorted({*re.findall(r"[a-z]+(?:-[a-z]+)*", bare), "an"}))
