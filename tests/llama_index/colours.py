"""A backbone that looks for plain colours, and nodes in plain colours."""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode
from PIL import Image

from lad_rerank import Observation
from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.contents import Content, Showable, as_contents

COLOURS = {"red": (230, 10, 10), "pink": (230, 120, 120), "green": (10, 230, 10), "blue": (10, 60, 230)}
QUERY = QueryBundle("something red")


class ColourBackbone:
    """Believes in a picture the more, the nearer its mean colour is to the one the query names.

    Of a text it believes the colour it names; of a picture with a text it believes the picture.
    """

    name = "colours"
    revision: str | None = None
    identity = BackboneIdentity("colours", "", "", "", "digits", 1, "visual", "float32", (0,))

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.shown: list[set[tuple[str, str | None]]] = []
        self.threads: set[int] = set()
        self.broken = False

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        contents = as_contents(candidates)
        self.calls.append(len(contents))
        self.shown.append({("text" if content.image is None else "picture", content.text) for content in contents})
        self.threads.add(threading.get_ident())
        seen = np.array([_colour(content) for content in contents])
        logits = -np.linalg.norm(seen - _named(query), axis=1) / 50
        if self.broken:
            logits = logits * np.nan
        log_probs = logits - np.log(np.exp(logits).sum())
        return Observation(log_probs, {}, (), label_mass=1.0, prompt_tokens=1)

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        return [self.observe(query, candidates) for query, candidates in requests]

    def capacity(self, query: str, candidates: Sequence[Showable]) -> int:
        return len(candidates)


def _named(words: str) -> tuple[int, int, int]:
    return next(rgb for name, rgb in COLOURS.items() if name in words)


def _colour(content: Content) -> Any:
    return _named(content.text or "") if content.image is None else np.asarray(content.image, float).mean((0, 1))


def as_base64(image: Image.Image) -> str:
    """A PNG file in base64."""
    out = BytesIO()
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def picture(colour: str) -> str:
    """A plain picture in base64."""
    return as_base64(Image.new("RGB", (32, 32), COLOURS[colour]))


def node(colour: str, score: float | None = 0.5, **fields: Any) -> NodeWithScore:
    """A node with a plain picture, whose id is its colour."""
    return NodeWithScore(node=ImageNode(id_=colour, image=picture(colour), **fields), score=score)


def nodes(*colours: str) -> list[NodeWithScore]:
    """Nodes with plain pictures, by default of four colours."""
    return [node(colour, 0.9 - i / 10) for i, colour in enumerate(colours or ("blue", "pink", "red", "green"))]


def broken(name: str = "broken", **fields: Any) -> NodeWithScore:
    """A node whose picture is gone."""
    return NodeWithScore(node=ImageNode(id_=name, image_path=f"/no/such/{name}.png", **fields), score=0.7)


def text(name: str = "text", words: str = "a red mug", **fields: Any) -> NodeWithScore:
    """A node without a picture."""
    return NodeWithScore(node=TextNode(id_=name, text=words, **fields), score=0.99)


def ids(hits: Sequence[NodeWithScore]) -> list[str]:
    """Ids of nodes."""
    return [hit.node_id for hit in hits]


def scored(hits: Sequence[NodeWithScore]) -> list[tuple[str, float | None]]:
    """Ids and scores of nodes."""
    return [(hit.node_id, hit.score) for hit in hits]
