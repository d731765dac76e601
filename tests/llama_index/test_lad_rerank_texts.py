"""Nodes with texts: what is shown of them, and what is not."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import SimpleDirectoryReader
from llama_index.core.schema import BaseNode, Document, ImageNode, MediaResource, Node, NodeWithScore, TextNode

from lad_rerank.errors import ImageError
from llama_index.postprocessor.lad_rerank import LADRerank
from llama_index.postprocessor.lad_rerank.candidates import Texts
from tests.llama_index.colours import QUERY, ColourBackbone, broken, ids, node, nodes, picture, text


def hit(node: BaseNode) -> NodeWithScore:
    return NodeWithScore(node=node, score=0.5)


def test_without_being_asked_texts_are_not_shown_and_the_warning_says_how(
    rerank: LADRerank, colours: ColourBackbone, caplog: pytest.LogCaptureFixture
) -> None:
    given = [text(), broken(), *nodes("blue"), node("red", text="green, it says")]
    assert ids(rerank.postprocess_nodes(given, QUERY)) == ["red", "blue", "text"]
    assert colours.shown == [{("picture", None)}]
    assert "texts='without_picture' would rank the texts of 1 of them" in caplog.text
    caplog.clear()
    rerank.postprocess_nodes([broken(), text("blank", " "), *nodes("red")], QUERY)
    assert "cannot be ranked" in caplog.text
    assert "without_picture" not in caplog.text


def test_texts_of_nodes_without_a_picture(
    rerank: LADRerank, colours: ColourBackbone, caplog: pytest.LogCaptureFixture
) -> None:
    rerank.texts = "without_picture"
    given = [node("blue", text="red, it says"), text("t", "a red\nmug"), node("pink")]
    hits = rerank.postprocess_nodes(given, QUERY)
    assert ids(hits) == ["t", "pink", "blue"]
    assert colours.shown == [{("picture", None), ("text", "a red mug")}]
    assert hits[0].node is given[1].node
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_texts_of_all_nodes(rerank: LADRerank, colours: ColourBackbone) -> None:
    rerank.texts = "always"
    given = [node("red", text="a mug"), node("blue"), node("green", text=" \x00\n"), text("t", "a pink mug")]
    rerank.top_n = 4
    assert ids(rerank.postprocess_nodes(given, QUERY))[0] == "red"
    assert colours.shown == [{("picture", "a mug"), ("picture", None), ("text", "a pink mug")}]
    assert colours.calls == [4]


def test_metadata_is_never_shown(rerank: LADRerank, colours: ColourBackbone, tmp_path: Path) -> None:
    (tmp_path / "red.md").write_text("a blue mug")
    (read,) = SimpleDirectoryReader(input_files=[tmp_path / "red.md"]).load_data()
    rerank.texts = "always"
    given = [
        hit(read),
        text("titled", "a green mug", metadata={"title": "red"}),
        node("pink", text="a mug", metadata={"file_path": "red.png"}),
        hit(Node(id_="n", text_resource=MediaResource(text="a red mug"), extra_info={"file_name": "red.png"})),
    ]
    rerank.postprocess_nodes(given, QUERY)
    assert colours.shown == [
        {("text", "a blue mug"), ("text", "a green mug"), ("picture", "a mug"), ("text", "a red mug")}
    ]


@pytest.mark.parametrize("texts", ["without_picture", "always"])
def test_a_picture_that_is_meant_is_not_replaced_by_its_text(
    texts: Texts, rerank: LADRerank, colours: ColourBackbone, caplog: pytest.LogCaptureFixture
) -> None:
    rerank.texts = texts
    rerank.top_n = 10
    lost = Node(
        id_="lost",
        text_resource=MediaResource(text="a red mug"),
        image_resource=MediaResource(data=base64.b64decode(picture("red"))),
    )
    meant = [
        broken("gone", text="a red mug"),
        hit(Node.from_dict(json.loads(json.dumps(lost.to_dict())))),
        hit(ImageNode(id_="behind a URL", text="a red mug", image_url="https://example.com/mug.png")),
        hit(ImageNode(id_="empty", text="a red mug")),
        text("captions a file", metadata={"file_path": "/no/such/mug.jpg"}),
    ]
    hits = rerank.postprocess_nodes([*meant, *nodes("red", "blue")], QUERY)
    assert ids(hits) == ["red", "blue", "gone", "lost", "behind a URL", "empty", "captions a file"]
    assert colours.shown == [{("picture", None)}]
    assert caplog.text.count("Its text is not ranked in the place of its picture.") == 5
    rerank.on_failed = "raise"
    with pytest.raises(ImageError, match=r"1 of 3 nodes cannot be ranked: Node 'gone'"):
        rerank.postprocess_nodes([meant[0], *nodes("red", "blue")], QUERY)


def test_a_node_with_nothing_to_show_fails_by_name(rerank: LADRerank, caplog: pytest.LogCaptureFixture) -> None:
    rerank.texts = "without_picture"
    assert ids(rerank.postprocess_nodes([text("blank", "\x00 \n"), *nodes("red", "blue")], QUERY))[-1] == "blank"
    assert "Node 'blank' (TextNode) carries no picture" in caplog.text
    assert "It has no text either." in caplog.text


def test_files_that_texts_were_read_from_are_no_broken_pictures(
    rerank: LADRerank, colours: ColourBackbone, tmp_path: Path
) -> None:
    blue = base64.b64decode(picture("blue"))
    for name in ("blue.png", "no_name", "manual.pdf"):
        (tmp_path / name).write_bytes(blue)
    (tmp_path / "notes").write_text("a red mug")
    rerank.texts = "without_picture"
    paths: dict[str, Any] = {name: {"file_path": str(tmp_path / name)} for name in ("manual.pdf", "notes")}
    given = [
        hit(Document(id_="page", text="a red mug", metadata=paths["manual.pdf"])),  # not even opened
        hit(TextNode(id_="note", text="a pink mug", metadata=paths["notes"])),
        hit(TextNode(id_="shown", text="a red mug", metadata={"file_path": str(tmp_path / "no_name")})),
    ]
    assert ids(rerank.postprocess_nodes(given, QUERY)) == ["page", "note", "shown"]
    assert colours.shown == [{("text", "a red mug"), ("text", "a pink mug"), ("picture", None)}]


def test_order_does_not_matter(rerank: LADRerank) -> None:
    rerank.texts = "always"
    given = [*nodes("red", "blue"), node("green", text="a mug"), text("t", "a pink mug")]
    found = set()
    for seed in range(6):
        hits = rerank.postprocess_nodes(random.Random(seed).sample(given, 4), QUERY)
        found.add(tuple((hit.node_id, hit.score) for hit in hits))
    assert len(found) == 1
