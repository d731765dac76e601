from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.calibration.making import (
    calibration_passes,
    make_calibration,
    observe_shifts,
    query_without_answer,
)
from lad_rerank.calibration.samples import CalibrationSample, open_samples
from lad_rerank.contents import Showable, as_contents
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits
from lad_rerank.records import Candidate, Observation


class FirstBackbone:
    """Prefers the first position, whatever is shown there; counts its passes."""

    name = "first"
    revision = "v1"
    identity = BackboneIdentity("first", "", "", "", "digits", 1, "visual", "float32", (0,))

    def __init__(self) -> None:
        self.passes = 0

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        self.passes += 1
        share = np.arange(len(candidates), 0, -1, dtype=float)
        share /= share.sum()
        attention = {"last": share[None, None], "query": share[None, None]}
        return Observation(np.log(share), attention, (0,), label_mass=1.0, prompt_tokens=1)

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        return [self.observe(query, candidates) for query, candidates in requests]

    def capacity(self, query: str, candidates: Sequence[Showable]) -> int:
        return len(candidates)


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
    # Two more of each sample for each N ask for what is not there.
    assert backbone.passes == 3 * (2 + 3 + 4) + 2 * 3 * 3
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
        ([5], "No calibration sample has 5 candidates"),
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
    with pytest.raises(CalibrationSampleError, match="sample 0, candidate 0"):
        make_calibration(FirstBackbone(), samples(11), limits=limits)


class RecordingBackbone(FirstBackbone):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        self.asked.append((query, tuple(content.digest for content in as_contents(candidates))))
        return super().observe(query, candidates)


def test_shifts_show_every_candidate_everywhere_and_the_target_where_it_is_said_to_be() -> None:
    backbone, opened = RecordingBackbone(), open_samples(samples())
    seen = [observe_shifts(backbone, sample, query_without_answer(opened, i)) for i, sample in enumerate(opened)]
    passes = calibration_passes(opened, seen)
    own = [asked for asked in backbone.asked if asked[0] == opened[0].query][:4]
    for position in range(4):
        assert {digests[position] for _, digests in own} == set(opened[0].digests)
    shown_in_order = [asked for i in range(3) for asked in backbone.asked[6 * i : 6 * i + 4]]
    for p, (query, digests) in enumerate(shown_in_order):
        sample = opened[passes.samples[p]]
        assert query == sample.query
        assert digests[passes.targets[p]] == sample.digests[sample.target]
        assert digests == tuple(sample.digests[i] for i in passes.shown[p])
    without = [asked for i in range(3) for asked in backbone.asked[6 * i + 4 : 6 * i + 6]]
    assert [query for query, _ in without] == ["query 1"] * 2 + ["query 2"] * 2 + ["query 0"] * 2
    assert without[0][1] == opened[0].digests
    assert without[1][1] == opened[0].digests[2:] + opened[0].digests[:2]


def test_first_stage_scores_follow_their_candidates() -> None:
    scored = [
        replace(s, candidates=[Candidate(c, first_stage_score=float(i)) for i, c in enumerate(s.candidates)])
        for s in samples()
    ]
    opened = open_samples(scored)
    seen = [observe_shifts(FirstBackbone(), sample) for sample in opened]
    passes = calibration_passes(opened, seen)
    assert passes.first_stage is not None
    np.testing.assert_array_equal(passes.first_stage, passes.shown)
    assert seen[0].without_answer == []
    assert calibration_passes(open_samples(samples()), seen).first_stage is None


def test_a_query_whose_answer_is_shown_is_no_query_without_one() -> None:
    shared, *others = (Image.new("RGB", (8, 8), (9, i, 9)) for i in range(5))
    some = open_samples(
        [
            CalibrationSample("first", [shared, others[0]], 1),
            CalibrationSample("its target is a distractor of the first", [shared, others[1]], 0),
            CalibrationSample("first", [others[2], others[3]], 0),  # asks the same
            CalibrationSample("fits", [others[3], others[2]], 0),
        ]
    )
    assert query_without_answer(some, 0) == "fits"
    assert query_without_answer(some, 1) == "first"
    assert query_without_answer(some[:2], 0) is None
    assert query_without_answer(some[:1], 0) is None
    made = make_calibration(FirstBackbone(), [CalibrationSample("a", [shared, others[0]], 1)] * 3)
    assert made.counts[2].presence is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_leave_no_choice(count: int, caplog: pytest.LogCaptureFixture) -> None:
    made = make_calibration(FirstBackbone(), samples()[:count], candidate_counts=[3])
    assert (made.counts[3].choice is None) == (count < 3)
    assert ("five are steadier" in caplog.text) == (count < 3)


def test_samples_of_different_kinds_are_refused() -> None:
    texts = CalibrationSample("query", [Candidate(text=f"text {i}") for i in range(4)], 0)
    backbone = FirstBackbone()
    with pytest.raises(CalibrationSampleError, match="of different kinds"):
        make_calibration(backbone, [*samples(), texts])
    assert backbone.passes == 0


def test_a_model_that_does_not_rank_is_named(caplog: pytest.LogCaptureFixture) -> None:
    make_calibration(FirstBackbone(), samples(), candidate_counts=[4])
    assert "This model does not rank them" in caplog.text


def test_the_bundled_models_calibrations_leave_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lad_rerank.bundled.train import calibrations

    few = calibrations.calibration_samples(count=1, n=2)
    monkeypatch.setattr(calibrations, "STYLES", ("digits",))
    monkeypatch.setattr(calibrations, "calibration_samples", lambda: few)
    (path,) = calibrations.make_calibrations(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
