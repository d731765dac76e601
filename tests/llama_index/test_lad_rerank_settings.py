"""Fields: defaults, checks, and what survives saving."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from lad_rerank import LADReranker
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import QUERY, ColourBackbone


def test_dict_and_pickle_round_trips() -> None:
    rerank = LADRerank(
        top_n=7, model=Path("models/mine"), calibration="c.json", dtype="bfloat16", device_map={"": 0},
        on_failed="drop", keep_retrieval_score=True, max_text_tokens=64, texts="always", passes="auto", mean_passes=1.5,
        confidence_key="confidence", drop_unconfident=True,
    )  # fmt: skip
    data = rerank.to_dict()
    assert data["class_name"] == "LADRerank"
    assert data["model"] == "models/mine"
    assert (data["texts"], data["passes"], data["mean_passes"], data["max_text_tokens"]) == ("always", "auto", 1.5, 64)
    assert (data["confidence_key"], data["drop_unconfident"]) == ("confidence", True)
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


def test_the_settings_of_a_given_reranker_are_the_fields(colours: ColourBackbone) -> None:
    colours.identity = dataclasses.replace(colours.identity, labels="letters")
    colours.revision = "v2"
    data = LADRerank(reranker=LADReranker(colours, method="vanilla", allow_urls=True)).to_dict()
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
    assert (rerank.model, rerank.method, rerank.labels) == ("bundled", "auto", "digits")
    assert (rerank.trust_remote_code, rerank.allow_urls, rerank.top_n) == (False, False, 3)
    assert (rerank.texts, rerank.passes, rerank.confidence_key, rerank.drop_unconfident) == ("never", 1, None, False)
    assert LADRerank.from_dict(rerank.to_dict()).to_dict() == rerank.to_dict()


def test_what_belongs_to_a_call_may_stand_beside_a_reranker(colours: ColourBackbone) -> None:
    rerank = LADRerank(
        reranker=LADReranker(colours, method="vanilla"), texts="always", passes=3, confidence_key="c", on_failed="drop"
    )
    assert (rerank.texts, rerank.passes, rerank.confidence_key) == ("always", 3, "c")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"top_n": 0}, "top_n"),
        ({"top_n": "3"}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"model": 3}, "model"),
        ({"method": "best"}, "Unknown method 'best'"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"max_text_tokens": 0}, "max_text_tokens"),
        ({"labels": "greek"}, "labels"),
        ({"texts": "sometimes"}, "texts"),
        ({"passes": 0}, "passes must be a whole number of at least 1"),
        ({"passes": True}, "passes must be"),
        ({"passes": "2"}, "passes must be"),
        ({"passes": "auto", "mean_passes": 3}, "mean_passes must be a number from 1 to 2"),
        ({"passes": "auto", "method": "lad"}, "needs method='auto'; method='lad'"),
        ({"passes": "auto", "reranker": LADReranker(ColourBackbone(), method="vanilla")}, "needs method='auto'"),
        ({"confidence_key": ""}, "confidence_key"),
        ({"confidence_key": "retrieval_score", "keep_retrieval_score": True}, "is where the retriever's score is kept"),
        ({"drop_unconfident": "perhaps"}, "drop_unconfident"),
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
                ("max_text_tokens", 64),
            )
        ),
    ],
)
def test_arguments_are_checked_at_once_and_named(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        LADRerank(**fields)
