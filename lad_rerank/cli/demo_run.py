"""What the demo does, apart from how it is shown: shop, first stage, one pass per order, scores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from lad_rerank.bundled import shop
from lad_rerank.cli.demo_result import FIRST_STAGE, Choice, DemoResult, DemoSettings, MethodResult, QueryResult
from lad_rerank.cli.models import load_reranker
from lad_rerank.cli.progress import Bar
from lad_rerank.debias.scoring import listwise_probabilities, score
from lad_rerank.evaluation.metrics import reciprocal_rank
from lad_rerank.evaluation.orders import Instance, ShownObservation, observe_orders, order_report, rankings
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from clip_faiss import ClipFaissIndex, Hit
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.reranker import LADReranker

RERANKED = ("vanilla", "lad")


@dataclass(frozen=True)
class Query:
    """A caption that names some attributes, and what it asks for (attribute -> value)."""

    text: str
    wanted: Mapping[str, str]


def run_demo(settings: DemoSettings, bar: Bar) -> DemoResult:
    """Index the shop, search it, show what was found to the model, score what it saw.

    Args:
        settings: What to run.
        bar: Shows progress.

    Raises:
        CalibrationMissingError: The calibration that ships with the package is not there.
        FirstStageError: The encoder that ships with the package cannot be loaded.
        ImportError: The extra ``index`` is missing.
    """
    started = time.perf_counter()
    with _one_thread():
        return _run_demo(settings, bar, started)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch in one thread: models as small as these lose far more by sharing the work than they gain."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_demo(settings: DemoSettings, bar: Bar, started: float) -> DemoResult:
    items = shop.catalogue(settings.products, settings.seed, "held_out")
    queries = draw_queries(items, settings.queries, settings.seed, settings.candidates)
    index = _index(items, bar)
    searched = time.perf_counter()
    found = index.search_many([query.text for query in queries], settings.candidates)
    search_seconds = (time.perf_counter() - searched) / len(queries)

    reranker = load_reranker("bundled")
    calibration = _calibration(reranker, len(found[0]))
    instances = [
        Instance(
            query.text,
            [items[hit.row].image() for hit in hits],
            frozenset(i for i, hit in enumerate(hits) if shop.satisfies(items[hit.row].product, query.wanted)),
        )
        for query, hits in zip(queries, found, strict=True)
    ]
    observed = time.perf_counter()
    with bar("Reranking, one pass each") as progress:
        runs = observe_orders(
            reranker.backbone, instances, orders=settings.orders, seed=settings.seed, progress=progress
        )
    rerank_seconds = (time.perf_counter() - observed) / (settings.orders * len(queries))
    orders = {method: [rankings(run, calibration, method) for run in runs] for method in RERANKED}
    return DemoResult(
        settings=settings,
        methods=(
            _first_stage_result(instances),
            *(_method_result(method, runs, orders[method], instances, calibration) for method in RERANKED),
        ),
        queries=tuple(
            _query_result(
                instances[q],
                [items[hit.row] for hit in found[q]],
                found[q],
                runs[0][q],
                {method: orders[method][0][q] for method in RERANKED},
                calibration,
            )
            for q in range(len(queries))
        ),
        search_seconds=search_seconds,
        rerank_seconds=rerank_seconds,
        seconds=time.perf_counter() - started,
    )


def draw_queries(items: Sequence[shop.Item], count: int, seed: int, near: int = 8) -> list[Query]:
    """Captions of products in the shop that are hard to answer: they name some attributes, and many nearly fit.

    Whether a query is hard is a matter of the shop alone and not of any model: one product is right, and at
    least ``near`` others miss exactly one of the attributes it states. A shop too small for enough of those
    is asked what it allows.

    Args:
        items: The shop.
        count: How many queries.
        seed: Chooses products, attributes and wordings.
        near: How many products must nearly fit.
    """
    rng = Random(f"demo queries {seed}")
    hard: list[Query] = []
    easy: list[Query] = []
    for _ in range(50 * count):
        if len(hard) == count:
            break
        item = rng.choice(items)
        attributes = shop.random_attributes(rng.getrandbits(32))
        query = Query(
            shop.caption(item.product, rng.getrandbits(32), attributes), shop.wanted(item.product, attributes)
        )
        missed = [sum(other.product.value(a) != v for a, v in query.wanted.items()) for other in items]
        (hard if missed.count(0) == 1 and missed.count(1) >= near else easy).append(query)
    return [*hard, *easy][:count]


def _index(items: Sequence[shop.Item], bar: Bar) -> ClipFaissIndex:
    from clip_faiss import ClipFaissIndex

    with bar("Drawing products") as progress:
        candidates = []
        for done, item in enumerate(items, start=1):
            candidates.append(Candidate(image=item.image(), id=item.id))
            progress(done, len(items))
    with bar("Encoding products") as progress:
        return ClipFaissIndex.build(candidates, progress=progress)


def _calibration(reranker: LADReranker, n: int) -> Calibration:
    calibration = reranker.calibration
    if calibration is None or n not in calibration.counts:
        raise reranker.store.missing(reranker.backbone.identity, reranker.model, n)
    return calibration


def _first_stage_result(instances: Sequence[Instance]) -> MethodResult:
    reciprocal = [reciprocal_rank(range(len(i.images)), i.relevant) for i in instances]
    right = [0 in i.relevant for i in instances]
    return MethodResult(FIRST_STAGE, float(np.mean(right)), float(np.mean(reciprocal)), None, None)


def _method_result(
    method: str,
    runs: Sequence[Sequence[ShownObservation]],
    orders: Sequence[Sequence[Sequence[int]]],
    instances: Sequence[Instance],
    calibration: Calibration,
) -> MethodResult:
    report = order_report(runs, instances, calibration, method)
    chosen = [
        seen.shown.index(ranked[0])
        for run, order in zip(runs, orders, strict=True)
        for seen, ranked in zip(run, order, strict=True)
    ]
    shares = np.bincount(chosen, minlength=runs[0][0].observation.n) / len(chosen)
    return MethodResult(method, report.accuracy, report.mrr, report.consistency, tuple(shares.tolist()))


def _query_result(
    instance: Instance,
    items: Sequence[shop.Item],
    hits: Sequence[Hit],
    seen: ShownObservation,
    orders: Mapping[str, Sequence[int]],
    calibration: Calibration,
) -> QueryResult:
    scores = score(seen.observation, calibration.position_bias(seen.observation.n), "lad")
    assert scores.posterior is not None
    probabilities = listwise_probabilities(scores.log_scores)
    choices = []
    for i, (item, hit) in enumerate(zip(items, hits, strict=True)):
        position = seen.shown.index(i)
        choices.append(
            Choice(
                id=item.id,
                title=item.title,
                image=instance.images[i],
                right=i in instance.relevant,
                similarity=hit.score,
                position=position + 1,
                label_probability=float(np.exp(seen.observation.log_probs[position])),
                evidence=float(scores.posterior[position]),
                score=float(probabilities[position]),
            )
        )
    ranked = {FIRST_STAGE: tuple(range(len(choices))), **{m: tuple(order) for m, order in orders.items()}}
    return QueryResult(instance.query, tuple(choices), ranked)
