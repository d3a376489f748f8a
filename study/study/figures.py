"""The figures of the documentation: the style of `sb3-per compare`, a look for every arm, and one function for each kind."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from sb3_per.compare.figures import LOOKS, STYLE, WIDTH, looks, thousands
from sb3_per.utils.colours import CYAN, GREEN, INK, OLIVE, ORANGE, PURPLE

from .campaign import Campaign
from .tables import Estimates, Scores, with_interval

style.use(STYLE)

LOOKS.update(
    {
        "defaults, own error": (ORANGE, ":", "s"),
        "learning rate / 4": (ORANGE, ":", "s"),
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
# Number of evaluations from one marker of a learning curve to the next.
_EVERY = 3
# Arms of bits-rates whose names are their settings.
ARMS = {"epsilon 1e-06, no weights": "no weights", "epsilon 0.01, mean, eta 0.25": "candidate"}


def role_of(variant: str) -> str:
    """Return the role of a variant or arm, e.g. ``"LAP"`` of ``"PERDQN, LAP"``: a key of :data:`LOOKS`, if it has a look."""
    variant = variant.removeprefix("shuffled, ")
    algorithm, _, what = variant.partition(", ")
    if "uniform" in (algorithm, what):
        return "uniform"
    if variant in LOOKS or variant in ARMS:
        return ARMS.get(variant, variant)
    if what and not what.startswith(("preloaded", "demonstrations")):
        return what
    return "defaults" if algorithm.startswith("PER") else "stock" if hasattr(stable_baselines3, algorithm) else variant


def figure_of(height: float) -> Figure:
    """Make a figure as wide as a page, of a height in inches."""
    return Figure(figsize=(WIDTH, height))


def save(figure: Figure, path: Path) -> None:
    """Save a figure as a PNG of 256 colours, which makes the file a third as large."""
    file = io.BytesIO()
    figure.savefig(file)
    Image.open(file).quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def say_that_more_is_better(axes: Axes) -> None:
    """Say under the axis in which direction it is better."""
    is_cut = " (axis cut)" * bool(axes.get_xlim()[0] > 0)
    axes.set_xlabel(f"{axes.get_xlabel()}{is_cut}\n\N{LEFTWARDS ARROW} worse    better \N{RIGHTWARDS ARROW}")


def look_of(role: str, is_control: bool = False) -> tuple[str, str, dict[str, str]]:
    """Return colour and marker of a role, and what makes a control hollow. A role without a look has the ink of the text."""
    color, _, marker = LOOKS.get(role, (INK, "-", "o"))
    return color, marker, dict(markerfacecolor="none") if is_control else {}


def errorbar(axes: Axes, figure: np.ndarray, place: float, role: str, is_control: bool, is_grey: bool = False) -> None:
    """Draw a figure, shape (3,), with its interval at this height, in the look of a role or grey; controls are hollow."""
    (value, low, high), (color, marker, hollow) = figure, look_of(role, is_control)
    look: dict[str, Any] = dict(fmt=marker, capsize=3, linewidth=1.5, color=INK if is_grey else color, **hollow)
    axes.errorbar([value], [place], xerr=[[value - low], [high - value]], **look)


def draw_arm(axes: Axes, x: Sequence[Any], estimate: np.ndarray, arm: str) -> None:
    """Draw a line with its band, of shape (3, n); dashed and hollow for a shuffled control."""
    is_control = arm.startswith("shuffled")
    color, marker, hollow = look_of(arm.removeprefix("shuffled, "), is_control)
    line: dict[str, Any] = dict(linestyle="--", linewidth=1.5, **hollow) if is_control else dict(linestyle="-")
    axes.plot(x, estimate[0], color=color, marker=marker, markersize=6, label=arm, **line)
    axes.fill_between(x, estimate[1], estimate[2], color=color, alpha=0.06 if is_control else 0.18, linewidth=0)


def draw_curves(panels: dict[str, Estimates], steps: list[int], what: str, path: Path) -> None:
    """
    Draw learning curves with intervals: figures at each evaluation, by environment. Each line has its own marker, and the
    markers stand at different evaluations, so that lines which meet can be followed.
    """
    variants = dict.fromkeys(variant for estimates in panels.values() for variant in estimates)
    look, lines = looks({variant: role_of(variant) for variant in variants}), {}
    figure = figure_of(2.9 * len(panels) + 0.3 + 0.25 * -(-len(variants) // 2))
    grid = figure.subplots(len(panels), squeeze=False).ravel()
    for axes, (environment, estimates) in zip(grid, panels.items(), strict=True):
        for variant, (values, low, high) in estimates.items():
            line = look[variant]
            places = (list(variants).index(variant) % _EVERY, _EVERY)
            (lines[variant],) = axes.plot(steps, values, markersize=7, markevery=places, **line)
            axes.fill_between(steps, low, high, color=line["color"], alpha=0.18, linewidth=0)
        axes.set(title=environment, xlabel="environment steps", ylabel=what)
        thousands(axes.xaxis)
        axes.set_ylim(bottom=min(axes.get_ylim()[0], 0))
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2)
    save(figure, path)


def draw_runs(runs: dict[str, tuple[np.ndarray, np.ndarray]], cap: int, what: str, path: Path) -> None:
    """
    Draw a dot for each run; those that did not solve the task stand beyond the last step, ``cap``. ``runs`` are by arm the
    steps until solved, and whether the task was solved, both of shape (seeds,).
    """
    figure = figure_of(1.4 + 0.5 * len(runs))
    axes = figure.subplots()
    for y, (arm, (steps, solved)) in enumerate(reversed(runs.items())):
        places = y + np.linspace(-0.28, 0.28, len(steps))
        color = LOOKS[role_of(arm) if role_of(arm) in LOOKS else "defaults"][0]
        faces = "none" if arm.startswith("shuffled") else color
        axes.scatter(steps[solved], places[solved], s=40, edgecolors=color, facecolors=faces)
        axes.scatter(np.full((~solved).sum(), 1.08 * cap), places[~solved], s=40, marker="x", color=color)
    axes.axvline(cap, color=INK, linestyle=":", linewidth=1)
    ticks = [tick for tick in MaxNLocator(5).tick_values(0, cap) if tick < 0.95 * cap]
    axes.set_xticks([*ticks, 1.08 * cap], [*(f"{tick / 1000:g}k" for tick in ticks), "not\nsolved"])
    axes.set_xlim(0, 1.15 * cap)
    axes.set_yticks(range(len(runs)), [textwrap.fill(arm, 26) for arm in reversed(runs)])
    axes.tick_params(axis="y", length=0)
    figure.supxlabel(f"{what}; worse \N{RIGHTWARDS ARROW}", fontsize="medium")
    save(figure, path)


def draw_rates(panels: dict[str, Estimates], what: str, path: Path) -> None:
    """Draw the mean gain of each arm over its reference, by title of a panel."""
    arms = list(next(iter(panels.values())))
    figure = figure_of(1.5 + 0.37 * len(arms))
    for axes, (title, gains) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        axes.axvline(0, color=INK)
        for place, arm in enumerate(arms):
            errorbar(axes, gains[arm][:, 0], -place, role_of(arm), "shuffled" in arm)
        axes.set_yticks(-np.arange(len(arms)), [textwrap.fill(arm, 26) for arm in arms])
        axes.set_title(title)
        say_that_more_is_better(axes)
    figure.supxlabel(what, fontsize="medium")
    save(figure, path)


def draw_updates(campaign: Campaign, scores: Scores, solved: dict[str, np.ndarray], path: Path) -> None:
    """
    Draw updates over the episodes for one success: a line and a band for each arm, the number of its stopped runs, and the
    fewest updates that a run can need. The text can be read where the figure is 360 pixels wide.
    """
    assert campaign.floor is not None
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(7.8)
        axes = figure.subplots()
        episodes = 2.0 ** np.array(campaign.tasks)
        for arm in campaign.arms:
            draw_arm(axes, episodes, np.exp(with_interval(-scores[arm])), arm)
        # The numbers stand one below the other, in the order of the lines.
        n_stopped = {arm: int((~solved[arm][:, -1]).sum()) for arm in campaign.arms}
        order = sorted(filter(n_stopped.get, n_stopped), key=lambda arm: -np.exp(-scores[arm][:, -1]).mean())
        for place, arm in enumerate(order):
            color = LOOKS[arm.removeprefix("shuffled, ")][0]
            axes.annotate(str(n_stopped[arm]), (1.25 * episodes[-1], campaign.cap * 0.72**place), color=color, va="center")
        if order:
            n_seeds = f"stopped, of {len(campaign.reporting)}"
            axes.annotate(n_seeds, (1.6 * episodes[-1], 1.3 * campaign.cap), ha="right", va="bottom")
        floor = list(map(campaign.floor, campaign.tasks))
        axes.fill_between(episodes, 0.8 * min(floor), floor, color=INK, alpha=0.25, linewidth=0)
        axes.annotate("no run can end here", (episodes[-1], 1.1 * min(floor)), ha="right", color=INK)
        axes.axhline(campaign.cap, color=INK, linestyle=":", linewidth=1)
        axes.set(xscale="log", xlim=(0.8 * episodes[0], 2 * episodes[-1]), xlabel="random episodes for one success")
        axes.set(yscale="log", ylim=(0.8 * min(floor), 2.2 * campaign.cap))
        axes.set_ylabel("updates until solved\nworse \N{RIGHTWARDS ARROW}")
        axes.set_xticks(episodes, [f"{int(count):,}" for count in episodes], rotation=30)
        axes.set_xticks([], minor=True)
        axes.set_yticks([300, 1_000, 3_000, 10_000, 30_000], ["300", "1,000", "3,000", "10,000", "30,000"])
        axes.set_yticks([], minor=True)
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, path)
