"""The postprocessor's contract with LlamaIndex, over a backbone that looks for plain colours."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import pickle
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.span import SpanDropEvent  # type: ignore[attr-defined]
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, MediaResource, MetadataMode, Node, NodeWithScore, QueryBundle, TextNode
from PIL import Image

from lad_rerank import LADReranker, Observation
from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.errors import DegenerateScoresError, ImageError, InvalidRequestError
from llama_index.postprocessor.lad_rerank import LADRerank

COLOURS = {"red": (230, 10, 10), "pink": (230, 120, 120), "green": (10, 230, 10), "blue": (10, 60, 230)}
QUERY = QueryBundle("something red")


class ColourBackbone:
    """Believes in a picture the more, the nearer its mean colour is to the one the query names."""

    name = "colours"
    revision: str | None = None
    identity = BackboneIdentity("colours", "", "", "", "digits", 1, "visual", "float32", (0,))

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: set[int] = set()
        self.broken = False

    def observe(self, query: str, images: Sequence[Image.Image]) -> Observation:
        self.calls.append(len(images))
        self.threads.add(threading.get_ident())
        wanted = next(rgb for name, rgb in COLOURS.items() if name in query)
        means = np.array([np.asarray(image, float).mean((0, 1)) for image in images])
        logits = -np.linalg.norm(means - wanted, axis=1) / 50
        if self.broken:
            logits = logits * np.nan
        log_probs = logits - np.log(np.exp(logits).sum())
        return Observation(log_probs, {}, (), label_mass=1.0, prompt_tokens=1)

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        return [self.observe(query, images) for query, images in requests]

    def capacity(self, query: str, images: Sequence[Image.Image]) -> int:
        return len(images)


class Recorder(BaseEventHandler):
    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def backbone() -> ColourBackbone:
    return ColourBackbone()


@pytest.fixture
def rerank(backbone: ColourBackbone) -> LADRerank:
    return LADRerank(reranker=LADReranker(backbone, method="vanilla"))


@pytest.fixture
def events() -> Iterator[list[Any]]:
    dispatcher = get_dispatcher()
    recorder = Recorder()
    dispatcher.add_event_handler(recorder)
    yield recorder.seen
    dispatcher.event_handlers.remove(recorder)


def picture(colour: str) -> str:
    out = BytesIO()
    Image.new("RGB", (32, 32), COLOURS[colour]).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def node(colour: str, score: float | None = 0.5, **fields: Any) -> NodeWithScore:
    return NodeWithScore(node=ImageNode(id_=colour, image=picture(colour), **fields), score=score)


def nodes(*colours: str) -> list[NodeWithScore]:
    return [node(colour, 0.9 - i / 10) for i, colour in enumerate(colours or ("blue", "pink", "red", "green"))]


def ids(hits: Sequence[NodeWithScore]) -> list[str]:
    return [hit.node_id for hit in hits]


def test_class() -> None:
    assert BaseNodePostprocessor in LADRerank.__mro__
    assert LADRerank.class_name() == "LADRerank"
    assert LADRerank().model == "bundled"


def test_ranks_and_cuts(rerank: LADRerank) -> None:
    hits = rerank.postprocess_nodes(nodes(), QUERY)
    assert ids(hits) == ["red", "pink", "green"] or ids(hits) == ["red", "pink", "blue"]
    assert all(type(hit.score) is float for hit in hits)
    assert hits == sorted(hits, key=lambda hit: -hit.get_score())
    json.loads(hits[0].to_json())
    assert ids(rerank.postprocess_nodes(nodes(), query_str="something blue"))[0] == "blue"


def test_every_order_gives_every_node_its_own_score(rerank: LADRerank) -> None:
    rerank.top_n = 4
    found = {
        tuple((hit.node_id, hit.score) for hit in rerank.postprocess_nodes(list(order), QUERY))
        for order in permutations(nodes())
    }
    assert len(found) == 1
    (only,) = found
    assert sum(score for _, score in only if score is not None) == pytest.approx(1)


def test_top_n_beyond_the_nodes(rerank: LADRerank) -> None:
    rerank.top_n = 50
    assert len(rerank.postprocess_nodes(nodes(), QUERY)) == 4


def test_one_node_has_a_score(rerank: LADRerank, backbone: ColourBackbone) -> None:
    (hit,) = rerank.postprocess_nodes(nodes("blue"), QUERY)
    assert hit.score == 1.0
    assert backbone.calls == []


def test_nothing_in_nothing_out(events: list[Any]) -> None:
    rerank = LADRerank(model="there/is/no/such/model")
    assert rerank.postprocess_nodes([], QUERY) == []
    assert [type(e) for e in events if isinstance(e, ReRankStartEvent | ReRankEndEvent)] == [
        ReRankStartEvent,
        ReRankEndEvent,
    ]


def test_a_query_is_needed(rerank: LADRerank, backbone: ColourBackbone) -> None:
    for given in (nodes(), []):
        with pytest.raises(ValueError, match=r"Missing query bundle in extra info\."):
            rerank.postprocess_nodes(given)
    with pytest.raises(InvalidRequestError, match="query is empty"):
        rerank.postprocess_nodes(nodes(), query_str=" ")
    with pytest.raises(InvalidRequestError, match="only a picture"):
        rerank.postprocess_nodes(nodes(), QueryBundle("", image_path="mug.png"))
    with pytest.raises(ValueError, match="both"):
        rerank.postprocess_nodes(nodes(), QUERY, "red")
    assert backbone.calls == []


def test_nodes_keep_class_and_identity_and_are_not_changed(rerank: LADRerank) -> None:
    given = nodes("blue", "red")
    given.append(
        NodeWithScore(node=Node(id_="doc", image_resource=MediaResource(data=picture("pink").encode())), score=0.1)
    )
    before = [hit.to_json() for hit in given]
    hits = rerank.postprocess_nodes(given, QUERY)
    assert {id(hit.node) for hit in hits} == {id(hit.node) for hit in given}
    assert not {id(hit) for hit in hits} & {id(hit) for hit in given}
    assert [hit.to_json() for hit in given] == before
    assert [type(hit.node) for hit in hits] == [ImageNode, Node, ImageNode]


def test_duplicates_by_id_come_back_once(rerank: LADRerank, backbone: ColourBackbone) -> None:
    given = [*nodes("red", "blue"), node("red", 0.01)]
    rerank.keep_retrieval_score = True
    hits = rerank.postprocess_nodes(given, QUERY)
    assert ids(hits) == ["red", "blue"]
    assert hits[0].metadata["retrieval_score"] == 0.9
    assert backbone.calls == [2]


def test_retrieval_score_is_kept_on_a_copy(rerank: LADRerank) -> None:
    given = [node("red", 0.25, metadata={"title": "mug"}), node("blue", None), node("green", float(np.float32(0.5)))]
    rerank.keep_retrieval_score = True
    hits = {hit.node_id: hit for hit in rerank.postprocess_nodes(given, QUERY)}
    assert hits["red"].metadata == {"title": "mug", "retrieval_score": 0.25}
    assert hits["blue"].metadata == {"retrieval_score": None}
    assert "retrieval_score" not in hits["red"].node.get_metadata_str(mode=MetadataMode.LLM)
    assert given[0].metadata == {"title": "mug"}
    assert given[0].node.excluded_llm_metadata_keys == []
    assert type(hits["red"].node) is ImageNode
    assert not any("retrieval_score" in hit.metadata for hit in given)


def broken(name: str = "broken") -> NodeWithScore:
    return NodeWithScore(node=ImageNode(id_=name, image_path=f"/no/such/{name}.png"), score=0.7)


def text(name: str = "text") -> NodeWithScore:
    return NodeWithScore(node=TextNode(id_=name, text="a red mug"), score=0.99)


def test_nodes_without_a_picture_that_opens_come_last(rerank: LADRerank, caplog: pytest.LogCaptureFixture) -> None:
    rerank.top_n = 10
    given = [text(), broken(), *nodes("blue", "red")]
    hits = rerank.postprocess_nodes(given, QUERY)
    assert ids(hits) == ["red", "blue", "text", "broken"]
    assert [hit.score for hit in hits[2:]] == [0.0, 0.0]
    (warning,) = [r.getMessage() for r in caplog.records if r.name.startswith("llama_index.postprocessor.lad_rerank")]
    assert "2 of 4 nodes" in warning
    assert "'text' (TextNode) carries no picture" in warning
    assert "/no/such/broken.png" in warning
    rerank.top_n = 3
    assert ids(rerank.postprocess_nodes(given, QUERY)) == ["red", "blue", "text"]


def test_they_may_be_dropped_or_raise(
    rerank: LADRerank, backbone: ColourBackbone, caplog: pytest.LogCaptureFixture
) -> None:
    rerank.on_failed = "drop"
    assert ids(rerank.postprocess_nodes([text(), *nodes("red")], QUERY)) == ["red"]
    assert "'text'" in caplog.text
    assert rerank.postprocess_nodes([text(), broken()], QUERY) == []
    rerank.on_failed = "raise"
    with pytest.raises(ImageError, match=r"1 of 3 nodes cannot be ranked: Node 'broken'"):
        rerank.postprocess_nodes([broken(), *nodes("red", "blue")], QUERY)
    assert backbone.calls == []


def test_text_alone_needs_no_model() -> None:
    hits = LADRerank(model="there/is/no/such/model").postprocess_nodes([text("a"), text("b")], QUERY)
    assert ids(hits) == ["a", "b"]


def test_it_is_visible_that_it_ran(rerank: LADRerank, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rerank.postprocess_nodes(nodes(), QUERY)
    assert "LADRerank (colours, vanilla): 4 of 4 nodes ranked, best 3 kept." in caplog.text


def test_events_are_complete_and_small(rerank: LADRerank, events: list[Any]) -> None:
    given = nodes()
    given[0].node.embedding = [0.5] * 512
    given[1] = NodeWithScore(
        node=Node(id_="resource", image_resource=MediaResource(data=picture("pink").encode(), path=Path("pink.png"))),
        score=0.3,
    )
    hits = rerank.postprocess_nodes(given, QUERY)
    (start,) = [event for event in events if isinstance(event, ReRankStartEvent)]
    (end,) = [event for event in events if isinstance(event, ReRankEndEvent)]
    assert start.query == QUERY
    assert (start.top_n, start.model_name) == (3, "colours")
    assert [(hit.node_id, hit.score) for hit in start.nodes] == [(hit.node_id, hit.score) for hit in given]
    assert [(hit.node_id, hit.score) for hit in end.nodes] == [(hit.node_id, hit.score) for hit in hits]
    for event in (start, end):
        dumped = event.model_dump_json()
        assert len(dumped) < 10_000
        assert picture("red")[:40] not in dumped
    slim = start.nodes[1].node
    assert isinstance(slim, Node)
    assert slim.image_resource is not None
    assert slim.image_resource.data is None
    assert slim.image_resource.path == Path("pink.png")
    # What the caller holds still has its pictures.
    assert all(hit.node.image for hit in given if isinstance(hit.node, ImageNode))
    assert given[1].node.image_resource.data  # type: ignore[attr-defined]
    assert given[0].node.embedding == [0.5] * 512


def test_callbacks(rerank: LADRerank) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    rerank.callback_manager = CallbackManager([debug])  # query engines set it after construction
    rerank.postprocess_nodes(nodes(), QUERY)
    start, end = debug.get_event_pairs(CBEventType.RERANKING)[0]
    assert start.payload is not None
    assert end.payload is not None
    assert start.payload[EventPayload.MODEL_NAME] == "colours"
    assert start.payload[EventPayload.QUERY_STR] == "something red"
    assert start.payload[EventPayload.TOP_K] == 3
    assert len(start.payload[EventPayload.NODES]) == 4
    assert ids(end.payload[EventPayload.NODES])[0] == "red"


def test_errors_belong_to_the_postprocessors_span(
    rerank: LADRerank, backbone: ColourBackbone, events: list[Any]
) -> None:
    backbone.broken = True
    with pytest.raises(DegenerateScoresError):
        rerank.postprocess_nodes(nodes(), QUERY)
    (dropped,) = [event for event in events if isinstance(event, SpanDropEvent)]
    assert "LADRerank._postprocess_nodes" in str(dropped.span_id)


async def test_async_gives_the_same_off_the_event_loops_thread(rerank: LADRerank, backbone: ColourBackbone) -> None:
    same = rerank.postprocess_nodes(nodes(), QUERY)
    backbone.threads.clear()
    hits = await rerank.apostprocess_nodes(nodes(), QUERY)
    assert [(hit.node_id, hit.score) for hit in hits] == [(hit.node_id, hit.score) for hit in same]
    assert threading.get_ident() not in backbone.threads
    with pytest.raises(ValueError, match="Missing query bundle"):
        await rerank.apostprocess_nodes(nodes())
    assert await rerank.apostprocess_nodes([], QUERY) == []


def test_one_object_serves_several_event_loops(rerank: LADRerank) -> None:
    first = asyncio.run(rerank.apostprocess_nodes(nodes(), QUERY))
    second = asyncio.run(rerank.apostprocess_nodes(nodes(), QUERY))
    assert ids(first) == ids(second)


def test_threads_share_one(rerank: LADRerank) -> None:
    queries = ["red", "green", "blue", "pink"] * 8
    with ThreadPoolExecutor(4) as pool:
        tops = list(pool.map(lambda colour: rerank.postprocess_nodes(nodes(), query_str=colour)[0].node_id, queries))
    assert tops == queries


def test_the_model_is_loaded_once_on_first_use(monkeypatch: pytest.MonkeyPatch, backbone: ColourBackbone) -> None:
    loads: list[dict[str, Any]] = []

    def from_pretrained(model: str, **options: Any) -> LADReranker:
        loads.append({"model": model, **options})
        return LADReranker(backbone, method=options["method"])

    monkeypatch.setattr(LADReranker, "from_pretrained", from_pretrained)
    rerank = LADRerank(
        2, "some/model", method="vanilla", calibration=Path("c.json"), device="cpu", dtype=torch.bfloat16,
        max_pixels=99, labels="letters", revision="v1",
    )  # fmt: skip
    assert loads == []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: rerank.postprocess_nodes(nodes(), QUERY), range(8)))
    assert loads == [
        {
            "model": "some/model", "method": "vanilla", "calibration": "c.json", "device": "cpu", "dtype": "bfloat16",
            "device_map": None, "revision": "v1", "trust_remote_code": False, "labels": "letters", "max_pixels": 99,
            "allow_urls": False,
        }
    ]  # fmt: skip
    rerank.unload()
    assert rerank.reranker.backbone is backbone
    assert len(loads) == 2


def test_dict_and_pickle_round_trips() -> None:
    rerank = LADRerank(
        top_n=7, model=Path("models/mine"), calibration="c.json", dtype="bfloat16", device_map={"": 0},
        on_failed="drop", keep_retrieval_score=True,
    )  # fmt: skip
    data = rerank.to_dict()
    assert data["class_name"] == "LADRerank"
    assert data["model"] == "models/mine"
    assert LADRerank.from_dict(json.loads(json.dumps(data))).to_dict() == data
    assert LADRerank.from_json(rerank.to_json()).to_dict() == data
    copy = pickle.loads(pickle.dumps(rerank))
    assert copy.to_dict() == data
    assert copy.postprocess_nodes([], QUERY) == []
    assert rerank.callback_manager is not None


def test_a_given_reranker_is_named_but_not_pickled(rerank: LADRerank) -> None:
    assert rerank.to_dict()["model"] == "colours"
    assert LADRerank.from_dict(rerank.to_dict()).method == "vanilla"
    with pytest.raises(TypeError, match="name the model"):
        pickle.dumps(rerank)
    reranker = rerank.reranker
    rerank.unload()
    assert rerank.reranker is reranker


def test_the_settings_of_a_given_reranker_are_the_fields(backbone: ColourBackbone) -> None:
    backbone.identity = dataclasses.replace(backbone.identity, labels="letters")
    backbone.revision = "v2"
    data = LADRerank(reranker=LADReranker(backbone, method="vanilla", allow_urls=True)).to_dict()
    told = {name: data[name] for name in ("model", "method", "labels", "revision", "allow_urls", "trust_remote_code")}
    assert told == {
        "model": "colours", "method": "vanilla", "labels": "letters", "revision": "v2", "allow_urls": True,
        "trust_remote_code": False,
    }  # fmt: skip
    again = LADRerank.from_dict(json.loads(json.dumps(data)))
    assert again.to_dict() == data
    assert pickle.loads(pickle.dumps(again)).to_dict() == data


def test_what_is_not_given_has_its_default() -> None:
    rerank = LADRerank()
    assert (rerank.model, rerank.method, rerank.labels) == ("bundled", "lad", "digits")
    assert (rerank.trust_remote_code, rerank.allow_urls, rerank.top_n) == (False, False, 3)
    assert LADRerank.from_dict(rerank.to_dict()).to_dict() == rerank.to_dict()


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"top_n": 0}, "top_n"),
        ({"top_n": "3"}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"model": 3}, "model"),
        ({"method": "best"}, "Unknown method 'best'"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"labels": "greek"}, "labels"),
        ({"on_failed": "ignore"}, "on_failed"),
        ({"reranker": "bundled"}, "reranker must be a LADReranker, got str"),
        ({"reranker": LADReranker(ColourBackbone()), "device": "cpu"}, "device cannot be set beside reranker"),
        *(
            ({"reranker": LADReranker(ColourBackbone()), name: value}, f"{name} cannot be set beside reranker")
            for name, value in (
                ("model", "colours"),
                ("method", "vanilla"),
                ("labels", "letters"),
                ("labels", "digits"),
                ("trust_remote_code", True),
                ("trust_remote_code", False),
                ("allow_urls", True),
                ("revision", "v1"),
            )
        ),
    ],
)
def test_arguments_are_checked_at_once_and_named(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        LADRerank(**fields)


def test_query_engines_call_it(rerank: LADRerank) -> None:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.llms import MockLLM

    class Fixed(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return nodes()

    engine = RetrieverQueryEngine.from_args(
        Fixed(), llm=MockLLM(is_chat_model=True), node_postprocessors=[rerank], multimodal=True
    )
    answer = engine.query("something red")
    assert ids(answer.source_nodes)[:2] == ["red", "pink"]
    later = asyncio.run(engine.aquery("something red"))
    assert [(hit.node_id, hit.score) for hit in later.source_nodes] == [
        (hit.node_id, hit.score) for hit in answer.source_nodes
    ]
