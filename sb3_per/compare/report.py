"""What the runs of a comparison say: a table, a picture, and a sentence."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from sb3_per.compare.figures import INK, STYLE, WIDTH, looks, thousands
from sb3_per.compare.statistics import (
    at_best_rates,
    better_share,
    difference,
    has_learned,
    holm,
    mean_interval,
    permutation_p,
)

# Share of the evaluations, the last ones, whose mean is the score of a run.
_FINAL = 5
# Fewer seeds cannot be split into two halves.
LEAST_SEEDS = 4


class Results(NamedTuple):
    """
    Returns of all runs.

    :param curves: by name of an arm: mean return of each evaluation, shape (rates, seeds, evaluations)
    :param of_random: the same of a random policy, shape (evaluations,)
    :param rates: factors of the learning rate
    """

    curves: dict[str, np.ndarray]
    of_random: np.ndarray
    rates: list[float]

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """By name of an arm: mean of the last fifth of the evaluations, shape (rates, seeds)."""
        return {arm: values[..., -max(values.shape[-1] // _FINAL, 1) :].mean(axis=-1) for arm, values in self.curves.items()}


class Comparison(NamedTuple):
    """
    One row of the table.

    :param arm: arm that is judged
    :param other: arm that it is compared with
    :param endpoint: learning rate, in words
    :param ours: scores of the runs
    :param theirs: scores of the other's runs
    :param p: p-value, corrected over the table; ``None``: not tested
    """

    arm: str
    other: str
    endpoint: str
    ours: np.ndarray
    theirs: np.ndarray
    p: float | None = None

    @property
    def shown(self) -> str:
        """What the test shows of the arm: ``"better"``, ``"worse"`` or ``"nothing"``."""
        if self.p is None or self.p >= 0.05:
            return "nothing"
        return "better" if better_share(self.ours, self.theirs) > 0.5 else "worse"

    def __str__(self) -> str:
        middle, low, high = map(_number, difference(self.ours, self.theirs))
        p = p_text(self.p)
        return f"{middle} [{low}, {high}], p {p if p.startswith('<') else f'= {p}'}, {self.endpoint}"


def p_text(p: float | None) -> str:
    """
    Format a p-value.

    :param p: p-value
    :return: in a table
    """
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def comparisons(results: Results, stock: str | None, twin: str, judged: dict[str, str | None]) -> list[Comparison]:
    """
    Compare all arms with their references.

    :param results: returns of all runs
    :param stock: name of the stock arm, which is shown beside the twin and not tested
    :param twin: name of the uniform twin
    :param judged: by name of a setting: name of its shuffled control, if it has one
    :return: rows of the table, at the task's learning rate, and at each arm's best one
    """
    scores = results.scores
    (of_task,) = (i for i, rate in enumerate(results.rates) if rate == 1.0)
    endpoints = {"at the task's rate": {arm: values[of_task] for arm, values in scores.items()}}
    if len(results.rates) > 1 and next(iter(scores.values())).shape[1] >= LEAST_SEEDS:
        endpoints["at each arm's best rate"] = at_best_rates(scores, lambda values: float(values.mean()))[1]
    pairs = [(arm, other) for arm, control in judged.items() for other in (twin, control) if other is not None]
    tested = [Comparison(*pair, name, runs[pair[0]], runs[pair[1]]) for name, runs in endpoints.items() for pair in pairs]
    p_values = holm({i: permutation_p(row.ours[:, None], row.theirs[:, None]) for i, row in enumerate(tested)})
    tested = [row._replace(p=p_values[i]) for i, row in enumerate(tested)]
    beside = [Comparison(twin, stock, name, runs[twin], runs[stock]) for name, runs in endpoints.items() if stock is not None]
    return tested + beside


def table(rows: list[Comparison]) -> str:
    """
    Write the table.

    :param rows: comparisons
    :return: table, one line a comparison
    """
    lines = [("compared", "learning rate", "runs", "return", "other", "difference [95%]", "better in", "p")]
    for row in rows:
        middle, low, high = map(_number, difference(row.ours, row.theirs))
        lines.append(
            (
                f"{row.arm} - {row.other.removeprefix(f'{row.arm}, ')}",
                row.endpoint.removeprefix("at "),
                str(len(row.ours)),
                _number(row.ours.mean()),
                _number(row.theirs.mean()),
                f"{middle} [{low}, {high}]",
                f"{better_share(row.ours, row.theirs):.0%}",
                p_text(row.p),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def verdict(results: Results, rows: list[Comparison], twin: str, judged: dict[str, str | None]) -> str:
    """
    Write the conclusion.

    :param results: returns of all runs
    :param rows: comparisons
    :param twin: name of the uniform twin
    :param judged: by name of a setting: name of its shuffled control, if it has one
    :return: one sentence: better, worse, cannot tell, or that nothing was learned
    """
    all_runs = [runs for by_rate in results.scores.values() for runs in by_rate]
    if not any(has_learned(runs, results.of_random) for runs in all_runs):
        best = max(float(np.median(runs)) for runs in all_runs)
        return (
            f"Nothing learned: no arm beats a random policy ({_number(results.of_random.mean())}) by a clear margin (best: "
            f"{_number(best)}), so train longer, or tune the stock algorithm first."
        )
    sentences = [
        _of_setting(
            arm,
            [row for row in rows if (row.arm, row.other) == (arm, twin)],
            [row for row in rows if (row.arm, row.other) == (arm, control)],
        )
        for arm, control in judged.items()
    ]
    said = "; ".join(sentences)
    n_runs = len(rows[0].ours)
    weak = f" (weak evidence: {n_runs} seeds)" if n_runs < LEAST_SEEDS else ""
    return f"{said[0].upper()}{said[1:]}{weak}."


def _of_setting(arm: str, against_twin: list[Comparison], against_control: list[Comparison]) -> str:
    """
    Write the conclusion on one setting.

    :param arm: name of a setting
    :param against_twin: comparisons with the uniform twin
    :param against_control: comparisons with its shuffled control, at the same endpoints; empty: it has none
    """
    better = [i for i, row in enumerate(against_twin) if row.shown == "better"]
    worse = [i for i, row in enumerate(against_twin) if row.shown == "worse"]
    if better and worse:
        one, other = against_twin[better[0]].endpoint, against_twin[worse[0]].endpoint
        return f"cannot tell: {arm} is better than uniform replay {one} and worse {other}"
    if worse:
        return f"worse: {arm} loses to uniform replay, {against_twin[worse[0]]}"
    if not better:
        return f"cannot tell: {arm} against uniform replay, {against_twin[0]}"
    said = f"better: {arm} beats uniform replay, {against_twin[better[0]]}"
    if not against_control:
        return said
    if any(against_control[i].shown == "better" for i in better):
        return f"{said}, and it beats shuffled priorities, so the priorities are the reason"
    return f"{said}, but it is not shown to beat shuffled priorities, so the priorities need not be the reason"


def draw(results: Results, roles: dict[str, str], n_timesteps: int, path: Path) -> None:
    """
    Draw learning curves: the mean over the runs and its 95% bootstrap interval, a panel for each learning rate.

    :param results: returns of all runs
    :param roles: by name of an arm: its look, a key of :data:`~sb3_per.compare.figures.LOOKS`; of a shuffled control, the name
        of its setting
    :param n_timesteps: environment steps of a run
    :param path: path of the PNG
    """
    look = looks({arm: role for arm, role in roles.items() if role not in roles})
    look.update({arm: {**look[role], "linestyle": ":"} for arm, role in roles.items() if role in roles})
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.2 + 0.25 * len(roles)))
        panels = figure.subplots(1, len(results.rates), sharey=True, squeeze=False)[0]
        for i, (axes, rate) in enumerate(zip(panels, results.rates, strict=True)):
            for arm, curves in results.curves.items():
                steps = n_timesteps * np.arange(1, curves.shape[-1] + 1) / curves.shape[-1]
                line = {**look[arm], "marker": ""}
                axes.plot(steps, curves[i].mean(axis=0), label=arm, **line)
                axes.fill_between(steps, *mean_interval(curves[i]), color=line["color"], alpha=0.15, linewidth=0)
            axes.axhline(results.of_random.mean(), color=INK, linewidth=1, label="random policy")
            axes.set(title="the task's learning rate" if rate == 1.0 else f"{rate:.2g} of it", xlabel="environment steps")
            thousands(axes.xaxis)
        panels[0].set_ylabel("mean return, 95% interval")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.savefig(path)
