"""The picture of a LlamaIndex node, wherever the node keeps it."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, ImageNode, NodeWithScore

from lad_rerank.errors import ImageError
from lad_rerank.images import ImageLimits, open_image

if TYPE_CHECKING:
    from PIL.Image import Image


def open_node_image(node: BaseNode, *, allow_urls: bool = False, limits: ImageLimits | None = None) -> Image:
    """Open a node's picture: the first of its carriers that opens.

    Carriers are tried in this order: ``image`` (base64 or a ``data:`` URI), ``image_resource.data``,
    ``image_path`` and ``image_resource.path``, ``image_url`` and ``image_resource.url``,
    ``metadata["file_path"]``. The class does not matter: ``ImageNode``, ``Node``, ``Document``,
    ``ImageDocument``, and a ``TextNode`` whose metadata names a picture all do.

    Args:
        node: Not changed.
        allow_urls: Whether http(s) URLs are fetched.
        limits: What a picture may be at most.

    Returns:
        An upright RGB picture.

    Raises:
        ImageError: Names the node, each carrier that was tried, and why it did not open.
    """
    tried = []
    for carrier, source in _carriers(node):
        try:
            return open_image(source, allow_urls=allow_urls, limits=limits or ImageLimits())
        except ImageError as error:
            tried.append(f"{carrier}: {error}")
    if tried:
        raise ImageError(f"Node {node.node_id!r} has no picture that opens. {' '.join(tried)}")
    raise ImageError(f"Node {node.node_id!r} ({type(node).__name__}) carries no picture. {_advice(node)}")


def means_picture(node: BaseNode) -> bool:
    """Whether a picture belongs to a node, be it lost or broken.

    One belongs to an ``ImageNode``, to whatever has an ``image_resource``, and where ``metadata["file_path"]``
    is named like a picture. Any other path in the metadata tells where readers found the text.
    """
    if isinstance(node, ImageNode) or getattr(node, "image_resource", None) is not None:
        return True
    return (_guessed_type(node) or "").startswith("image/")


def other_file(node: BaseNode) -> bool:
    """Whether a node's only trace of a picture is a file that is named like something else, such as ``manual.pdf``."""
    return not means_picture(node) and _guessed_type(node) not in (None, "application/octet-stream")


def without_payload(hit: NodeWithScore) -> NodeWithScore:
    """A copy for traces: embedded pictures and vectors left out, ids, paths, text and scores kept.

    Tracing back ends drop events of more than about a megabyte as a whole.
    """
    node = hit.node
    update: dict[str, Any] = {}
    for field in ("image", "embedding", "text_embedding"):
        if getattr(node, field, None) is not None and field in type(node).model_fields:
            update[field] = None
    url = getattr(node, "image_url", None)
    if isinstance(node, ImageNode) and isinstance(url, str) and url.lstrip().startswith("data:"):
        update["image_url"] = None
    for field in ("image_resource", "audio_resource", "video_resource"):
        resource = getattr(node, field, None)
        if resource is not None:
            slim = {"data": None, "embeddings": None}
            if str(resource.url or "").startswith("data:"):
                slim["url"] = None
            update[field] = resource.model_copy(update=slim)
    return NodeWithScore(node=node.model_copy(update=update) if update else node, score=hit.score)


def _carriers(node: BaseNode) -> Iterator[tuple[str, Any]]:
    """(name, source) of everything on the node that may be its picture, in the documented order.

    ``ImageDocument`` shows its resource under both names; each source is given once.
    """
    resource = getattr(node, "image_resource", None)
    own = node if isinstance(node, ImageNode) else None
    found = [
        ("image", own.image if own else None),
        ("image_resource.data", resource.data if resource else None),
        ("image_path", own.image_path if own else None),
        ("image_resource.path", resource.path if resource else None),
        ("image_url", own.image_url if own else None),
        ("image_resource.url", resource.url if resource else None),
        ('metadata["file_path"]', node.metadata.get("file_path")),
    ]
    seen: set[str] = set()
    for carrier, source in found:
        if source is None or source in ("", b""):
            continue
        if not isinstance(source, bytes):
            source = str(source)  # paths and pydantic URLs
            if source in seen:  # readers put the path both into the node and into its metadata
                continue
            seen.add(source)
        yield carrier, source


def _guessed_type(node: BaseNode) -> str | None:
    """Media type by the name of ``metadata["file_path"]``."""
    return mimetypes.guess_type(str(node.metadata.get("file_path") or ""), strict=False)[0]


def _advice(node: BaseNode) -> str:
    resource = getattr(node, "image_resource", None)
    if resource is not None:
        return (
            "LlamaIndex does not store image_resource.data when it saves a node: "
            "keep the picture in a file and set image_resource.path."
        )
    if isinstance(node, ImageNode):
        return (
            "ImageNode drops the data of an image_resource: set image (base64) or image_path, "
            "or use Node(image_resource=...)."
        )
    return 'Set image or image_path on an ImageNode, image_resource on a Node, or metadata["file_path"].'
