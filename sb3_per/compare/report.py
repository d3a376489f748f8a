"""Report a comparison: a table, a sentence, and a picture."""

import itertools
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from sb3_per.compare.figures import STYLE, WIDTH, looks, thousands
from sb3_per.compare.statistics import holm, mean_interval, paired_p
from sb3_per.compare.task import RANDOM, Arm, first_reference, pairs_of, timed_pairs_of
from sb3_per.utils.colours import INK

#: Tested endpoints, both at the task's learning rate.
LAST_FIFTH, WHOLE_RUN = "Last fifth of the run, at the task's learning rate", "Whole run, at the task's learning rate"
#: The same two at the same time, for an arm with more updates.
SAME_TIME = "Last fifth of the same time, at the task's learning rate", "The same time, at the task's learning rate"
#: Endpoint that describes: no test is exact where the same seeds choose the rates.
BEST_RATE = "Last fifth, each arm at its best rate: a description, because the same seeds chose the rates"


class Results(NamedTuple):
    """
    Results of all runs.

    :param arms: arms
    :param curves: by name of an arm: mean return of each evaluation, shape (rates, seeds, evaluations)
    :param updates: by name of an arm: mean number of gradient updates of a run
    :param random_returns: return of each evaluation of a random policy, shape (evaluations,)
    :param rates: factors of the learning rate
    :param spreads: by name of an arm: share of the buffer that draws were spread over at the end, the least of all runs
    :param seconds: by name of an arm: time of a run without its evaluations, the median of all runs
    """

    arms: list[Arm]
    curves: dict[str, np.ndarray]
    updates: dict[str, float]
    random_returns: np.ndarray
    rates: list[float]
    spreads: dict[str, float]
    seconds: dict[str, float]

    def last_fifth(self, arm: Arm) -> np.ndarray:
        """
        Average the last fifth of the evaluations.

        :param arm: arm
        :return: score of each run, shape (rates, seeds)
        """
        return _last_fifth(self.curves[arm.name])

    def within(self, arm: Arm, seconds: float) -> np.ndarray:
        """
        Read the learning curves within the first seconds of a run. The time is modelled: all runs of an arm take its median
        time, and each step takes the same. Between two evaluations, and between a random policy at the start and the first
        evaluation, curves are straight.

        :param arm: arm
        :param seconds: time, at most that of a run
        :return: as many points of the curves as there are evaluations, in equal distances, shape (rates, seeds, evaluations)
        """
        curves = self.curves[arm.name]
        n = curves.shape[-1]
        start = np.full((*curves.shape[:-1], 1), self.random_returns.mean())
        curves = np.concatenate([start, curves], axis=-1)
        at = seconds / self.seconds[arm.name] * np.arange(1, n + 1)  # in evaluations
        before = np.minimum(at.astype(int), n - 1)
        return np.asarray(curves[..., before] + (at - before) * (curves[..., before + 1] - curves[..., before]))

    def same_seconds(self, arm: Arm, other: Arm) -> float | None:
        """
        Find the time at which two arms can be compared.

        :param arm: arm
        :param other: another arm
        :return: seconds of the shorter run; ``None`` if the longer one has no evaluation until then
        """
        seconds = [self.seconds[each.name] for each in (arm, other)]
        n_evaluations = self.curves[arm.name].shape[-1]
        return min(seconds) if min(seconds) * n_evaluations >= max(seconds) else None


