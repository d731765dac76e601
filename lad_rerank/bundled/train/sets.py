"""Training sets for the language model: which pictures stand together, and what is asked about them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from lad_rerank.bundled.shop import (
    ATTRIBUTES,
    VALUES,
    Product,
    caption,
    random_attributes,
    satisfies,
    wanted,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNSTATED = 0
"""Class of an attribute that a caption does not name; value i of an attribute is class i + 1."""


@dataclass(frozen=True)
class Question:
    """One caption about a set.

    Attributes:
        caption: What is asked.
        right: Whether each picture satisfies it; at least one does.
        stated: (5,) class of each attribute in the caption, :data:`UNSTATED` where it is not named.
    """

    caption: str
    right: tuple[bool, ...]
    stated: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSet:
    """Rows of the pictures in the order shown, and the questions about them."""

    rows: tuple[int, ...]
    questions: tuple[Question, ...]


class SetMaker:
    """Draws training sets from rendered pictures.

    Half of the sets are hard: all other products differ from one of them in one or two attributes, so
    that twins in all but the background or the logo stand side by side, as in what a retriever returns.

    Args:
        labels: (images, 5) attribute indices of the pictures.
    """

    def __init__(self, labels: NDArray[np.int64]) -> None:
        self._rows: dict[tuple[int, ...], list[int]] = {}
        for row, key in enumerate(map(tuple, labels.tolist())):
            self._rows.setdefault(key, []).append(row)
        self._keys = list(self._rows)

    def draw(self, rng: Random, n: int, questions: int) -> TrainingSet:
        """Draw a set of n different products and some questions about it."""
        keys = self._hard(rng, n) if rng.random() < 0.5 else rng.sample(self._keys, n)
        rng.shuffle(keys)
        products = [Product(**{name: VALUES[name][i] for name, i in zip(ATTRIBUTES, key, strict=True)}) for key in keys]
        asked = tuple(self._question(rng, products) for _ in range(questions))
        return TrainingSet(tuple(rng.choice(self._rows[key]) for key in keys), asked)

    def _hard(self, rng: Random, n: int) -> list[tuple[int, ...]]:
        centre = rng.choice(self._keys)
        found = [centre]
        for _ in range(1000 * n):
            if len(found) == n:
                break
            key = list(centre)
            for i in rng.sample(range(len(ATTRIBUTES)), rng.choice((1, 2))):
                key[i] = rng.randrange(len(VALUES[ATTRIBUTES[i]]))
            other = tuple(key)
            if other in self._rows and other not in found:
                found.append(other)
        else:  # few pictures, as in a test
            found += rng.sample([key for key in self._keys if key not in found], n - len(found))
        return found

    def _question(self, rng: Random, products: list[Product]) -> Question:
        target = rng.choice(products)
        names = list(ATTRIBUTES) if rng.random() < 0.4 else list(random_attributes(rng.getrandbits(32)))
        only_one = rng.random() < 0.6
        missing = [name for name in ATTRIBUTES if name not in names]
        rng.shuffle(missing)
        while True:
            asks = wanted(target, names)
            right = tuple(satisfies(product, asks) for product in products)
            if sum(right) == 1 or not missing or not only_one:
                break
            names.append(missing.pop())
        stated = tuple(VALUES[name].index(asks[name]) + 1 if name in asks else UNSTATED for name in ATTRIBUTES)
        return Question(caption(target, rng.getrandbits(32), names), right, stated)
