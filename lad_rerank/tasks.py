"""One query's way through one pass or several rounds of windows; many queries share batches of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lad_rerank.backbones.base import Backbone
from lad_rerank.candidates import OpenedCandidate
from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.scoring import Scores, ScoringSettings, listwise_probabilities, score
from lad_rerank.records import FailedCandidate, FloatArray, Observation, RankedCandidate, Ranking
from lad_rerank.windows import Group, rounds

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class RankingTask:
    """A query with its opened candidates, and what has been seen of them so far.

    Attributes:
        line: The query, one line.
        opened: Pictures in the order they are shown.
        failed: Candidates that could not be opened.
        window: Most pictures in one pass.
        top_n: How many of the best are wanted.
    """

    line: str
    opened: Sequence[OpenedCandidate]
    failed: Sequence[FailedCandidate]
    window: int
    top_n: int | None
    _log_scores: FloatArray = field(default_factory=lambda: np.zeros(0))
    _evidence: dict[int, float] = field(default_factory=dict)
    _seen: list[tuple[Group, Observation]] = field(default_factory=list)

    def images(self, group: Group) -> list[Image]:
        """Pictures of a group, in the order they are shown."""
        return [self.opened[i].image for i in group]

    def take(self, group: Group, observation: Observation, scores: Scores) -> FloatArray:
        """Note what a pass over a group yielded."""
        self._seen.append((group, observation))
        if scores.posterior is not None:
            self._evidence.update(zip(group, scores.posterior.tolist(), strict=True))
        return scores.log_scores

    def finish(self, log_scores: FloatArray) -> None:
        """Note the log scores of all pictures."""
        self._log_scores = log_scores

    def ranking(self, query: str, method: str, model: str) -> Ranking:
        """The result."""
        single = self._seen[0] if len(self._seen) == 1 else None
        return Ranking(
            query=query,
            hits=self._hits(),
            failed=tuple(self.failed),
            method=method,
            model=model,
            observation=single[1] if single else None,
            shown=tuple(self.opened[i].members[0][0] for i in single[0]) if single else (),
            passes=sum(observation.passes for _, observation in self._seen),
        )

    def _hits(self) -> tuple[RankedCandidate, ...]:
        """Candidates by score; every member of a picture gets the picture's score, then all sum to 1."""
        members = [(position, index, name) for position, c in enumerate(self.opened) for index, name in c.members]
        if not members:
            return ()
        log_scores = self._log_scores if len(self.opened) > 1 else np.zeros(1)
        probabilities = listwise_probabilities(np.array([log_scores[position] for position, _, _ in members]))
        # By log score, since probabilities far below the best one underflow to equal zeros; ties by the
        # order shown, which does not depend on the caller's.
        order = sorted(range(len(members)), key=lambda i: (-log_scores[members[i][0]], members[i]))
        return tuple(
            RankedCandidate(
                rank=rank,
                index=members[i][1],
                id=members[i][2],
                score=float(probabilities[i]),
                evidence=self._evidence.get(members[i][0]),
            )
            for rank, i in enumerate(order[: self.top_n], start=1)
        )


def play(
    tasks: Sequence[RankingTask],
    backbone: Backbone,
    method: str,
    settings: ScoringSettings,
    position_bias: Callable[[int], PositionBias | None],
) -> None:
    """Run all tasks to their end, each round of all of them in common batches.

    Args:
        tasks: What to rank; those of fewer than two pictures need nothing.
        backbone: The model.
        method: Name of a scorer.
        settings: How evidence is turned into scores.
        position_bias: The calibration for a number of candidates; asked before the passes that need it.
    """
    games = {i: rounds(range(len(t.opened)), t.window, t.top_n) for i, t in enumerate(tasks) if len(t.opened) > 1}
    waiting: dict[int, list[Group]] = {i: next(game) for i, game in games.items()}
    while waiting:
        asked = [(i, group) for i, groups in waiting.items() for group in groups]
        biases = {n: position_bias(n) for n in {len(group) for _, group in asked}}
        observations = backbone.observe_many([(tasks[i].line, tasks[i].images(group)) for i, group in asked])
        answers: dict[int, list[FloatArray]] = {i: [] for i in waiting}
        for (i, group), observation in zip(asked, observations, strict=True):
            scores = score(observation, biases[len(group)], method, settings)
            answers[i].append(tasks[i].take(group, observation, scores))
        following = {}
        for i in waiting:
            try:
                following[i] = games[i].send(answers[i])
            except StopIteration as stop:
                tasks[i].finish(stop.value)
        waiting = following
