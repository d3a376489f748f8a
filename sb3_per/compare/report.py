"""Report a comparison: a table, a sentence, and a picture."""

import itertools
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from sb3_per.compare.figures import INK, STYLE, WIDTH, looks, thousands
from sb3_per.compare.statistics import holm, mean_interval, paired_interval, tuned_p

# Share of the evaluations, the last ones, whose mean is the score of a run.
_FINAL = 5
#: Share of the buffer above which draws count as uniform.
UNIFORM = 0.99

TASK_RATE, BEST_RATE = "at the task's learning rate", "at each arm's best learning rate"


class Names(NamedTuple):
    """
    Names of the arms by their roles.

    :param stock: stock class, which the user has today; ``None``: there is none
    :param twin: our class with uniform draws
    :param judged: by name of a setting: name of its shuffled control, if it has one
    :param algorithm: name of our class
    """

    stock: str | None
    twin: str
    judged: dict[str, str | None]
    algorithm: str

    @property
    def today(self) -> str:
        """Arm that the settings have to beat."""
        return self.stock or self.twin


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
    One row of the table: two arms, paired by seed.

    :param arm: arm that is judged
    :param other: arm that it is compared with
    :param endpoint: learning rate, in words
    :param rate: factor of the arm's learning rate; 0: the best of each arm
    :param ours: scores of the arm, shape (rates, seeds)
    :param theirs: scores of the other arm, same shape
    :param p: p-value, corrected over the table
    """

    arm: str
    other: str
    endpoint: str
    rate: float
    ours: np.ndarray
    theirs: np.ndarray
    p: float

    @property
    def shown(self) -> str:
        """Result of the test for the arm: ``"better"``, ``"worse"`` or ``"nothing"``."""
        return "nothing" if self.p >= 0.05 else "better" if self.interval[0] > 0 else "worse"

    @property
    def interval(self) -> tuple[float, float, float]:
        """Difference of the means, and its 95% interval."""
        return paired_interval(self.ours, self.theirs)

    @property
    def n_better(self) -> float:
        """Number of seeds with which the arm is better, each arm at the rate that is its best; a tie is half a seed."""
        ours, theirs = (scores[scores.mean(axis=1).argmax()] for scores in (self.ours, self.theirs))
        return float((0.5 + 0.5 * np.sign(ours - theirs)).sum())

    def __str__(self) -> str:
        p = p_text(self.p)
        at = "" if self.endpoint == TASK_RATE else f", {self.endpoint}"
        return f"{difference_text(self)}, p {p if p.startswith('<') else f'= {p}'}{at}"


def p_text(p: float) -> str:
    """
    Format a p-value.

    :param p: p-value
    :return: in a table
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def number_text(value: float, sign: str = "") -> str:
    """
    Format a return, or a difference of returns.

    :param value: number
    :param sign: ``"+"`` shows the sign of positive numbers too
    :return: three digits, and all digits before the point
    """
    return format(value, f"{sign},.0f") if abs(value) >= 100 else format(value, f"{sign}.3g")


def difference_text(row: Comparison) -> str:
    """
    Format a difference and its interval.

    :param row: comparison
    :return: e.g. ``"+12 [-3.1, +27]"``
    """
    middle, low, high = (number_text(value, "+") for value in row.interval)
    return f"{middle} [{low}, {high}]"


def pairs_of(names: Names, rates: list[float]) -> list[tuple[str, str, str, float]]:
    """
    List the tests. Holm's method corrects for all of them.

    :param names: names of the arms
    :param rates: factors of the learning rate
    :return: the first four fields of each :class:`Comparison`: each setting with stock, the twin and its control, and the twin
        with stock, at the task's rate and at the best rates; stock at each other rate with stock at the task's
    """
    pairs = []
    for endpoint, rate in ((TASK_RATE, 1.0), (BEST_RATE, 0.0))[: min(len(rates), 2)]:
        for arm, control in names.judged.items():
            pairs += [(arm, other, endpoint, rate) for other in (names.stock, names.twin, control) if other is not None]
        if names.stock is not None:
            pairs.append((names.twin, names.stock, endpoint, rate))
    others = [rate for rate in rates if rate != 1.0 and names.stock is not None]
    return pairs + [(names.today, names.today, "against the task's learning rate", rate) for rate in others]


def comparisons(results: Results, names: Names) -> list[Comparison]:
    """
    Compare all arms with their references.

    :param results: returns of all runs
    :param names: names of the arms
    :return: rows of the table
    """
    scores = results.scores

    def at(arm: str, rate: float) -> np.ndarray:
        return scores[arm][[results.rates.index(rate)]] if rate else scores[arm]

    rows = []
    for arm, other, endpoint, rate in pairs_of(names, results.rates):
        ours, theirs = at(arm, rate), at(other, 1.0 if arm == other else rate)
        rows.append(Comparison(arm, other, endpoint, rate, ours, theirs, tuned_p(ours, theirs)))
    p_values = holm({i: row.p for i, row in enumerate(rows)})
    return [row._replace(p=p_values[i]) for i, row in enumerate(rows)]


