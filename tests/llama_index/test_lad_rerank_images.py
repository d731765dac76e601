"""Where a node's picture is found, whatever carries it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import SimpleDirectoryReader
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageDocument,
    ImageNode,
    MediaResource,
    Node,
    NodeWithScore,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from PIL import Image

from lad_rerank.errors import ImageError
from lad_rerank.images import ImageLimits
from llama_index.postprocessor.lad_rerank.images import open_node_image, without_payload


def png(colour: str = "red") -> bytes:
    out = BytesIO()
    Image.new("RGB", (6, 4), colour).save(out, "PNG")
    return out.getvalue()


RED = base64.b64encode(png()).decode()
RGB = {"red": (255, 0, 0), "blue": (0, 0, 255), "lime": (0, 255, 0)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mug.png").write_bytes(png())
    return tmp_path / "mug.png"


FORMS: dict[str, Callable[[Path], BaseNode]] = {
    "image": lambda path: ImageNode(image=RED),
    "data URI": lambda path: ImageNode(image=f"data:image/jpeg;base64,{RED}"),
    "data URI as url": lambda path: ImageNode(image_url=f"data:image/png;base64,{RED}"),
    "image_path": lambda path: ImageNode(image_path=str(path)),
    "image_path, no text": lambda path: ImageNode(image_path=str(path), text=""),
    "file URL": lambda path: ImageNode(image_url=path.as_uri()),
    "ImageNode(image_resource path)": lambda path: ImageNode(image_resource=MediaResource(path=path)),
    "Node data base64": lambda path: Node(image_resource=MediaResource(data=RED.encode())),
    "Node data bytes": lambda path: Node(image_resource=MediaResource(data=png())),
    "Node path": lambda path: Node(image_resource=MediaResource(path=path)),
    "Document": lambda path: Document(text="a mug", image_resource=MediaResource(data=png())),
    "ImageDocument base64": lambda path: ImageDocument(image=RED),
    "ImageDocument path": lambda path: ImageDocument(image_path=str(path)),
    "metadata of an ImageNode": lambda path: ImageNode(metadata={"file_path": str(path)}),
    "metadata of a TextNode": lambda path: TextNode(text="a mug", metadata={"file_path": str(path)}),
    "directory reader": lambda path: SimpleDirectoryReader(input_files=[path]).load_data()[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_opens(form: str, path: Path) -> None:
    node = FORMS[form](path)
    before = node.to_json()
    image = open_node_image(node)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (6, 4), RGB["red"])
    assert node.to_json() == before


@pytest.mark.parametrize(
    "form", [form for form in FORMS if "data b" not in form and form not in ("Document", "ImageDocument base64")]
)
def test_every_form_survives_a_document_store(form: str, path: Path) -> None:
    node = FORMS[form](path)
    store = SimpleDocumentStore()
    store.add_documents([node])
    restored = SimpleDocumentStore.from_dict(json.loads(json.dumps(store.to_dict()))).get_document(node.node_id)
    assert restored is not None
    assert open_node_image(restored).getpixel((0, 0)) == RGB["red"]


def test_bytes_that_llama_index_does_not_store_are_missed_by_name() -> None:
    node = Node(id_="mug", image_resource=MediaResource(data=png()))
    restored = Node.from_dict(json.loads(json.dumps(node.to_dict())))
    with pytest.raises(ImageError, match=r"'mug' .*does not store image_resource\.data"):
        open_node_image(restored)
    with pytest.raises(ImageError, match="ImageNode drops the data"):
        open_node_image(ImageNode(image_resource=MediaResource(data=png())))


def test_the_documented_order_and_going_on_to_the_next(tmp_path: Path) -> None:
    for colour in RGB:
        (tmp_path / f"{colour}.png").write_bytes(png(colour))
    fields: dict[str, Any] = {
        "image": base64.b64encode(png("lime")).decode(),
        "image_path": str(tmp_path / "blue.png"),
        "metadata": {"file_path": str(tmp_path / "red.png")},
    }

    def seen(**changes: Any) -> Any:
        return open_node_image(ImageNode(**{**fields, **changes})).getpixel((0, 0))

    assert seen() == RGB["lime"]
    assert seen(image=None) == RGB["blue"]
    assert seen(image="@@broken@@") == RGB["blue"]
    assert seen(image=None, image_path=None) == RGB["red"]
    assert seen(image=None, image_path="/no/such.png", image_url="https://example.com/mug.png") == RGB["red"]


def test_the_error_names_the_node_and_all_that_was_tried() -> None:
    node = ImageNode(
        id_="mug-17", image=RED[:-40], image_path="/no/such.png", image_url="https://example.com/mug.png?sig=secret",
        metadata={"file_path": "/no/such.png"},
    )  # fmt: skip
    with pytest.raises(ImageError) as caught:
        open_node_image(node)
    message = str(caught.value)
    assert "Node 'mug-17'" in message
    assert "image: The base64 text" in message
    assert message.count("/no/such.png") == 1  # the metadata repeats it
    assert "image_url: The URL 'https://example.com/mug.png' is not fetched: pass allow_urls=True" in message
    assert "secret" not in message
    assert len(message) < 800


def test_nodes_without_any_picture() -> None:
    with pytest.raises(ImageError, match=r"'t' \(TextNode\) carries no picture"):
        open_node_image(TextNode(id_="t", text="a mug"))
    with pytest.raises(ImageError, match=r"\(Document\) carries no picture"):
        open_node_image(Document(text="a mug"))


def test_a_text_file_beside_a_text_node_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "mug.md").write_text("# A mug")
    with pytest.raises(ImageError, match="it is text"):
        open_node_image(TextNode(text="a mug", metadata={"file_path": str(tmp_path / "mug.md")}))


def test_limits_hold(path: Path) -> None:
    with pytest.raises(ImageError, match="max_pixels"):
        open_node_image(ImageNode(image_path=str(path)), limits=ImageLimits(max_pixels=5))


@pytest.mark.parametrize("form", FORMS)
def test_traces_carry_no_pictures(form: str, path: Path) -> None:
    node = FORMS[form](path)
    node.embedding = [0.25] * 8
    slim = without_payload(NodeWithScore(node=node, score=0.5))
    assert RED[:20] not in repr(slim.node.__dict__)
    assert slim.node.embedding is None
    assert (slim.node_id, slim.score, type(slim.node)) == (node.node_id, 0.5, type(node))
    assert open_node_image(node).size == (6, 4)
