"""Texts, first-stage scores, passes and confidence: the bundled model with calibrations made on the spot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent
from llama_index.core.schema import ImageNode, MediaResource, MetadataMode, Node, NodeWithScore, TextNode

from lad_rerank import Candidate, LADReranker, Ranking
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.bundled.shop import CandidateSet, candidate_set
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.errors import CalibrationMissingError
from llama_index.postprocessor.lad_rerank import LADRerank
from llama_index.postprocessor.lad_rerank.candidates import Texts, candidate_of
from tests.llama_index.colours import as_base64, broken, ids, node, text

N = 4


def shop(seed: int) -> CandidateSet:
    return candidate_set(N, seed=seed, difficulty="random", side="held_out")


def records(chosen: CandidateSet, *shown: str) -> list[Candidate]:
    """Candidates that show a picture, a title, or both."""
    return [
        Candidate(
            id=str(i),
            image=item.image() if "image" in shown else None,
            text=item.title if "title" in shown else None,
        )
        for i, item in enumerate(chosen.candidates)
    ]


def image_nodes(chosen: CandidateSet) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=ImageNode(id_=str(i), image=as_base64(item.image()), text=item.title), score=0.5)
        for i, item in enumerate(chosen.candidates)
    ]


def text_nodes(chosen: CandidateSet) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(id_=str(i), text=item.title, metadata={"file_path": "shop.md"}), score=0.5)
        for i, item in enumerate(chosen.candidates)
    ]


def assert_same(hits: Sequence[NodeWithScore], ranking: Ranking) -> None:
    assert ids(hits) == [hit.id for hit in ranking]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in ranking], abs=1e-6)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> CalibrationStore:
    """A store in which not even the bundled model's own calibrations are."""
    folder: Path = tmp_path_factory.mktemp("store")
    return CalibrationStore([folder], save_to=folder)


@pytest.fixture(scope="module")
def calibrated(backbone: HuggingFaceBackbone, empty: CalibrationStore) -> LADReranker:
    """Hastily, for each kind of candidates."""
    reranker = LADReranker(backbone, store=empty)
    for shown in (["image"], ["title"], ["image", "title"]):
        samples = [CalibrationSample(c.caption, records(c, *shown), c.target) for c in map(shop, range(100, 105))]
        reranker.calibrate(samples, candidate_counts=[N], save=False)
    return reranker


def test_texts_alone_are_ranked_as_the_reranker_ranks_them(calibrated: LADReranker) -> None:
    rerank = LADRerank(N, reranker=calibrated, texts="without_picture")
    right = 0
    for chosen in map(shop, range(6)):
        hits = rerank.postprocess_nodes(text_nodes(chosen), query_str=chosen.caption)
        assert_same(hits, calibrated.rerank(chosen.caption, records(chosen, "title")))
        right += ids(hits)[0] == str(chosen.target)
    assert right > 6 / N


def test_pictures_with_texts_are_ranked_as_the_reranker_ranks_them(calibrated: LADReranker) -> None:
    rerank = LADRerank(N, reranker=calibrated, texts="always")
    chosen = shop(7)
    item = chosen.candidates[0]
    resource = Node(
        id_="0",
        image_resource=MediaResource(data=as_base64(item.image()).encode()),
        text_resource=MediaResource(text=item.title),
    )
    given = [NodeWithScore(node=resource, score=0.1), text_nodes(chosen)[1], *image_nodes(chosen)[2:]]
    shown = records(chosen, "image", "title")
    shown[1] = records(chosen, "title")[1]
    hits = rerank.postprocess_nodes(given, query_str=chosen.caption)
    assert_same(hits, calibrated.rerank(chosen.caption, shown))
    assert {type(hit.node) for hit in hits} == {ImageNode, Node, TextNode}


@pytest.mark.parametrize("texts", ["never", "without_picture", "always"])
def test_each_kind_needs_its_own_calibration(
    texts: Texts, backbone: HuggingFaceBackbone, empty: CalibrationStore
) -> None:
    rerank = LADRerank(reranker=LADReranker(backbone, store=empty), texts=texts)
    given = text_nodes(shop(1)) if texts == "without_picture" else image_nodes(shop(1))
    with pytest.raises(CalibrationMissingError, match="lad-rerank calibrate"):
        rerank.postprocess_nodes(given, query_str="a mug")


def test_long_texts_are_cut_where_the_model_is_told_to() -> None:
    given = [text("a", "a mug and then a red one"), text("b", "a mug and then a blue one"), text("c", "a cap")]
    found = {}
    for most in (4, None):
        rerank = LADRerank(method="vanilla", device="cpu", max_text_tokens=most, texts="without_picture")
        shown = [candidate_of(hit, "without_picture") for hit in given]
        found[most] = {hit.id: hit.cut > 0 for hit in rerank.reranker.rerank("a cap", shown)}
        assert len(rerank.postprocess_nodes(given, query_str="a cap")) == 3
    assert found == {4: {"a": True, "b": True, "c": False}, None: {"a": False, "b": False, "c": False}}


