"""The postprocessor's contract with LlamaIndex, over a backbone that looks for plain colours."""

from __future__ import annotations

import asyncio
import json
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, MediaResource, MetadataMode, Node, NodeWithScore, QueryBundle

from lad_rerank.errors import InvalidRequestError
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import QUERY, ColourBackbone, ids, node, nodes, picture, scored


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


def test_one_node_has_a_score(rerank: LADRerank, colours: ColourBackbone) -> None:
    (hit,) = rerank.postprocess_nodes(nodes("blue"), QUERY)
    assert hit.score == 1.0
    assert colours.calls == []


def test_nothing_in_nothing_out(events: list[Any]) -> None:
    rerank = LADRerank(model="there/is/no/such/model")
    assert rerank.postprocess_nodes([], QUERY) == []
    assert [type(e) for e in events if isinstance(e, ReRankStartEvent | ReRankEndEvent)] == [
        ReRankStartEvent,
        ReRankEndEvent,
    ]


def test_a_query_is_needed(rerank: LADRerank, colours: ColourBackbone) -> None:
    for given in (nodes(), []):
        with pytest.raises(ValueError, match=r"Missing query bundle in extra info\."):
            rerank.postprocess_nodes(given)
    with pytest.raises(InvalidRequestError, match="query is empty"):
        rerank.postprocess_nodes(nodes(), query_str=" ")
    with pytest.raises(InvalidRequestError, match="only a picture"):
        rerank.postprocess_nodes(nodes(), QueryBundle("", image_path="mug.png"))
    with pytest.raises(ValueError, match="both"):
        rerank.postprocess_nodes(nodes(), QUERY, "red")
    assert colours.calls == []


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


def test_duplicates_by_id_come_back_once(rerank: LADRerank, colours: ColourBackbone) -> None:
    given = [*nodes("red", "blue"), node("red", 0.01)]
    rerank.keep_retrieval_score = True
    hits = rerank.postprocess_nodes(given, QUERY)
    assert ids(hits) == ["red", "blue"]
    assert hits[0].metadata["retrieval_score"] == 0.9
    assert colours.calls == [2]


def test_nodes_are_looked_at_as_often_as_asked(rerank: LADRerank, colours: ColourBackbone) -> None:
    once = scored(rerank.postprocess_nodes(nodes(), QUERY))
    rerank.passes = 3
    thrice = scored(rerank.postprocess_nodes(nodes(), QUERY))
    assert colours.calls == [4] * (1 + 3)
    assert [name for name, _ in thrice] == [name for name, _ in once]
    assert [score for _, score in thrice] == pytest.approx([score for _, score in once])


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
