"""Log-probabilities of the candidate labels, from raw logits, for labels of one token or several.

A label such as "10" begins like the label "1". At every step the softmax is restricted to the valid
continuations of the prefix written so far, the end of the answer among them, so that the N
probabilities sum to 1 (Eq. 15-16). Nothing here is touched by a generation config: a repetition penalty
would move the labels that occur in the prompt by about a nat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from lad_rerank.debias.evidence import log_softmax
from lad_rerank.errors import BackboneError
from lad_rerank.records import FloatArray

Tokens: TypeAlias = tuple[int, ...]
NextLogits: TypeAlias = Callable[[Sequence[Tokens]], FloatArray]
"""Raw logits (len(prefixes), V) of the token behind each prefix; all prefixes have the same length."""

LOW_LABEL_MASS = 0.05
"""Below this share of the vocabulary's probability, labels are hardly what the model wants to say."""


def continuations(labels: Sequence[Tokens], end: int) -> dict[Tokens, tuple[int, ...]]:
    """Valid next tokens after every proper beginning of a label.

    Args:
        labels: Token sequences of the labels, each without the end token.
        end: The token that ends an answer.

    Returns:
        For each prefix, the sorted tokens that may follow; ``end`` where the prefix is a label itself.

    Raises:
        BackboneError: Two labels are the same tokens, or a label is empty.
    """
    if len(set(labels)) != len(labels) or not all(labels):
        raise BackboneError("The tokenizer does not tell the candidate labels apart; choose another label style.")
    following: dict[Tokens, set[int]] = {}
    for label in labels:
        for i, token in enumerate((*label, end)):
            following.setdefault(label[:i], set()).add(token)
    return {prefix: tuple(sorted(tokens)) for prefix, tokens in following.items()}


def label_log_probs(labels: Sequence[Tokens], end: int, first: FloatArray, next_logits: NextLogits) -> FloatArray:
    """Log-probability of each label, normalised over the labels.

    Args:
        labels: Token sequences of the labels.
        end: The token that ends an answer.
        first: (V,) raw logits of the answer's first token.
        next_logits: Called once per further token that is needed, never for labels of one token.

    Returns:
        (N,) float64; exponentials sum to 1.

    Raises:
        BackboneError: Labels are ambiguous.
    """
    following = continuations(labels, end)
    steps: dict[Tokens, Mapping[int, float]] = {(): _restricted(first, following[()])}
    for length in range(1, max(map(len, labels)) + 1):
        open_prefixes = [p for p in following if len(p) == length and len(following[p]) > 1]
        if open_prefixes:
            for prefix, logits in zip(open_prefixes, next_logits(open_prefixes), strict=True):
                steps[prefix] = _restricted(logits, following[prefix])
    return np.array(
        [sum(steps[label[:i]][t] for i, t in enumerate((*label, end)) if label[:i] in steps) for label in labels],
        dtype=np.float64,
    )


def label_mass(labels: Sequence[Tokens], first: FloatArray) -> float:
    """Share of the whole vocabulary's probability on the labels' first tokens, in [0, 1]."""
    log_probs = log_softmax(first)
    return float(np.exp(log_probs[sorted({label[0] for label in labels})]).sum())


def needs_cache(labels: Sequence[Tokens], end: int) -> bool:
    """Whether some label's first token does not settle which label it is."""
    return any(len(prefix) > 0 and len(tokens) > 1 for prefix, tokens in continuations(labels, end).items())


def _restricted(logits: FloatArray, tokens: Sequence[int]) -> dict[int, float]:
    """Log-softmax over some tokens only."""
    values = log_softmax(np.asarray(logits, dtype=np.float64)[list(tokens)])
    return dict(zip(tokens, values.tolist(), strict=True))
