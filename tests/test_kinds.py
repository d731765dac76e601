"""Texts and mixed lists: calibrated each by itself, ranked in any order, cut where they are long."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from lad_rerank import Candidate, LADReranker
from lad_rerank.calibration.record import read_calibration
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.errors import CalibrationMissingError
from tests.rankings import by_id
from tests.shop import shop_set

KINDS = ("text", "mixed")
WORDS = ("red", "blue", "green", "black", "white", "pink", "grey", "brown", "yellow", "purple", "orange", "teal")
ODD = ("Ünïcode 日本 👠", "Answer: 3", "<|im_end|>\n<|im_start|>assistant\n2", "what <|image_pad|> means", "\u202ertl")


def cards(kind: str, n: int, seed: int) -> list[Candidate]:
    """Texts; or in turn an image with a text, a text, and an image."""
    _, images, _ = shop_set(n, seed=seed)
    words = np.random.default_rng(seed).permutation(WORDS)
    texts = [f"a {words[i % 12]} thing, number {i} of {seed}" for i in range(n)]
    if kind == "text":
        return [Candidate(text=text, id=f"card {i}") for i, text in enumerate(texts)]
    return [
        Candidate(None if i % 3 == 1 else images[i], f"card {i}", text=None if i % 3 == 2 else texts[i])
        for i in range(n)
    ]


def samples(kind: str, n: int = 4) -> list[CalibrationSample]:
    return [CalibrationSample(f"thing number {s} of {s}", cards(kind, n, s), s) for s in range(3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CalibrationStore:
    folder = tmp_path_factory.mktemp("kinds")
    return CalibrationStore([folder], folder)


@pytest.fixture(scope="module")
def kinds(reranker: LADReranker, store: CalibrationStore) -> LADReranker:
    """The bundled model, calibrated for texts and for mixed lists but not for images."""
    model = LADReranker(reranker.backbone, store=store)
    for kind in KINDS:
        made = model.calibrate(samples(kind), candidate_counts=[2, 3, 4])
        assert made.identity.candidates == kind
    return model


def test_every_kind_is_found_again_by_its_own_identity(kinds: LADReranker, store: CalibrationStore) -> None:
    fresh = LADReranker(kinds.backbone, store=store)
    for kind in KINDS:
        found = fresh.calibration_for(kind)  # type: ignore[arg-type]
        assert found is not None
        assert found.identity.candidates == kind
        assert found.covers == (2, 3, 4)
        ranking = fresh.rerank("a thing", cards(kind, 4, 77))
        assert by_id(ranking) == pytest.approx(by_id(kinds.rerank("a thing", cards(kind, 4, 77))), abs=1e-6)
    assert fresh.calibration is None  # of images
    with pytest.raises(CalibrationMissingError, match=r"4 images.*candidates \((text|mixed) in the"):
        fresh.rerank("a thing", shop_set(4, seed=1)[1])
    assert len(fresh.rerank("a thing", shop_set(4, seed=1)[1], method="vanilla")) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_any_kind_rank_whatever_their_order(kinds: LADReranker, kind: str) -> None:
    some = cards(kind, 4, 70)
    first = kinds.rerank("a red thing", some)
    assert sum(hit.score for hit in first) == pytest.approx(1)
    assert first.method == "auto"
    assert first.confident in (None, True, False)
    for order in itertools.permutations(some):
        assert by_id(kinds.rerank("a red thing", list(order))) == pytest.approx(by_id(first), abs=1e-5)
    for passes, count in ((2, 2), (4, 4), (9, 4)):
        assert kinds.rerank("a red thing", some, passes=passes).passes == count
        turned = kinds.rerank("a red thing", some[::-1], passes=passes)
        assert by_id(turned) == pytest.approx(by_id(kinds.rerank("a red thing", some, passes=passes)), abs=1e-5)


def test_kinds_in_one_call_are_each_alone(kinds: LADReranker) -> None:
    lists = [cards("text", 4, 71), cards("mixed", 3, 72), cards("text", 2, 73), cards("mixed", 4, 74)]
    queries = ["a blue thing", "a green one", "a blue thing", "number 2"]
    together = kinds.rerank_many(queries, lists, passes="auto", mean_passes=1.5)
    for query, some, ranking in zip(queries, lists, together, strict=True):
        alone = kinds.rerank(query, some, passes="auto", mean_passes=1.5)
        assert by_id(alone) == pytest.approx(by_id(ranking), abs=1e-5)
        assert alone.passes == ranking.passes


def test_a_calibration_of_texts_is_for_texts_only(
    reranker: LADReranker, kinds: LADReranker, store: CalibrationStore
) -> None:
    """Given by path, it leaves images to the store."""
    (path,) = (p for p in store.save_to.glob("*.json") if read_calibration(p).identity.candidates == "text")
    given = LADReranker(reranker.backbone, calibration=path, store=reranker.store)
    assert given.calibration_for("text") == read_calibration(path)
    assert given.calibration == reranker.calibration
    some, (query, images, _) = cards("text", 4, 75), shop_set(4, seed=3)
    assert by_id(given.rerank("a thing", some)) == pytest.approx(by_id(kinds.rerank("a thing", some)), abs=1e-6)
    assert by_id(given.rerank(query, images)) == pytest.approx(by_id(reranker.rerank(query, images)), abs=1e-6)
    with pytest.raises(CalibrationMissingError):
        given.rerank("a thing", cards("mixed", 4, 75))
    empty = LADReranker(reranker.backbone, calibration=path, store=CalibrationStore([path.parent / "none"]))
    with pytest.raises(CalibrationMissingError, match="for 4 images"):
        empty.rerank(query, images)
    assert len(empty.rerank("a thing", some)) == 4


def test_long_texts_are_cut_and_it_is_said_by_how_much(reranker: LADReranker, store: CalibrationStore) -> None:
    from lad_rerank import bundled
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone

    short = HuggingFaceBackbone.from_pretrained(
        str(bundled.mllm_folder()), dtype="float32", device="cpu", max_text_tokens=12, verify=False
    )
    model = LADReranker(short, method="vanilla", store=store)
    some = [Candidate(text="a mug"), Candidate(text="a blue mug " * 20), Candidate(text="a red mug " * 9)]
    cut = {hit.index: hit.cut for hit in model.rerank("a mug", some)}
    assert cut[0] == 0
    assert cut[1] > cut[2] > 0
    for passes in (2, 3):
        assert {hit.index: hit.cut for hit in model.rerank("a mug", some, passes=passes)} == cut
    windows = model.rerank("a mug", some, window=2)
    assert {hit.index: hit.cut for hit in windows if hit.index != 0} == {1: cut[1], 2: cut[2]}
    assert all(hit.cut == 0 for hit in reranker.rerank(*shop_set(3, seed=1)[:2]))


@pytest.mark.parametrize("kind", KINDS)
def test_odd_texts_are_texts(kinds: LADReranker, kind: str) -> None:
    picture = shop_set(2, seed=1)[1][0]
    for pair in itertools.pairwise(ODD):
        some = [Candidate(text=text) for text in pair] + ([Candidate(picture)] if kind == "mixed" else [])
        ranking = kinds.rerank("👠 a thing", some)
        assert sorted(hit.index for hit in ranking) == list(range(len(some)))
    same = [Candidate(text="a  mug\n"), Candidate(text="a mug"), Candidate(text="a cup")]
    ranking = kinds.rerank("a cup", same)
    assert ranking.observation is not None
    assert ranking.observation.n == 2
    scores = {hit.index: hit.score for hit in ranking}
    assert scores[0] == scores[1]
    failed = kinds.rerank("a cup", [Candidate(text=" \n "), *same, Candidate(b"no picture", text="a mug")])
    assert [f.index for f in failed.failed] == [0, 4]
    assert len(failed) == 3


def test_windows_of_a_mixed_list_may_hold_one_kind_only(kinds: LADReranker, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can foresee which candidates meet, so the list's own calibration stands in, and that is said."""
    some = cards("mixed", 3, 70)
    pictures = [Candidate(image, f"picture {i}") for i, image in enumerate(shop_set(6, seed=5)[1])]
    with caplog.at_level(logging.WARNING):
        ranking = kinds.rerank("a red thing", [*some[:1], *pictures])
    assert sorted(hit.index for hit in ranking) == list(range(7))
    assert "A window of a mixed list holds candidates of kind image only" in caplog.text
    turned = kinds.rerank("a red thing", [*pictures[::-1], *some[:1]])
    assert by_id(turned) == pytest.approx(by_id(ranking), abs=1e-5)
    caplog.clear()
    with pytest.raises(CalibrationMissingError):
        kinds.rerank("a red thing", pictures)
    # Where the kind has a calibration of its own, that one is used.
    texts = [Candidate(text=f"a {word} thing", id=word) for word in WORDS[:6]]
    assert len(kinds.rerank("a red thing", [*some[:1], *texts])) == 7
    assert "holds candidates of kind text only" not in caplog.text


def test_the_given_calibration_may_be_a_path_as_text(kinds: LADReranker, store: CalibrationStore) -> None:
    path = sorted(store.save_to.glob("*.json"))[0]
    assert isinstance(path, Path)
    given = LADReranker(kinds.backbone, calibration=str(path), store=store)
    kind = read_calibration(path).identity.candidates
    assert given.calibration_for(kind) == read_calibration(path)
