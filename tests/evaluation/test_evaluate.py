from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clip_faiss import ClipFaissIndex
from lad_rerank import LADReranker
from lad_rerank.calibration.making import make_calibration
from lad_rerank.calibration.record import Calibration
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.errors import CalibrationMismatchError, EvaluationSetError, InvalidRequestError, OverlapError
from lad_rerank.evaluation.calibrating import calibration_for
from lad_rerank.evaluation.disjoint import check_disjoint
from lad_rerank.evaluation.evaluate import Report, evaluate, one_pass_rows, rescore, row_names
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.prepared import (
    Prepared,
    Wanted,
    prepare_index,
    prepare_set,
    prepare_shop,
    prepare_titled,
)
from lad_rerank.evaluation.reports import RowReport, SliceReport, to_document
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet, with_unanswerable
from lad_rerank.evaluation.stored import load_observations
from lad_rerank.evaluation.titled import TitledImage
from lad_rerank.evaluation.verdict import verdict
from lad_rerank.records import Candidate

FEW = Wanted(candidates=(3, 4), difficulties=("random",), instances=6, samples=2, seed=1)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare_shop(FEW)


@pytest.fixture(scope="module")
def bare(reranker: LADReranker, tmp_path_factory: pytest.TempPathFactory) -> LADReranker:
    """The bundled model with an empty store."""
    store = CalibrationStore([], tmp_path_factory.mktemp("store"))
    return LADReranker(reranker.backbone, store=store)


@pytest.fixture(scope="module")
def calibration(bare: LADReranker, prepared: Prepared) -> Calibration:
    return make_calibration(bare.backbone, prepared.samples, candidate_counts=[3, 4])


def same_numbers(a: SliceReport, b: SliceReport) -> None:
    assert [row.name for row in a.rows] == [row.name for row in b.rows]
    for one, two in zip(a.rows, b.rows, strict=True):
        assert one.to_dict() == two.to_dict()
    assert (a.set_digest, a.calibration_digest, dict(a.left_out)) == (
        b.set_digest,
        b.calibration_digest,
        dict(b.left_out),
    )


def test_an_evaluation_and_its_stored_passes_say_the_same(
    bare: LADReranker, prepared: Prepared, tmp_path: Path
) -> None:
    titles: list[str] = []

    @contextmanager
    def bars(title: str) -> Iterator[Report]:
        titles.append(title)
        yield lambda done, total: None

    path = tmp_path / "runs.safetensors"
    made = evaluate(
        bare, prepared.sets, samples=prepared.samples, orders=3, save=path, settings={"source": "shop"}, bars=bars
    )
    assert [(one.name, one.n, one.instances, one.orders) for one in made.slices] == [
        ("shop, random", 3, 6, 3),
        ("shop, random", 4, 6, 3),
    ]
    assert [row.name for row in made.slices[0].rows] == list(one_pass_rows())
    assert made.slices[0].set_digest == prepared.sets[0].digest()
    assert made.slices[0].calibration_digest is not None
    assert made.settings["source"] == "shop"
    assert "Calibrated for 3, 4 candidates on 2 samples set apart" in made.settings["calibration"]
    assert titles[0].startswith("Opening")
    assert "Calibrating" in titles
    assert titles[-1] == "Showing shop, random, 4 candidates"
    # Neither the reranker nor its store is changed.
    assert bare.calibration is None
    json.dumps(to_document(made), allow_nan=False)

    stored = load_observations(path)
    again = rescore(stored)
    for one, two in zip(made.slices, again.slices, strict=True):
        same_numbers(one, two)
    assert again.settings["identity"]["weights"] == bare.backbone.identity.weights
    some = rescore(stored, rows=["lad", "vanilla"])
    assert [row.name for row in some.slices[0].rows] == ["lad", "vanilla"]


