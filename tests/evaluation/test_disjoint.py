from __future__ import annotations

import pytest
from PIL import Image

from lad_rerank.calibration.samples import CalibrationSample, open_samples, samples_from_titles
from lad_rerank.errors import EvaluationSetError, OverlapError
from lad_rerank.evaluation.builders import set_from_titles
from lad_rerank.evaluation.disjoint import check_disjoint, sample_of, split_set
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.evaluation.titled import TitledImage, split
from lad_rerank.records import Candidate


def candidate(shade: int) -> Candidate:
    return Candidate(Image.new("RGB", (4, 4), (shade, 0, 0)), str(shade))


def items(*shown: range, query: str = "query {}") -> EvaluationSet:
    made = (
        EvaluationItem(str(i), query.format(i), tuple(map(candidate, own)), i % len(own)) for i, own in enumerate(shown)
    )
    return EvaluationSet("some", tuple(made))


def test_a_split_makes_disjoint_samples_and_sets(titled: list[TitledImage]) -> None:
    parts = split(titled, titles=8, seed=1)
    samples = samples_from_titles([one.pair for one in parts.samples], count=5, candidates=8, seed=1)
    made = set_from_titles(parts.evaluated, candidates=8, instances=50, seed=1)
    check_disjoint(samples, made)
    check_disjoint(open_samples(samples), made)


def test_shared_pictures_and_queries_are_told() -> None:
    made = items(range(0, 4), range(4, 8))
    check_disjoint([CalibrationSample("q", [candidate(9), candidate(10)], 0)], made)
    with pytest.raises(OverlapError, match="sample 1 shows candidate 2 of item 1 of some"):
        check_disjoint(
            [
                CalibrationSample("q", [candidate(9), candidate(10)], 0),
                CalibrationSample("q", [candidate(6), candidate(10)], 1),
            ],
            made,
        )
    with pytest.raises(OverlapError, match="sample 0 asks the query 'query 1' of item 1"):
        check_disjoint([CalibrationSample(" QUERY  1", [candidate(9), candidate(10)], 0)], made)


def test_samples_are_taken_out_of_a_set() -> None:
    made = items(*(range(4 * i, 4 * i + 4) for i in range(10)), range(200, 203), range(210, 213))
    samples, left = split_set(made, samples=3, seed=1)
    assert [len(sample.candidates) for sample in samples] == [4, 4, 4]
    assert left.name == made.name
    assert len(left) == 9
    check_disjoint(samples, left)
    again = split_set(made, samples=3, seed=1)
    assert [s.query for s in again[0]] == [s.query for s in samples]
    assert again[1].digest() == left.digest()
    assert {s.query for s in split_set(made, samples=3, seed=3)[0]} != {s.query for s in samples}


def test_what_shares_a_picture_with_a_sample_goes_too() -> None:
    chain = items(*(range(i, i + 2) for i in range(12)))
    samples, left = split_set(chain, samples=1, seed=0)
    assert len(left) in (10, 9)
    check_disjoint(samples, left)
    with pytest.raises(EvaluationSetError, match="shares a picture"):
        split_set(items(range(0, 3), range(0, 3), range(0, 3)), samples=1)
    with pytest.raises(EvaluationSetError, match="2 items to calibrate on, and 5"):
        split_set(items(range(0, 3), range(3, 6)), samples=5)
    same = EvaluationSet("same", (EvaluationItem("a", "q", (candidate(1), candidate(1)), 0),))
    with pytest.raises(EvaluationSetError, match="0 items"):
        split_set(same, samples=1)


def test_an_item_without_a_target_is_no_sample() -> None:
    with pytest.raises(EvaluationSetError, match="no right answer"):
        sample_of(EvaluationItem("a", "q", (candidate(1), candidate(2)), None))
