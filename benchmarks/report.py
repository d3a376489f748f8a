"""
What the runs of `learning.py` say: tables and figures with intervals, by rliable (Agarwal et al. 2021, arXiv 2108.13264).

    python benchmarks/report.py                # every suite that has runs, into docs/evidence
    python benchmarks/report.py --only pairs   # this suite, or those whose name contains this; and the summary of all

- score of a run: mean of its last evaluations, a fifth of them
- IQM: mean of the middle half of the runs; the interval holds 95% of 2,000 stratified bootstrap samples of the runs
- probability of improvement: that a run of this variant scores higher than one of the first variant, in the same environment
- suites at several learning rates: see :func:`report_rates`
- all complete suites together: see :func:`summarise`
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3
from campaign import read
from figures import INK, LOOKS, figure_of, looks, save, thousands
from learning import (
    CANDIDATE,
    NO_WEIGHTS,
    OUT,
    SUITES,
    Suite,
    arm_of,
    evaluation_steps,
    fingerprint,
    named_at,
    seeds_of,
    suites_named,
    variants_in,
)
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from memory_suites import MEMORY_SUITES
from rliable import library, metrics
from scipy.stats import trim_mean

from sb3_per.sampling.schemes import DEFAULT_EPSILON

SAMPLES = 2_000
# Of the final return, which has to be reached.
CONVERGED = 0.95

# What the summary of all suites shows, by the settings of the buffer: what there was before, and what bits-rates was won by.
SUMMED_UP: dict[str, dict[str, Any]] = {
    "defaults": {},
    "LAP": dict(scheme="lap"),
    "candidate": CANDIDATE,
    "no weights": NO_WEIGHTS,
}

# Arms of bits-rates whose names are their settings.
ARMS = {"epsilon 1e-06, no weights": "no weights", "epsilon 0.01, mean, eta 0.25": "candidate"}

# By variant: shape (runs, environments) or, for curves, (runs, environments, evaluations).
Scores = dict[str, np.ndarray]
# By variant: shape (3, n), of each of n figures the value itself and the ends of its interval.
Estimates = dict[str, np.ndarray]


def load(suite: Suite, rows: list[dict[str, str]]) -> Scores:
    """
    :param suite: what was to run
    :param rows: what did
    :return: mean returns of the evaluations, of the seeds for which all runs are there; NaN after a run was solved, and where
        a variant does not run
    """
    columns = list(map(str, evaluation_steps(suite)))
    runs = {
        (row["environment"], row["variant"], int(row["seed"])): [float(row[column] or "nan") for column in columns]
        for row in rows
        if row["variant"] in suite.variants and row["settings"] == fingerprint(suite, row["variant"])
    }
    asked = [(environment, variant) for environment in suite.environments for variant in variants_in(suite, environment)]
    seeds = [seed for seed in seeds_of(suite) if all((*pair, seed) in runs for pair in asked)]
    nothing = [np.nan] * len(columns)
    return {
        v: np.array([[runs.get((e, v, seed), nothing) for e in suite.environments] for seed in seeds]) for v in suite.variants
    }


def final(curves: Scores) -> Scores:
    """Scores of the runs: means over the last fifth of the evaluations."""
    return {variant: values[..., -max(values.shape[-1] // 5, 1) :].mean(axis=-1) for variant, values in curves.items()}


def steps_until(reached: np.ndarray, steps: list[int]) -> np.ndarray:
    """
    :param reached: shape (..., evaluations)
    :param steps: of the evaluations
    :return: shape (...), steps at the first evaluation that is True; those of the last where none is
    """
    first: np.ndarray = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(steps) - 1)
    return np.array(steps)[first]


def estimate(scores: dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]], metric: Callable[..., np.ndarray]) -> Estimates:
    """
    :param scores: of each variant, or of the pairs to be compared
    :param metric: of scores, or of two of them; shape (n,)
    :return: figures with intervals
    """
    np.random.seed(0)  # rliable draws from the global generator, whatever it is given
    figures, intervals = library.get_interval_estimates(scores, metric, reps=SAMPLES)
    return {name: np.vstack([figures[name], intervals[name]]) for name in scores}


def iqm(scores: Scores) -> Estimates:
    """Interquartile mean over runs and environments."""
    return estimate(scores, lambda values: np.array([metrics.aggregate_iqm(values)]))


def iqm_curves(curves: Scores) -> Estimates:
    """Interquartile mean at each evaluation."""
    # All columns at once, 2,000 times: rliable's aggregate_iqm takes one.
    return estimate(curves, lambda values: trim_mean(values.reshape(-1, values.shape[-1]), 0.25, axis=0))


def share_curves(reached: Scores) -> Estimates:
    """Share of the runs at each evaluation."""
    return estimate(reached, lambda values: values.mean(axis=(0, 1)))


def improvement(scores: Scores) -> Estimates:
    """Probability that a variant is better than the first."""
    first, *others = scores
    pairs = {other: (scores[other], scores[first]) for other in others}
    return estimate(pairs, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]))


def cell(estimates: Estimates, variant: str, digits: int, column: int = 0) -> str:
    """A figure and its interval."""
    if variant not in estimates:
        return ""
    figure, low, high = estimates[variant][:, column]
    return f"{figure:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    """In Markdown, with an empty line after it."""
    return [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def compare(what: str, scores: Scores, digits: int, sign: int = 1) -> list[str]:
    """
    :param what: the scores are
    :param scores: of the runs
    :param digits: after the point
    :param sign: -1 where less is better
    :return: a table with a row for each variant
    """
    middle, better = iqm(scores), improvement({variant: sign * values for variant, values in scores.items()})
    rows = [[v, cell(middle, v, digits), cell(better, v, 2)] for v in scores]
    return table(["variant", f"{what}, IQM [95% interval]", f"probability of improvement on {next(iter(scores))}"], rows)


def in_one(suite: Suite, scores: Scores, environment: str) -> Scores:
    """Of the variants that run in one environment, which remains as a dimension."""
    i = suite.environments.index(environment)
    return {variant: scores[variant][:, i : i + 1] for variant in variants_in(suite, environment)}


def digits_for(scores: Scores) -> int:
    """Three figures that count."""
    largest = max(np.abs(values).max() for values in scores.values())
    return int(np.clip(2 - np.floor(np.log10(max(largest, 1e-9))), 0, 3))


def role_of(variant: str) -> str:
    """
    :param variant: its name, e.g. ``"PERDQN, LAP"`` or, of an arm, ``"LAP"``
    :return: what it is in the figures: a key of :data:`figures.LOOKS`, if it has a look of its own
    """
    variant = variant.removeprefix("shuffled, ")
    algorithm, _, what = variant.partition(", ")
    if "uniform" in (algorithm, what):
        return "uniform"
    if variant in LOOKS or variant in ARMS:
        return ARMS.get(variant, variant)
    if what:
        return what
    return "defaults" if algorithm.startswith("PER") else "stock" if hasattr(stable_baselines3, algorithm) else variant


def draw(panels: dict[str, Estimates], steps: list[int], what: str, path: Path) -> None:
    """
    Learning curves with intervals.

    :param panels: by environment: figures at each evaluation
    :param steps: of the evaluations
    :param what: the figures are
    :param path: of the PNG
    """
    n_columns = min(len(panels), 2)
    n_rows = -(-len(panels) // n_columns)
    variants = dict.fromkeys(variant for estimates in panels.values() for variant in estimates)
    look = looks({variant: role_of(variant) for variant in variants})
    grid_has_room = len(panels) < n_rows * n_columns
    figure = figure_of(2.7 * n_rows + (0 if grid_has_room else 0.3 + 0.2 * -(-len(variants) // 2)))
    grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    lines = {}
    for axes, (environment, estimates) in zip(grid, panels.items(), strict=False):
        for variant, (values, low, high) in estimates.items():
            style = {**look[variant], "marker": ""}
            (lines[variant],) = axes.plot(steps, values, **style)
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(title=environment, xlabel="environment steps")
        thousands(axes.xaxis)
    for axes in grid[::n_columns]:
        axes.set_ylabel(what)
    if grid_has_room:
        grid[-1].set_axis_off()
        grid[-1].legend(lines.values(), lines, loc="center")
    else:
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=2)
    save(figure, path)


def curve_table(environment: str, estimates: Estimates, steps: list[int], digits: int) -> list[str]:
    """Every fifth part of the way."""
    columns = [len(steps) * part // 5 - 1 for part in range(1, 6)]
    rows = [[variant, *(cell(estimates, variant, digits, column) for column in columns)] for variant in estimates]
    return table([environment, *(f"{steps[column]:,} steps" for column in columns)], rows)


def report_returns(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """What was reached, and how soon."""
    steps, scores = evaluation_steps(suite), final(curves)
    lines: list[str] = []
    if len(suite.environments) > 1:
        unit = next(iter(scores.values())).mean(axis=0)
        relative = {v: values / unit for v, values in scores.items() if suite.variants[v].environments is None}
        lines += [f"All environments, in units of the mean score of {next(iter(scores))} in each:", ""]
        lines += compare("relative score", relative, 2)
    panels = {}
    for environment in suite.environments:
        of_this = in_one(suite, scores, environment)
        lines += [f"{environment}:", "", *compare("return", of_this, digits_for(of_this))]
        panels[environment] = iqm_curves(in_one(suite, curves, environment))
    if suite.episode_length:
        # of what the run itself reaches in the end
        episodes = {
            v: steps_until(values >= CONVERGED * scores[v][..., None], steps) / suite.episode_length
            for v, values in curves.items()
        }
        lines += [f"Episodes until an evaluation first has {CONVERGED:.0%} of the run's own final score, less is better:", ""]
        lines += compare("episodes", episodes, 0, sign=-1)
    lines += ["Learning curves, IQM of the evaluations [95% interval]:", ""]
    for environment, estimates in panels.items():
        lines += curve_table(environment, estimates, steps, digits_for(in_one(suite, scores, environment)))
    draw(panels, steps, "mean return, IQM and 95% interval", path)
    return lines


def report_solved(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """How soon, and how often."""
    steps = evaluation_steps(suite)
    # For ever, once it was: a run ends there.
    solved = {variant: np.logical_or.accumulate(values >= suite.solved, axis=-1) for variant, values in curves.items()}
    lines, panels = [], {}
    for environment in suite.environments:
        here = in_one(suite, solved, environment)
        needed = {variant: steps_until(values, steps) for variant, values in here.items()}
        shares = [f"{variant} {values[..., -1].mean():.0%}" for variant, values in here.items()]
        lines += [f"{environment} (solved: {', '.join(shares)}):", "", *compare("steps until solved", needed, 0, sign=-1)]
        panels[environment] = share_curves({variant: values.astype(float) for variant, values in here.items()})
    lines += [f"Without a solution, a run counts as {suite.steps:,} steps.", "", "Learning curves, share of solved runs:", ""]
    for environment, estimates in panels.items():
        lines += curve_table(environment, estimates, steps, 2)
    draw(panels, steps, "share of runs that solved it", path)
    return lines


def score_of(suite: Suite, curves: Scores) -> Scores:
    """
    Of the runs, more is better: minus the steps until solved, the success in the end, or the last fifth of the returns. Shape
    (runs, environments).
    """
    if suite.solved is not None:
        steps = evaluation_steps(suite)
        solved = {v: np.logical_or.accumulate(values >= suite.solved, axis=-1) for v, values in curves.items()}
        return {v: -steps_until(values, steps).astype(float) for v, values in solved.items()}
    if suite.score == "success":
        return {v: values[..., -1] for v, values in curves.items()}
    return final(curves)


def at_best_rates(scores: dict[str, np.ndarray]) -> tuple[dict[str, int], Scores]:
    """
    Each arm at its own best rate: chosen on one half of the seeds and measured on the other, or the best of several would be
    reported for its luck.

    :param scores: by arm, shape (rates, runs, environments)
    :return: number of the rate, and the scores of the other half there
    """
    best = {
        arm: int(np.argmax([metrics.aggregate_iqm(values) for values in by_rate[:, ::2]])) for arm, by_rate in scores.items()
    }
    return best, {arm: by_rate[best[arm], 1::2] for arm, by_rate in scores.items()}


def by_rate(suite: Suite, curves: Scores, environment: str) -> dict[str, np.ndarray]:
    """
    :param suite: at several learning rates
    :param curves: of its runs
    :param environment: one of its
    :return: by arm, scores of the runs there, more is better, shape (rates, runs, 1)
    """
    scores = in_one(suite, score_of(suite, curves), environment)
    arms = dict.fromkeys(map(arm_of, scores))
    return {arm: np.stack([scores[named_at(arm, rate)] for rate in suite.rates]) for arm in arms}


def mean_over_rates(scores: dict[str, np.ndarray]) -> Scores:
    """What a user gets who changes one word, whatever the learning rate; scores as of :func:`by_rate`."""
    return {arm: values.mean(axis=0) for arm, values in scores.items()}


def report_rates(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Every arm at several learning rates: which rate suits it, what it reaches there, and what it reaches on average."""
    what = {True: "steps until solved, less is better", False: suite.score}[suite.solved is not None]
    lines, panels = [], {}
    for environment in suite.environments:
        of_this, panels[environment] = rates_in_one(suite, by_rate(suite, curves, environment), what)
        lines += ([f"{environment}:", ""] if len(suite.environments) > 1 else []) + of_this
    draw_rates(panels, what, path)
    return lines


