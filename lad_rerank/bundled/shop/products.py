"""What the shop sells: five attributes, their values and words, and what is held out of training."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as cross
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["train", "held_out"]

ATTRIBUTES = ("kind", "colour", "pattern", "background", "logo")
"""The attributes of a product, in the order of :class:`Product`'s fields."""

WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "kind": {
        "mug": ("mug", "cup"),
        "shirt": ("shirt", "t-shirt", "tee"),
        "chair": ("chair", "seat"),
        "lamp": ("lamp", "light"),
        "handbag": ("handbag", "bag", "purse"),
        "boot": ("boot", "shoe"),
        "hat": ("hat", "sunhat"),
        "bottle": ("bottle", "flask"),
        "umbrella": ("umbrella", "parasol"),
        "cushion": ("cushion", "pillow"),
        "vase": ("vase", "urn"),
        "kite": ("kite",),
    },
    "colour": {
        "red": ("red", "scarlet"),
        "orange": ("orange", "tangerine"),
        "yellow": ("yellow", "lemon"),
        "green": ("green", "emerald"),
        "blue": ("blue", "cobalt"),
        "purple": ("purple", "violet"),
        "pink": ("pink", "rose"),
        "brown": ("brown", "chocolate"),
        "black": ("black", "ebony"),
        "white": ("white", "ivory"),
    },
    "pattern": {
        "plain": ("plain", "solid"),
        "striped": ("striped", "banded"),
        "dotted": ("dotted", "spotted"),
        "checked": ("checked", "chequered"),
        "zigzag": ("zigzag", "chevron"),
        "two-tone": ("two-tone", "half-and-half"),
    },
    "background": {
        "studio": ("in a studio", "against a grey backdrop"),
        "wood": ("on a wooden table", "on a table", "on floorboards"),
        "lawn": ("on a lawn", "on grass", "in a meadow"),
        "beach": ("on a beach", "on sand", "by the sea"),
    },
    "logo": {
        "none": ("without a logo", "with no logo"),
        "star": ("with a star logo", "with a star badge"),
        "heart": ("with a heart logo", "with a heart badge"),
    },
}
"""Attribute -> value -> how captions say it, the plainest wording first."""

VALUES: dict[str, tuple[str, ...]] = {name: tuple(words) for name, words in WORDS.items()}
"""Attribute -> its values."""


@dataclass(frozen=True)
class Product:
    """One product; the fields are values of :data:`VALUES`.

    Raises:
        ValueError: A field is no value of its attribute.
    """

    kind: str
    colour: str
    pattern: str
    background: str
    logo: str

    def __post_init__(self) -> None:
        for name in ATTRIBUTES:
            if getattr(self, name) not in WORDS[name]:
                raise ValueError(f"{getattr(self, name)!r} is no {name}; choose one of {', '.join(VALUES[name])}.")

    def value(self, attribute: str) -> str:
        """The value of one attribute by its name."""
        return str(getattr(self, attribute))

    def differs(self, other: Product) -> tuple[str, ...]:
        """Names of the attributes in which two products differ."""
        return tuple(name for name in ATTRIBUTES if self.value(name) != other.value(name))


def split(product: Product) -> Split:
    """Which side a product belongs to: about one in five (kind, colour, pattern) is held out.

    Background and logo do not matter: a held-out combination was never seen on any of them.
    """
    key = f"{product.kind}|{product.colour}|{product.pattern}".encode()
    # crc32 and not hash(): the latter differs from process to process.
    return "held_out" if zlib.crc32(key) % 5 == 0 else "train"


@lru_cache(maxsize=4)
def all_products(side: Split | None = None) -> tuple[Product, ...]:
    """Every product there is, in a fixed order, or those of one side of the split."""
    products = (Product(*values) for values in cross(*(VALUES[name] for name in ATTRIBUTES)))
    return tuple(p for p in products if side is None or split(p) == side)
