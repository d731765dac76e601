"""Which encoder made the vectors of an index: told by what it computes, not by its name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from PIL.Image import Image

PROBE_TEXT = "a photo of a red cup on a table"
PROBE_LENGTH = 32
"""Components kept of each probe's vector: enough, since another model or preprocessing moves all of them."""

TOLERANCE = 0.02
"""Largest relative difference of two probes of one encoder. Measured on the bundled model: bfloat16
arithmetic in place of float32 moves a probe by 0.003, CLIP's normalisation constants in place of its own
by 0.18, another mean alone by 0.13."""


class EncoderFingerprint(BaseModel):
    """What must agree between the encoder that made an index and the one that asks it.

    Attributes:
        name: What :meth:`~clip_faiss.ClipEncoder.load` was given; for messages and for loading it again.
        pretrained: open_clip's weights tag, where there is one.
        dimension: Length of the vectors.
        preprocess: open_clip's preprocessing settings.
        probe_image: First components of the vector of :func:`probe_picture`.
        probe_text: First components of the vector of :data:`PROBE_TEXT`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    pretrained: str | None
    dimension: int
    preprocess: dict[str, Any]
    probe_image: tuple[float, ...]
    probe_text: tuple[float, ...]

    def differences(self, other: EncoderFingerprint) -> list[str]:
        """How another encoder's fingerprint differs, one phrase per field; names are no difference.

        The same weights in another folder, or under another name, are the same encoder.
        """
        if self.dimension != other.dimension:
            return [f"vectors of {self.dimension} and {other.dimension} numbers"]
        found = [
            f"preprocessing {key!r}: {self.preprocess.get(key)} and {other.preprocess.get(key)}"
            for key in sorted({*self.preprocess, *other.preprocess})
            if self.preprocess.get(key) != other.preprocess.get(key)
        ]
        for kind in ("image", "text"):
            mine, theirs = (np.array(getattr(side, f"probe_{kind}")) for side in (self, other))
            if not _close(mine, theirs):
                found.append(f"another vector for the same {kind}")
        return found

    def __str__(self) -> str:
        return f"{self.name!r}" if self.pretrained is None else f"{self.name!r} ({self.pretrained})"


def _close(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    if first.shape != second.shape:
        return False
    return bool(np.linalg.norm(first - second) <= TOLERANCE * max(float(np.linalg.norm(first)), 1e-12))


def probe_picture() -> Image:
    """A fixed picture, 320 x 240 RGB: ramps of all three channels and a few hard edges."""
    from PIL import Image

    y, x = np.mgrid[0:240, 0:320]
    red, green, blue = x * 255 // 319, y * 255 // 239, (x // 40 + y // 40) % 2 * 200
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8), "RGB")


def json_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Preprocessing settings as JSON gives them back: tuples become lists, a side becomes (height, width)."""
    plain = {key: list(value) if isinstance(value, (tuple, list)) else value for key, value in settings.items()}
    if isinstance(plain.get("size"), int):
        plain["size"] = [plain["size"], plain["size"]]
    return plain
