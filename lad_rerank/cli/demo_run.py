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
from lad_rerank.evaluation.measuring import row_report
from lad_rerank.evaluation.orders import Instance, ObservedRuns, ShownObservation, observe_orders
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import identity, scored
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
    instances = [_instance(query, [items[hit.row] for hit in hits]) for query, hits in zip(queries, found, strict=True)]
    with bar("Reranking, one pass each") as progress:
        observed = observe_orders(
            reranker.backbone, instances, orders=settings.orders, seed=settings.seed, progress=progress
        )
    rows = {method: scored(observed, calibration, method) for method in RERANKED}
    return DemoResult(
        settings=settings,
        methods=(
            _method_result(FIRST_STAGE, identity(instances, settings.orders), instances, None),
            *(_method_result(method, row, instances, observed) for method, row in rows.items()),
        ),
        queries=tuple(
            _query_result(
                instances[q],
                [items[hit.row] for hit in found[q]],
                found[q],
                observed.runs[0][q],
                {method: row.ranked[0][q] for method, row in rows.items()},
                calibration,
            )
            for q in range(len(queries))
        ),
        search_seconds=search_seconds,
        rerank_seconds=observed.seconds_per_pass or 0.0,
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


def _instance(query: Query, items: Sequence[shop.Item]) -> Instance:
    """What the first stage found for a query; where nothing of it is right, every method misses."""
    right = frozenset(i for i, item in enumerate(items) if shop.satisfies(item.product, query.wanted))
    return Instance.of(query.text, [item.image() for item in items], right, retrieved=bool(right))


def _method_result(
    method: str, row: RowResult, instances: Sequence[Instance], observed: ObservedRuns | None
) -> MethodResult:
    report = row_report(row, instances)
    assert report.accuracy is not None
    assert report.mrr is not None
    if observed is None:
        return MethodResult(method, report.accuracy, report.mrr, None, None)
    chosen = [
        shown.index(ranked[0])
        for order, ranking in zip(observed.shown, row.ranked, strict=True)
        for shown, ranked in zip(order, ranking, strict=True)
        if ranked
    ]
    shares = np.bincount(chosen, minlength=instances[0].n) / len(chosen)
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
    for i, (item, hit, content) in enumerate(zip(items, hits, instance.contents, strict=True)):
        assert content.image is not None
        position = seen.shown.index(i)
        choices.append(
            Choice(
                id=item.id,
                title=item.title,
                image=content.image,
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
