"""One query's way through one pass or several rounds of windows; many queries share batches of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from lad_rerank.backbones.base import Backbone
from lad_rerank.candidates import OpenedCandidate
from lad_rerank.contents import CandidateKind, Content, kind_of
from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.choice import margin
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.scoring import Scores, ScoringSettings, listwise_probabilities, score
from lad_rerank.passes import PassPlan, opposite
from lad_rerank.prompt import NULL_QUERY
from lad_rerank.records import FailedCandidate, FloatArray, Observation, RankedCandidate, Ranking
from lad_rerank.windows import Group, rounds

BiasFor: TypeAlias = Callable[[int, CandidateKind, CandidateKind], "PositionBias | None"]
"""The calibration for a number and a kind of candidates, which are some of a list of the second kind."""


@dataclass(frozen=True)
class Look:
    """One pass over a group.

    Attributes:
        group: Its candidates in the order they were shown.
        observation: What the pass yielded.
        scores: What the scorer made of it, by position.
    """

    group: Group
    observation: Observation
    scores: Scores

    @property
    def passes(self) -> int:
        """Prompts that the model ran for it."""
        null = self.observation.null
        return self.observation.passes + (0 if null is None else null.passes)


@dataclass
class RankingTask:
    """A query with its opened candidates, and what has been seen of them so far.

    Attributes:
        line: The query, one line.
        opened: What is shown, in canonical order where that is wanted.
        failed: Candidates that could not be opened.
        window: Most candidates in one pass.
        top_n: How many of the best are wanted.
    """

    line: str
    opened: Sequence[OpenedCandidate]
    failed: Sequence[FailedCandidate]
    window: int
    top_n: int | None
    _log_scores: FloatArray = field(default_factory=lambda: np.zeros(0))
    _evidence: dict[int, list[float]] = field(default_factory=dict)
    _cut: dict[int, int] = field(default_factory=dict)
    _looks: list[Look] = field(default_factory=list)
    _confidences: dict[frozenset[int], list[float]] = field(default_factory=dict)

    def contents(self, group: Group) -> list[Content]:
        """What a group shows, in its order."""
        return [self.opened[i].content for i in group]

    def first_stage(self, group: Group) -> FloatArray | None:
        """First-stage scores of a group; ``None`` unless all of its candidates have one."""
        scores = [self.opened[i].first_stage_score for i in group]
        known = [s for s in scores if s is not None]
        return np.array(known, dtype=np.float64) if len(known) == len(group) else None

    def take(self, look: Look, bias: PositionBias | None) -> None:
        """Note what a pass yielded."""
        self._looks.append(look)
        if look.scores.posterior is not None:
            for i, share in zip(look.group, look.scores.posterior.tolist(), strict=True):
                self._evidence.setdefault(i, []).append(share)
        self._cut.update(zip(look.group, look.observation.cut, strict=False))
        if bias is not None and bias.presence is not None:
            confidence = bias.presence.confidence(look.observation)
            self._confidences.setdefault(frozenset(look.group), []).append(confidence)

    def finish(self, log_scores: FloatArray) -> None:
        """Note the log scores of all candidates."""
        self._log_scores = log_scores

    def ranking(self, query: str, method: str, model: str) -> Ranking:
        """The result."""
        single = self._looks[0] if len(self._looks) == 1 else None
        final = self._confidences.get(frozenset(self._looks[-1].group)) if self._looks else None
        return Ranking(
            query=query,
            hits=self._hits(),
            failed=tuple(self.failed),
            method=method,
            model=model,
            observation=single.observation if single else None,
            shown=tuple(self.opened[i].members[0][0] for i in single.group) if single else (),
            passes=sum(look.passes for look in self._looks),
            confidence=float(np.mean(final)) if final else None,
        )

    def _hits(self) -> tuple[RankedCandidate, ...]:
        """Candidates by score; every member of a content gets the content's score, then all sum to 1."""
        members = [(position, index, name) for position, c in enumerate(self.opened) for index, name in c.members]
        if not members:
            return ()
        log_scores = self._log_scores if len(self.opened) > 1 else np.zeros(1)
        probabilities = listwise_probabilities(np.array([log_scores[position] for position, _, _ in members]))
        # By log score, since probabilities far below the best one underflow to equal zeros; ties by the
        # order shown, which does not depend on the caller's.
        order = sorted(range(len(members)), key=lambda i: (-log_scores[members[i][0]], members[i]))
        hits = []
        for rank, i in enumerate(order[: self.top_n], start=1):
            position, index, name = members[i]
            shares = self._evidence.get(position)
            evidence = float(np.mean(shares)) if shares else None
            cut = self._cut.get(position, 0)
            hits.append(RankedCandidate(rank, index, name, float(probabilities[i]), evidence, cut))
        return tuple(hits)


