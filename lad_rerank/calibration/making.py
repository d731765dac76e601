"""How a calibration is made: every sample in every cyclic order, S x N passes for each N (Section 4.2)."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np

from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.record import Calibration, CountCalibration, Provenance
from lad_rerank.calibration.samples import CalibrationSample, OpenedSample, open_samples, samples_digest
from lad_rerank.debias.bias import position_bias
from lad_rerank.debias.scoring import head_mean
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits
from lad_rerank.records import Observation

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (passes done, passes in all)."""

FEW_SAMPLES = 3


def make_calibration(
    backbone: Backbone,
    samples: Sequence[CalibrationSample | Mapping[str, Any]],
    *,
    candidate_counts: Sequence[int] | None = None,
    allow_urls: bool = False,
    limits: ImageLimits | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate a backbone.

    Args:
        backbone: The model.
        samples: Samples with known targets, disjoint from whatever is evaluated later; five are enough.
        candidate_counts: Numbers of candidates to cover; by default from 2 to the largest sample. A
            sample serves every N up to its own number of images: the surplus distractors are left out.
        allow_urls: Whether images may be fetched.
        limits: What an image may be at most; the defaults of :class:`lad_rerank.images.ImageLimits` otherwise.
        progress: Called after every sample.

    Returns:
        The calibration; S x N passes were made for each N.

    Raises:
        CalibrationSampleError: A sample is unusable, none is large enough for some N, or
            ``candidate_counts`` is no list of whole numbers above one.
    """
    asked = None if candidate_counts is None else _checked_counts(candidate_counts)
    opened = open_samples(samples, allow_urls=allow_urls, limits=limits)
    largest = max(len(sample.images) for sample in opened)
    counts = asked if asked is not None else list(range(2, largest + 1))
    chosen = {n: [s.reduced(n) for s in opened if len(s.images) >= n] for n in counts}
    for n, usable in chosen.items():
        if not usable:
            raise CalibrationSampleError(f"No calibration sample has {n} images; the largest has {largest}.")
        if len(usable) < FEW_SAMPLES:
            logger.warning("Only %d calibration samples for %d candidates; five are steadier.", len(usable), n)
    total = sum(n * len(usable) for n, usable in chosen.items())
    done = 0
    records = {}
    for n, usable in chosen.items():
        observations: list[Observation] = []
        targets: list[int] = []
        for sample in usable:
            observations += observe_shifts(backbone, sample)
            targets += [(sample.target - r) % n for r in range(n)]
            done += n
            if progress is not None:
                progress(done, total)
        bias = position_bias(
            np.stack([o.log_probs for o in observations]),
            np.stack([head_mean(o) for o in observations]),
            np.array(targets),
            observations[0].layers,
        )
        records[n] = CountCalibration.of(bias, len(usable), samples_digest(usable))
    return Calibration(identity=backbone.identity, provenance=_provenance(backbone), counts=records)


def observe_shifts(backbone: Backbone, sample: OpenedSample) -> list[Observation]:
    """Show a sample in all cyclic shifts: in shift r, position i holds image (i + r) mod N.

    Returns:
        N passes; in that of shift r the target stands at (target - r) mod N.
    """
    n = len(sample.images)
    shifts = [[sample.images[(i + r) % n] for i in range(n)] for r in range(n)]
    return backbone.observe_many([(sample.query, images) for images in shifts])


def _checked_counts(counts: Sequence[int]) -> list[int]:
    """Numbers of candidates as plain ints, ascending, each once.

    Raises:
        CalibrationSampleError: Nothing to go through, nothing in it, or something in it is no number of candidates.
    """
    if isinstance(counts, (str, bytes)) or not isinstance(counts, Iterable):
        raise CalibrationSampleError(f"candidate_counts must be a list of whole numbers, got {counts!r}.")
    checked = set()
    for count in counts:
        try:
            n = operator.index(count)
        except TypeError:
            n = None
        if n is None or isinstance(count, bool):
            raise CalibrationSampleError(f"candidate_counts must hold whole numbers such as 8, got {count!r}.")
        if n < 2:
            raise CalibrationSampleError(f"Calibration is for two candidates and more, not for {n}.")
        checked.add(n)
    if not checked:
        raise CalibrationSampleError("candidate_counts is empty; leave it out to cover all that the samples allow.")
    return sorted(checked)


def _provenance(backbone: Backbone) -> Provenance:
    packages = ("lad-rerank", "transformers", "torch")
    return Provenance(
        model=backbone.name,
        revision=backbone.revision,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions={package: metadata.version(package) for package in packages},
    )
