"""Many questions about the same pictures in one sequence.

A sequence holds the pictures and the instruction once, then one segment per question: caption, the end
of the prompt, answer. A segment sees what came before the segments and itself, and its positions go on
where the instruction ended, so that each reads exactly as a prompt of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lad_rerank.bundled.train.config import TOKENS_PER_IMAGE
from lad_rerank.prompt import LabelStyle, candidate_labels, question_parts

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2Tokenizer

    from lad_rerank.bundled.train.sets import TrainingSet

_SIDE = 4  # a picture's merged tokens stand 4 x 4
BLOCK = TOKENS_PER_IMAGE + 2  # with the delimiters


@dataclass(frozen=True)
class Packed:
    """A batch of B sequences of T tokens with J questions each, all about n pictures.

    Attributes:
        ids: (B, T) token ids; the image tokens hold the placeholder.
        positions: (3, 1, T) time, height and width of each token.
        mask: (1, 1, T, T) bool, True where a row may look.
        first_image: Index of the first picture's first token, after its delimiter.
        n: Number of pictures.
        ends: (B, J) index of the last prompt token of each question.
        answers: (n,) first token of each label.
        single: Whether the labels are one token each, so that the answers could be trained.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    first_image: int
    n: int
    ends: torch.Tensor
    answers: torch.Tensor
    single: bool


def token_id(tokenizer: Qwen2Tokenizer, token: str) -> int:
    """The id of one token by its text."""
    found = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(found, int):
        raise TypeError(f"{token!r} is no single token of this tokenizer.")
    return found


class Packer:
    """Turns training sets into token ids.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: Qwen2Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = token_id(tokenizer, "<|im_end|>")
        self._image = [
            token_id(tokenizer, "<|vision_start|>"),
            *[token_id(tokenizer, "<|image_pad|>")] * TOKENS_PER_IMAGE,
            token_id(tokenizer, "<|vision_end|>"),
        ]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def pack(self, sets: list[TrainingSet], style: LabelStyle) -> Packed:
        """Pack sets of the same size and number of questions.

        Args:
            sets: What to pack.
            style: How the candidates are named.
        """
        import torch

        n, count = len(sets[0].rows), len(sets[0].questions)
        before, after = question_parts(n, style)
        opening = self._encode("<|im_start|>user\n")
        # The space before a caption is part of its first word's token.
        prefix = opening + self._image * n + self._encode(before.removesuffix(" "))
        tail = f"{after}<|im_end|>\n<|im_start|>assistant\n"
        answers = [self._encode(label) for label in candidate_labels(n, style)]
        segments = [self._encode(f" {q.caption}{tail}") for s in sets for q in s.questions]
        length = -(-(max(map(len, segments)) + 1) // 8) * 8
        ends, rows = [], []
        for i, segment in enumerate(segments):
            question = sets[i // count].questions[i % count]
            ends.append(len(prefix) + (i % count) * length + len(segment) - 1)
            answer = answers[question.right.index(True)][0]
            rows.append(segment + [answer] + [self._end] * (length - len(segment) - 1))
        ids = torch.tensor(rows).view(len(sets), count * length)
        ids = torch.cat([torch.tensor(prefix).expand(len(sets), -1), ids], 1)
        return Packed(
            ids=ids,
            positions=self._positions(len(opening), n, len(prefix), count, length),
            mask=_mask(len(prefix), count, length),
            first_image=len(opening) + 1,
            n=n,
            ends=torch.tensor(ends).view(len(sets), count),
            answers=torch.tensor([a[0] for a in answers]),
            single=all(len(a) == 1 for a in answers),
        )

    def _positions(self, opening: int, n: int, prefix: int, count: int, length: int) -> torch.Tensor:
        import torch

        found = [(i, i, i) for i in range(opening)]
        at = opening
        for _ in range(n):
            found.append((at, at, at))
            at += 1
            found += [(at, at + i // _SIDE, at + i % _SIDE) for i in range(TOKENS_PER_IMAGE)]
            at += _SIDE
            found.append((at, at, at))
            at += 1
        rest = prefix - len(found)
        found += [(at + i,) * 3 for i in range(rest)]
        at += rest
        found += [(at + i,) * 3 for i in range(length)] * count
        return torch.tensor(found).T[:, None]


def _mask(prefix: int, count: int, length: int) -> torch.Tensor:
    import torch

    total = prefix + count * length
    at = torch.arange(total)
    segment = (at - prefix).div(length, rounding_mode="floor").clamp(min=-1)
    own = (segment[None] == segment[:, None]) | (segment[None] == -1)
    return (own & (at[None] <= at[:, None]))[None, None]
