"""
Write the page of a campaign: its tables, see `tables.py`, and its figure, from the rows of its CSV file.

Before all runs are there, the page says how many are, and nothing else: nobody looks at results early.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per.compare.campaign import read
from sb3_per.compare.report import p_text
from sb3_per.compare.statistics import holm, paired_p

from . import campaign as campaigns
from . import tables
from .campaign import Campaign, Contrast, Row, evaluations_of
from .figures import draw_curves, draw_rates, draw_runs, draw_updates
from .tables import Estimates, Pair, Scores, at_best_rates, cell, iqm, p_cells, table, with_interval


def progress(campaign: Campaign, rows: list[Row]) -> tuple[str, bool]:
    """Say how many runs are there, with the time that is left, and return whether all are."""
    choosing, reporting = campaigns.all_choosing_jobs(campaign, rows), campaigns.reporting_jobs(campaign, rows)
    n_chosen, n_done = len(campaigns.done(rows, choosing)), len(campaigns.done(rows, reporting))
    seeds, of_a_seed = campaign.reporting, Counter(task for task, _ in campaign.runs_of_a_seed)
    n_reporting = len(seeds) * of_a_seed.total()
    if n_done == n_reporting:
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}{campaign.about_seeds}.", True
    planned = Counter(run[0] for _, run in choosing) + Counter({task: len(seeds) * n for task, n in of_a_seed.items()})
    left = planned - Counter(run[0] for run, _ in campaigns.done(rows, choosing + reporting))
    seconds = sum(n * campaign.seconds.get(task, 0.0) for task, n in left.items())
    chosen = f"{n_chosen:,} of {len(choosing):,} choosing runs and " * bool(choosing)
    words = f"{chosen}{n_done:,} of {n_reporting:,} reporting runs are there."
    return f"{words} The others take about {seconds / 3600:.1f} core hours.", False


def values_of(campaign: Campaign, rows: list[Row], score: Callable[[Row], float]) -> Scores:
    """
    Load values of the reporting runs of a complete campaign by arm, shape (seeds, tasks); NaN in tasks that an arm does not
    run in.
    """
    values = {arm: np.full((len(campaign.reporting), len(campaign.tasks)), np.nan) for arm in campaign.arms}
    for (task, arm, *_, seed), row in campaigns.done(rows, campaigns.reporting_jobs(campaign, rows)):
        values[arm][campaign.reporting.index(seed), campaign.tasks.index(task)] = score(row)
    return values


def scores_of(campaign: Campaign, rows: list[Row], score: Callable[[Row], float] | None = None) -> Scores:
    """Load scores as they are tested, see :func:`values_of`: in the twin's units if the campaign says so."""
    values = values_of(campaign, rows, score or campaign.score)
    if not campaign.is_relative:
        return values
    units = np.maximum(values[campaign.twin].mean(axis=0), 1e-9)
    return {arm: each / units for arm, each in values.items()}


def solved_of(campaign: Campaign, rows: list[Row]) -> Scores:
    """Find the runs that ended before they were stopped, see :func:`values_of`."""
    return {arm: each != 0 for arm, each in values_of(campaign, rows, campaign.solved).items()}


def learned_tasks(campaign: Campaign, rows: list[Row]) -> tuple[Any, ...]:
    """List the tasks that some arm has learned; all of them if the campaign has no score for that."""
    if campaign.learned is None:
        return campaign.tasks
    best = np.max([each.mean(axis=0) for each in values_of(campaign, rows, campaign.learned).values()], axis=0)
    of_random = [
        campaign.learned(row) for _, row in campaigns.done(rows, [campaigns.job(campaign, *r) for r in campaign.others])
    ]
    return tuple(task for task, ours, theirs in zip(campaign.tasks, best, of_random, strict=True) if ours >= 2.0 * theirs)


def curves_of(campaign: Campaign, rows: list[Row]) -> tuple[dict[Any, Estimates], list[int]]:
    """Estimate the IQM of each evaluation by task and arm, and return the steps of the evaluations."""
    runs = campaigns.done(rows, campaigns.reporting_jobs(campaign, rows))
    found: dict[Any, dict[str, list[list[float]]]] = {task: {} for task in campaign.tasks}
    for (task, arm, *_), row in runs:
        found[task].setdefault(arm, []).append(list(evaluations_of(row).values()))
    panels = {task: tables.iqm_curves({arm: np.array(each) for arm, each in of.items()}) for task, of in found.items()}
    return panels, list(evaluations_of(runs[0][1]))