def _last_fifth(curves: np.ndarray) -> np.ndarray:
    """Average the last fifth of curves, the last dimension."""
    return np.asarray(curves[..., -max(curves.shape[-1] // 5, 1) :].mean(axis=-1))


class Comparison(NamedTuple):
    """
    One row of the table: two arms, paired by seed.

    :param arm: arm that is judged
    :param other: arm that it is compared with
    :param endpoint: what is compared, in words
    :param differences: score of the arm minus that of the other, shape (seeds,)
    :param p: p-value, corrected over the table; NaN where nothing is tested
    """

    arm: Arm
    other: Arm
    endpoint: str
    differences: np.ndarray
    p: float = np.nan


def comparisons(results: Results) -> list[Comparison]:
    """
    Compare all arms with their references.

    :param results: results of all runs
    :return: rows of the table
    """
    at_task = results.rates.index(1.0)
    tested = []
    described = []
    for arm, other in pairs_of(results.arms):
        ours, theirs = results.last_fifth(arm), results.last_fifth(other)
        tested.append(Comparison(arm, other, LAST_FIFTH, ours[at_task] - theirs[at_task]))
        differences = results.curves[arm.name][at_task] - results.curves[other.name][at_task]
        tested.append(Comparison(arm, other, WHOLE_RUN, differences.mean(axis=-1)))
        if len(results.rates) > 1:
            best = ours[ours.mean(axis=1).argmax()] - theirs[theirs.mean(axis=1).argmax()]
            described.append(Comparison(arm, other, BEST_RATE, best))
    for arm, other in timed_pairs_of(results.arms):
        seconds = results.same_seconds(arm, other)
        if seconds is not None:
            differences = (results.within(arm, seconds) - results.within(other, seconds))[at_task]
            scores = _last_fifth(differences), differences.mean(axis=-1)
            tested += [Comparison(arm, other, *each) for each in zip(SAME_TIME, scores, strict=True)]
    p_values = holm({i: paired_p(row.differences) for i, row in enumerate(tested)})
    return [row._replace(p=p_values[i]) for i, row in enumerate(tested)] + described


def p_text(p: float) -> str:
    """
    Format a p-value.

    :param p: p-value
    :return: in a table
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number_text(value: float, sign: str = "") -> str:
    """Format a return with three digits, and all digits before the point. ``"+"`` shows the sign of positive numbers too."""
    return format(value, f"{sign},.0f") if abs(value) >= 100 else format(value, f"{sign}.3g")


def _rate_text(rate: float) -> str:
    return "task's rate" if rate == 1.0 else f"rate x {rate:.2g}"


def table(results: Results, rows: list[Comparison]) -> str:
    """
    Write the table. Settings have letters, so that it fits a narrow page.

    :param results: results of all runs
    :param rows: comparisons
    :return: returns of the arms, and their differences
    """
    lines = [f"{arm.label}: {arm.name}" for arm in results.arms if not arm.is_reference and arm.control_for is None]
    cells = [["mean return", *map(_rate_text, results.rates), "updates", "seconds"]]
    for arm in results.arms:
        name = arm.name if arm.is_reference else arm.label
        means = results.last_fifth(arm).mean(axis=1)
        updates, seconds = f"{results.updates[arm.name]:,.0f}", _number_text(results.seconds[arm.name])
        cells.append([name, *map(_number_text, means), updates, seconds])
    cells.append([RANDOM, _number_text(results.random_returns.mean())])
    lines += ["", *_aligned(cells, ">")]
    for endpoint in dict.fromkeys(row.endpoint for row in rows):
        cells = [["difference", "[95% interval]", "seeds", "p"]]
        for row in rows:
            if row.endpoint == endpoint:
                middle, low, high = (_number_text(value, "+") for value in mean_interval(row.differences))
                n_better = (0.5 + 0.5 * np.sign(row.differences)).sum()  # a tie is half a seed
                seeds = f"{n_better:g}/{len(row.differences)}"
                p = "" if np.isnan(row.p) else p_text(row.p)
                cells.append([f"{row.arm.label} - {row.other.label}", f"{middle} [{low}, {high}]", seeds, p])
        lines += ["", *textwrap.wrap(f"{endpoint}:", 72), *_aligned(cells, "<")]
    return "\n".join(lines)


def _aligned(rows: list[list[str]], side: str) -> list[str]:
    """Align the columns, the first one left."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    sides = ["<", *side * len(widths)]
    return ["  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in rows]


def verdict(results: Results, rows: list[Comparison]) -> str:
    """
    Sum up in one sentence. An arm has learned if half of its runs are above the random policy by three standard deviations of
    its evaluations.

    :param results: results of all runs
    :param rows: comparisons
    :return: one of four sentences; with an arm that has more updates, one about the same steps, and one about the same time
    """
    today = first_reference(results.arms)
    best = max(np.median(results.last_fifth(arm), axis=1).max() for arm in results.arms)
    if best <= results.random_returns.mean() + 3 * results.random_returns.std():
        return f"Nothing learned: no arm clearly beats a random policy. Train longer, or tune {today.name} first."
    same_steps = [row for row in rows if row.endpoint not in SAME_TIME]
    more = [arm for arm in results.arms if arm.has_more_updates]
    if not more:
        return _answer(results.arms, today, same_steps)
    same_time = [row for row in rows if row.endpoint in SAME_TIME]
    lines = [f"At the same steps: {_answer(results.arms, today, same_steps)}"]
    for reference in (today, *more):
        arms = [arm for arm, other in timed_pairs_of(results.arms) if other == reference]
        early = [arm for arm in arms if results.same_seconds(arm, reference) is None]
        arms = [arm for arm in arms if arm not in early]
        if arms:
            lines.append(f"At the same time: {_answer(arms, reference, same_time)}")
        for arm in early:
            shorter, longer = sorted((arm, reference), key=lambda each: results.seconds[each.name])
            early_text = f"{shorter.name} ends before the first evaluation of {longer.name}"
            lines.append(f"At the same time: no answer: {early_text}. Lower --more-updates.")
    return "\n".join(lines)


def _answer(arms: list[Arm], reference: Arm, rows: list[Comparison]) -> str:
    """Say which arms differ from a reference, in one of three sentences."""
    better = []
    worse = []
    for arm in arms:
        shown = [row.differences.mean() for row in rows if (row.arm, row.other) == (arm, reference) and row.p < 0.05]
        if shown and min(shown) > 0:
            better.append(arm.name)
        elif shown and max(shown) < 0:
            worse.append(arm.name)
    if better:
        return f"Better than {reference.name} (p < 0.05): {'; '.join(better)}."
    if worse:
        return f"Worse than {reference.name} (p < 0.05): {'; '.join(worse)}."
    n_seeds = len(rows[0].differences)
    shows = "seed shows" if n_seeds == 1 else "seeds show"
    return f"Cannot tell: {n_seeds} {shows} no clear difference from {reference.name}."


def draw(results: Results, n_timesteps: int, path: Path) -> Figure:
    """
    Draw learning curves: the mean over the runs and its 95% interval, a panel for each learning rate, one below the other.
    With an arm that has more updates, the last panel shows the task's learning rate over time.

    :param results: results of all runs
    :param n_timesteps: environment steps of a run
    :param path: path of the PNG
    :return: the figure
    """
    look = looks({arm.name: arm.kind for arm in results.arms if arm.control_for is None})
    for arm in results.arms:
        if arm.control_for is not None:  # as its setting, dotted
            look[arm.name] = {**look[arm.control_for], "linestyle": ":", "markerfacecolor": "none"}
    labels = {arm.name: textwrap.fill(arm.name, 56) for arm in results.arms}
    n_lines = sum(1 + label.count("\n") for label in labels.values()) + 1
    n_rates, n_seeds, n_evaluations = results.curves[results.arms[0].name].shape
    shares = np.arange(1, n_evaluations + 1) / n_evaluations
    steps = dict.fromkeys(results.curves, n_timesteps * shares)
    panels = [(i, _rate_text(rate) if n_rates > 1 else "", steps) for i, rate in enumerate(results.rates)]
    if any(arm.has_more_updates for arm in results.arms):
        times = {name: seconds * shares for name, seconds in results.seconds.items()}
        panels.append((results.rates.index(1.0), f"{_rate_text(1.0)}, over time" if n_rates > 1 else "", times))
    bands = f"{n_seeds} seeds, bands: 95% intervals" if n_seeds > 1 else "1 seed"
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.0 * len(panels) + 0.45 + 0.24 * n_lines))
        all_axes = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
        for axes, (i, title, at) in zip(all_axes, panels, strict=True):
            for name, curves in results.curves.items():
                middle, low, high = mean_interval(curves[i])
                axes.plot(at[name], middle, label=labels[name], markersize=6, **look[name])
                if n_seeds > 1:
                    axes.fill_between(at[name], low, high, color=look[name]["color"], alpha=0.15, linewidth=0)
            axes.axhline(results.random_returns.mean(), color=INK, linewidth=1, label=RANDOM)
            axes.set(ylabel="mean return", title=title)
            thousands(axes.xaxis)
        all_axes[n_rates - 1].set_xlabel(f"environment steps; {bands}")
        if len(panels) > n_rates:
            all_axes[-1].set_xlabel("seconds of a run, median, without evaluations")
        for axes in all_axes[: n_rates - 1]:
            axes.sharex(all_axes[n_rates - 1])
            axes.tick_params(labelbottom=False)
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        figure.savefig(path)
    return figure
