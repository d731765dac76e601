from __future__ import annotations

import math

import numpy as np
import pytest

from lad_rerank import LADReranker
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.contents import Content
from lad_rerank.evaluation import metrics
from lad_rerank.evaluation.measuring import row_report, slice_report
from lad_rerank.evaluation.orders import Instance
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import chance, identity, stored_rows
from tests.evaluation.observed import ORDERS, QUERIES, N, shop_instances, shop_runs

TEXTS = [Content.of(text=t) for t in ("a", "b", "c")]


def instance(*relevant: int, retrieved: bool = True) -> Instance:
    return Instance.of("q", TEXTS, relevant, retrieved=retrieved)


def test_a_row_by_hand() -> None:
    """Two orders of three queries; the second query's answer changes with the order."""
    instances = [instance(0), instance(1), instance(2)]
    row = RowResult(
        "by hand",
        [[(0, 1, 2), (1, 0, 2), (0, 2, 1)], [(0, 2, 1), (2, 1, 0), (0, 2, 1)]],
        [[(0.8, 0.1, 0.1), (0.2, 0.6, 0.2), (0.9, 0.0, 0.1)], [(0.8, 0.1, 0.1), (0.1, 0.2, 0.7), (0.9, 0.0, 0.1)]],
        passes=2.0,
        seconds=0.5,
        peak_bytes=7,
    )
    shown = [[(0, 1, 2), (0, 1, 2), (0, 1, 2)], [(2, 1, 0), (2, 1, 0), (2, 1, 0)]]
    report = row_report(row, instances, shown)
    assert report.accuracy == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert report.accuracy_std == pytest.approx(np.std([2 / 3, 1 / 3], ddof=1))
    assert report.accuracy_interval == metrics.bootstrap_interval([1, 0.5, 0])
    assert report.consistency == pytest.approx(2 / 3)
    assert report.consistency_interval == metrics.bootstrap_interval([1, 0, 1])
    assert report.top1_agreement == pytest.approx(2 / 3)
    # One swapped pair of three; two of three; none.
    assert report.kendall_tau == pytest.approx((1 / 3 - 1 / 3 + 1) / 3)
    assert report.recall_at == pytest.approx({1: 0.5, 3: 1.0, 5: 1.0})
    assert report.mrr == pytest.approx((1 + 1 + 0.5 + 1 + 0.5 + 0.5) / 6)
    assert report.ndcg_at[5] == pytest.approx((3 + 3 / math.log2(3)) / 6)
    assert report.ece == pytest.approx(metrics.calibration_error([0.8, 0.6, 0.9, 0.8, 0.7, 0.9], [1, 1, 0, 1, 0, 0]))
    # Targets at 0 in (q0, order 0) and (q2, order 1), at 1 twice, at 2 in (q2, order 0) and (q0, order 1).
    assert report.confusion == ((0.5, 0.0, 0.5), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5))
    assert report.recall_by_position == (0.5, 0.5, 0.5)
    assert report.recall_std == 0.0
    assert (report.passes, report.seconds, report.peak_bytes) == (2.0, 0.5, 7)
    assert (report.no_answer, report.not_retrieved, report.none_auroc) == (0.0, 0.0, None)


def test_what_was_not_retrieved_is_a_miss_and_what_has_no_answer_is_not_counted() -> None:
    instances = [instance(0), instance(retrieved=False), instance()]
    sure = (0.8, 0.1, 0.1)
    row = RowResult("row", [[(0, 1, 2)] * 3], [[sure, sure, (0.5, 0.3, 0.2)]])
    report = row_report(row, instances)
    assert report.accuracy == report.mrr == report.recall_at[5] == report.ndcg_at[10] == 0.5
    assert report.not_retrieved == 0.5
    assert report.none_auroc == 1.0
    whole = slice_report("end to end", instances, [row], set_digest="d")
    assert (whole.not_retrieved, whole.unanswerable, whole.instances, whole.orders, whole.n) == (1, 1, 3, 1, 3)


def test_one_order_says_nothing_of_orders() -> None:
    report = row_report(RowResult("row", [[(0, 1, 2)]]), [instance(0)])
    assert report.accuracy == 1.0
    assert (report.accuracy_std, report.consistency, report.consistency_interval) == (None, None, None)
    assert (report.kendall_tau, report.top1_agreement, report.ece) == (None, None, None)
    assert (report.confusion, report.recall_by_position, report.recall_std) == (None, None, None)


def test_a_method_that_only_chooses_has_no_ranking_metrics() -> None:
    instances = [instance(0), instance(1)]
    report = row_report(RowResult("generated", [[(0,), ()], [(0,), (1,)]]), instances, [[(0, 1, 2)] * 2] * 2)
    assert report.accuracy == report.recall_at[1] == 0.75
    assert (report.recall_at[3], report.mrr, report.ndcg_at[10], report.kendall_tau) == (None, None, None, None)
    assert (report.consistency, report.no_answer) == (0.5, 0.25)
    # A target without an answer is missed, and chosen nowhere.
    assert report.confusion == ((1.0, 0.0, 0.0), (0.0, 0.5, 0.0), (None, None, None))


def test_nothing_to_count() -> None:
    report = row_report(RowResult("row", [[(0, 1, 2)], [(0, 1, 2)]]), [instance()])
    assert (report.accuracy, report.accuracy_interval, report.mrr, report.consistency) == (None, None, None, None)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="'row'"):
        row_report(RowResult("row", [[(0, 1, 2)]]), [instance(0), instance(1)])


def test_chance_and_first_stage() -> None:
    rng = np.random.default_rng(0)
    instances = [instance(int(rng.integers(3))) for _ in range(400)]
    report = row_report(chance(instances, 5), instances)
    assert report.accuracy == pytest.approx(1 / 3, abs=0.04)
    assert report.kendall_tau == pytest.approx(0, abs=0.04)
    assert report.consistency == pytest.approx(3**-4, abs=0.02)
    first = row_report(identity(instances, 5), instances, [[(0, 1, 2)] * 400] * 5)
    assert (first.consistency, first.kendall_tau, first.accuracy_std, first.confusion) == (1.0, 1.0, 0.0, None)


def test_a_real_set(reranker: LADReranker, backbone: HuggingFaceBackbone) -> None:
    observed, instances = shop_runs(backbone), shop_instances()
    made = stored_rows(observed, instances, reranker.calibration, methods=["vanilla", "lad"])
    report = slice_report(
        "shop", instances, made.rows, set_digest="d", shown=observed.shown, left_out={"other": "It needs more."}
    )
    assert (report.n, report.instances, report.orders, report.not_retrieved) == (N, QUERIES, ORDERS, 0)
    assert [row.name for row in report.rows] == ["identity", "random", "vanilla", "lad"]
    lad = report.row("lad")
    assert lad is report.ours
    assert lad is not None
    # The bundled model was taught on lists of four.
    assert lad.accuracy is not None
    assert lad.accuracy > 0.8
    assert lad.confusion is not None
    assert [sum(share or 0.0 for share in line) for line in lad.confusion] == pytest.approx([1.0] * N)
    assert report.row("nothing") is None


def test_rows_over_other_orders_have_no_figures_by_position() -> None:
    instances = [instance(0), instance(1)]
    rows = [RowResult("two", [[(0, 1, 2)] * 2] * 2), RowResult("one", [[(0, 1, 2)] * 2])]
    two, one = slice_report("set", instances, rows, set_digest="d", shown=[[(0, 1, 2)] * 2] * 2).rows
    assert two.confusion is not None
    assert one.confusion is None
