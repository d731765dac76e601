"""Instances of shop pictures, observed once by the bundled model for all tests here."""

from __future__ import annotations

from functools import cache

from lad_rerank.backbones.base import Backbone
from lad_rerank.evaluation.orders import Instance, ObservedRuns, observe_orders, observe_shown
from lad_rerank.evaluation.permutations import arranged, williams_orders
from tests.shop import shop_set

N = 4
QUERIES = 6
ORDERS = 3


@cache
def shop_instances() -> tuple[Instance, ...]:
    """Six queries over four products each."""
    instances = []
    for seed in range(QUERIES):
        query, images, target = shop_set(N, seed)
        instances.append(Instance.of(query, images, {target}, id=f"shop-{seed}"))
    return tuple(instances)


@cache
def shop_runs(backbone: Backbone) -> ObservedRuns:
    """Those in three random orders."""
    return observe_orders(backbone, shop_instances(), orders=ORDERS, seed=5)


@cache
def shop_squares(backbone: Backbone) -> ObservedRuns:
    """Those in the four orders of a Williams square."""
    instances = shop_instances()
    orders = [[order] * QUERIES for order in arranged(range(N), williams_orders(N))]
    return observe_shown(backbone, instances, orders)
