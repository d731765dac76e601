"""How well the absolute signal tells lists with a right answer from lists without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lad_rerank.calibration.record import Calibration
from lad_rerank.evaluation.metrics import auroc
from lad_rerank.evaluation.orders import Instance, ObservedRuns
from lad_rerank.evaluation.reports import ConfidenceReport


def confidence_report(
    observed: ObservedRuns, instances: Sequence[Instance], calibration: Calibration | None
) -> ConfidenceReport | None:
    """Measure ``Ranking.confidence`` on stored passes.

    Args:
        observed: T x Q passes.
        instances: The Q instances; those whose answer the first stage did not find are without one here.
        calibration: Holds the fitted signal.

    Returns:
        ``None`` where all or none of the lists hold a right answer, or the calibration has no signal for them.
    """
    if calibration is None:
        return None
    fitted = {n: calibration.position_bias(n).presence for n in {i.n for i in instances} if n in calibration.counts}
    present: list[float] = []
    absent: list[float] = []
    for run in observed.runs:
        for seen, instance in zip(run, instances, strict=True):
            presence = fitted.get(instance.n)
            if presence is not None:
                (present if instance.relevant else absent).append(presence.confidence(seen.observation))
    if not present or not absent:
        return None
    return ConfidenceReport(
        auroc=float(auroc(present, absent)),
        present_confident=float(np.mean([c >= 0.5 for c in present])),
        absent_unsure=float(np.mean([c < 0.5 for c in absent])),
    )
