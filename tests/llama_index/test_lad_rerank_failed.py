"""Nodes that cannot be ranked."""

from __future__ import annotations

import pytest

from lad_rerank.errors import ImageError
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import QUERY, ColourBackbone, broken, ids, nodes, text


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
    rerank: LADRerank, colours: ColourBackbone, caplog: pytest.LogCaptureFixture
) -> None:
    rerank.on_failed = "drop"
    assert ids(rerank.postprocess_nodes([text(), *nodes("red")], QUERY)) == ["red"]
    assert "'text'" in caplog.text
    assert rerank.postprocess_nodes([text(), broken()], QUERY) == []
    rerank.on_failed = "raise"
    with pytest.raises(ImageError, match=r"1 of 3 nodes cannot be ranked: Node 'broken'"):
        rerank.postprocess_nodes([broken(), *nodes("red", "blue")], QUERY)
    assert colours.calls == []


def test_text_alone_needs_no_model() -> None:
    hits = LADRerank(model="there/is/no/such/model").postprocess_nodes([text("a"), text("b")], QUERY)
    assert ids(hits) == ["a", "b"]
