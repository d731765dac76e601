"""What others see of a run: logs, events, callbacks and spans."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.span import SpanDropEvent  # type: ignore[attr-defined]
from llama_index.core.schema import ImageNode, MediaResource, Node, NodeWithScore

from lad_rerank.errors import DegenerateScoresError
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import QUERY, ColourBackbone, ids, nodes, picture


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
    rerank: LADRerank, colours: ColourBackbone, events: list[Any]
) -> None:
    colours.broken = True
    with pytest.raises(DegenerateScoresError):
        rerank.postprocess_nodes(nodes(), QUERY)
    (dropped,) = [event for event in events if isinstance(event, SpanDropEvent)]
    assert "LADRerank._postprocess_nodes" in str(dropped.span_id)
