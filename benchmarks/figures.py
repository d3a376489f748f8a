"""The look of the documentation's figures: the style of `sb3-per compare`, with a look for every arm of the campaigns."""

import io
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image

from sb3_per.compare.figures import (
    CYAN,
    GREEN,
    GREY,
    INK,
    LOOKS,
    MAGENTA,
    OLIVE,
    ORANGE,
    PURPLE,
    STYLE,
    WIDTH,
    looks,
    thousands,
)

__all__ = ["GREY", "INK", "LOOKS", "MAGENTA", "ORANGE", "STYLE", "WIDTH", "figure_of", "looks", "save", "thousands"]

style.use(STYLE)

LOOKS.update(
    {
        "defaults, own error": (ORANGE, ":", "s"),
        "learning rate / 4": (ORANGE, ":", "s"),
        "LAP recency": (MAGENTA, ":", "D"),
        "rank, own error": (PURPLE, ":", "P"),
        "no weights": (OLIVE, "--", "v"),
        "candidate": (CYAN, "-", "^"),
        "age": (CYAN, "--", "o"),
        "defaults times age": (GREEN, "-", "s"),
        "Double Q, 3 steps": (GREEN, "-", "X"),
        "Double Q": (GREEN, ":", "X"),
        "stored state": (ORANGE, "-", "s"),
        "stored state, burn-in": (ORANGE, ":", "s"),
        "zero state": (PURPLE, "-", "P"),
        "zero state, burn-in": (PURPLE, ":", "P"),
    }
)


def figure_of(height: float) -> Figure:
    """
    Make a figure.

    :param height: in inches; the width is that of a page
    """
    return Figure(figsize=(WIDTH, height))


def save(figure: Figure, path: Path) -> None:
    """Save a figure as a PNG of 256 colours, which makes the file a third as large."""
    file = io.BytesIO()
    figure.savefig(file)
    Image.open(file).quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)
