"""Pictures of products: 64 x 64, drawn larger and scaled down; jitter in place, size, rotation and light."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from lad_rerank.bundled.shop.products import Product
from lad_rerank.bundled.shop.scenes import backdrop
from lad_rerank.bundled.shop.shapes import SHAPES, Shape

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 64
"""Width and height of a picture in pixels."""

_SPRITE = 200  # a product before it is placed, in pixels
_OVER = 128  # the scene before it is scaled down to SIDE

Colour = tuple[int, int, int]

COLOURS: dict[str, tuple[Colour, Colour]] = {
    "red": ((204, 32, 36), (246, 236, 216)),
    "orange": ((242, 126, 24), (252, 242, 222)),
    "yellow": ((246, 212, 40), (112, 104, 92)),
    "green": ((30, 142, 66), (232, 244, 220)),
    "blue": ((32, 84, 200), (226, 238, 250)),
    "purple": ((122, 44, 164), (240, 226, 246)),
    "pink": ((246, 132, 182), (255, 248, 250)),
    "brown": ((112, 66, 32), (236, 216, 182)),
    "black": ((30, 30, 34), (176, 178, 186)),
    "white": ((248, 248, 246), (150, 162, 180)),
}
"""Colour -> of the product and of its pattern."""


@lru_cache(maxsize=32)
def _parts(kind: str) -> tuple[Image, Image, Image]:
    """Body, body with a rim around it, and creases of a kind; each an 8-bit mask."""
    from PIL import Image, ImageDraw, ImageFilter

    over = 4
    size, unit = _SPRITE * over, _SPRITE * over / 100
    masks = []
    for strokes in (SHAPES[kind].body, SHAPES[kind].creases):
        mask = Image.new("L", (size, size))
        for stroke in strokes:
            stroke(ImageDraw.Draw(mask), unit, 255)
        masks.append(mask.reduce(over))
    return masks[0], masks[0].filter(ImageFilter.MaxFilter(5)), masks[1]


@lru_cache(maxsize=8)
def _pattern(pattern: str) -> Image:
    """Where a pattern shows its second colour; an 8-bit mask larger than a sprite, so that it can be shifted."""
    from PIL import Image, ImageDraw

    over = 2
    unit = _SPRITE * over / 100
    size = round(150 * unit)
    mask = Image.new("L", (size, size))
    draw = ImageDraw.Draw(mask)
    if pattern == "striped":
        for y in range(0, 150, 20):
            draw.rectangle((0, y * unit, size, (y + 10) * unit), fill=255)
    elif pattern == "dotted":
        for row, top in enumerate(range(0, 160, 15)):
            for x in range(0, 160, 19):
                left, up, r = (x + 9.5 * (row % 2)) * unit, top * unit, 5.4 * unit
                draw.ellipse((left - r, up - r, left + r, up + r), fill=255)
    elif pattern == "checked":
        for row in range(12):
            for column in range(row % 2, 12, 2):
                left, up, side = column * 14 * unit, row * 14 * unit, 14 * unit
                draw.rectangle((left, up, left + side, up + side), fill=255)
    elif pattern == "zigzag":
        for y in range(-20, 170, 24):
            points = [(x * unit, (y + (14 if i % 2 else 0)) * unit) for i, x in enumerate(range(0, 165, 14))]
            draw.line(points, fill=255, width=round(8 * unit), joint="curve")
    return mask.reduce(over)


@lru_cache(maxsize=4)
def _logo(logo: str) -> Image:
    """A round badge with a sign on it."""
    from PIL import Image, ImageDraw

    size, side = 240, 52
    badge = Image.new("RGBA", (size, size))
    draw = ImageDraw.Draw(badge)
    if logo == "star":
        draw.ellipse((0, 0, size - 1, size - 1), fill=(24, 30, 74, 255))
        points = [
            (120 + r * math.sin(i * math.pi / 5), 124 - r * math.cos(i * math.pi / 5))
            for i, r in enumerate((108.0, 46.0) * 5)
        ]
        draw.polygon(points, fill=(255, 222, 60, 255))
    else:
        draw.ellipse((0, 0, size - 1, size - 1), fill=(255, 255, 255, 255))
        for left in (40, 112):
            draw.ellipse((left, 52, left + 88, 140), fill=(222, 22, 60, 255))
        draw.polygon(((46, 118), (194, 118), (120, 210)), fill=(222, 22, 60, 255))
        draw.ellipse((0, 0, size - 1, size - 1), outline=(120, 20, 40, 255), width=10)
    return badge.resize((side, side), Image.Resampling.LANCZOS)


@lru_cache(maxsize=1)
def _shade() -> Image:
    """Light falls from the upper left: a mask of how dark each place of a sprite is."""
    from PIL import Image

    ramp = Image.linear_gradient("L").rotate(35, resample=Image.Resampling.BILINEAR, expand=True)
    side = ramp.width
    inner = ramp.crop((side // 5, side // 5, side * 4 // 5, side * 4 // 5)).resize((_SPRITE, _SPRITE))
    return inner.point([round(v * 0.30) for v in range(256)])


def _sprite(product: Product, rng: Random) -> Image:
    """The product alone on a transparent ground."""
    from PIL import Image, ImageDraw

    shape: Shape = SHAPES[product.kind]
    body, rim, creases = _parts(product.kind)
    first, second = COLOURS[product.colour]
    edge = (222, 222, 228) if product.colour == "black" else tuple(round(v * 0.42) for v in first)
    skin = Image.new("RGB", (_SPRITE, _SPRITE), first)
    unit = _SPRITE / 100
    if product.pattern == "two-tone":
        skin.paste(second, (0, round((shape.middle + rng.uniform(-4, 4)) * unit), _SPRITE, _SPRITE))
    elif product.pattern != "plain":
        left, top = rng.randrange(80), rng.randrange(80)
        skin.paste(second, (0, 0), _pattern(product.pattern).crop((left, top, left + _SPRITE, top + _SPRITE)))
    skin.paste((0, 0, 0), (0, 0), _shade())
    skin.paste(edge, (0, 0), creases)
    sprite = Image.new("RGBA", (_SPRITE, _SPRITE), (*edge, 0))
    draw = ImageDraw.Draw(sprite)
    for stroke, colour in shape.behind:
        stroke(draw, unit, colour)
    sprite.paste((*edge, 255), (0, 0), rim)
    sprite.paste(skin, (0, 0), body)
    for stroke, colour in shape.trim:
        stroke(draw, unit, colour)
    if product.logo != "none":
        badge = _logo(product.logo)
        x, y = (round(c * unit - badge.width / 2) for c in shape.logo)
        sprite.paste(badge, (x, y), badge.getchannel("A"))
    return sprite


def render(product: Product, seed: int) -> Image:
    """Draw one picture of a product.

    Args:
        product: What to show.
        seed: Fixes the jitter in place, size, rotation, light and backdrop.

    Returns:
        An RGB picture of 64 x 64 pixels, the same for the same arguments.
    """
    from PIL import Image

    rng = Random(f"render {seed}")
    scene = backdrop(product.background, _OVER, rng)
    sprite = _sprite(product, rng)
    extent = _OVER * rng.uniform(0.80, 0.94)
    angle = math.radians(rng.uniform(-8, 8))
    slack = (_OVER - extent) * 0.5
    cx, cy = (_OVER / 2 + rng.uniform(-slack, slack) for _ in range(2))
    factor = _SPRITE / extent
    cos, sin, half = math.cos(angle) * factor, math.sin(angle) * factor, _SPRITE / 2
    place = (cos, sin, half - cos * cx - sin * cy, -sin, cos, half + sin * cx - cos * cy)
    placed = sprite.transform((_OVER, _OVER), Image.Transform.AFFINE, place, Image.Resampling.BILINEAR)
    alpha = placed.getchannel("A")
    scene.paste((24, 22, 26), (3, 5), alpha.point([round(v * 0.28) for v in range(256)]))
    scene.paste(placed, (0, 0), alpha)
    light, warmth = rng.uniform(0.86, 1.12), rng.uniform(-0.05, 0.05)
    table = [min(255, round(v * light * gain)) for gain in (1 + warmth, 1.0, 1 - warmth) for v in range(256)]
    return scene.reduce(_OVER // SIDE).point(table)
