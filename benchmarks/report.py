"""
Report the runs of `learning.py`: tables and figures with intervals, by rliable (Agarwal et al. 2021, arXiv 2108.13264).

    python benchmarks/report.py                # every suite with runs, into docs/evidence
    python benchmarks/report.py --only pairs   # suites whose name contains "pairs"

- score of a run: mean of its last evaluations, a fifth of them
- IQM: mean of the middle half of the runs; the interval holds 95% of 2,000 stratified bootstrap samples of the runs
- probability of improvement: how often a run of this variant scores higher than one of its reference in the same environment,
  see :func:`reference_of`; an estimate that all samples agree on has no interval
- p: exact and two-sided, with Holm's correction over the table. Arms share their seeds, so from ten seeds on the test is
  paired: of the mean difference by seed. With fewer it exchanges the runs of the two arms, which was the test of all tables at
  first; its p stands in brackets beside a paired one
- gain: mean difference by seed, with a bootstrap interval over the seeds
- suites at several learning rates: see :func:`report_rates`
- all complete suites together: `summary.py`
"""

import argparse
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from figures import INK, LOOKS, figure_of, looks, save, thousands
from learning import (
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
from matplotlib.ticker import MaxNLocator
from rliable import library, metrics
from scipy.stats import trim_mean

from sb3_per.compare.campaign import read
from sb3_per.compare.statistics import at_best_rates, holm, paired_p, permutation_p

SAMPLES = 2_000
# Shares of the final return that a run has to reach.
CONVERGED = 0.95
# Seeds from which on arms are tested and estimated in pairs.
PAIRED_FROM = 10

# Arms of bits-rates whose names are their settings.
ARMS = {"epsilon 1e-06, no weights": "no weights", "epsilon 0.01, mean, eta 0.25": "candidate"}

# Scores by variant, shape (runs, environments), or for curves (runs, environments, evaluations).
Scores = dict[str, np.ndarray]
# Figures by variant, shape (3, n): value, and both ends of its interval.
Estimates = dict[str, np.ndarray]


def load(suite: Suite, rows: list[dict[str, str]]) -> Scores:
    """
    Load the evaluations of a suite.

    :param suite: suite that was to run
    :param rows: rows of the runs
    :return: mean returns of the evaluations, for the seeds with all runs; NaN after a run was solved, and where a variant does
        not run
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
    """Score the runs: means over the last fifth of the evaluations."""
    return {variant: values[..., -max(values.shape[-1] // 5, 1) :].mean(axis=-1) for variant, values in curves.items()}


def steps_until(reached: np.ndarray, steps: list[int]) -> np.ndarray:
    """
    Find the first evaluation that is True.

    :param reached: array of shape (..., evaluations)
    :param steps: steps of the evaluations
    :return: steps at the first True evaluation, or at the last one if none is, shape (...)
    """
    first: np.ndarray = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(steps) - 1)
    return np.array(steps)[first]


def estimate(scores: dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]], metric: Callable[..., np.ndarray]) -> Estimates:
    """
    Compute figures with intervals.

    :param scores: scores of each variant, or of the pairs to compare
    :param metric: function of scores, or of two of them, with values of shape (n,)
    :return: figures with intervals
    """
    np.random.seed(0)  # rliable draws from the global generator, whatever it is given
    figures, intervals = library.get_interval_estimates(scores, metric, reps=SAMPLES)
    return {name: np.vstack([figures[name], intervals[name]]) for name in scores}


def iqm(scores: Scores) -> Estimates:
    """Compute the interquartile mean over runs and environments."""
    return estimate(scores, lambda values: np.array([metrics.aggregate_iqm(values)]))


def iqm_curves(curves: Scores) -> Estimates:
    """Compute the interquartile mean at each evaluation."""
    # Take all columns at once, 2,000 times: rliable's aggregate_iqm takes one.
    return estimate(curves, lambda values: trim_mean(values.reshape(-1, values.shape[-1]), 0.25, axis=0))


def share_curves(reached: Scores) -> Estimates:
    """Compute the share of the runs at each evaluation."""
    return estimate(reached, lambda values: values.mean(axis=(0, 1)))


def improvement(scores: Scores, references: dict[str, str]) -> Estimates:
    """
    Compute the probability of improvement.

    :param scores: scores of the runs, more is better
    :param references: by variant: the variant that it is compared with
    :return: by variant: probability that it is better
    """
    pairs = {variant: (scores[variant], scores[other]) for variant, other in references.items()}

    def probability(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        # The same as rliable's, which takes 30 times as long for its 2,000 samples.
        return np.array([np.mean(0.5 + 0.5 * np.sign(x[:, None] - y[None]))])

    return estimate(pairs, probability) if pairs else {}


def with_interval(values: np.ndarray, metric: Callable[[np.ndarray], Any] = lambda values: values.mean(axis=0)) -> np.ndarray:
    """
    Estimate a figure of the seeds.

    :param values: values of the seeds, shape (seeds, ...); what belongs to one seed is resampled together
    :param metric: function of such values, with values of shape (...)
    :return: the figure, and the ends of its 95% bootstrap interval, shape (3, ...)
    """
    picked = np.random.default_rng(0).integers(len(values), size=(SAMPLES, len(values)))
    return np.stack([metric(values), *np.percentile([metric(values[rows]) for rows in picked], [2.5, 97.5], axis=0)])


def p_of(x: np.ndarray, y: np.ndarray) -> float:
    """
    Test whether two arms differ, paired by seed from ten seeds on.

    :param x: scores, shape (seeds, environments)
    :param y: scores of the other arm with the same seeds
    :return: p-value
    """
    return paired_p((x - y).mean(axis=1)) if len(x) >= PAIRED_FROM else permutation_p(x, y)


def p_cells(pairs: dict[Any, tuple[np.ndarray, np.ndarray]]) -> dict[Any, str]:
    """
    Test all pairs of a table, with Holm's correction.

    :param pairs: by key: scores of an arm and of its reference
    :return: by key: p, and behind a paired one that of the unpaired test
    """
    p_values = holm({key: p_of(*pair) for key, pair in pairs.items()})
    unpaired = holm({key: permutation_p(*pair) for key, pair in pairs.items()})
    is_paired = {key: len(x) >= PAIRED_FROM for key, (x, _) in pairs.items()}
    return {key: p_cell(p_values, key) + f" ({p_cell(unpaired, key)})" * is_paired[key] for key in pairs}


def pairs_of(scores: Scores, references: dict[str, str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Put the scores of each variant beside those of its reference."""
    return {variant: (scores[variant], scores[other]) for variant, other in references.items()}


def p_cell(p_values: dict[Any, float], key: Any) -> str:
    """Format a p-value, if there is one."""
    return "" if key not in p_values else "< 0.001" if p_values[key] < 0.001 else f"{p_values[key]:.3f}"


def cell(estimates: Estimates, variant: str, digits: int, column: int = 0) -> str:
    """Format a figure, and its interval if it has one."""
    if variant not in estimates:
        return ""
    figure, low, high = (f"{value + 0.0:.{digits}f}" for value in np.round(estimates[variant][:, column], digits))
    return figure if low == high else f"{figure} [{low}, {high}]"


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    """Write a table in Markdown, with an empty line after it."""
    return [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def gains_of(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> Estimates:
    """Estimate the mean gain of each pair over the seeds; nothing if there are too few for a paired test."""
    if any(len(x) < PAIRED_FROM for x, _ in pairs.values()):
        return {}
    return {key: with_interval((x - y).mean(axis=1, keepdims=True)) for key, (x, y) in pairs.items()}


def compare(
    what: str,
    scores: Scores,
    digits: int,
    references: dict[str, str],
    sign: int = 1,
    ps: dict[str, str] | None = None,
    first: dict[str, dict[str, str]] | None = None,
) -> list[str]:
    """
    Compare variants with their references.

    :param what: name of the scores
    :param scores: scores of the runs
    :param digits: digits after the point
    :param references: reference of each variant
    :param sign: -1 if less is better
    :param ps: cells of p, if the correction covers more than this table
    :param first: by heading: cells of each variant, before the score
    :return: table with a row for each variant
    """
    first = first or {}
    signed = {variant: sign * values for variant, values in scores.items()}
    pairs = pairs_of(signed, references)
    ps = ps or p_cells(pairs)
    middle, better = iqm(scores), improvement(signed, references)
    gains = gains_of(pairs)
    is_paired = bool(gains)
    rows = []
    for v in scores:
        row = [v, *(cells[v] for cells in first.values()), cell(middle, v, digits), references.get(v, "")]
        rows.append([*row, *[cell(gains, v, digits)] * is_paired, cell(better, v, 2), ps.get(v, "")])
    heading = ["variant", *first, f"{what}, IQM [95% interval]", "compared with", *["mean gain, paired"] * is_paired]
    return table([*heading, "probability of improvement", "p (unpaired)" if is_paired else "p"], rows)


def against_controls(endpoints: dict[str, Scores], digits: int) -> list[str]:
    """
    Compare arms with their controls.

    :param endpoints: scores by arm for each endpoint, more is better
    :param digits: digits after the point
    :return: a table of the arms that have a control for each endpoint, with one correction; nothing if none has
    """
    arms = next(iter(endpoints.values()))
    controls = {role_of(arm): arm for arm in arms if arm.startswith("shuffled, ")}
    references = {arm: controls[role_of(arm)] for arm in arms if role_of(arm) in controls and arm not in controls.values()}
    if not references:
        return []
    pairs = {name: pairs_of(scores, references) for name, scores in endpoints.items()}
    ps = p_cells({(name, arm): pair for name, of_arms in pairs.items() for arm, pair in of_arms.items()})
    lines = []
    for name, of_arms in pairs.items():
        better, gains = improvement(endpoints[name], references), gains_of(of_arms)
        is_paired = bool(gains)
        rows = [[a, *[cell(gains, a, digits)] * is_paired, cell(better, a, 2), ps[name, a]] for a in references]
        heading = [
            "arm",
            *["mean gain, paired"] * is_paired,
            "probability of improvement",
            "p (unpaired)" if is_paired else "p",
        ]
        lines += [f"Against the same arm with shuffled priorities{name}:", "", *table(heading, rows)]
    return lines


def reference_of(suite: Suite, name: str) -> str | None:
    """
    Find the reference of a variant.

    :param suite: suite of the variant
    :param name: name of the variant
    :return: its twin with a uniform draw and equal settings; without one, the twin of the plain algorithm; without that, the
        first variant. ``None`` for the reference itself
    """
    first, made = next(iter(suite.variants)), suite.variants[name]

    def twin(settings: dict[str, Any]) -> list[str]:
        asked = {**settings, "replay_buffer_kwargs": dict(scheme="uniform")}
        prioritized = "PER" + made.algorithm.removeprefix("PER")
        return [v for v, other in suite.variants.items() if (other.algorithm, other.settings) == (prioritized, asked)]

    of_the_algorithm = twin({k: v for k, v in made.settings.items() if k == "learning_rate" and len(suite.rates) > 1})
    candidates = [*twin({k: v for k, v in made.settings.items() if k != "replay_buffer_kwargs"}), *of_the_algorithm, first]
    if suite.variants[first].algorithm.startswith("PER"):
        return None if name == first else first  # the arms are whole agents of this package
    if name in of_the_algorithm or candidates == [name]:
        return None
    return next(candidate for candidate in candidates if candidate != name)


def references_of(suite: Suite, names: Iterable[str]) -> dict[str, str]:
    """Map each variant that has a reference to it."""
    found = {name: reference_of(suite, name) for name in names}
    return {name: other for name, other in found.items() if other is not None and other in found}


def in_one(suite: Suite, scores: Scores, environment: str) -> Scores:
    """Select one environment, which stays as a dimension."""
    i = suite.environments.index(environment)
    return {variant: scores[variant][:, i : i + 1] for variant in variants_in(suite, environment)}


def digits_for(scores: Scores) -> int:
    """Choose the digits for three significant figures."""
    largest = max(np.abs(values).max() for values in scores.values())
    return int(np.clip(2 - np.floor(np.log10(max(largest, 1e-9))), 0, 3))


def role_of(variant: str) -> str:
    """
    Find the role of a variant in the figures.

    :param variant: name of the variant, e.g. ``"PERDQN, LAP"``, or of an arm, e.g. ``"LAP"``
    :return: a key of :data:`figures.LOOKS`, if it has a look of its own
    """
    variant = variant.removeprefix("shuffled, ")
    algorithm, _, what = variant.partition(", ")
    if "uniform" in (algorithm, what):
        return "uniform"
    if variant in LOOKS or variant in ARMS:
        return ARMS.get(variant, variant)
    if what and not what.startswith(("preloaded", "demonstrations")):
        return what
    return "defaults" if algorithm.startswith("PER") else "stock" if hasattr(stable_baselines3, algorithm) else variant


def draw(panels: dict[str, Estimates], steps: list[int], what: str, path: Path) -> None:
    """
    Draw learning curves with intervals.

    :param panels: figures at each evaluation, by environment
    :param steps: steps of the evaluations
    :param what: label of the figures
    :param path: path of the PNG
    """
    n_columns = min(len(panels), 2)
    n_rows = -(-len(panels) // n_columns)
    variants = dict.fromkeys(variant for estimates in panels.values() for variant in estimates)
    look = looks({variant: role_of(variant) for variant in variants if not variant.startswith("shuffled, ")})
    for variant in variants:
        if variant not in look:  # a control has the colour of its arm
            look[variant] = {"color": LOOKS[role_of(variant)][0], "linestyle": "--"}
    grid_has_room = len(panels) < n_rows * n_columns
    figure = figure_of(2.9 * n_rows + (0 if grid_has_room else 0.3 + 0.25 * -(-len(variants) // 2)))
    grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    lines = {}
    for axes, (environment, estimates) in zip(grid, panels.items(), strict=False):
        for variant, (values, low, high) in estimates.items():
            style = {**look[variant], "marker": ""}
            (lines[variant],) = axes.plot(steps, values, **style)
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
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
    Draw a dot for each run. Runs that did not solve the task stand beyond the last step.

    :param runs: by arm: steps until solved, and whether the run has solved the task, both of shape (seeds,)
    :param cap: last step of a run
    :param what: label of the steps
    :param path: path of the PNG
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


def curve_table(environment: str, estimates: Estimates, steps: list[int], digits: int) -> list[str]:
    """Write the table of the curves at every fifth of the way."""
    columns = [len(steps) * part // 5 - 1 for part in range(1, 6)]
    rows = [[variant, *(cell(estimates, variant, digits, column) for column in columns)] for variant in estimates]
    return table([environment, *(f"{steps[column]:,} steps" for column in columns)], rows)


def report_returns(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report the returns, and how soon they were reached."""
    steps, scores = evaluation_steps(suite), final(curves)
    lines: list[str] = []
    if len(suite.environments) > 1:
        unit = next(iter(scores.values())).mean(axis=0)
        relative = {v: values / unit for v, values in scores.items() if suite.variants[v].environments is None}
        lines += [f"All environments, in units of the mean score of {next(iter(scores))} in each:", ""]
        lines += compare("relative score", relative, 2, references_of(suite, relative))
    panels = {}
    for environment in suite.environments:
        of_this = in_one(suite, scores, environment)
        lines += [f"{environment}:", "", *compare("return", of_this, digits_for(of_this), references_of(suite, of_this))]
        panels[environment] = iqm_curves(in_one(suite, curves, environment))
    if suite.episode_length:
        # share of the return that the run itself reaches in the end
        episodes = {
            v: steps_until(values >= CONVERGED * scores[v][..., None], steps) / suite.episode_length
            for v, values in curves.items()
        }
        lines += [f"Episodes until an evaluation first has {CONVERGED:.0%} of the run's own final score, less is better:", ""]
        lines += compare("episodes", episodes, 0, references_of(suite, episodes), sign=-1)
    lines += ["Learning curves, IQM of the evaluations [95% interval]:", ""]
    for environment, estimates in panels.items():
        lines += curve_table(environment, estimates, steps, digits_for(in_one(suite, scores, environment)))
    draw(panels, steps, "return, IQM", path)
    return lines


def report_solved(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report how soon and how often a task was solved."""
    steps = evaluation_steps(suite)
    # A solved run ends, so it stays solved.
    solved = {variant: np.logical_or.accumulate(values >= suite.solved, axis=-1) for variant, values in curves.items()}
    lines, panels, runs = [], {}, {}
    for environment in suite.environments:
        here = in_one(suite, solved, environment)
        needed = {variant: steps_until(values, steps) for variant, values in here.items()}
        shares = [f"{variant} {values[..., -1].mean():.0%}" for variant, values in here.items()]
        references = references_of(suite, needed)
        lines += [f"{environment} (solved: {', '.join(shares)}):", ""]
        lines += compare("steps until solved", needed, 0, references, sign=-1)
        lines += against_controls({"": {variant: -values for variant, values in needed.items()}}, 0)
        panels[environment] = share_curves({variant: values.astype(float) for variant, values in here.items()})
        prefix = f"{environment}: " if len(suite.environments) > 1 else ""
        runs |= {prefix + variant: (needed[variant][:, 0], values[:, 0, -1]) for variant, values in here.items()}
    lines += [f"Without a solution, a run counts as {suite.steps:,} steps.", "", "Learning curves, share of solved runs:", ""]
    for environment, estimates in panels.items():
        lines += curve_table(environment, estimates, steps, 2)
    draw_runs(runs, suite.steps, "environment steps until solved", path)
    return lines


def score_of(suite: Suite, curves: Scores) -> Scores:
    """
    Score the runs, so that more is better: minus the steps until solved, the final success, or the last fifth of the returns.
    Scores have shape (runs, environments).
    """
    if suite.solved is not None:
        steps = evaluation_steps(suite)
        solved = {v: np.logical_or.accumulate(values >= suite.solved, axis=-1) for v, values in curves.items()}
        return {v: -steps_until(values, steps).astype(float) for v, values in solved.items()}
    if suite.score == "success":
        return {v: values[..., -1] for v, values in curves.items()}
    return final(curves)


def by_rate(suite: Suite, curves: Scores, environment: str) -> dict[str, np.ndarray]:
    """
    Score the arms of a suite at each learning rate.

    :param suite: suite at several learning rates
    :param curves: curves of its runs
    :param environment: one of its environments
    :return: scores by arm, more is better, shape (rates, runs, 1)
    """
    scores = in_one(suite, score_of(suite, curves), environment)
    arms = dict.fromkeys(map(arm_of, scores))
    return {arm: np.stack([scores[named_at(arm, rate)] for rate in suite.rates]) for arm in arms}


def arm_references(suite: Suite, arms: Iterable[str]) -> dict[str, str]:
    """Map each arm of a suite at several learning rates to its reference."""
    found = references_of(suite, [named_at(arm, suite.rates[0]) for arm in arms])
    return {arm_of(name): arm_of(other) for name, other in found.items()}


def mean_over_rates(scores: dict[str, np.ndarray]) -> Scores:
    """Average over the rates: the score of a user who changes one setting. Scores are those of :func:`by_rate`."""
    return {arm: values.mean(axis=0) for arm, values in scores.items()}


def report_rates(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report every arm at several learning rates: its best rate, its score there, and its mean score."""
    what = {True: "steps until solved, less is better", False: suite.score}[suite.solved is not None]
    lines, panels = [], {}
    for environment in suite.environments:
        scores = by_rate(suite, curves, environment)
        of_this, panels[environment] = rates_in_one(suite, scores, what)
        lines += ([f"{environment}:", ""] if len(suite.environments) > 1 else []) + of_this
    (reference,) = set(arm_references(suite, scores).values())
    n_runs = {"at its own best rate": suite.seeds // 2, "mean over the rates": suite.seeds}
    draw_rates(panels, f"{'steps saved' if suite.solved is not None else suite.score}, against {reference}", n_runs, path)
    return lines


def rates_in_one(suite: Suite, scores: dict[str, np.ndarray], what: str) -> tuple[list[str], list[Estimates]]:
    """
    Report one environment of a suite at several learning rates.

    :param suite: suite at several learning rates
    :param scores: scores in the environment, see :func:`by_rate`
    :param what: name of the scores
    :return: tables; mean gain of each arm over its reference at its own best rate, and as the mean over the rates
    """
    sign = -1 if suite.solved is not None else 1
    digits = digits_for(scores)
    best, at_best = at_best_rates(scores, metrics.aggregate_iqm)
    lines = [f"By factor of the learning rate, {what}, IQM:", ""]
    columns = [iqm({arm: sign * values[i] for arm, values in scores.items()}) for i in range(len(suite.rates))]
    rows = [[arm, *(cell(column, arm, digits) for column in columns)] for arm in scores]
    lines += table(["arm", *(f"{rate:.3g}" for rate in suite.rates)], rows)
    references = arm_references(suite, scores)
    best_rate = {arm: f"{suite.rates[best[arm]]:.3g}" for arm in scores}
    endpoints = {
        ", each arm at its own best rate, chosen on the even seeds and measured on the odd ones": at_best,
        ", mean over the rates": mean_over_rates(scores),
    }
    pairs = {name: pairs_of(each, references) for name, each in endpoints.items()}
    ps = p_cells({(name, arm): pair for name, of_arms in pairs.items() for arm, pair in of_arms.items()})
    gains = []
    for (name, each), first in zip(endpoints.items(), ({"best rate": best_rate}, {}), strict=True):
        natural = {arm: sign * values for arm, values in each.items()}
        gains.append({arm: with_interval((x - y).mean(axis=1, keepdims=True)) for arm, (x, y) in pairs[name].items()})
        lines += [f"Against the reference{name}; one correction for both tables:", ""]
        of_this = {arm: text for (which, arm), text in ps.items() if which == name}
        lines += compare(what, natural, digits, references, sign, of_this, first)
    lines += against_controls(endpoints, digits)
    return lines, gains


def draw_rates(panels: dict[str, list[Estimates]], what: str, n_runs: dict[str, int], path: Path) -> None:
    """Draw the mean gain of each arm over its reference, a row for each environment."""
    arms = list(next(iter(panels.values()))[0])
    figure = figure_of((1.5 + 0.37 * len(arms)) * len(panels))
    rows = figure.subplots(len(panels), 2, sharey=True, squeeze=False)
    for row, (environment, gains_of_this) in zip(rows, panels.items(), strict=True):
        for axes, (title, n), gains in zip(row, n_runs.items(), gains_of_this, strict=True):
            axes.axvline(0, color=INK)
            for place, arm in enumerate(arms):
                errorbars(axes, {arm: gains[arm]}, [-place], role_of(arm), is_control="shuffled" in arm)
            axes.set_yticks(-np.arange(len(arms)), [textwrap.fill(arm, 26) for arm in arms])
            title = f"{title},\n{n} runs"
            axes.set(title=title if len(panels) == 1 else f"{environment}, {title}")
            better_towards(axes, "right")
    figure.supxlabel(what, fontsize="medium")
    save(figure, path)


def better_towards(axes: Axes, side: str) -> None:
    """Say under the axis in which direction it is better."""
    words = ("\N{LEFTWARDS ARROW} better", "worse \N{RIGHTWARDS ARROW}")
    if side == "right":
        words = ("\N{LEFTWARDS ARROW} worse", "better \N{RIGHTWARDS ARROW}")
    is_cut = " (axis cut)" * bool(axes.get_xlim()[0] > 0)
    axes.set_xlabel(f"{axes.get_xlabel()}{is_cut}\n{words[0]}    {words[1]}")


def errorbars(
    axes: Axes, estimates: Estimates, places: Sequence[float], role: str, is_control: bool = False, is_grey: bool = False
) -> Artist:
    """
    Draw figures with horizontal intervals.

    :param axes: axes to draw on
    :param estimates: one figure for each interval
    :param places: height of each interval
    :param role: role of all of them, for the look; without a look, the ink of the text
    :param is_control: whether markers are hollow
    :param is_grey: whether the ink of the text replaces the colour of the role
    :return: artist for a legend
    """
    values, low, high = np.array([each[:, 0] for each in estimates.values()]).T
    color, _, marker = LOOKS.get(role, (INK, "-", "o"))
    color = INK if is_grey else color
    hollow = dict(markerfacecolor="none") if is_control else {}
    bars = [values - low, high - values]
    return axes.errorbar(values, places, xerr=bars, fmt=marker, capsize=3, linewidth=1.5, color=color, **hollow)


def write(name: str, suite: Suite, out: Path) -> None:
    """Write ``<name>.md`` and ``<name>.png`` of a suite, if there is a seed that all variants have run."""
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


def publish(about: str, campaigns: dict[str, tuple[Any, Any, Any]], arguments: list[str] | None) -> None:
    """
    Write ``<name>.md`` and ``<name>.png`` of the campaigns that have a complete seed.

    :param about: help of the command
    :param campaigns: by name of the CSV file, three functions of its rows: the first returns the complete seeds before all
        else, the second the lines of Markdown, and the third draws the figure, whose path it takes too
    :param arguments: arguments of the command; ``None``: those of the process
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files, the tables and the figures")
    out = parser.parse_args(arguments).out
    for name, (load, report, draw) in campaigns.items():
        rows = read(out / f"{name}.csv")
        if not rows or not load(rows)[0]:
            print(f"{name}: no complete seed")
            continue
        (out / f"{name}.md").write_text("\n".join(report(rows)).rstrip() + "\n")
        draw(rows, out / f"{name}.png")
        print(out / f"{name}.md")


def main(arguments: list[str] | None = None) -> None:
    """Write the reports of the chosen suites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"a suite, or a part of several names: {', '.join(SUITES)}")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files, and of the reports")
    args = parser.parse_args(arguments)
    for name, suite in suites_named(args.only).items():
        write(name, suite, args.out)


if __name__ == "__main__":
    main()
