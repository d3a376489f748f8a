"""Style of the figures, with one look for an arm wherever it occurs. Needs matplotlib."""

from itertools import cycle
from typing import Any

from matplotlib.axis import Axis

from sb3_per.utils.colours import BLUE, CYAN, GREEN, GREY, MAGENTA, OLIVE, ORANGE, PURPLE, SALMON

# In inches, as wide as a page of the documentation shows figures.
WIDTH = 7.0

#: Name of the style, for ``matplotlib.style.use``.
STYLE = "sb3_per.compare.figures"

#: By role: colour, line and marker.
LOOKS = {
    "stock": (BLUE, "-", "o"),
    "uniform": (GREY, "--", "o"),
    "defaults": (ORANGE, "-", "s"),
    "LAP": (MAGENTA, "-", "D"),
    "PAL": (SALMON, "--", "d"),
    "rank": (PURPLE, "-", "P"),
}
# For arms without a role, in this order: colour, line and marker. Lines can be told apart without their colours.
SPARE = (
    (GREEN, "-", "<"),
    (SALMON, "-", "p"),
    (CYAN, "-", "*"),
    (PURPLE, "-", ">"),
    (OLIVE, "-", "h"),
    (MAGENTA, "-", "x"),
    (BLUE, "-", "1"),
    (ORANGE, "-", "+"),
)


def looks(roles: dict[str, str]) -> dict[str, dict[str, Any]]:
    """
    Choose a look for each name.

    :param roles: by name: a key of :data:`LOOKS`; for another, or one that two names have, a colour that is left
    :return: by name: keyword arguments of ``plot``
    """
    known: dict[str, str] = {}
    for name, role in roles.items():
        if role in LOOKS and role not in known.values():
            known[name] = role
    taken = {LOOKS[role][0] for role in known.values()}
    spare = cycle([look for look in SPARE if look[0] not in taken] or SPARE)
    found = {name: LOOKS[known[name]] if name in known else next(spare) for name in roles}
    return {name: dict(zip(("color", "linestyle", "marker"), look, strict=True)) for name, look in found.items()}


def thousands(axis: Axis) -> None:
    """Label steps as 50k, and what is less than a thousand as it is."""
    axis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
