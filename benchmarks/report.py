"""
Write the pages of suites and campaigns into docs/evidence: tables, see `tables.py`, and figures, from the CSV files there.

    python benchmarks/report.py                # every suite and campaign with runs
    python benchmarks/report.py --only pairs   # those whose name contains "pairs"

- score of a run of a suite: mean of its last evaluations, a fifth of them
- suites at several learning rates: see :func:`report_rates`
- campaigns: before all runs are there, the page says how many are, and nothing else: nobody looks at results early
- all complete suites together: `summary.py`
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import ages
import campaign as campaigns
import chain_sizes
import demonstrations
import doorkey_sizes
import dose_response
import modern_dqn
import numpy as np
import tables
from campaign import Campaign, Contrast, Row, options, selected
from figures import draw_campaign, draw_curves, draw_rates, draw_runs, role_of
from learning import evaluation_steps, fingerprint, seeds_of, variants_in
from suites import SUITES, Suite, arm_of, named_at
from tables import Estimates, Scores, cell, iqm, p_cells, pairs_of, table, with_interval

from sb3_per.compare.campaign import read
from sb3_per.compare.report import p_text
from sb3_per.compare.statistics import holm, paired_p

CAMPAIGNS = {
    campaign.name: campaign
    for campaign in (
        dose_response.CAMPAIGN,
        modern_dqn.CAMPAIGN,
        *demonstrations.CAMPAIGNS,
        chain_sizes.CAMPAIGN,
        doorkey_sizes.CAMPAIGN,
        *ages.CAMPAIGNS,
    )
}
# Shares of the final return that a run has to reach.
CONVERGED = 0.95


# ---- scores of a suite


def load(suite: Suite, rows: list[Row]) -> Scores:
    """
    Load the evaluations of a suite for the seeds with all runs; NaN after a run was solved, and where a variant does not run.
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
    Return the steps of the first evaluation that is True, or of the last one if none is; evaluations are the last dimension.
    """
    first: np.ndarray = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(steps) - 1)
    return np.array(steps)[first]


def solved_curves(suite: Suite, curves: Scores) -> Scores:
    """Find the evaluations at which runs are solved. A solved run ends, so it stays solved."""
    return {variant: np.logical_or.accumulate(values >= suite.solved, axis=-1) for variant, values in curves.items()}


def score_of(suite: Suite, curves: Scores) -> Scores:
    """Score the runs, shape (runs, environments): minus the steps until solved, the final success, or the last returns."""
    if suite.solved is not None:
        steps = evaluation_steps(suite)
        return {v: -steps_until(values, steps).astype(float) for v, values in solved_curves(suite, curves).items()}
    if suite.score == "success":
        return {v: values[..., -1] for v, values in curves.items()}
    return final(curves)


def in_one(suite: Suite, scores: Scores, environment: str) -> Scores:
    """Select one environment, which stays as a dimension."""
    i = suite.environments.index(environment)
    return {variant: scores[variant][:, i : i + 1] for variant in variants_in(suite, environment)}


def by_rate(suite: Suite, curves: Scores) -> dict[str, np.ndarray]:
    """Score the arms of a suite at each learning rate, shape (rates, runs, 1)."""
    scores = score_of(suite, curves)
    arms = dict.fromkeys(map(arm_of, scores))
    return {arm: np.stack([scores[named_at(arm, rate)] for rate in suite.rates]) for arm in arms}


def mean_over_rates(scores: dict[str, np.ndarray]) -> Scores:
    """Average over the rates: the score of a user who changes one setting. Scores are those of :func:`by_rate`."""
    return {arm: values.mean(axis=0) for arm, values in scores.items()}


def references_of(suite: Suite, names: Iterable[str]) -> dict[str, str]:
    """Map each variant, or arm at several learning rates, to what it is compared with, if that is among them."""
    of_suite, names = suite.twin or next(iter(suite.variants)), list(names)
    own = {name: variant.twin for name, variant in suite.variants.items() if variant.twin}
    found = {name: own.get(name, of_suite) for name in names}
    return {name: other for name, other in found.items() if other in names and other != name}


# ---- tables of a suite


def digits_for(scores: Scores) -> int:
    """Choose the digits for three significant figures."""
    largest = max(np.abs(values).max() for values in scores.values())
    return int(np.clip(2 - np.floor(np.log10(max(largest, 1e-9))), 0, 3))


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
    Write a row for each variant: its score and its gain over its reference. Without ``what``, only arms with a reference and
    their gains. Less is better if ``sign`` is -1. ``ps`` are cells of p, if the correction covers more than this table;
    ``first`` are columns before the score.
    """
    signed = {variant: sign * values for variant, values in scores.items()}
    pairs, better = pairs_of(signed, references), tables.improvement(signed, references)
    columns = dict(first or {})
    if what:
        middle = iqm(scores)
        columns[f"{what}, IQM [95% interval]"] = {v: cell(middle, v, digits) for v in scores}
        columns["compared with"] = references
    has_pairs = tables.is_paired(scores.values())
    if has_pairs:
        gains = tables.gains_of(pairs)
        columns["mean gain, paired"] = {v: cell(gains, v, digits) for v in scores}
    columns["probability of improvement"] = {v: cell(better, v, 2) for v in scores}
    columns["p (unpaired)" if has_pairs else "p"] = ps or p_cells(pairs)
    names = scores if what else references
    return table(["variant" if what else "arm", *columns], [[v, *(c.get(v, "") for c in columns.values())] for v in names])