def test_a_calibration_from_elsewhere(
    bare: LADReranker, prepared: Prepared, calibration: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "runs.safetensors"
    made = evaluate(bare, prepared.sets[:1], orders=2, save=path)
    (one,) = made.slices
    assert "There is no calibration" in made.settings["calibration"]
    assert {row.name for row in one.rows} >= {"identity", "random", "vanilla"}
    assert "lad" in one.left_out
    stored = load_observations(path)
    assert stored.calibrations == ()
    assert rescore(stored, store=CalibrationStore([], tmp_path)).slices[0].row("lad") is None
    given = rescore(stored, calibration=calibration)
    assert given.slices[0].row("lad") is not None
    kept = CalibrationStore([tmp_path / "kept"], tmp_path / "kept")
    kept.save(calibration)
    same_numbers(rescore(stored, store=kept).slices[0], given.slices[0])
    other = calibration.model_copy(update={"identity": replace(calibration.identity, labels="letters")})
    with pytest.raises(CalibrationMismatchError, match="labels"):
        rescore(stored, calibration=other)


def test_what_is_known_of_a_calibration_is_told(
    reranker: LADReranker, prepared: Prepared, calibration: Calibration
) -> None:
    known = LADReranker(reranker.backbone, calibration=calibration)
    used = calibration_for(known, prepared.sets, prepared.samples)
    assert used.calibration == calibration
    assert "made of the samples set apart here" in used.told
    other = prepare_shop(replace(FEW, seed=2))
    unknown = calibration_for(known, prepared.sets, other.samples)
    assert unknown.calibration == calibration
    assert "may have seen what is evaluated" in unknown.told
    again = calibration_for(known, prepared.sets, other.samples, recalibrate=True)
    assert again.calibration is not None
    assert again.calibration.counts[3].sample_digest != calibration.counts[3].sample_digest
    only = LADReranker(
        reranker.backbone, calibration=calibration.model_copy(update={"counts": {3: calibration.counts[3]}})
    )
    rest = calibration_for(only, prepared.sets, prepared.samples)
    assert rest.calibration is not None
    assert rest.calibration.covers == (3, 4)
    assert "Calibrated for 4 candidates" in rest.told
    assert "It does not cover 4." in calibration_for(only, prepared.sets).told


def test_what_must_not_be(bare: LADReranker, prepared: Prepared) -> None:
    overlapping = prepare_set(prepared.sets[0], replace(FEW, samples=1)).samples
    with pytest.raises(OverlapError):
        evaluate(bare, prepared.sets, samples=overlapping)
    with pytest.raises(InvalidRequestError, match="no samples to recalibrate"):
        evaluate(bare, prepared.sets, recalibrate=True)
    with pytest.raises(InvalidRequestError, match="one order"):
        evaluate(bare, prepared.sets, orders=0)
    with pytest.raises(InvalidRequestError, match="magic"):
        evaluate(bare, prepared.sets, rows=["lad", "magic"])
    with pytest.raises(EvaluationSetError, match="names of their own"):
        evaluate(bare, [prepared.sets[0], prepared.sets[0]])


def test_names_of_rows() -> None:
    assert row_names() == row_names("one-pass") == one_pass_rows()
    assert set(row_names("all")) > set(one_pass_rows())
    assert row_names(["lad", "vanilla", "lad"]) == ("lad", "vanilla")
    assert row_names("identity") == ("identity",)
    with pytest.raises(InvalidRequestError, match="none given"):
        row_names([])


def test_titled_images_are_evaluated_apart_from_samples(titled: list[TitledImage], index: ClipFaissIndex) -> None:
    wanted = Wanted(candidates=(3, 5), difficulties=("random", "adversarial"), instances=8, samples=4)
    made = prepare_index(index, wanted)
    assert [(one.name, one.counts, len(one)) for one in made.sets] == [
        ("random", (3,), 8),
        ("random", (5,), 8),
        ("adversarial", (3,), 8),
        ("adversarial", (5,), 8),
    ]
    assert [len(sample.candidates) for sample in made.samples] == [5] * 4
    for one in made.sets:
        check_disjoint(made.samples, one)
    plain = prepare_titled(titled, replace(wanted, difficulties=("random",)))
    assert [one.counts for one in plain.sets] == [(3,), (5,)]
    # The same titles are set apart, whether they come from a folder or from an index of it.
    assert {s.query for s in plain.samples} == {s.query for s in made.samples}
    assert prepare_titled(titled, replace(wanted, difficulties=("random",), samples=0)).samples == ()
    with pytest.raises(EvaluationSetError, match="too few"):
        prepare_titled(titled[:5], wanted)


def test_end_to_end_is_apart_from_samples(index: ClipFaissIndex) -> None:
    made = prepare_index(index, Wanted(instances=10, samples=3), end_to_end=4)
    (one,) = made.sets
    assert one.name == "end to end"
    assert len(made.samples[0].candidates) == 4
    check_disjoint(made.samples, one)


def test_an_index_without_titles_says_so(pictures: Path) -> None:
    files = [str(path) for path in sorted(pictures.iterdir())[:3]]
    numbers = ClipFaissIndex.build(files, ids=["1", "2", "3"], progress=False)
    with pytest.raises(EvaluationSetError, match="0 of 3 images of the index have a title"):
        prepare_index(numbers, FEW)


def test_half_without_an_answer(bare: LADReranker, calibration: Calibration, prepared: Prepared) -> None:
    more = prepared.with_unanswerable()
    assert [one.counts for one in more.sets] == [(3,), (4,), (2,), (3,)]
    mixed = more.sets[3]
    assert sorted(item.target is None for item in mixed.items) == [False] * 3 + [True] * 3
    assert with_unanswerable(prepared.sets[1]).digest() == mixed.digest()
    whole = {item.id: item for item in prepared.sets[1].items}
    for item in mixed.items:
        before = whole[item.id]
        assert before.target is not None
        right = before.candidates[before.target]
        assert (right in item.candidates) == (item.target is not None)
        if item.target is not None:
            assert item.candidates[item.target] is right
    known = LADReranker(bare.backbone, calibration=calibration)
    (one,) = evaluate(known, [mixed], orders=2, rows=["lad"]).slices
    assert one.unanswerable == 3
    row = one.row("lad")
    assert row is not None
    assert row.none_auroc is not None
    assert one.confidence is not None
    assert 0 <= one.confidence.absent_unsure <= 1
    assert to_document(evaluate(known, [mixed], orders=1, rows=["lad"]))["slices"][0]["confidence"].keys() == {
        "auroc",
        "present_confident",
        "absent_unsure",
    }
    two = replace(prepared.sets[0], items=prepared.sets[0].items[:1])
    with pytest.raises(EvaluationSetError, match="1 items"):
        with_unanswerable(two)


def captions(*texts: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(text=text) for text in texts)


def test_kinds_of_candidates_are_told_apart(
    reranker: LADReranker, prepared: Prepared, calibration: Calibration
) -> None:
    shown = captions("a red mug", "a blue kite", "a green hat")
    texts = EvaluationSet("texts", (EvaluationItem("a", "a mug", shown, 0), EvaluationItem("b", "a kite", shown, 1)))
    samples = [
        CalibrationSample(f"the {word}", captions(f"a {word}", f"a {word} lamp", f"no {word}"), i % 3)
        for i, word in enumerate(("boot", "vase"))
    ]
    assert (texts.kind, prepared.sets[0].kind) == ("text", "image")
    known = LADReranker(reranker.backbone, calibration=calibration, store=CalibrationStore([], Path("none")))
    made = evaluate(known, [prepared.sets[0], texts], samples=[*prepared.samples, *samples], orders=2)
    images, words = made.slices
    assert images.row("lad") is not None
    assert words.row("lad") is not None
    assert images.calibration_digest != words.calibration_digest
    assert "stored calibration" in made.settings["calibration"]
    assert "Calibrated for 3 candidates on 2 samples" in made.settings["calibration"]
    # An image calibration is never used for texts.
    only = evaluate(known, [texts], samples=prepared.samples, orders=1)
    assert only.slices[0].row("lad") is None
    both = EvaluationSet("both", (*texts.items, *prepared.sets[0].items))
    with pytest.raises(EvaluationSetError, match="side by side"):
        evaluate(known, [both])


def test_photos_over_the_memory_are_seen_all_the_same(bare: LADReranker, prepared: Prepared) -> None:
    small = evaluate(bare, prepared.sets[:1], orders=1, rows=["vanilla"], opener=CandidateOpener(max_bytes=0))
    large = evaluate(bare, prepared.sets[:1], orders=1, rows=["vanilla"])
    assert small.slices[0].rows[0].accuracy == large.slices[0].rows[0].accuracy
    assert small.slices[0].set_digest == large.slices[0].set_digest


def report(name: str, recall: tuple[float | None, ...], consistency: float | None) -> RowReport:
    shares = [share for share in recall if share is not None]
    return RowReport(
        name=name,
        accuracy=float(np.mean(shares)),
        accuracy_interval=None,
        accuracy_std=None,
        recall_std=float(100 * np.std(shares, ddof=1)),
        consistency=consistency,
        consistency_interval=None,
        top1_agreement=None,
        kendall_tau=None,
        recall_at={},
        mrr=None,
        ndcg_at={},
        ece=None,
        recall_by_position=recall,
        confusion=None,
        passes=1.0,
        seconds=None,
        peak_bytes=None,
        no_answer=0.0,
        not_retrieved=0.0,
        none_auroc=None,
    )


def test_the_verdict_is_in_words() -> None:
    vanilla = report("vanilla", (1.0, 0.5, 0.25, None), 0.2)
    one = SliceReport("shop", 4, 10, 5, 0, 0, "a", "b", (vanilla, report("lad", (0.96, 0.94, 0.95, None), 0.9)))
    assert verdict(one) == (
        "shop, 4 candidates: as it is, the model's first choice is right in 58 % (chance: 25 %), 100 % where the right "
        "one stands at position 1 and 25 % at position 3 (RStd 38.2), and the same in all 5 orders for 20 % of the "
        "queries. With lad, from the same single pass, it is right in 95 % wherever the right one stands (94 to 96 %, "
        "RStd 1.0), and the same in all 5 orders for 90 % of the queries."
    )
    assert str(verdict(replace(one, rows=(vanilla,)))).endswith("is not known: there is no calibration.")
    assert verdict(replace(one, rows=())) is None