def rates_in_one(suite: Suite, scores: dict[str, np.ndarray], what: str) -> tuple[list[str], list[Estimates]]:
    """
    :param suite: at several learning rates
    :param scores: in one of its environments, as of :func:`by_rate`
    :param what: they are
    :return: tables; and figures with intervals of each arm at its own best rate, and of its mean over the rates
    """
    sign = -1 if suite.solved is not None else 1
    digits = digits_for(scores)
    best, at_best = at_best_rates(scores)
    lines = [f"By factor of the learning rate, {what}, IQM:", ""]
    columns = [iqm({arm: sign * values[i] for arm, values in scores.items()}) for i in range(len(suite.rates))]
    rows = [[arm, *(cell(column, arm, digits) for column in columns)] for arm in scores]
    lines += table(["arm", *(f"{rate:.3g}" for rate in suite.rates)], rows)
    lines += ["At its own best rate, chosen on the even seeds and measured on the odd ones; and its mean over the rates:", ""]
    means = mean_over_rates(scores)
    summaries = [(iqm({a: sign * v for a, v in each.items()}), improvement(each)) for each in (at_best, means)]
    rows = []
    for arm in scores:
        cells = [text for middle, better in summaries for text in (cell(middle, arm, digits), cell(better, arm, 2))]
        rows.append([arm, f"{suite.rates[best[arm]]:.3g}", *cells])
    improves = f"probability of improvement on {next(iter(scores))}"
    lines += table(["arm", "best", f"{what}, at it", improves, "mean over the rates", improves], rows)
    return lines, [middle for middle, _ in summaries]


