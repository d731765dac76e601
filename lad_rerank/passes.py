"""How often the same candidates are looked at: once, again where the first look was unsure, or k times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lad_rerank.errors import InvalidRequestError

Passes: TypeAlias = "int | Literal['auto']"
"""A number of passes, or one and a second where the first was unsure."""

MEAN_PASSES = 1.25
"""What ``"auto"`` costs by default, on queries like those of the calibration."""


@dataclass(frozen=True)
class PassPlan:
    """A checked wish for passes.

    Attributes:
        count: Passes over every list; with ``unsure`` the first one.
        unsure: Whether a second pass follows where the first was unsure.
        mean_passes: Wanted mean number of passes then.
    """

    count: int = 1
    unsure: bool = False
    mean_passes: float = MEAN_PASSES

    @classmethod
    def of(cls, passes: Passes, mean_passes: float | None = None) -> PassPlan:
        """Check what a caller wants.

        Args:
            passes: A whole number of at least 1, or ``"auto"``.
            mean_passes: Between 1 and 2, for ``"auto"``; :data:`MEAN_PASSES` by default.

        Raises:
            InvalidRequestError: Neither.
        """
        mean = MEAN_PASSES if mean_passes is None else mean_passes
        if isinstance(mean, bool) or not isinstance(mean, (int, float)) or not 1 <= mean <= 2:
            raise InvalidRequestError(f"mean_passes must be a number from 1 to 2, got {mean_passes!r}.")
        if isinstance(passes, str) and passes == "auto":
            return cls(1, True, float(mean))
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise InvalidRequestError(f"passes must be a whole number of at least 1, or 'auto'; got {passes!r}.")
        return cls(passes)

    def shifts(self, n: int) -> list[int]:
        """Cyclic shifts of the passes over n candidates, spread evenly; never more than there are.

        Two shifts stand opposite: what was first comes to the middle.
        """
        count = min(self.count, n)
        return [i * n // count for i in range(count)]


def opposite(n: int) -> int:
    """The shift of the second pass over n candidates."""
    return n // 2
