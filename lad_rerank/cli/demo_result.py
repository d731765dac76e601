"""What the demo finds out, as its table, its page and ``--json`` show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FIRST_STAGE = "first_stage"
EXAMPLES = 3
NAMES: Mapping[str, str] = {FIRST_STAGE: "First stage", "vanilla": "Vanilla", "lad": "LAD"}


@dataclass(frozen=True)
class DemoSettings:
    """What is run.

    Attributes:
        products: Size of the shop; all of it held out from training.
        queries: How many are asked.
        seed: Chooses products, queries and orders.
        candidates: How many the first stage finds for a query.
        orders: In how many shuffled orders they are shown.
    """

    products: int = 600
    queries: int = 48
    seed: int = 0
    candidates: int = 8
    orders: int = 3


@dataclass(frozen=True)
class Choice:
    """One candidate of one query, as the pass in the first of the orders saw it.

    Attributes:
        id: The product's id in the shop.
        title: Its exact caption.
        image: Its picture.
        right: Whether it has every attribute the query states.
        similarity: Cosine similarity of the first stage.
        position: Where it was shown, from 1.
        label_probability: Probability of its label, in [0, 1] over the candidates.
        evidence: Attention posterior, in [0, 1] over the candidates.
        score: LAD's score, in [0, 1] over the candidates.
    """

    id: str
    title: str
    image: Image
    right: bool
    similarity: float
    position: int
    label_probability: float
    evidence: float
    score: float


@dataclass(frozen=True)
class QueryResult:
    """One query before and after.

    Attributes:
        query: What was asked.
        choices: The candidates, in the first stage's order.
        orders: By method, indices into ``choices``, best first; of the first of the shuffled orders.
    """

    query: str
    choices: tuple[Choice, ...]
    orders: Mapping[str, tuple[int, ...]]

    @property
    def retrieved(self) -> bool:
        """Whether a right product is among the candidates."""
        return any(choice.right for choice in self.choices)

    def ranked(self, method: str) -> list[Choice]:
        """The candidates in a method's order."""
        return [self.choices[i] for i in self.orders[method]]

    def first_choices(self) -> dict[str, Choice]:
        """Each method's first choice."""
        return {method: self.ranked(method)[0] for method in self.orders}

    def right(self, method: str) -> bool:
        """Whether a method's first choice is right."""
        return self.ranked(method)[0].right


@dataclass(frozen=True)
class MethodResult:
    """How a method did over all queries and orders.

    Attributes:
        method: ``first_stage`` or the name of a scorer.
        top1: Share of right first choices, in [0, 1].
        mrr: Mean reciprocal rank of the first right candidate.
        consistency: Share of queries with the same first choice in every order; ``None`` where no order is shown.
        positions: Share of all first choices that stood at each position shown; ``None`` likewise.
    """

    method: str
    top1: float
    mrr: float
    consistency: float | None
    positions: tuple[float, ...] | None


@dataclass(frozen=True)
class DemoResult:
    """All of it.

    Attributes:
        settings: What was run.
        methods: The rows of the table.
        queries: One by one.
        search_seconds: Wall-clock time of the first stage per query.
        rerank_seconds: Wall-clock time of one pass, preprocessing included.
        seconds: Wall-clock time of the run.
    """

    settings: DemoSettings
    methods: tuple[MethodResult, ...]
    queries: tuple[QueryResult, ...]
    search_seconds: float
    rerank_seconds: float
    seconds: float

    @property
    def retrieved(self) -> int:
        """Queries with a right product among the candidates."""
        return sum(query.retrieved for query in self.queries)


def examples(result: DemoResult) -> list[QueryResult]:
    """Three queries: LAD corrects the first stage, LAD corrects the position bias, LAD is wrong itself."""

    def first(wanted: Iterator[QueryResult], taken: list[QueryResult]) -> list[QueryResult]:
        return taken + [query for query in wanted if query not in taken][:1]

    found = [query for query in result.queries if query.retrieved]
    chosen = first((q for q in found if q.right("lad") and not q.right("first_stage")), [])
    chosen = first((q for q in found if q.right("lad") and not q.right("vanilla")), chosen)
    chosen = first((q for q in found if not q.right("lad")), chosen)
    for query in result.queries:
        if len(chosen) < EXAMPLES and query not in chosen:
            chosen.append(query)
    return chosen


def notes(result: DemoResult) -> tuple[str, ...]:
    """What must be said to read the numbers rightly."""
    missed = len(result.queries) - result.retrieved
    none = (
        ""
        if missed == 0
        else f" For {missed} the first stage found no right product, which counts as a miss for every method."
    )
    return (
        "A query names some attributes. One product of the shop has all of them, which makes it right, and many lack"
        f" just one (where the shop is large enough).{none}",
        "Consistency: the same first choice in every order. The first stage sees each picture by itself, so it has"
        " no order to depend on.",
        "For this table the orders are shuffled on purpose. LADReranker itself always shows a set of candidates in"
        " one canonical order, so its own answer cannot depend on the caller's.",
    )
