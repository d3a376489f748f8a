"""The figures of the documentation: the style of `sb3-per compare`, a look for every arm, and one function for each kind."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3
from campaign import Campaign
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from tables import Estimates, Scores, iqm, with_interval

from sb3_per.compare.figures import CYAN, GREEN, INK, LOOKS, OLIVE, ORANGE, PURPLE, STYLE, WIDTH, looks, thousands

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


def errorbars(
    axes: Axes,
    figures: Sequence[np.ndarray],
    places: Sequence[float],
    role: str,
    is_control: bool = False,
    is_grey: bool = False,
) -> Artist:
    """
    Draw figures, shape (n, 3), with horizontal intervals at these heights, in the look of a role or grey; controls are hollow.
    """
    values, low, high = np.array(figures).reshape(-1, 3).T
    color, marker, hollow = look_of(role, is_control)
    look = dict(fmt=marker, capsize=3, linewidth=1.5, color=INK if is_grey else color)
    return axes.errorbar(values, places, xerr=[values - low, high - values], **look, **hollow)  # type: ignore[arg-type]


def draw_curves(panels: dict[str, Estimates], steps: list[int], what: str, path: Path) -> None:
    """Draw learning curves with intervals: figures at each evaluation, by environment."""
    n_columns = min(len(panels), 2)
    n_rows = -(-len(panels) // n_columns)
    variants = dict.fromkeys(variant for estimates in panels.values() for variant in estimates)
    look = looks({variant: role_of(variant) for variant in variants})
    grid_has_room = len(panels) < n_rows * n_columns
    figure = figure_of(2.9 * n_rows + (0 if grid_has_room else 0.3 + 0.25 * -(-len(variants) // 2)))
    grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    lines = {}
    for axes, (environment, estimates) in zip(grid, panels.items(), strict=False):
        for variant, (values, low, high) in estimates.items():
            line: dict[str, Any] = {**look[variant], "marker": ""}
            (lines[variant],) = axes.plot(steps, values, **line)
            axes.fill_between(steps, low, high, color=line["color"], alpha=0.18, linewidth=0)
        axes.set(title=environment, xlabel="environment steps")
        thousands(axes.xaxis)
    for axes in grid[: len(panels)]:
        if axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)
    for axes in grid[::n_columns]:
        axes.set_ylabel(what)
    if grid_has_room:
        grid[-1].set_axis_off()
        grid[-1].legend(lines.values(), lines, loc="center")
    else:
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
            errorbars(axes, gains[arm].T, [-place], role_of(arm), is_control="shuffled" in arm)
        axes.set_yticks(-np.arange(len(arms)), [textwrap.fill(arm, 26) for arm in arms])
        axes.set_title(title)
        say_that_more_is_better(axes)
    figure.supxlabel(what, fontsize="medium")
    save(figure, path)


# ---- campaigns


def draw_gains(campaign: Campaign, scores: Scores, path: Path) -> None:
    """Draw the gain of each arm over the twin, by task and for all tasks; hollow: shuffled priorities."""
    figure = figure_of(3.8)
    axes = figure.subplots()
    arms = [arm for arm in campaign.arms if arm != campaign.twin]
    places = np.arange(len(campaign.tasks) + 1.0)
    for k, arm in enumerate(arms):
        gains = scores[arm] - scores[campaign.twin]
        estimate = with_interval(np.column_stack([gains, gains.mean(axis=1)]))
        middle, low, high = np.exp(estimate) if campaign.is_log else estimate
        color, marker, hollow = look_of(arm.removeprefix("shuffled, "), arm.startswith("shuffled"))
        offsets = places + 0.12 * (k - (len(arms) - 1) / 2)
        axes.errorbar(offsets, middle, [middle - low, high - middle], color=color, fmt=marker, capsize=2, label=arm, **hollow)
    axes.axhline(1.0 if campaign.is_log else 0.0, color=INK, linewidth=1)
    axes.axvline(len(campaign.tasks) - 0.5, color=INK, linewidth=0.5, linestyle=":")
    if campaign.is_log:
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda value, _: f"{value:g}")
    axes.set_xticks(places, [*map(str, campaign.tasks), "all"])
    gain = "twin's steps over the arm's" if campaign.is_log else "score minus the twin's"
    axes.set(xlabel=campaign.unit, ylabel=f"{gain}\n({len(campaign.reporting)} seeds, more is better)")
    figure.legend(loc="outside lower center", ncols=3)
    save(figure, path)


def draw_relative(campaign: Campaign, scores: Scores, path: Path) -> None:
    """Draw a dot for each arm over all games, in units of the twin, and grey ones for single games, which are not compared."""
    panels = {"all games": list(range(len(campaign.tasks)))}
    panels |= {task.removeprefix("MinAtar/").removesuffix("-v1"): [i] for i, task in enumerate(campaign.tasks)}
    figure = figure_of(4.4)
    axes = figure.subplots()
    axes.axvline(1.0, color=INK, linewidth=1)
    handles = []
    for k, arm in enumerate(campaign.arms):
        estimates = [iqm({arm: scores[arm][:, columns]})[arm][:, 0] for columns in panels.values()]
        places = [-place + 0.22 - 0.22 * k for place in range(len(panels))]
        handles.append(errorbars(axes, estimates[:1], places[:1], arm))
        errorbars(axes, estimates[1:], places[1:], arm, is_control=True, is_grey=True)
    axes.set_yticks([-place for place in range(len(panels))], list(panels))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"score, in units of the uniform twin's mean; {len(campaign.reporting)} seeds")
    say_that_more_is_better(axes)
    figure.legend(handles, list(campaign.arms), loc="outside upper center", ncols=len(campaign.arms))
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
            is_control = arm.startswith("shuffled")
            color, marker, hollow = look_of(arm.removeprefix("shuffled, "), is_control)
            middle, low, high = np.exp(with_interval(-scores[arm]))
            line: dict[str, Any] = dict(linestyle="--", linewidth=1.5, **hollow) if is_control else dict(linestyle="-")
            axes.plot(episodes, middle, color=color, marker=marker, markersize=6, label=arm, **line)
            axes.fill_between(episodes, low, high, color=color, alpha=0.06 if is_control else 0.18, linewidth=0)
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


class Panel(NamedTuple):
    """One campaign in a figure of several."""

    campaign: Campaign
    title: str
    tasks: str  # what the tasks are
    gain: str  # what the gain is
    names: list[str]  # names of the tasks
    scores: Scores


def draw_rarity(panels: list[Panel], path: Path) -> None:
    """
    Draw the gain over the twin, dashed with shuffled priorities. The first panel has a row of its own. The text can be read
    where the figure is 360 pixels wide.
    """
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(8.6)
        places = figure.subplot_mosaic("AA;BC", width_ratios=[3, 2])
        for (campaign, title, tasks, gain, names, scores), axes in zip(panels, places.values(), strict=True):
            for arm in ("defaults", "no weights", "shuffled, defaults", "shuffled, no weights"):
                estimate = with_interval(scores[arm] - scores[campaign.twin])
                middle, low, high = np.exp(estimate) if campaign.is_log else estimate
                is_control = arm.startswith("shuffled")
                color, marker, hollow = look_of(arm.removeprefix("shuffled, "), is_control)
                line: dict[str, Any] = {"linestyle": "--", "linewidth": 1.5, **hollow} if is_control else {}
                axes.plot(names, middle, color=color, marker=marker, label=arm, **line)
                axes.fill_between(names, low, high, color=color, alpha=0.06 if is_control else 0.18, linewidth=0)
            axes.axhline(1.0 if campaign.is_log else 0.0, color=INK, linewidth=1)
            axes.set(title=title, xlabel=tasks, ylabel=gain, xlim=(-0.3, len(names) - 0.7))
            if campaign.is_log:
                axes.set_yscale("log")
                axes.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
                axes.set_yticks([], minor=True)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save(figure, path)


def draw_campaign(campaign: Campaign, scores: Scores, solved: dict[str, np.ndarray], path: Path) -> None:
    """Draw the figure of a complete campaign, of the kind that it has. ``solved``: whether runs ended before the cap."""
    if campaign.figure == "runs":
        runs = {arm: (-scores[arm][:, 0], solved[arm][:, 0]) for arm in campaign.arms}
        draw_runs(runs, campaign.cap, campaign.endpoint.partition(";")[0].lower(), path)
    elif campaign.figure == "updates":
        draw_updates(campaign, scores, solved, path)
    else:
        (draw_relative if campaign.figure == "relative" else draw_gains)(campaign, scores, path)