def draw_rates(panels: dict[str, list[Estimates]], what: str, path: Path) -> None:
    """Figures and intervals of all arms, side by side with those of the first; a row for each environment."""
    arms = list(next(iter(panels.values()))[0])
    figure = figure_of((0.8 + 0.26 * len(arms)) * len(panels))
    titles = ("at its own best rate", "mean over the rates")
    rows = figure.subplots(len(panels), 2, sharey=True, squeeze=False)
    for row, (environment, estimates_of) in zip(rows, panels.items(), strict=True):
        for axes, title, estimates in zip(row, titles, estimates_of, strict=True):
            axes.axvspan(*next(iter(estimates.values()))[1:, 0], color="grey", alpha=0.2, linewidth=0)
            for place, arm in enumerate(arms):
                errorbars(axes, {arm: estimates[arm]}, [-place], role_of(arm), is_control="shuffled" in arm)
            axes.set_yticks(-np.arange(len(arms)), arms)
            axes.set(title=title if len(panels) == 1 else f"{environment}, {title}", xlabel=what)
            thousands(axes.xaxis)
    save(figure, path)


def errorbars(axes: Axes, estimates: Estimates, places: Sequence[float], role: str, is_control: bool = False) -> Artist:
    """
    Figures and intervals, lying, one above the other.

    :param axes: for them
    :param estimates: one figure each
    :param places: their heights
    :param role: that all of them have; without a look, the ink of the text
    :param is_control: hollow markers
    :return: what a legend shows
    """
    values, low, high = np.array([each[:, 0] for each in estimates.values()]).T
    color, _, marker = LOOKS.get(role, (INK, "-", "o"))
    hollow = dict(markerfacecolor="none") if is_control else {}
    bars = [values - low, high - values]
    return axes.errorbar(values, places, xerr=bars, fmt=marker, capsize=3, linewidth=1.5, color=color, **hollow)