def pair_of(campaign: Campaign, contrast: Contrast, scores: Scores) -> Pair:
    """Select the scores of an arm and of its reference, shape (seeds, tasks); at one rate, or as the mean over the rates."""
    both = {arm: scores[arm] for arm in (contrast.arm, contrast.reference)}
    if contrast.over == "best":
        both = at_best_rates(both)[1]
    elif contrast.over == "largest":
        both = {arm: each[:, -1:] for arm, each in both.items()}
    elif campaign.kind == "rates":
        both = {arm: each.mean(axis=1, keepdims=True) for arm, each in both.items()}
    return both[contrast.arm], both[contrast.reference]


def differences(campaign: Campaign, contrast: Contrast, scores: Scores) -> np.ndarray:
    """Compute what is tested: a number for each seed, or pair of seed and task, shape (n,); for each task (seeds, tasks)."""
    x, y = pair_of(campaign, contrast, scores)
    each = np.round(x - y, 9)  # scores that are equal may differ in their last digits, always with the same sign
    if contrast.over in campaign.axes:
        return np.polyfit(list(map(campaign.axes[contrast.over], campaign.tasks)), each.T, 1)[0]
    if contrast.over == "slope":
        tasks = np.array(campaign.tasks, dtype=float)
        counts = tasks >= (tasks[0] if contrast.least is None else contrast.least)
        return np.polyfit(tasks[counts], each[:, counts].T, 1)[0]
    return {"pairs": each.ravel(), "each": each}.get(contrast.over, each.mean(axis=1))


def headings(campaign: Campaign) -> list[str]:
    return [f"{task:.3g} {campaign.unit}".strip() if campaign.unit else str(task) for task in campaign.tasks]


def words_of(campaign: Campaign, contrast: Contrast) -> str:
    mean = f"mean over the {campaign.kind}" if len(campaign.tasks) > 1 else str(campaign.tasks[0])
    words = {"mean": mean, "slope": "slope over the size", "pairs": "all pairs of seed and task", "best": "best rates"}
    words["largest"] = "the largest rate"
    return words.get(contrast.over, contrast.over) + (f", from {contrast.least:g} on" if contrast.least is not None else "")


def formatted(campaign: Campaign, values: np.ndarray, digits: int) -> str:
    """Format the mean over the seeds and its interval; as a factor if the campaign's scores are logarithms."""
    estimate = with_interval(values)
    return tables.shown(np.exp(estimate) if campaign.is_log else estimate, digits)


def middles(campaign: Campaign, scores: Scores, digits: int) -> dict[str, str]:
    """Format mean or IQM of each arm, and its interval. Scores have the shape (seeds, 1)."""
    if not campaign.is_iqm:
        return {arm: formatted(campaign, each[:, 0], digits) for arm, each in scores.items()}
    middle = iqm(scores)
    return {arm: cell(middle, arm, digits) for arm in scores}