def against_controls(endpoints: dict[str, Scores], digits: int) -> list[str]:
    """Write a table for each endpoint of the arms that have a shuffled control, with one correction; nothing if none has."""
    arms = list(next(iter(endpoints.values())))
    controls = {role_of(arm): arm for arm in arms if arm.startswith("shuffled, ")}
    references = {arm: controls[role_of(arm)] for arm in arms if role_of(arm) in controls and arm not in controls.values()}
    if not references:
        return []
    ps = p_cells({(n, a): pair for n, scores in endpoints.items() for a, pair in pairs_of(scores, references).items()})
    lines = []
    for name, scores in endpoints.items():
        of_this = {arm: ps[name, arm] for arm in references}
        lines += [f"Against the same arm with shuffled priorities{name}:", ""]
        lines += compare("", scores, digits, references, ps=of_this)
    return lines


def curve_tables(panels: dict[str, Estimates], steps: list[int], digits: Callable[[str], int]) -> list[str]:
    """Write the tables of the curves at every fifth of the way."""
    columns, lines = [len(steps) * part // 5 - 1 for part in range(1, 6)], []
    for environment, estimates in panels.items():
        rows = [[v, *(cell(estimates, v, digits(environment), column) for column in columns)] for v in estimates]
        lines += table([environment, *(f"{steps[column]:,} steps" for column in columns)], rows)
    return lines


def report_returns(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report the returns, and how soon they were reached."""
    steps, scores = evaluation_steps(suite), final(curves)
    lines: list[str] = []
    if len(suite.environments) > 1:
        unit = next(iter(scores.values())).mean(axis=0)
        relative = {v: values / unit for v, values in scores.items() if suite.variants[v].environments is None}
        lines += [f"All environments, in units of the mean score of {next(iter(scores))} in each:", ""]
        lines += compare("relative score", relative, 2, references_of(suite, relative))
    for environment in suite.environments:
        here = in_one(suite, scores, environment)
        lines += [f"{environment}:", "", *compare("return", here, digits_for(here), references_of(suite, here))]
    if suite.episode_length:
        # share of the return that the run itself reaches in the end
        episodes = {
            v: steps_until(values >= CONVERGED * scores[v][..., None], steps) / suite.episode_length
            for v, values in curves.items()
        }
        lines += [f"Episodes until an evaluation first has {CONVERGED:.0%} of the run's own final score, less is better:", ""]
        lines += compare("episodes", episodes, 0, references_of(suite, episodes), sign=-1)
    lines += ["Learning curves, IQM of the evaluations [95% interval]:", ""]
    panels = {environment: tables.iqm_curves(in_one(suite, curves, environment)) for environment in suite.environments}
    draw_curves(panels, steps, "return, IQM", path)
    return lines + curve_tables(panels, steps, lambda environment: digits_for(in_one(suite, scores, environment)))


def report_solved(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report how soon and how often the task of a suite was solved."""
    (environment,), steps, solved = suite.environments, evaluation_steps(suite), solved_curves(suite, curves)
    needed = {variant: steps_until(values, steps) for variant, values in solved.items()}
    shares = [f"{variant} {values[..., -1].mean():.0%}" for variant, values in solved.items()]
    lines = [f"{environment} (solved: {', '.join(shares)}):", ""]
    lines += compare("steps until solved", needed, 0, references_of(suite, needed), sign=-1)
    lines += against_controls({"": {variant: -values for variant, values in needed.items()}}, 0)
    lines += [f"Without a solution, a run counts as {suite.steps:,} steps.", "", "Learning curves, share of solved runs:", ""]
    runs = {variant: (needed[variant][:, 0], values[:, 0, -1]) for variant, values in solved.items()}
    draw_runs(runs, suite.steps, "environment steps until solved", path)
    panels = {environment: tables.share_curves({variant: values.astype(float) for variant, values in solved.items()})}
    return lines + curve_tables(panels, steps, lambda _: 2)


def report_rates(suite: Suite, curves: Scores, path: Path) -> list[str]:
    """Report every arm at several learning rates: its best rate, its score there, and its mean score."""
    what, sign = ("steps until solved, less is better", -1) if suite.solved is not None else (suite.score, 1)
    scores = by_rate(suite, curves)
    digits, references = digits_for(scores), references_of(suite, scores)
    best, at_best = tables.at_best_rates(scores)
    lines = [f"By factor of the learning rate, {what}, IQM:", ""]
    columns = [iqm({arm: sign * values[i] for arm, values in scores.items()}) for i in range(len(suite.rates))]
    rows = [[arm, *(cell(column, arm, digits) for column in columns)] for arm in scores]
    lines += table(["arm", *(f"{rate:.3g}" for rate in suite.rates)], rows)
    endpoints = {
        ", each arm at its own best rate, chosen on the even seeds and measured on the odd ones": at_best,
        ", mean over the rates": mean_over_rates(scores),
    }
    ps = p_cells({(n, a): pair for n, each in endpoints.items() for a, pair in pairs_of(each, references).items()})
    first: dict[str, dict[str, str]] = {"best rate": {arm: f"{suite.rates[best[arm]]:.3g}" for arm in scores}}
    for name, each in endpoints.items():
        natural = {arm: sign * values for arm, values in each.items()}
        of_this = {arm: ps[name, arm] for arm in references}
        lines += [f"Against the reference{name}; one correction for both tables:", ""]
        lines += compare(what, natural, digits, references, sign, of_this, first)
        first = {}
    titles = (f"at its own best rate,\n{suite.seeds // 2} runs", f"mean over the rates,\n{suite.seeds} runs")
    pairs = [pairs_of(each, references) for each in endpoints.values()]
    gains = {title: tables.gains_of(each) for title, each in zip(titles, pairs, strict=True)}
    draw_rates(gains, f"{'steps saved' if suite.solved is not None else suite.score}, against {suite.twin}", path)
    return lines + against_controls(endpoints, digits)


def write_suite(name: str, suite: Suite, out: Path) -> None:
    """Write ``<name>.md`` and ``<name>.png`` of a suite, if there is a seed that all variants have run."""
    curves = load(suite, read(out / f"{name}.csv"))
    n_runs = len(next(iter(curves.values())))
    if not n_runs:
        print(f"{name}: no seed that all variants have run")
        return
    report = report_rates if len(suite.rates) > 1 else report_returns if suite.solved is None else report_solved
    lines = [f"{n_runs} runs of {suite.steps:,} steps for each variant and environment, the same seeds for all.", ""]
    if suite.endpoint:
        lines += [f"Endpoint, written down before the runs: {suite.endpoint}", ""]
    write_page(out / f"{name}.md", [*lines, *report(suite, curves, out / f"{name}.png")])


def write_page(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines).rstrip() + "\n")
    print(path)


# ---- campaigns


def progress(campaign: Campaign, rows: list[Row]) -> tuple[str, bool]:
    """Say how many runs are there, with the time that is left, and return whether all are."""
    choosing, reporting = campaigns.all_choosing_jobs(campaign, rows), campaigns.reporting_jobs(campaign, rows)
    n_chosen, n_done = len(campaigns.done(rows, choosing)), len(campaigns.done(rows, reporting))
    n_of_a_task = len(campaign.reporting) * len(campaign.arms)
    n_reporting = n_of_a_task * len(campaign.tasks)
    if n_done == n_reporting:
        seeds = campaign.reporting
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, on which nothing was chosen.", True
    planned = Counter(run[0] for _, run in choosing) + Counter({task: n_of_a_task for task in campaign.tasks})
    left = planned - Counter(run[0] for run, _ in campaigns.done(rows, choosing + reporting))
    seconds = sum(n * campaign.seconds.get(task, 0.0) for task, n in left.items())
    chosen = f"{n_chosen:,} of {len(choosing):,} choosing runs and " * bool(choosing)
    words = f"{chosen}{n_done:,} of {n_reporting:,} reporting runs are there."
    return f"{words} The others take about {seconds / 3600:.1f} core hours.", False


def values_of(campaign: Campaign, rows: list[Row], score: Callable[[Row], float]) -> Scores:
    """Load values of the reporting runs of a complete campaign by arm, shape (seeds, tasks)."""
    shape = len(campaign.reporting), len(campaign.tasks)
    runs = campaigns.done(rows, campaigns.reporting_jobs(campaign, rows))  # seed by seed, task by task
    return {arm: np.array([score(row) for run, row in runs if run[1] == arm]).reshape(shape) for arm in campaign.arms}


def scores_of(campaign: Campaign, rows: list[Row], score: Callable[[Row], float] | None = None) -> Scores:
    """Load scores as they are tested, see :func:`values_of`: in the twin's units if the campaign says so."""
    values = values_of(campaign, rows, score or campaign.score)
    if not campaign.is_relative:
        return values
    units = np.maximum(values[campaign.twin].mean(axis=0), 1e-9)
    return {arm: each / units for arm, each in values.items()}


def solved_of(campaign: Campaign, rows: list[Row]) -> Scores:
    """Find the runs that ended before they were stopped, see :func:`values_of`."""
    return values_of(campaign, rows, lambda row: row.get("solved") != "0")


def differences(campaign: Campaign, contrast: Contrast, scores: Scores) -> np.ndarray:
    """Compute what is tested: a number for each seed, or pair of seed and task, shape (n,); for each task (seeds, tasks)."""
    # Rounded: scores that are equal may differ in their last digits, always with the same sign.
    each = np.round(scores[contrast.arm] - scores[contrast.reference], 9)
    if contrast.over == "slope":
        tasks = np.array(campaign.tasks, dtype=float)
        counts = tasks >= (tasks[0] if contrast.least is None else contrast.least)
        return np.polyfit(tasks[counts], each[:, counts].T, 1)[0]
    return {"mean": each.mean(axis=1), "pairs": each.ravel(), "each": each}[contrast.over]


def words_of(campaign: Campaign, contrast: Contrast) -> str:
    mean = "mean over the tasks" if len(campaign.tasks) > 1 else str(campaign.tasks[0])
    words = {"mean": mean, "slope": "slope over the size", "pairs": "all pairs of seed and task"}
    return words[contrast.over] + (f", from {contrast.least:g} on" if contrast.least is not None else "")


def formatted(campaign: Campaign, values: np.ndarray, digits: int) -> str:
    """Format the mean over the seeds and its interval; as a factor if the campaign's scores are logarithms."""
    estimate = with_interval(values)
    return tables.shown(np.exp(estimate) if campaign.is_log else estimate, digits)


def headings(campaign: Campaign) -> list[str]:
    return [f"{task} {campaign.unit}".strip() for task in campaign.tasks]


def tests(campaign: Campaign, title: str, contrasts: tuple[Contrast, ...], scores: Scores) -> list[str]:
    """Write the table of some tests, with a correction of its own."""
    if not contrasts:
        return []
    n_tests = f"paired, with Holm's correction over the {len(contrasts)} tests of the table"
    found = {contrast: differences(campaign, contrast, scores) for contrast in contrasts}
    estimates = {contrast: formatted(campaign, each, campaign.digits[1]) for contrast, each in found.items()}
    what = f"{'factor' if campaign.is_log else 'difference'} [95% interval]"
    if campaign.was_unpaired:
        ps, p_heading = p_cells({each: (scores[each.arm], scores[each.reference]) for each in contrasts}), "p (unpaired)"
        if not tables.is_paired(scores.values()):
            n_tests, p_heading, what = n_tests.replace("paired", "unpaired"), "p", "probability of improvement"
            better = tables.improvement(scores, {each.arm: each.reference for each in contrasts})
            estimates = {each: cell(better, each.arm, 2) for each in contrasts}
    else:
        p_values = {contrast: paired_p(each) for contrast, each in found.items()}
        if contrasts == campaign.undeclared:
            n_tests = "paired, without a correction"
        else:
            p_values = holm(p_values)
        ps, p_heading = {contrast: p_text(p) for contrast, p in p_values.items()}, "p"
    cells = [[each.arm, each.reference, words_of(campaign, each), estimates[each], ps[each]] for each in contrasts]
    return [f"{title}, {n_tests}:", "", *table(["arm", "against", "what", what, p_heading], cells)]


def tests_by_task(campaign: Campaign, scores: Scores) -> list[str]:
    """Write the table of the tests of single tasks, with one correction."""
    if not campaign.by_task:
        return []
    found = {contrast: differences(campaign, contrast, scores) for contrast in campaign.by_task}
    p_values = holm({(contrast, i): paired_p(column) for contrast, each in found.items() for i, column in enumerate(each.T)})
    cells = [
        [contrast.arm, *(f"{formatted(campaign, c, 2)} ({p_text(p_values[contrast, i])})" for i, c in enumerate(each.T))]
        for contrast, each in found.items()
    ]
    lines = [f"Gain over `{campaign.twin}`, paired by seed; p in brackets, with one correction for the table:", ""]
    return lines + table(["arm", *headings(campaign)], cells)


def score_tables(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the tables of the scores: means over the seeds by arm and task."""
    heading, solved = ["arm", *headings(campaign)], solved_of(campaign, rows)
    values, n_seeds = values_of(campaign, rows, campaign.score), len(campaign.reporting)
    if campaign.is_relative:
        cells = [[arm, *(f"{column.mean():.2f}" for column in each.T)] for arm, each in values.items()]
        if campaign.others:
            others = [row for _, row in campaigns.done(rows, [campaigns.job(campaign, *run) for run in campaign.others])]
            cells.append([campaign.others[0][1], *(f"{campaign.score(row):.2f}" for row in others)])
        middle = iqm(scores_of(campaign, rows))
        lines = ["Mean score in each task:", "", *table(heading, cells)]
        lines += [f"{campaign.endpoint} Interquartile mean over seeds and tasks [95% stratified bootstrap interval]:", ""]
        return lines + table(["arm", "IQM"], [[arm, cell(middle, arm, campaign.digits[0])] for arm in campaign.arms])
    sign, cells = -1 if campaign.is_log or campaign.is_cost else 1, []
    also = [(digits, values_of(campaign, rows, score)) for digits, score in campaign.also.values()]
    for arm, each in values.items():
        figures = [formatted(campaign, sign * column, campaign.digits[0]) for column in each.T]
        marks = [f" ({n})" if n else "" for n in n_seeds - solved[arm].sum(axis=0)]
        others = [tables.shown(with_interval(of[arm][:, 0]), digits) for digits, of in also]
        cells.append([arm, *(figure + mark for figure, mark in zip(figures, marks, strict=True)), *others])
    kind = "Geometric mean" if campaign.is_log else "Mean"
    lines = [f"{campaign.endpoint} {kind} over {n_seeds} seeds [95% interval] (number of stopped runs):", ""]
    return lines + table([*heading, *campaign.also], cells)


def report(campaign: Campaign, rows: list[Row], rarity: list[Row]) -> list[str]:
    """Write the page of a campaign from the rows of its file and the rows of random episodes."""
    words, is_complete = progress(campaign, rows)
    lines = [words, ""]
    counts = {row["task"]: row for row in rarity if row["campaign"] == campaign.name}
    if all(str(task) in counts for task in campaign.tasks):
        of_tasks = [counts[str(task)] for task in campaign.tasks]
        shares = [f"{100 * int(row['successes']) / int(row['episodes']):.2g}%" for row in of_tasks]
        lines += [f"Share of {int(of_tasks[0]['episodes']):,} episodes of a random policy that succeed:", ""]
        lines += table(["", *headings(campaign)], [["share", *shares]])
    if not is_complete:
        return [*lines, "The campaign is not complete, so no result is shown."]
    scores = scores_of(campaign, rows)
    lines += [*score_tables(campaign, rows), *tests_by_task(campaign, scores)]
    lines += tests(campaign, "Primary endpoint", campaign.primary, scores)
    lines += tests(campaign, "Secondary", campaign.secondary, scores)
    for name, score in campaign.other_scores.items():
        lines += tests(campaign, f"Secondary, {name}", campaign.primary, scores_of(campaign, rows, score))
    lines += tests(campaign, "Not declared before the runs", campaign.undeclared, scores)
    if campaign.floor is not None:
        floor = np.log(list(map(campaign.floor, campaign.tasks)))
        n_seeds = len(campaign.reporting)
        lines += [f"Runs that ended at the first possible check, of {n_seeds}:", ""]
        counted = {arm: np.isclose(-each, floor).sum(axis=0) for arm, each in scores.items()}
        lines += table(["arm", *headings(campaign)], [[arm, *map(str, each)] for arm, each in counted.items()])
    return lines + chosen_table(campaign, rows)


def chosen_table(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the table of the rates and options that were chosen, if any were."""
    if not campaign.choosing:
        return []
    tasks = campaign.tasks if campaign.chooses_by_task else campaign.tasks[:1]
    chosen = [campaigns.choices(campaign, task, campaigns.grid(campaign, task, rows), rows) or {} for task in tasks]
    cells = [
        [arm, *(", ".join(filter(None, (f"{each[arm][1]:g}", each[arm][0]))) for each in chosen)] for arm in campaign.arms
    ]
    heading = headings(campaign) if campaign.chooses_by_task else ["all tasks"]
    return ["Chosen on other seeds, among the learning rates and the options:", "", *table(["arm", *heading], cells)]


def write_campaign(campaign: Campaign, out: Path) -> None:
    """Write ``<name>.md`` of a campaign, and ``<name>.png`` if it is complete and has a figure."""
    rows = read(out / f"{campaign.name}.csv")
    write_page(out / f"{campaign.name}.md", report(campaign, rows, read(out / "rarity.csv")))
    if campaign.figure and progress(campaign, rows)[1]:
        draw_campaign(campaign, scores_of(campaign, rows), solved_of(campaign, rows), out / f"{campaign.name}.png")


def main(arguments: list[str] | None = None) -> None:
    names = [*SUITES, *CAMPAIGNS]
    args = options(__doc__, names).parse_args(arguments)
    for name in selected(names, args.only):
        if name in SUITES:
            write_suite(name, SUITES[name], args.out)
        else:
            write_campaign(CAMPAIGNS[name], args.out)


if __name__ == "__main__":
    main()