# ---- all suites together


def kind_of(suite: Suite, name: str) -> str | None:
    """
    :param suite: with this variant
    :param name: of the variant
    :return: which of the settings that are summed up it has; None if it has others, changes anything else, or is stock. LAP is
        LAP at whatever alpha and kappa suit a task
    """
    variant = suite.variants[name]
    rest = {key: value for key, value in variant.settings.items() if key != "learning_rate" or len(suite.rates) == 1}
    settings = rest.pop("replay_buffer_kwargs", {})
    if rest or not variant.algorithm.startswith("PER"):
        return None
    if settings.get("scheme") == "lap" and settings.keys() <= {"scheme", "alpha", "kappa"}:
        return "LAP"
    default = dict(epsilon=DEFAULT_EPSILON)
    return next((kind for kind, those in SUMMED_UP.items() if {**default, **settings} == {**default, **those}), None)


class Task(NamedTuple):
    """
    What one task says of the settings that are summed up and ran there: the probability to be better than the stock class, and
    than the defaults; at several learning rates, that of the mean over them.
    """

    suite: str
    over_stock: Estimates
    over_defaults: Estimates


def summarise(out: Path) -> dict[str, Task]:
    """
    :param out: folder of the CSV files
    :return: by task, of the complete suites; where several of them have it, of the last
    """
    found: dict[str, Task] = {}
    for name, suite in SUITES.items():
        if name in MEMORY_SUITES:
            continue  # of whole agents, not of settings
        curves = load(suite, read(out / f"{name}.csv"))
        if any(len(values) < suite.seeds for values in curves.values()):
            continue  # not complete
        for environment in suite.environments:
            if len(suite.rates) > 1:
                scores = mean_over_rates(by_rate(suite, curves, environment))
            else:
                scores = in_one(suite, score_of(suite, curves), environment)
            kinds = {kind_of(suite, v): arm_of(v) for v in variants_in(suite, environment)}
            there = {kind: kinds[kind] for kind in SUMMED_UP if kind in kinds}
            better = improvement(scores)
            over_stock = {kind: better[arm] for kind, arm in there.items()}
            over_defaults = improvement({kind: scores[arm] for kind, arm in there.items()}) if "defaults" in there else {}
            task = f"{environment.removeprefix('MinAtar/')}, {suite.steps:,} steps"
            found.pop(task, None)
            found[task] = Task(name, over_stock, over_defaults)
    return found


