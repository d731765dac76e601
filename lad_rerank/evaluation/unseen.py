"""Candidates of which only their number is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from lad_rerank.contents import Content
from lad_rerank.errors import ObservationFileError


class UnseenContents(Sequence[Content]):
    """Stands for the candidates of an instance that was read from stored observations.

    Args:
        count: How many there were.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return max(self._count, 0)

    @overload
    def __getitem__(self, item: int) -> Content: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[Content]: ...
    def __getitem__(self, item: int | slice) -> Content | Sequence[Content]:
        if isinstance(item, int) and not -len(self) <= item < len(self):
            raise IndexError(item)
        raise ObservationFileError(
            "Stored observations hold no pictures: rows that need passes of their own need the evaluation set."
        )
