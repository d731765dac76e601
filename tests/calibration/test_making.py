from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.calibration.making import make_calibration
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits
from lad_rerank.records import Observation


class FirstBackbone:
    """Prefers the first position, whatever is shown there; counts its passes."""

    name = "first"
    revision = "v1"
    identity = BackboneIdentity("first", "", "", "", "digits", 1, "visual", "float32", (0,))

    def __init__(self) -> None:
        self.passes = 0

    def observe(self, query: str, images: Sequence[Image.Image]) -> Observation:
        self.passes += 1
        share = np.arange(len(images), 0, -1, dtype=float)
        share /= share.sum()
        attention = {"last": share[None, None], "query": share[None, None]}
        return Observation(np.log(share), attention, (0,), label_mass=1.0, prompt_tokens=1)

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        return [self.observe(query, images) for query, images in requests]

    def capacity(self, query: str, images: Sequence[Image.Image]) -> int:
        return len(images)


def samples(side: int = 8) -> list[CalibrationSample]:
    return [
        CalibrationSample(f"query {s}", [Image.new("RGB", (side, side), (s, i, 0)) for i in range(4)], s % 4)
        for s in range(3)
    ]


def test_every_sample_is_shown_in_every_shift() -> None:
    backbone = FirstBackbone()
    done: list[tuple[int, int]] = []
    made = make_calibration(backbone, samples(), progress=lambda *args: done.append(args))
    assert made.covers == (2, 3, 4)
    assert backbone.passes == 3 * (2 + 3 + 4)
    assert done[-1] == (27, 27)
    assert made.provenance.revision == "v1"


@pytest.mark.parametrize("counts", [[4, 2, 4], (2, 4), {2, 4}, [np.int64(2), np.uint8(4)], np.array([2, 4])])
def test_counts_are_whole_numbers_of_any_kind(counts: Any) -> None:
    made = make_calibration(FirstBackbone(), samples(), candidate_counts=counts)
    assert made.covers == (2, 4)
    assert all(type(n) is int for n in made.counts)
    assert made.to_json()


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([2.0], r"whole numbers such as 8, got 2\.0"),
        (["2"], "whole numbers such as 8, got '2'"),
        ([2, None], "whole numbers such as 8, got None"),
        ([True], "whole numbers such as 8, got True"),
        ("23", "must be a list of whole numbers, got '23'"),
        (3, "must be a list of whole numbers, got 3"),
        ([], "is empty"),
        ([1], "not for 1"),
        ([5], "No calibration sample has 5 images"),
    ],
)
def test_counts_that_are_none_are_named_before_any_pass(counts: Any, says: str) -> None:
    backbone = FirstBackbone()
    with pytest.raises(CalibrationSampleError, match=says):
        make_calibration(backbone, samples(), candidate_counts=counts)
    assert backbone.passes == 0


def test_limits_bound_the_images() -> None:
    limits = ImageLimits(max_pixels=100)
    assert make_calibration(FirstBackbone(), samples(10), limits=limits).covers == (2, 3, 4)
    with pytest.raises(CalibrationSampleError, match="sample 0, image 0"):
        make_calibration(FirstBackbone(), samples(11), limits=limits)
