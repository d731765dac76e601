"""What products stand in front of."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_VARIANTS = 24


def _studio(side: int, rng: Random) -> Image:
    from PIL import Image

    ramp = Image.linear_gradient("L").resize((side, side))
    low = rng.randint(150, 170)
    table = [round(low + (v / 255) * 50) for v in range(256)]
    return Image.merge("RGB", [ramp.point([min(255, t + tint) for t in table]) for tint in (0, 1, 5)])


def _wood(side: int, rng: Random) -> Image:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(picture)
    plank = side / rng.uniform(4.2, 5.2)
    top = -rng.random() * plank
    while top < side:
        tone = rng.uniform(0.88, 1.08)
        draw.rectangle((0, top, side, top + plank), fill=(round(176 * tone), round(128 * tone), round(80 * tone)))
        for _ in range(4):
            y = top + rng.random() * plank
            x = rng.random() * side
            grain = (round(150 * tone), round(104 * tone), round(62 * tone))
            draw.line((x, y, x + side * 0.5, y + 1), fill=grain, width=2)
        draw.line((0, top, side, top), fill=(104, 70, 40), width=2)
        top += plank
    return picture


def _lawn(side: int, rng: Random) -> Image:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (side, side), (112, 168, 74))
    draw = ImageDraw.Draw(picture)
    for _ in range(260):
        x, y, length = rng.random() * side, rng.random() * side, rng.uniform(4, 11)
        tone = rng.uniform(0.72, 1.22)
        blade = (round(106 * tone), round(166 * tone), round(66 * tone))
        draw.line((x, y, x + rng.uniform(-3, 3), y - length), fill=blade, width=2)
    return picture


def _beach(side: int, rng: Random) -> Image:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (side, side), (156, 212, 240))
    draw = ImageDraw.Draw(picture)
    horizon, shore = side * rng.uniform(0.22, 0.32), side * rng.uniform(0.46, 0.58)
    draw.rectangle((0, horizon, side, shore), fill=(44, 150, 190))
    for _ in range(5):
        x, y = rng.random() * side, rng.uniform(horizon, shore)
        draw.line((x, y, x + side * 0.2, y), fill=(150, 214, 230), width=2)
    draw.rectangle((0, shore, side, side), fill=(238, 216, 160))
    draw.line((0, shore, side, shore), fill=(250, 250, 245), width=3)
    for _ in range(60):
        x, y = rng.random() * side, rng.uniform(shore, side)
        draw.point((x, y), fill=(206, 178, 122))
    return picture


_SCENES = {"studio": _studio, "wood": _wood, "lawn": _lawn, "beach": _beach}


@lru_cache(maxsize=4 * _VARIANTS)
def _drawn(background: str, side: int, variant: int) -> Image:
    return _SCENES[background](side, Random(f"{background} {variant}"))


def backdrop(background: str, side: int, rng: Random) -> Image:
    """A square scene to paste a product on.

    Args:
        background: A value of the attribute ``background``.
        side: Pixels.
        rng: Chooses one of a few dozen variants and whether it is mirrored.

    Returns:
        A new RGB picture.
    """
    from PIL import ImageOps

    picture = _drawn(background, side, rng.randrange(_VARIANTS))
    return ImageOps.mirror(picture) if rng.random() < 0.5 else picture.copy()