@dataclass(frozen=True)
class Looker:
    """Looks at groups of candidates and scores what is seen.

    Attributes:
        backbone: The model.
        method: Name of a scorer.
        settings: How evidence is turned into scores.
        bias_for: See :data:`BiasFor`; asked before the passes that need it.
    """

    backbone: Backbone
    method: str
    settings: ScoringSettings
    bias_for: BiasFor

    def look(self, asked: Sequence[tuple[RankingTask, Group]]) -> list[FloatArray]:
        """One pass over each group.

        Returns:
            Log probabilities of each group's candidates, in the group's order.
        """
        biases = [self.bias(task, group) for task, group in asked]
        needs_null = [self._needs_null(bias) for bias in biases]
        requests = [(task.line, task.contents(group)) for task, group in asked]
        nulls = [(NULL_QUERY, contents) for (_, contents), wanted in zip(requests, needs_null, strict=True) if wanted]
        seen = self.backbone.observe_many([*requests, *nulls])
        null = iter(seen[len(requests) :])
        results = []
        for (task, group), bias, wanted, observation in zip(asked, biases, needs_null, seen, strict=False):
            if wanted:
                observation = replace(observation, null=next(null))
            scores = score(observation, bias, self.method, self.settings)
            task.take(Look(group, observation, scores), bias)
            results.append(log_softmax(self._fused(scores.log_scores, task, group, bias)))
        return results

    def bias(self, task: RankingTask, group: Group) -> PositionBias | None:
        """The calibration that a group needs."""
        whole = kind_of([candidate.content for candidate in task.opened])
        return self.bias_for(len(group), kind_of(task.contents(group)), whole)

    def _needs_null(self, bias: PositionBias | None) -> bool:
        """Whether what a calibration fitted reads the null query as well."""
        if bias is None:
            return False
        chosen = self.method == "auto" and bias.choice is not None and bias.choice.needs_null
        return chosen or (bias.presence is not None and bias.presence.needs_null)

    def _fused(self, log_scores: FloatArray, task: RankingTask, group: Group, bias: PositionBias | None) -> FloatArray:
        """With the first stage's scores, where calibration learned their weight and all candidates have one."""
        weight = bias.choice.first_stage_weight if self.method == "auto" and bias is not None and bias.choice else 0.0
        first_stage = task.first_stage(group) if weight else None
        return log_scores if first_stage is None else log_scores + weight * first_stage


def play(tasks: Sequence[RankingTask], looker: Looker, plan: PassPlan) -> None:
    """Run all tasks to their end, each round of all of them in common batches.

    Args:
        tasks: What to rank; those of fewer than two candidates need nothing.
        looker: Shows and scores.
        plan: How often each group is looked at.
    """
    games = {i: rounds(range(len(t.opened)), t.window, t.top_n) for i, t in enumerate(tasks) if len(t.opened) > 1}
    waiting: dict[int, list[Group]] = {i: next(game) for i, game in games.items()}
    while waiting:
        asked = [(i, group) for i, groups in waiting.items() for group in groups]
        scored = look_as_planned([(tasks[i], group) for i, group in asked], looker, plan)
        answers: dict[int, list[FloatArray]] = {i: [] for i in waiting}
        for (i, _), log_scores in zip(asked, scored, strict=True):
            answers[i].append(log_scores)
        following = {}
        for i in waiting:
            try:
                following[i] = games[i].send(answers[i])
            except StopIteration as stop:
                tasks[i].finish(stop.value)
        waiting = following


def look_as_planned(asked: Sequence[tuple[RankingTask, Group]], looker: Looker, plan: PassPlan) -> list[FloatArray]:
    """Look at groups as often as planned; the mean of the log probabilities of all looks.

    Args:
        asked: Groups with the tasks they belong to.
        looker: Shows and scores.
        plan: How often.

    Returns:
        Log scores of each group's candidates, in the group's order.
    """
    votes: list[list[FloatArray]] = [[] for _ in asked]

    def run(turned: Sequence[tuple[int, int]]) -> None:
        """Look at groups, each turned by a cyclic shift."""
        groups = [(asked[i][0], _turned(asked[i][1], shift)) for i, shift in turned]
        for (i, shift), log_scores in zip(turned, looker.look(groups), strict=True):
            votes[i].append(np.roll(log_scores, shift))

    run([(i, shift) for i, (_, group) in enumerate(asked) for shift in plan.shifts(len(group))])
    if plan.unsure:
        unsure = []
        for i, (task, group) in enumerate(asked):
            bias = looker.bias(task, group)
            if bias is not None and bias.choice is not None:
                below = bias.choice.uncertain_below(plan.mean_passes)
                if margin(votes[i][0]) < below:
                    unsure.append((i, opposite(len(group))))
        if unsure:
            run(unsure)
    return [np.mean(v, axis=0) for v in votes]


def _turned(group: Group, shift: int) -> Group:
    """A group in a cyclic shift: position p holds what stood at p + shift."""
    return group[shift:] + group[:shift]