def score_table(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the table of the scores: estimates over the seeds by arm and task."""
    sign, digits, n_seeds = -1 if campaign.is_log or campaign.is_cost else 1, campaign.digits[0], len(campaign.reporting)
    values, solved = values_of(campaign, rows, campaign.score), solved_of(campaign, rows)
    values = {arm: sign * each for arm, each in values.items()}
    columns: dict[str, dict[str, str]] = {}
    for i, heading in enumerate(headings(campaign)):
        here = {arm: each[:, i : i + 1] for arm, each in values.items() if not np.isnan(each[:, i]).any()}
        marks = {arm: f" ({n})" for arm, each in solved.items() if (n := n_seeds - each[:, i].sum())}
        columns[heading] = {arm: text + marks.get(arm, "") for arm, text in middles(campaign, here, digits).items()}
    if campaign.kind == "rates":
        best, at_best = at_best_rates({arm: sign * each for arm, each in values.items()})
        mean = {arm: each.mean(axis=1, keepdims=True) for arm, each in values.items()}
        columns["mean over the rates"] = middles(campaign, mean, digits)
        columns["best rate"] = {arm: f"{campaign.tasks[i]:.3g}" for arm, i in best.items()}
        columns["at the best rate"] = middles(campaign, {arm: sign * each for arm, each in at_best.items()}, digits)
    if campaign.is_relative:
        counting = replace(campaign, tasks=learned_tasks(campaign, rows))
        whole = {arm: each for arm, each in scores_of(counting, rows).items() if arm not in campaign.partial}
        whole = whole if counting.tasks else {}
        middle = iqm(whole) if whole else {}
        name = "all" if counting.tasks == campaign.tasks else "all that count"
        columns[f"{name}, in units of {campaign.twin}, IQM"] = {arm: cell(middle, arm, 2) for arm in whole}
    for name, (digits, score) in campaign.also.items():
        columns[name] = middles(replace(campaign, is_log=False), values_of(campaign, rows, score), digits)
    if campaign.others:
        runs = campaigns.done(rows, [campaigns.job(campaign, *run) for run in campaign.others])
        for heading, ((_, arm, *_), row) in zip(headings(campaign), runs, strict=True):
            columns[heading][arm] = f"{campaign.score(row):.{digits}f}"
    kind = "Geometric mean" if campaign.is_log else "Interquartile mean" if campaign.is_iqm else "Mean"
    lines = [f"{campaign.endpoint} {kind} over {n_seeds} seeds [95% interval] (number of stopped runs):", ""]
    arms = dict.fromkeys(arm for column in columns.values() for arm in column)
    return lines + table(["arm", *columns], [[arm, *(column.get(arm, "") for column in columns.values())] for arm in arms])


def tests(campaign: Campaign, title: str, contrasts: tuple[Contrast, ...], scores: Scores) -> list[str]:
    """Write the table of some tests, with a correction of its own; a table for each task if they are of single tasks."""
    singles = [each._replace(over="mean") for each in contrasts if each.over == "each"]
    lines: list[str] = []
    for i, task in enumerate(campaign.tasks if singles else ()):
        here = {arm: each[:, i : i + 1] for arm, each in scores.items() if not np.isnan(each[:, i]).any()}
        those = tuple(each for each in singles if {each.arm, each.reference} <= here.keys())
        lines += tests(replace(campaign, tasks=(task,)), f"{title}, {task}", those, here)
    contrasts = tuple(c for c in contrasts if c.over != "each" and not np.isnan(scores[c.arm]).any())
    if not contrasts:
        return lines
    gains = {each: differences(campaign, each, scores) for each in contrasts}
    pairs = {each: pair_of(campaign, each, scores) for each in contrasts}
    paired = [each for each in contrasts if not campaign.was_unpaired or tables.is_paired(pairs[each])]
    shown = {each: formatted(campaign, gains[each], campaign.digits[1]) for each in paired}
    columns = {f"{'factor' if campaign.is_log else 'difference'} [95% interval]": shown} if shown else {}
    if campaign.was_unpaired:
        better = tables.improvement(pairs)
        columns["probability of improvement"] = {each: cell(better, each, 2) for each in contrasts}
        columns["p (unpaired)" if shown else "p"] = p_cells(pairs)
    else:
        p_values = {each: paired_p(gain) for each, gain in gains.items()}
        p_values = p_values if contrasts == campaign.undeclared else holm(p_values)
        columns["p"] = {each: p_text(p) for each, p in p_values.items()}
    words = "unpaired" if not paired else "paired" if len(paired) == len(contrasts) else "paired where there are ten seeds"
    correction = f"with Holm's correction over the {len(contrasts)} tests of the table"
    if len(contrasts) == 1 or contrasts == campaign.undeclared:
        correction = "without a correction"
    cells = [[c.arm, c.reference, words_of(campaign, c), *(of.get(c, "") for of in columns.values())] for c in contrasts]
    return [f"{title}, {words}, {correction}:", "", *table(["arm", "against", "what", *columns], cells), *lines]


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


def chosen_table(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the table of the rates and options that were chosen, if any were."""
    if not campaign.choosing:
        return []
    tasks = campaign.tasks if campaign.chooses_by_task else campaign.tasks[:1]
    chosen = [campaigns.choices(campaign, task, campaigns.grid(campaign, task, rows), rows) or {} for task in tasks]
    cells = [
        [arm, *(", ".join(filter(None, (f"{each[arm][1]:g}", each[arm][0]))) if arm in each else "" for each in chosen)]
        for arm in campaign.arms
    ]
    heading = headings(campaign) if campaign.chooses_by_task else ["all tasks"]
    return ["Chosen on other seeds, among the learning rates and the options:", "", *table(["arm", *heading], cells)]


def share_tables(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write a table of each share: its mean over the seeds, in percent, by arm and task."""
    lines: list[str] = []
    for name, share in campaign.shares.items():
        means = {arm: 100 * each.mean(axis=0) for arm, each in values_of(campaign, rows, share).items()}
        cells = [[arm, *("" if np.isnan(mean) else f"{mean:.0f}%" for mean in of_arm)] for arm, of_arm in means.items()]
        lines += [f"{name}:", "", *table(["arm", *headings(campaign)], cells)]
    return lines


def curve_tables(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the tables of the curves at every fifth of the way."""
    (panels, steps), lines = curves_of(campaign, rows), ["Learning curves, IQM of the evaluations [95% interval]:", ""]
    columns = [len(steps) * part // 5 - 1 for part in range(1, 6)]
    for task, curves in panels.items():
        cells = [[arm, *(cell(curves, arm, campaign.digits[0], column) for column in columns)] for arm in curves]
        lines += table([task, *(f"{steps[column]:,} steps" for column in columns)], cells)
    return lines


def seed_table(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the table of all seeds: their last evaluation beside their score."""
    cells = []
    for name, score in {"last policy": campaigns.last, "mean of the last fifth": campaign.score}.items():
        values = np.sort(values_of(campaign, rows, score)[campaign.twin][:, 0])
        figures = [f"{np.median(values):.0f}", f"{values[0]:.0f}", f"{(values >= campaign.listed).sum()} of {len(values)}"]
        cells.append([name, *figures, ", ".join(f"{value:.0f}" for value in values)])
    return table(["score", "median", "lowest", f"seeds with at least {campaign.listed:g}", "all seeds, sorted"], cells)


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
    if campaign.page is not None:
        return [*lines, *campaign.page(campaign, rows), *chosen_table(campaign, rows)]
    if campaign.listed is not None:
        return lines + seed_table(campaign, rows)
    lines += [*score_table(campaign, rows), *share_tables(campaign, rows)]
    shown, campaign = campaign, replace(campaign, tasks=learned_tasks(campaign, rows))
    if left_out := [str(task) for task in shown.tasks if task not in campaign.tasks]:
        lines += [f"No arm has twice the return of a random policy at the end, so no test counts: {', '.join(left_out)}.", ""]
    if not campaign.tasks:
        return lines + chosen_table(shown, rows)
    scores = scores_of(campaign, rows)
    lines += tests_by_task(campaign, scores)
    lines += tests(campaign, campaign.title, campaign.primary, scores)
    lines += tests(campaign, "Secondary", campaign.secondary, scores)
    for name, score in campaign.other_scores.items():
        lines += tests(campaign, f"Secondary, {name}", campaign.primary, scores_of(campaign, rows, score))
    lines += tests(campaign, "Not declared before the runs", campaign.undeclared, scores)
    for name, score in campaign.other_scores.items():
        others = scores_of(campaign, rows, score)
        lines += tests(campaign, f"Not declared before the runs, {name}", campaign.undeclared, others)
    if campaign.floor is not None:
        floor = np.log(list(map(campaign.floor, campaign.tasks)))
        lines += [f"Runs that ended at the first possible check, of {len(campaign.reporting)}:", ""]
        counted = {arm: np.isclose(-each, floor).sum(axis=0) for arm, each in scores.items()}
        lines += table(["arm", *headings(campaign)], [[arm, *map(str, each)] for arm, each in counted.items()])
    lines += chosen_table(shown, rows)
    return lines + (curve_tables(campaign, rows) if campaign.figure == "curves" else [])


def write_page(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines).rstrip() + "\n")
    print(path)


def draw(campaign: Campaign, rows: list[Row], path: Path) -> None:
    """Draw the figure of a complete campaign, of the kind that it has."""
    scores, solved, n_seeds = scores_of(campaign, rows), solved_of(campaign, rows), len(campaign.reporting)
    what = campaign.endpoint.partition(";")[0].partition(". ")[0]
    if campaign.figure == "curves":
        draw_curves(*curves_of(campaign, rows), "return, IQM", path)
    elif campaign.figure == "rates":
        titles = {"best": f"at its own best rate,\n{n_seeds // 2} runs", "mean": f"mean over the rates,\n{n_seeds} runs"}
        gains: dict[str, Estimates] = {title: {} for title in titles.values()}
        for each in campaign.primary:
            gains[titles[each.over]][each.arm] = with_interval(differences(campaign, each, scores)[:, None])
        draw_rates(gains, f"{what}: gain over {campaign.primary[0].reference}", path)
    elif campaign.figure == "runs":
        draw_runs({arm: (-scores[arm][:, 0], solved[arm][:, 0]) for arm in campaign.arms}, campaign.cap, what.lower(), path)
    else:
        draw_updates(campaign, scores, solved, path)


def write(campaign: Campaign, out: Path) -> None:
    """Write ``results/<name>.md`` from ``data/<name>.csv``, and ``results/<name>.png`` if it is complete and has a figure."""
    rows = read(out / "data" / f"{campaign.name}.csv")
    write_page(out / "results" / f"{campaign.name}.md", report(campaign, rows, read(out / "data" / "rarity.csv")))
    if campaign.figure and progress(campaign, rows)[1]:
        draw(campaign, rows, out / "results" / f"{campaign.name}.png")