def _against(rows: list[Comparison], arm: str, other: str) -> list[Comparison]:
    """Select the comparisons of two arms: at the task's learning rate first."""
    return [row for row in rows if (row.arm, row.other) == (arm, other)]


def rate_text(rate: float) -> str:
    """
    Name a factor of the learning rate.

    :param rate: factor
    :return: in words
    """
    return "the task's learning rate" if rate == 1.0 else f"{rate:.2g} x the learning rate"


def table(results: Results, rows: list[Comparison], names: Names, tested: bool = True) -> str:
    """
    Write the table. Settings get letters, so that it fits a narrow page.

    :param results: returns of all runs
    :param rows: comparisons
    :param names: names of the arms
    :param tested: whether p-values are shown
    :return: returns of the arms, and their differences
    """
    letters = {arm: chr(ord("A") + i) for i, arm in enumerate(names.judged)}
    of_judged = {**letters, **{control: f"{letters[arm]} shuffled" for arm, control in names.judged.items() if control}}
    short = {**of_judged, names.twin: "twin", **({names.stock: "stock"} if names.stock else {})}
    heads = [f"rate x {rate:.2g}" if rate != 1.0 else "task's rate" for rate in results.rates]
    cells = [["mean return", *heads]]
    for arm, by_rate in results.scores.items():
        cells.append([of_judged.get(arm, arm), *map(number_text, by_rate.mean(axis=1))])
    cells.append(["random policy", number_text(results.of_random.mean())])
    lines = [*(f"{letter}: {arm}" for arm, letter in letters.items()), "", *_aligned(cells, right=True)]
    for endpoint in dict.fromkeys(row.endpoint for row in rows):
        cells = [["difference", "[95% interval]", "seeds", "p"]]
        for row in (row for row in rows if row.endpoint == endpoint):
            ours, theirs = short[row.arm], short[row.other]
            name = f"{ours} x {row.rate:.2g}" if ours == theirs else f"{ours} - {theirs.removeprefix(f'{ours} ')}"
            cells.append([name, difference_text(row), f"{row.n_better:g}/{row.ours.shape[1]}", p_text(row.p)])
        lines += ["", f"{endpoint[0].upper()}{endpoint[1:]}:", *_aligned(cells if tested else [row[:-1] for row in cells])]
    return "\n".join(lines)


