"""Outlines of the products on a canvas of 100 x 100 units, y downwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

Stroke: TypeAlias = "Callable[[ImageDraw, float, int | tuple[int, int, int]], None]"
"""Draws one primitive: (draw, pixels per unit, fill)."""

Box: TypeAlias = tuple[float, float, float, float]
Points: TypeAlias = tuple[tuple[float, float], ...]
Ink: TypeAlias = int | tuple[int, int, int]


def _scaled(box: Box, s: float) -> Box:
    return (box[0] * s, box[1] * s, box[2] * s, box[3] * s)


def _polygon(points: Points, draw: ImageDraw, s: float, fill: Ink) -> None:
    draw.polygon([(x * s, y * s) for x, y in points], fill=fill)


def _ellipse(box: Box, draw: ImageDraw, s: float, fill: Ink) -> None:
    draw.ellipse(_scaled(box, s), fill=fill)


def _rounded(box: Box, radius: float, draw: ImageDraw, s: float, fill: Ink) -> None:
    draw.rounded_rectangle(_scaled(box, s), radius=radius * s, fill=fill)


def _arc(box: Box, start: float, end: float, width: float, draw: ImageDraw, s: float, fill: Ink) -> None:
    draw.arc(_scaled(box, s), start, end, fill=fill, width=round(width * s))


def _line(points: Points, width: float, draw: ImageDraw, s: float, fill: Ink) -> None:
    draw.line([(x * s, y * s) for x, y in points], fill=fill, width=round(width * s), joint="curve")


def polygon(*points: tuple[float, float]) -> Stroke:
    """A filled polygon."""
    return partial(_polygon, points)


def ellipse(*box: float) -> Stroke:
    """A filled ellipse in a box (left, top, right, bottom)."""
    return partial(_ellipse, (box[0], box[1], box[2], box[3]))


def rounded(left: float, top: float, right: float, bottom: float, radius: float) -> Stroke:
    """A filled rectangle with round corners."""
    return partial(_rounded, (left, top, right, bottom), radius)


def arc(box: Box, start: float, end: float, width: float) -> Stroke:
    """A part of an ellipse's outline, degrees clockwise from three o'clock."""
    return partial(_arc, box, start, end, width)


def line(width: float, *points: tuple[float, float]) -> Stroke:
    """A stroke through points."""
    return partial(_line, points, width)


@dataclass(frozen=True)
class Shape:
    """How one kind of product is drawn.

    Attributes:
        body: What carries colour and pattern.
        trim: Parts of another material, drawn over the body: (stroke, colour).
        creases: Darker strokes inside the body.
        logo: Centre of the logo.
        middle: Height at which a two-tone product changes its colour.
    """

    body: tuple[Stroke, ...]
    trim: tuple[tuple[Stroke, tuple[int, int, int]], ...] = ()
    creases: tuple[Stroke, ...] = ()
    logo: tuple[float, float] = (50.0, 50.0)
    middle: float = 54.0
    behind: tuple[tuple[Stroke, tuple[int, int, int]], ...] = field(default=())


_STEEL = (120, 124, 132)
_OAK = (146, 104, 62)
_DARK = (58, 52, 50)

SHAPES: dict[str, Shape] = {
    "mug": Shape(
        (arc((54, 34, 94, 74), 0, 360, 9), rounded(14, 20, 72, 86, 8)),
        creases=(arc((15, 15, 71, 31), 0, 180, 2),),
        logo=(43, 56),
        middle=53,
    ),
    "shirt": Shape(
        (
            polygon(
                (34, 13),
                (42, 18),
                (58, 18),
                (66, 13),
                (96, 32),
                (85, 52),
                (73, 45),
                (73, 90),
                (27, 90),
                (27, 45),
                (15, 52),
                (4, 32),
            ),
        ),
        creases=(arc((40, 6, 60, 24), 0, 180, 3), line(2, (27, 45), (27, 34)), line(2, (73, 45), (73, 34))),
        logo=(50, 48),
        middle=55,
    ),
    "chair": Shape(
        (rounded(26, 4, 74, 54, 7), polygon((24, 56), (76, 56), (84, 72), (16, 72))),
        creases=(line(2, (26, 55), (74, 55)),),
        behind=tuple(
            (line(6, a, b), _OAK)
            for a, b in (((22, 70), (17, 97)), ((78, 70), (83, 97)), ((36, 70), (34, 90)), ((64, 70), (66, 90)))
        ),
        logo=(50, 29),
        middle=36,
    ),
    "lamp": Shape(
        (polygon((32, 6), (68, 6), (90, 60), (10, 60)),),
        behind=((line(6, (50, 58), (50, 90)), _STEEL), (rounded(28, 87, 72, 96, 4), _STEEL)),
        logo=(50, 37),
        middle=34,
    ),
    "handbag": Shape(
        (arc((30, 6, 70, 70), 180, 360, 7), polygon((18, 38), (82, 38), (94, 90), (6, 90))),
        trim=((rounded(44, 38, 56, 46, 3), (214, 178, 72)),),
        logo=(50, 65),
        middle=65,
    ),
    "boot": Shape(
        (
            rounded(26, 6, 64, 80, 5),
            rounded(26, 52, 94, 88, 15),
            polygon((26, 60), (60, 60), (60, 88), (26, 88)),
        ),
        trim=((rounded(24, 85, 96, 94, 3), _DARK),),
        creases=(line(2, (64, 52), (56, 60)),),
        logo=(45, 32),
        middle=50,
    ),
    "hat": Shape(
        (ellipse(2, 56, 98, 86), rounded(24, 16, 76, 72, 20)),
        trim=((arc((24, 52, 76, 74), 10, 170, 5), _DARK),),
        logo=(50, 42),
        middle=48,
    ),
    "bottle": Shape(
        (rounded(30, 32, 70, 97, 10), rounded(41, 10, 59, 45, 5), polygon((41, 26), (59, 26), (70, 42), (30, 42))),
        trim=((rounded(39, 3, 61, 13, 3), _STEEL),),
        logo=(50, 62),
        middle=64,
    ),
    "umbrella": Shape(
        (
            polygon(
                (4, 56),
                *(
                    (50 + 46 * x, 56 - 48 * y)
                    for x, y in (
                        (-0.97, 0.26),
                        (-0.87, 0.5),
                        (-0.71, 0.71),
                        (-0.5, 0.87),
                        (-0.26, 0.97),
                        (0, 1.0),
                        (0.26, 0.97),
                        (0.5, 0.87),
                        (0.71, 0.71),
                        (0.87, 0.5),
                        (0.97, 0.26),
                    )
                ),
                (96, 56),
            ),
            ellipse(4, 50, 35, 62),
            ellipse(35, 50, 65, 62),
            ellipse(65, 50, 96, 62),
        ),
        behind=((line(4, (50, 54), (50, 90)), _OAK), (arc((36, 80, 52, 98), 0, 180, 4), _OAK)),
        creases=(line(1.5, (50, 10), (35, 56)), line(1.5, (50, 10), (65, 56))),
        logo=(50, 38),
        middle=36,
    ),
    "cushion": Shape(
        (
            polygon(
                (8, 8),
                (30, 15),
                (50, 17),
                (70, 15),
                (92, 8),
                (85, 30),
                (83, 50),
                (85, 70),
                (92, 92),
                (70, 85),
                (50, 83),
                (30, 85),
                (8, 92),
                (15, 70),
                (17, 50),
                (15, 30),
            ),
        ),
        creases=(
            line(2, (12, 12), (22, 22)),
            line(2, (88, 12), (78, 22)),
            line(2, (12, 88), (22, 78)),
            line(2, (88, 88), (78, 78)),
        ),
        logo=(50, 50),
        middle=50,
    ),
    "vase": Shape(
        (
            ellipse(14, 30, 86, 88),
            polygon((38, 8), (62, 8), (58, 42), (42, 42)),
            rounded(30, 4, 70, 13, 4),
            polygon((34, 76), (66, 76), (70, 97), (30, 97)),
        ),
        creases=(arc((38, 26, 62, 40), 20, 160, 2),),
        logo=(50, 58),
        middle=58,
    ),
    "kite": Shape(
        (polygon((50, 2), (86, 34), (50, 84), (14, 34)),),
        behind=((line(3, (50, 82), (42, 88), (54, 92), (46, 99)), _DARK),),
        creases=(line(1.5, (50, 3), (50, 82)), line(1.5, (15, 34), (85, 34))),
        logo=(50, 38),
        middle=36,
    ),
}
"""Kind -> how it is drawn."""