def test_the_retrievers_scores_count_where_calibration_learned_their_weight(
    backbone: HuggingFaceBackbone, empty: CalibrationStore
) -> None:
    """The query says nothing, and the retriever is always right."""
    samples = []
    for chosen in map(shop, range(100, 105)):
        scores = [0.9 if i == chosen.target else 0.2 for i in range(N)]
        images = [item.image() for item in chosen.candidates]
        both = [Candidate(image=i, first_stage_score=s) for i, s in zip(images, scores, strict=True)]
        samples.append(CalibrationSample("a thing", both, chosen.target))
    reranker = LADReranker(backbone, store=empty)
    reranker.calibrate(samples, candidate_counts=[N], save=False)
    rerank = LADRerank(1, reranker=reranker)
    given = image_nodes(shop(3))
    for best in range(N):
        for i, hit in enumerate(given):
            hit.score = 0.9 if i == best else 0.2
        assert ids(rerank.postprocess_nodes(given, query_str="a thing")) == [str(best)]


@pytest.mark.parametrize("score", [None, math.nan, math.inf])
def test_what_is_no_finite_number_is_no_score(score: float | None, caplog: pytest.LogCaptureFixture) -> None:
    assert candidate_of(node("red", score)).first_stage_score is None
    assert type(candidate_of(node("red", np.float32(0.5))).first_stage_score) is float  # type: ignore[arg-type]
    assert caplog.text == ""


@pytest.mark.parametrize(("passes", "mean_passes"), [(2, None), ("auto", None), ("auto", 2.0)])
def test_passes_are_those_of_the_reranker(passes: Any, mean_passes: float | None, calibrated: LADReranker) -> None:
    rerank = LADRerank(N, reranker=calibrated, passes=passes, mean_passes=mean_passes)
    chosen = shop(2)
    expected = calibrated.rerank(chosen.caption, records(chosen, "image"), passes=passes, mean_passes=mean_passes)
    assert_same(rerank.postprocess_nodes(image_nodes(chosen), query_str=chosen.caption), expected)


def test_confidence_is_kept_on_copies(calibrated: LADReranker) -> None:
    rerank = LADRerank(N + 1, reranker=calibrated, confidence_key="confidence", keep_retrieval_score=True)
    chosen = shop(2)
    given = [broken(), *image_nodes(chosen)]
    hits = rerank.postprocess_nodes(given, query_str=chosen.caption)
    confidence = calibrated.rerank(chosen.caption, records(chosen, "image")).confidence
    assert confidence is not None
    assert [hit.metadata["confidence"] for hit in hits[:N]] == pytest.approx([confidence] * N, abs=1e-5)
    assert hits[N].metadata == {"retrieval_score": 0.7, "confidence": None}
    assert not any(hit.metadata for hit in given)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert hits[0].node.get_metadata_str(mode=mode) == ""
    rerank.confidence_key = None
    assert set(rerank.postprocess_nodes(given, query_str=chosen.caption)[0].metadata) == {"retrieval_score"}


def test_none_of_these(calibrated: LADReranker, caplog: pytest.LogCaptureFixture, events: list[Any]) -> None:
    rerank = LADRerank(reranker=calibrated, drop_unconfident=True)
    debug = LlamaDebugHandler(print_trace_on_end=False)
    rerank.callback_manager = CallbackManager([debug])
    dropped = []
    for seed in range(6):
        chosen, other = shop(seed), shop(seed + 50)
        for query in (chosen.caption, other.caption):
            caplog.clear()
            hits = rerank.postprocess_nodes([*image_nodes(chosen), broken()], query_str=query)
            confident = calibrated.rerank(query, records(chosen, "image")).confident
            assert len(hits) == (3 if confident else 0)
            assert (f"none of the nodes seems to answer {query!r}" in caplog.text) is not confident
            (end,) = [event for event in events if isinstance(event, ReRankEndEvent)]
            events.clear()
            _, ended = debug.get_event_pairs(CBEventType.RERANKING)[-1]
            assert ended.payload is not None
            assert len(end.nodes) == len(ended.payload[EventPayload.NODES]) == len(hits)
            dropped.append(not hits)
    assert sum(dropped[1::2]) > sum(dropped[::2])  # more often where the right one is not there


def test_where_confidence_is_not_known_nodes_are_returned_and_that_is_said(
    backbone: HuggingFaceBackbone, calibrated: LADReranker, caplog: pytest.LogCaptureFixture
) -> None:
    plain = LADRerank(N, reranker=LADReranker(backbone, method="vanilla"), drop_unconfident=True, confidence_key="c")
    hits = plain.postprocess_nodes(image_nodes(shop(1)), query_str="a mug")
    assert [hit.metadata["c"] for hit in hits] == [None] * N
    assert "whether any node answers 'a mug' is not known" in caplog.text
    caplog.clear()
    alone = LADRerank(reranker=calibrated, drop_unconfident=True)
    assert len(alone.postprocess_nodes(image_nodes(shop(1))[:1], query_str="a mug")) == 1
    assert "is not known" in caplog.text