def _aligned(rows: list[list[str]], right: bool = False) -> list[str]:
    """Align the columns, the first one left."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    sides = ["<", *(">" if right else "<") * len(widths)]
    return ["  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in rows]


def verdict(
    results: Results, rows: list[Comparison], names: Names, uniform: Collection[str] = (), impression: str = ""
) -> str:
    """
    Answer whether the user should change the script, and to what. An arm has learned if half of its runs are above the random
    policy by three standard deviations of its evaluations.

    :param results: returns of all runs
    :param rows: comparisons
    :param names: names of the arms
    :param uniform: settings that prioritize, but drew uniformly in all runs
    :param impression: end of a first impression; empty: the tests decide
    :return: a few sentences in one line, which begin with the answer
    """
    best, of_random = max(np.median(scores, axis=1).max() for scores in results.scores.values()), results.of_random
    if best <= of_random.mean() + 3 * of_random.std():
        return (
            f"Nothing learned: no arm beats a random policy ({number_text(of_random.mean())}) by a clear margin "
            f"(best: {number_text(best)}). Train longer, or tune {names.today} first."
        )
    if impression:
        return f"{_impression(rows, names, uniform)} {impression}"
    if found := sorted(_candidates(results, rows, names, uniform), reverse=True):
        (_, change, why), *others = found
        also = f" Also better than {names.today} as it runs today: {'; '.join(each[1] for each in others)}." if others else ""
        return f"Better: {change}. {why}{also}"
    keep = f"keep {names.today}" if names.stock else "keep uniform draws"
    said = " ".join(_not_better(arm, rows, names, uniform) for arm in names.judged)
    shown = [{row.shown for row in _against(rows, arm, names.today)} for arm in names.judged]
    if all("worse" in each and "better" not in each for each in shown):
        return f"Worse: {keep}. {said}"
    return f"Cannot tell, so {keep}: no gain is shown with {rows[0].ours.shape[1]} seeds. {said}"


def _candidates(
    results: Results, rows: list[Comparison], names: Names, uniform: Collection[str]
) -> Iterator[tuple[float, str, str]]:
    """
    List the changes that are better than the script of today, and worse at no learning rate that is compared.

    :return: mean score, what to change in the script, and why
    """
    for arm in (*names.judged, names.twin):
        against = _against(rows, arm, names.today)
        better = [row for row in against if row.shown == "better"]
        if not better or any(row.shown == "worse" for row in against):
            continue
        by_rate = better[0].ours.mean(axis=1)
        rate = better[0].rate or results.rates[int(by_rate.argmax())]
        what = "scheme='uniform'" if arm == names.twin else arm
        change = f"change to {names.algorithm} with {what}" + ("" if rate == 1.0 else f" and {rate_text(rate)}")
        why = f"Against {names.today}: {better[0]}. {_reason(better[0], rows, names, uniform)}".strip()
        yield float(by_rate.max()), change, why
    for row in _against(rows, names.today, names.today):
        if row.shown == "better":
            yield float(row.ours.mean()), f"keep {names.today}, with {rate_text(row.rate)}", f"Its gain: {row}."


def _reason(row: Comparison, rows: list[Comparison], names: Names, uniform: Collection[str]) -> str:
    """
    Say whether the priorities are the reason of a gain.

    :param row: comparison that shows the gain
    :param rows: all comparisons
    :param names: names of the arms
    :param uniform: settings whose draws were uniform in all runs
    """
    if row.arm == names.twin or row.arm in uniform:
        drew = "draws uniformly" if row.arm == names.twin else "drew uniformly in all runs"
        return f"It {drew}, so priorities are not the reason."
    at_rate = {each.other: each for each in rows if (each.arm, each.endpoint) == (row.arm, row.endpoint)}
    twin, control = at_rate[names.twin], at_rate.get(names.judged[row.arm] or "")
    if twin.shown != "better":
        return f"It is not shown to beat the same class with uniform draws ({twin}), so priorities need not be the reason."
    if control is None:
        return ""
    if control.shown == "better":
        return "It also beats shuffled priorities, so the priorities are the reason."
    return "It is not shown to beat shuffled priorities, so the priorities need not be the reason."


_THAN = {"better": "better than", "worse": "worse than", "nothing": "against"}


def _not_better(arm: str, rows: list[Comparison], names: Names, uniform: Collection[str]) -> str:
    """Sum up a setting that is not recommended."""
    against = _against(rows, arm, names.today)
    shown = [row for row in against if row.shown != "nothing"] or against[:1]
    said = [f"{_THAN[row.shown]} {names.stock or 'uniform draws'}, {row}" for row in shown]
    twin = _against(rows, arm, names.twin)[0]
    if names.stock and twin.shown != "nothing":
        said.append(f"{_THAN[twin.shown]} the same class with uniform draws, {twin}")
    if arm in uniform:
        said.append("it drew uniformly in all runs")
    return f"{arm}: {'; '.join(said)}."


def _impression(rows: list[Comparison], names: Names, uniform: Collection[str]) -> str:
    """Describe a few runs. An interval without 0 is no test here: nothing corrects for the number of rows."""
    said = []
    for arm in names.judged:
        row = _against(rows, arm, names.today)[0]
        _, low, high = row.interval
        looks_like = "looks better than" if low > 0 else "looks worse than" if high < 0 else "cannot be told apart from"
        drew = ", and it drew uniformly in all runs" if arm in uniform else ""
        today = names.stock or "uniform draws"
        said.append(f"{names.algorithm} with {arm} {looks_like} {today}, {difference_text(row)}{drew}")
    n_seeds = rows[0].ours.shape[1]
    return f"First impression ({n_seeds} seed{'s' if n_seeds > 1 else ''}), no verdict: {'; '.join(said)}."


def draw(results: Results, roles: dict[str, str], controls: dict[str, str], n_timesteps: int, path: Path) -> None:
    """
    Draw learning curves: the mean over the runs and its 95% interval, a panel for each learning rate, one below the other.

    :param results: returns of all runs
    :param roles: by name of an arm that is no control: its look, a key of :data:`~sb3_per.compare.figures.LOOKS`
    :param controls: by name of a shuffled control: its setting, whose colour it has
    :param n_timesteps: environment steps of a run
    :param path: path of the PNG
    """
    look = looks(roles)
    look.update({control: {**look[arm], "linestyle": ":", "markerfacecolor": "none"} for control, arm in controls.items()})
    labels = {arm: textwrap.fill(arm, 56) for arm in results.curves}
    n_lines = sum(1 + label.count("\n") for label in labels.values()) + 1
    n_panels, n_seeds, n_evaluations = next(iter(results.curves.values())).shape
    steps = n_timesteps * np.arange(1, n_evaluations + 1) / n_evaluations
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.0 * n_panels + 0.45 + 0.24 * n_lines))
        panels = figure.subplots(n_panels, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for i, (axes, rate) in enumerate(zip(panels, results.rates, strict=True)):
            for arm, curves in results.curves.items():
                axes.plot(steps, curves[i].mean(axis=0), label=labels[arm], markersize=6, **look[arm])
                if n_seeds > 1:
                    _, low, high = mean_interval(curves[i])
                    axes.fill_between(steps, low, high, color=look[arm]["color"], alpha=0.15, linewidth=0)
            axes.axhline(results.of_random.mean(), color=INK, linewidth=1, label="random policy")
            axes.set(ylabel="mean return", title=rate_text(rate) if n_panels > 1 else "")
            thousands(axes.xaxis)
        bands = f"{n_seeds} seeds, bands: 95% intervals" if n_seeds > 1 else "1 seed"
        panels[-1].set_xlabel(f"environment steps; {bands}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        figure.savefig(path)