def write_summary(out: Path) -> None:
    """
    By task: does it learn better than stock, with the settings that matter most (``summary.md`` and ``summary.png``)? Better
    than with the defaults (``defaults.md``)?
    """
    found = summarise(out)
    if not found:
        return
    over_stock = {task: each.over_stock for task, each in found.items()}
    over_defaults = {task: each.over_defaults for task, each in found.items() if each.over_defaults}
    for path, estimates in ((out / "summary.md", over_stock), (out / "defaults.md", over_defaults)):
        kinds = [kind for kind in SUMMED_UP if any(kind in better for better in estimates.values())]
        rows = []
        for task, better in estimates.items():
            suite = found[task].suite
            rows.append([task, f"`{suite}`", str(len(SUITES[suite].rates)), *(cell(better, kind, 2) for kind in kinds)])
        path.write_text("\n".join(table(["task", "suite", "learning rates", *kinds], rows)).rstrip() + "\n")

    figure = figure_of(1.2 + 0.55 * len(found))
    axes = figure.subplots()
    axes.axvline(0.5, color=INK)
    shown = {}
    for i, kind in enumerate(SUMMED_UP):
        of_kind = {task: better[kind] for task, better in over_stock.items() if kind in better}
        if of_kind:
            places = [0.27 - 0.18 * i - list(found).index(task) for task in of_kind]
            shown[kind] = errorbars(axes, of_kind, places, kind)
    labels = [task + "\none rate" * (len(SUITES[each.suite].rates) == 1) for task, each in found.items()]
    axes.set_yticks(-np.arange(len(found)), labels)
    axes.set(xlabel="probability of improvement on the stock class, 95% interval", xlim=(-0.02, 1.02))
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=len(SUMMED_UP))
    save(figure, out / "summary.png")
    print(out / "summary.md")


def write(name: str, suite: Suite, out: Path) -> None:
    """The report of a suite, if it has a seed that all variants have run: ``<name>.md`` and ``<name>.png``."""
    curves = load(suite, read(out / f"{name}.csv"))
    n_runs = len(next(iter(curves.values())))
    if not n_runs:
        print(f"{name}: no seed that all variants have run")
        return
    report = report_returns if suite.solved is None else report_solved
    if len(suite.rates) > 1:
        report = report_rates
    lines = [f"{n_runs} runs of {suite.steps:,} steps for each variant and environment, the same seeds for all.", ""]
    if suite.endpoint:
        lines += [f"Endpoint, written down before the runs: {suite.endpoint}", ""]
    lines += report(suite, curves, out / f"{name}.png")
    (out / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n")
    print(f"{out / name}.md")


def main(arguments: list[str] | None = None) -> None:
    """Write the reports of the suites that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"a suite, or a part of several names: {', '.join(SUITES)}")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files, and of the reports")
    args = parser.parse_args(arguments)
    for name, suite in suites_named(args.only).items():
        write(name, suite, args.out)
    write_summary(args.out)


if __name__ == "__main__":
    main()
