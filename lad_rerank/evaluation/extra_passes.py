"""Rows that stored passes are not enough for: other prompts, other orders, other attention, written text.

Each runs over the same instances in the same orders as :func:`observe_orders` shows for the same seed, so that rows
are paired. Baselines are those of Xian et al., ICML 2026 (arXiv 2605.11591); the label ensemble is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from lad_rerank.backbones.generating import generate
from lad_rerank.backbones.soft_mask import observe_softened
from lad_rerank.errors import RowUnavailableError
from lad_rerank.evaluation.cost import Meter
from lad_rerank.evaluation.generated import parse_label
from lad_rerank.evaluation.label_ensemble import STYLES, ensemble
from lad_rerank.evaluation.orders import Instance, ObservedRuns, ShownObservation, observe_shown
from lad_rerank.evaluation.permutations import (
    Order,
    arranged,
    balanced_orders,
    cyclic_orders,
    random_orders,
    williams_orders,
)
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import averaged, scored
from lad_rerank.prompt import Wording, candidate_labels, clean_query

if TYPE_CHECKING:
    from lad_rerank.backbones.base import Backbone
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.records import Observation

T = TypeVar("T")
Progress: TypeAlias = Callable[[int, int], None]

ANSWER_TOKENS = 16
"""Tokens written at most where only a label is asked for: room for "The best match is image 3."."""
REASONING_TOKENS = 256
"""Tokens written at most where the model shall think first."""
VOTES = 10
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Asked:
    """What a row is to be made of.

    Attributes:
        backbone: The model.
        instances: Q instances.
        orders: T, how many orders of each.
        seed: Chooses the orders, and whatever else is drawn.
        calibration: The backbone's own, where the row needs one.
        progress: Called with (queries done, queries to do), both over all orders.
    """

    backbone: HuggingFaceBackbone
    instances: Sequence[Instance]
    orders: int
    seed: int
    calibration: Calibration | None
    progress: Progress | None

    @property
    def shown(self) -> list[list[Order]]:
        """T x Q orders."""
        return drawn_orders(self.instances, self.orders, self.seed)


@dataclass(frozen=True)
class ExtraRow:
    """A row that needs passes of its own.

    Attributes:
        name: What it is called in tables.
        passes: How many passes over a prompt it takes per query, at most, for a number of candidates.
        make: Makes it.
    """

    name: str
    passes: Callable[[int], int]
    make: Callable[[Asked], RowResult]

    def run(
        self,
        backbone: Backbone,
        instances: Sequence[Instance],
        orders: int,
        seed: int,
        calibration: Calibration | None = None,
        progress: Progress | None = None,
    ) -> RowResult:
        """Run every instance in every order.

        Args:
            backbone: The model; one loaded through transformers.
            instances: See :class:`Asked`, like all that follow.
            orders: T.
            seed: Chooses.
            calibration: The backbone's own.
            progress: Called after each query.

        Raises:
            RowUnavailableError: The row cannot be made with this model or these calibrations.
            PromptTooLongError: A prompt does not fit the context window.
            BackboneError: The model did not behave as it must.
        """
        asked = Asked(_transformers(backbone, self.name), instances, orders, seed, calibration, progress)
        return self.make(asked)


def drawn_orders(instances: Sequence[Instance], orders: int, seed: int) -> list[list[Order]]:
    """The T x Q orders in which :func:`observe_orders` shows these instances.

    Args:
        instances: Q instances.
        orders: T.
        seed: Chooses them.
    """
    targets = [min(instance.relevant, default=None) for instance in instances]
    return balanced_orders([i.n for i in instances], targets, orders, np.random.default_rng(seed))


def majority(votes: Sequence[int | None]) -> int | None:
    """What most votes are for, of equals what was voted for first; ``None`` where every vote is empty."""
    counted = Counter(vote for vote in votes if vote is not None)
    # Counter keeps the order of first sight, and most_common is stable.
    return counted.most_common(1)[0][0] if counted else None


def _written(name: str, wording: Wording, *, max_new_tokens: int, votes: int = 1) -> ExtraRow:
    """A row whose answers are read from written text: the label that most texts name.

    ``ranked`` holds the one candidate that is chosen, or nothing where no text names exactly one.
    """

    def make(asked: Asked) -> RowResult:
        writer = asked.backbone.variant(wording=wording)

        def choose(t: int, q: int, instance: Instance, shown: Order) -> tuple[int, ...]:
            texts = generate(
                writer,
                clean_query(instance.query),
                [instance.contents[i] for i in shown],
                max_new_tokens=max_new_tokens,
                samples=votes,
                temperature=TEMPERATURE if votes > 1 else 0.0,
                seed=int(np.random.SeedSequence((asked.seed, t, q)).generate_state(1)[0]),
            )
            labels = candidate_labels(instance.n, writer.identity.labels)
            chosen = majority([parse_label(text, labels) for text in texts])
            return () if chosen is None else (shown[chosen],)

        chosen, meter = _each(writer, asked, choose)
        return RowResult(
            name, chosen, passes=float(votes), seconds=_per_query(meter, chosen), peak_bytes=meter.peak_bytes
        )

    return ExtraRow(name, lambda n: votes, make)


def _instruction(asked: Asked) -> RowResult:
    """Label log-probabilities under a prompt that asks to be fair to all positions."""
    fair = asked.backbone.variant(wording="fair")
    fair.forget()
    observed = observe_shown(fair, asked.instances, asked.shown, progress=asked.progress)
    return scored(observed, None, "vanilla", name="instruction")


def _sofa(asked: Asked) -> RowResult:
    """Label log-probabilities of a pass whose candidates see each other in both directions."""

    def observe(t: int, q: int, instance: Instance, shown: Order) -> ShownObservation:
        query, contents = clean_query(instance.query), [instance.contents[i] for i in shown]
        return ShownObservation(_labels_alone(observe_softened(asked.backbone, query, contents)), shown)

    runs, meter = _each(asked.backbone, asked, observe)
    return scored(ObservedRuns(runs, _per_query(meter, runs), meter.peak_bytes), None, "vanilla", name="sofa")


def _average(name: str, further: Callable[[int, np.random.Generator], Sequence[Order]]) -> ExtraRow:
    """Permutation averaging: label log-probabilities over N further orders of each order shown."""

    def make(asked: Asked) -> RowResult:
        def observe(t: int, q: int, instance: Instance, shown: Order) -> list[ShownObservation]:
            again = arranged(shown, further(instance.n, np.random.default_rng((asked.seed, t, q))))
            query = clean_query(instance.query)
            seen = asked.backbone.observe_many([(query, [instance.contents[i] for i in order]) for order in again])
            return [ShownObservation(_labels_alone(o), order) for o, order in zip(seen, again, strict=True)]

        groups, meter = _each(asked.backbone, asked, observe)
        row = averaged(name, groups, peak_bytes=meter.peak_bytes)
        return replace(row, seconds=_per_query(meter, groups))

    return ExtraRow(name, lambda n: n, make)


def _label_ensemble(asked: Asked) -> RowResult:
    """LAD scores under several label styles, added."""
    asked.backbone.forget()
    return ensemble(
        "label_ensemble", asked.backbone, asked.instances, asked.shown, asked.calibration, progress=asked.progress
    )


def _transformers(backbone: Backbone, name: str) -> HuggingFaceBackbone:
    """The backbone as one that can be asked in other ways.

    Raises:
        RowUnavailableError: It cannot.
    """
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone

    if not isinstance(backbone, HuggingFaceBackbone):
        raise RowUnavailableError(f"The row {name} needs a model that is loaded through transformers.")
    return backbone


def _each(
    backbone: HuggingFaceBackbone, asked: Asked, run: Callable[[int, int, Instance, Order], T]
) -> tuple[list[list[T]], Meter]:
    """Run every instance in every order, T x Q, and measure it; nothing kept from before makes it faster.

    Args:
        backbone: The model as the row asks it.
        asked: What the row is made of.
        run: Gets order and query number, the instance and its order.
    """
    shown = asked.shown
    total, done = sum(map(len, shown)), 0
    results: list[list[T]] = []
    backbone.forget()
    with Meter() as meter:
        for t, order in enumerate(shown):
            results.append([])
            for q, (instance, own) in enumerate(zip(asked.instances, order, strict=True)):
                results[-1].append(run(t, q, instance, own))
                done += 1
                if asked.progress is not None:
                    asked.progress(done, total)
    return results, meter


def _per_query(meter: Meter, results: Sequence[Sequence[object]]) -> float | None:
    total = sum(map(len, results))
    return meter.seconds / total if total else None


def _labels_alone(observation: Observation) -> Observation:
    """Without the attention, which nobody scores here: many passes are kept at once."""
    return replace(observation, attention={}, peaks={})


EXTRA_ROWS: Mapping[str, ExtraRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            _written("free_generation", "paper", max_new_tokens=ANSWER_TOKENS),
            ExtraRow("instruction", lambda n: 1, _instruction),
            _written("chain_of_thought", "reasoning", max_new_tokens=REASONING_TOKENS),
            _written("self_consistency", "reasoning", max_new_tokens=REASONING_TOKENS, votes=VOTES),
            ExtraRow("sofa", lambda n: 1, _sofa),
            _average("average_random", lambda n, rng: random_orders(n, n, rng)),
            _average("average_cyclic", lambda n, rng: cyclic_orders(n)),
            _average("average_williams", lambda n, rng: williams_orders(n)),
            ExtraRow("label_ensemble", lambda n: len(STYLES), _label_ensemble),
        )
    }
)
"""By name. What generates takes tokens beside its passes; self-consistency runs its prompt once for each vote."""
