"""The whole vocabulary: what goes in, what one pass yields, what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "Image | str | PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | NDArray[Any]"
"""Whatever :func:`lad_rerank.images.open_image` opens: picture, path, bytes, stream, base64, array."""

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """One thing that may be ranked: an image, a text, or an image with a text.

    Attributes:
        image: The picture, in any form that ``open_image`` accepts.
        id: The caller's name for it; ``None`` means its index in the list, as a string.
        metadata: Carried along untouched.
        text: What is said of it: a title, a page's words. Shown to the model as one line.
        first_stage_score: What the first stage gave it; used only where the calibration learned its weight.
    """

    image: ImageSource | None = None
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    first_stage_score: float | None = None


@dataclass(frozen=True)
class Observation:
    """Everything the method and its baselines need from one forward pass.

    All arrays are in the order in which the candidates were shown. N candidates, L read layers, H heads.

    Attributes:
        log_probs: (N,) float64, ``log P(label | prompt)`` restricted to the labels, from raw logits;
            its exponentials sum to 1.
        attention: Read-out rows by name, each (L, H, N) float64: post-softmax attention of the row to
            each candidate's tokens, summed over them (Eq. 6 before the mean over heads).
            ``"last"`` is the last prompt token, ``"query"`` the mean over the query's own tokens.
        layers: The decoder layer each row of ``attention`` was read in, (L,).
        label_mass: Share of the whole vocabulary's probability that fell on the labels, in [0, 1].
        prompt_tokens: Length of the prompt in tokens.
        passes: Forward passes over the prompt that this took.
        peaks: Read-out rows by name, each (L, H, N) float64: the largest attention of the row to one of the
            candidate's tokens, mean over the row's own tokens.
        lengths: (N,) tokens that count as each candidate's own.
        cut: (N,) tokens of each candidate's text that were cut off its end; empty where none could be.
        null: The same candidates in the same order with a query that says nothing (``prompt.NULL_QUERY``),
            where it was asked for.
    """

    log_probs: FloatArray
    attention: Mapping[str, FloatArray]
    layers: tuple[int, ...]
    label_mass: float
    prompt_tokens: int
    passes: int = 1
    peaks: Mapping[str, FloatArray] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    null: Observation | None = None

    @property
    def n(self) -> int:
        """Number of candidates shown."""
        return len(self.log_probs)


@dataclass(frozen=True)
class RankedCandidate:
    """One hit of a ranking.

    Attributes:
        rank: 1 is best.
        index: Where it stood in the caller's list.
        id: The caller's id, or the index as a string.
        score: Listwise probability in [0, 1]: how the model divides its belief among *these*
            candidates. It does not say that a candidate is relevant: one candidate alone always
            scores 1.0, and scores of different lists do not compare.
        evidence: The attention posterior of this candidate (Eq. 12) in [0, 1], or ``None`` where the
            method does not use it.
        cut: Tokens of its text that were cut off the end to fit the token budget; 0 where all was shown.
    """

    rank: int
    index: int
    id: str
    score: float
    evidence: float | None = None
    cut: int = 0


@dataclass(frozen=True)
class FailedCandidate:
    """A candidate that could not be shown to the model.

    Attributes:
        index: Where it stood in the caller's list.
        id: The caller's id, or the index as a string.
        error: One sentence that says why.
    """

    index: int
    id: str
    error: str


@dataclass(frozen=True)
class Ranking(Sequence[RankedCandidate]):
    """Candidates from best to worst; iterates over its hits.

    Attributes:
        query: What was asked.
        hits: The best ``top_n``. Scores sum to 1 over *all* ranked candidates, cut or not.
        failed: Candidates that could not be shown to the model, and why.
        method: The scorer that made the scores.
        model: The backbone's name.
        observation: What the pass yielded, in the order shown; ``None`` where none or several were needed.
        shown: Index into the caller's list of the candidate at each position of ``observation``.
        passes: Prompts the model ran; 0 where there was nothing to compare, more than 1 with windows or with
            further looks at the same candidates.
        confidence: In [0, 1], unlike scores an absolute signal: 0.5 and more where the right answer seems to be among
            the candidates at all. ``None`` where the calibration could not fit it or the method has none. With
            windows it speaks of the final pass.
    """

    query: str
    hits: tuple[RankedCandidate, ...]
    failed: tuple[FailedCandidate, ...] = ()
    method: str = ""
    model: str = ""
    observation: Observation | None = field(default=None, repr=False, compare=False)
    shown: tuple[int, ...] = ()
    passes: int = 0
    confidence: float | None = None

    @property
    def confident(self) -> bool | None:
        """Whether the right answer seems to be among the candidates; ``False`` may mean "none of these"."""
        return None if self.confidence is None else self.confidence >= 0.5

    @overload
    def __getitem__(self, item: int) -> RankedCandidate: ...
    @overload
    def __getitem__(self, item: slice) -> tuple[RankedCandidate, ...]: ...
    def __getitem__(self, item: int | slice) -> RankedCandidate | tuple[RankedCandidate, ...]:
        return self.hits[item]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[RankedCandidate]:
        return iter(self.hits)
