"""Passes of a made-up model: a position bias in everything, and the target in the heads and logits it is planted in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lad_rerank.debias.bias import PositionBias, position_bias
from lad_rerank.debias.choosing import CalibrationPasses
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.scoring import head_mean
from lad_rerank.records import Observation

LAYERS, HEADS = 4, 6
ROWS = ("last", "query")


@dataclass(frozen=True)
class Model:
    """A made-up model over N candidates.

    Attributes:
        n: N.
        planted: For each row, the (layer, head) pairs that look at the target, all with the same gain.
        gain: By how many nats they do.
        logit_gain: By how many nats the target's label is likelier.
        salience: Spread of what a candidate draws whatever is asked, in nats; the same in every shift.
        seed: Chooses the position bias of every head and of the labels.
    """

    n: int = 6
    planted: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gain: float = 2.0
    logit_gain: float = 0.0
    salience: float = 0.5
    seed: int = 0

    def observe(self, target: int, salience: NDArray[np.float64], rng: np.random.Generator) -> Observation:
        """One pass with the target at a position, and what each position's candidate draws whatever is asked."""
        own = np.random.default_rng(self.seed)
        rows = {}
        for row in ROWS:
            log = own.normal(-4, 0.5, (LAYERS, HEADS, 1)) + own.normal(0, 1.0, (LAYERS, HEADS, self.n))
            log = log + salience + rng.normal(0, 0.3, log.shape)
            for layer, head in self.planted.get(row, []):
                log[layer, head, target] += self.gain
            rows[row] = np.minimum(np.exp(log), 1.0)
        z = own.normal(0, 1.5, self.n) + rng.normal(0, 0.7, self.n)
        z[target] += self.logit_gain
        return Observation(
            log_softmax(z), rows, tuple(range(LAYERS)), 1.0, 100, peaks=rows, lengths=(16,) * self.n, cut=()
        )

    def passes(self, samples: int, seed: int, first_stage: float | None = None) -> CalibrationPasses:
        """Every sample in all cyclic shifts.

        Args:
            samples: S.
            seed: Chooses them.
            first_stage: By how many standard deviations of the others a target's first-stage score is larger.
        """
        rng = np.random.default_rng((seed, 1))
        n, observations, targets, scores = self.n, [], [], []
        shown = np.array([[(i + r) % n for i in range(n)] for r in range(n)])
        for s in range(samples):
            target, salience = s % n, rng.normal(0, self.salience, n)
            of_sample = rng.normal(size=n)
            of_sample[target] += first_stage or 0.0
            for r in range(n):
                at = (target - r) % n
                observations.append(self.observe(at, salience[shown[r]], rng))
                targets.append(at)
                scores.append(of_sample[shown[r]])
        return CalibrationPasses(
            observations,
            np.repeat(np.arange(samples), n),
            np.array(targets),
            np.tile(shown, (samples, 1)),
            None if first_stage is None else np.array(scores),
        )


def bias_of(passes: CalibrationPasses) -> Callable[[NDArray[np.bool_]], PositionBias]:
    """The paper's bias of some of these passes, as calibration estimates it."""
    attention = np.stack([head_mean(o) for o in passes.observations])

    def estimate(kept: NDArray[np.bool_]) -> PositionBias:
        layers = passes.observations[0].layers
        return position_bias(passes.log_probs[kept], attention[kept], passes.targets[kept], layers)

    return estimate


def everything(passes: CalibrationPasses) -> NDArray[np.bool_]:
    """A mask that keeps all passes."""
    return np.ones(len(passes.targets), dtype=bool)
