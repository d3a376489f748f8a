"""How the figures look: one style, and one look for an algorithm wherever it occurs. Knows nothing of runs."""

import io
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import style
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from PIL import Image

style.use(Path(__file__).with_name("figures.mplstyle"))

WIDTH = matplotlib.rcParams["figure.figsize"][0]
INK = f"#{matplotlib.rcParams['text.color'].lstrip('#')}"

# Told apart with any colour blindness, on white and on the black of the pages: tests/project/test_figures.py.
BLUE, ORANGE, MAGENTA, CYAN, GREEN = "#2a5ff0", "#c68324", "#ae3077", "#04a0c0", "#077a3b"
PURPLE, SALMON, OLIVE, GREY = "#8a4fc4", "#e97c69", "#526f06", "#9b969e"

# By role: colour, line and marker. What varies one thing has its colour.
LOOKS = {
    "stock": (BLUE, "-", "o"),
    "uniform": (GREY, "--", "o"),
    "defaults": (ORANGE, "-", "s"),
    "defaults, own error": (ORANGE, ":", "s"),
    "learning rate / 4": (ORANGE, ":", "s"),
    "LAP": (MAGENTA, "-", "D"),
    "LAP kappa auto": (MAGENTA, "--", "D"),
    "LAP recency": (MAGENTA, ":", "D"),
    "PAL": (SALMON, "--", "d"),
    "rank": (PURPLE, "-", "P"),
    "rank, own error": (PURPLE, ":", "P"),
    "no weights": (OLIVE, "--", "v"),
    "candidate": (CYAN, "-", "^"),
    "Double Q, 3 steps": (GREEN, "-", "X"),
    "Double Q": (GREEN, ":", "X"),
    "stored state": (ORANGE, "-", "s"),
    "stored state, burn-in": (ORANGE, ":", "s"),
    "zero state": (PURPLE, "-", "P"),
    "zero state, burn-in": (PURPLE, ":", "P"),
}
# Of what has no role, in this order.
SPARE = (GREEN, SALMON, CYAN, PURPLE, OLIVE, MAGENTA, BLUE, ORANGE)


def looks(roles: dict[str, str]) -> dict[str, dict[str, Any]]:
    """
    :param roles: by name: a key of :data:`LOOKS`; for another, or one that two names have, a colour that is left
    :return: by name: keyword arguments of ``plot``
    """
    known: dict[str, str] = {}
    for name, role in roles.items():
        if role in LOOKS and role not in known.values():
            known[name] = role
    taken = {LOOKS[role][0] for role in known.values()}
    spare = cycle([color for color in SPARE if color not in taken] or SPARE)
    found = {name: LOOKS[known[name]] if name in known else (next(spare), "-", "o") for name in roles}
    return {name: dict(zip(("color", "linestyle", "marker"), look, strict=True)) for name, look in found.items()}


def figure_of(height: float) -> Figure:
    """
    :param height: in inches; the width is that of a page
    """
    return Figure(figsize=(WIDTH, height))


def thousands(axis: Axis) -> None:
    """Steps as 50k; what is less than a thousand as it is."""
    axis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")


def save(figure: Figure, path: Path) -> None:
    """As a PNG of 256 colours, a third as large as with all of them."""
    file = io.BytesIO()
    figure.savefig(file)
    Image.open(file).quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)
