"""
Report the campaigns of one description: write a table and a figure for each, once all of its runs are there.

    python benchmarks/campaign_report.py    # from docs/evidence/chain-sizes.csv and the others

Before that, the page says how many runs are there, and nothing else: nobody looks at results early. Comparisons are paired by
seed. Estimates are means over the seeds with 95% bootstrap intervals, and p is that of random signs.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ages import CAMPAIGNS as AGES
from campaign import OUT, Campaign, Contrast, Row, all_choosing_jobs, choices, grid, key_of, reporting_jobs, runs_of
from chain_sizes import CAMPAIGN as CHAIN
from doorkey_sizes import CAMPAIGN as DOORKEY
from figures import INK, LOOKS, figure_of, save
from report import cell, iqm, p_cell, table

from sb3_per.compare.campaign import read
from sb3_per.compare.statistics import holm, mean_interval, paired_p

CAMPAIGNS = (CHAIN, DOORKEY, *AGES)
# What a contrast compares, in words.
WORDS = {"mean": "mean over the tasks", "slope": "slope over the size", "pairs": "all pairs of seed and task"}
# By arm: values of shape (seeds, tasks).
Values = dict[str, np.ndarray]


def progress(campaign: Campaign, rows: list[Row]) -> tuple[str, bool]:
    """
    Count the runs.

    :param campaign: campaign
    :param rows: rows of its file
    :return: in words, with the time that is left, and whether all runs are there
    """
    found = runs_of(campaign, rows)
    choosing = [name for name, _ in all_choosing_jobs(campaign, rows)]
    lacking = [name for name in choosing if key_of(name) not in found]
    done = [name for name, _ in reporting_jobs(campaign, rows) if key_of(name) in found]
    n_of_a_task = len(campaign.reporting) * len(campaign.arms)
    n_reporting = n_of_a_task * len(campaign.tasks)
    seconds = n_of_a_task * sum(campaign.seconds.values())
    seconds += sum(campaign.seconds[name["task"]] for name in lacking) - sum(campaign.seconds[name["task"]] for name in done)
    chosen = f"{len(choosing) - len(lacking):,} of {len(choosing):,} choosing runs and "
    words = f"{chosen * bool(choosing)}{len(done):,} of {n_reporting:,} reporting runs are there."
    if len(done) == n_reporting:
        return words, True
    return f"{words} The others take about {seconds / 3600:.1f} core hours.", False


def values_of(campaign: Campaign, rows: list[Row], score: Callable[[Row], float]) -> tuple[Values, dict[str, np.ndarray]]:
    """
    Load the reporting runs of a complete campaign.

    :param campaign: campaign
    :param rows: rows of its file
    :param score: score of a row
    :return: by arm the scores, more is better, in the twin's units if the campaign says so; by arm the number of runs of each
        task that were stopped
    """
    found, values, n_stopped = runs_of(campaign, rows), {}, {}
    names = [key_of(name) for name, _ in reporting_jobs(campaign, rows)]
    shape = (len(campaign.reporting), len(campaign.tasks))
    for arm in campaign.arms:
        own = [found[name] for name in names if name[1] == arm]  # seed by seed, task by task
        values[arm] = np.array([score(row) for row in own]).reshape(shape)
        n_stopped[arm] = np.array([row.get("solved") == "0" for row in own]).reshape(shape).sum(axis=0)
    if campaign.is_relative:
        units = np.maximum(values[campaign.twin].mean(axis=0), 1e-9)
        values = {arm: each / units for arm, each in values.items()}
    return values, n_stopped


def differences(campaign: Campaign, contrast: Contrast, values: Values) -> np.ndarray:
    """
    Compute what is tested.

    :param campaign: campaign
    :param contrast: arm, reference, and what the tasks of a seed become
    :param values: by arm, shape (seeds, tasks)
    :return: one number a seed, or one for each seed and task, shape (n,)
    """
    # Rounded: scores that are equal may differ in their last digits, always with the same sign.
    each = np.round(values[contrast.arm] - values[contrast.reference], 9)
    if contrast.over == "slope":
        return np.polyfit(np.array(campaign.tasks, dtype=float), each.T, 1)[0]
    return each.mean(axis=1) if contrast.over == "mean" else each.ravel()


def formatted(campaign: Campaign, values: np.ndarray, digits: int) -> str:
    """Format the mean over the seeds and its interval; as a factor if the campaign's scores are logarithms."""
    estimate = np.stack([values.mean(axis=0), *mean_interval(values)])
    if campaign.is_log:
        estimate = np.exp(estimate)
    middle, low, high = (f"{value + 0.0:,.{digits}f}" for value in np.round(estimate, digits))
    return f"{middle} [{low}, {high}]"


def headings(campaign: Campaign) -> list[str]:
    """Name the tasks."""
    return [f"{task} {campaign.unit}".strip() for task in campaign.tasks]


def choice_cell(option: str, rate: float) -> str:
    """Format what was chosen for an arm."""
    return f"{rate:g}, {option}" if option else f"{rate:g}"


def tests(campaign: Campaign, title: str, contrasts: tuple[Contrast, ...], values: Values) -> list[str]:
    """Write the table of some tests, with a correction of its own."""
    found = {contrast: differences(campaign, contrast, values) for contrast in contrasts}
    p_values = holm({contrast: paired_p(each) for contrast, each in found.items()})
    cells = [
        [contrast.arm, contrast.reference, WORDS[contrast.over], formatted(campaign, each, 3), p_cell(p_values, contrast)]
        for contrast, each in found.items()
    ]
    what = "factor" if campaign.is_log else "difference"
    lines = [f"{title}, paired, with Holm's correction over the {len(contrasts)} tests of the table:", ""]
    return lines + table(["arm", "against", "what", f"{what} [95% interval]", "p"], cells)


def report(campaign: Campaign, rows: list[Row], rarity: list[Row]) -> list[str]:
    """
    Write the page of a campaign.

    :param campaign: campaign
    :param rows: rows of its file
    :param rarity: rows of all tasks' random episodes
    :return: lines of Markdown
    """
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
    values, n_stopped = values_of(campaign, rows, campaign.score)
    heading = ["arm", *headings(campaign)]
    shown = {arm: -each if campaign.is_log else each for arm, each in values.items()}
    lines += [f"{campaign.endpoint} Mean over {len(campaign.reporting)} seeds [95% interval] (number of stopped runs):", ""]
    cells = []
    for arm, each in shown.items():
        marks = [f" ({n})" if n else "" for n in n_stopped[arm]]
        digits = 0 if campaign.is_log else 3
        cells.append([arm, *(formatted(campaign, column, digits) + mark for column, mark in zip(each.T, marks, strict=True))])
    lines += table(heading, cells)
    if campaign.is_relative:
        lines += ["Interquartile mean over seeds and tasks [95% stratified bootstrap interval]:", ""]
        middle = iqm(values)
        lines += table(["arm", "IQM"], [[arm, cell(middle, arm, 3)] for arm in campaign.arms])
    lines += tests(campaign, "Primary endpoint", campaign.primary, values)
    lines += tests(campaign, "Secondary", campaign.secondary, values)
    for name, score in campaign.other_scores.items():
        lines += tests(campaign, f"Secondary, {name}", campaign.primary, values_of(campaign, rows, score)[0])
    chosen = {task: choices(campaign, task, grid(campaign, task, rows), rows) for task in campaign.tasks}
    lines += ["Chosen on other seeds, among the learning rates and the options:", ""]
    cells = [[arm, *(choice_cell(*chosen[task][arm]) for task in campaign.tasks)] for arm in campaign.arms]  # type: ignore[index]
    return lines + table(heading, cells)


def draw(campaign: Campaign, rows: list[Row], path: Path) -> None:
    """Draw the gain of each arm over the twin, by task and for all tasks; hollow and dashed: shuffled priorities."""
    values, _ = values_of(campaign, rows, campaign.score)
    figure = figure_of(3.8)
    axes = figure.subplots()
    arms = [arm for arm in campaign.arms if arm != campaign.twin]
    places = np.arange(len(campaign.tasks) + 1.0)
    for k, arm in enumerate(arms):
        gains = values[arm] - values[campaign.twin]
        gains = np.column_stack([gains, gains.mean(axis=1)])
        estimate = np.stack([gains.mean(axis=0), *mean_interval(gains)])
        middle, low, high = np.exp(estimate) if campaign.is_log else estimate
        color, _, marker = LOOKS.get(arm.removeprefix("shuffled, "), (INK, "-", "o"))
        hollow = dict(markerfacecolor="none") if arm.startswith("shuffled") else {}
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


def main(arguments: list[str] | None = None) -> None:
    """Write the pages, and the figures of complete campaigns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files, and of the reports")
    args = parser.parse_args(arguments)
    for campaign in CAMPAIGNS:
        rows = read(args.out / f"{campaign.name}.csv")
        path = args.out / f"{campaign.name}.md"
        path.write_text("\n".join(report(campaign, rows, read(args.out / "rarity.csv"))).rstrip() + "\n")
        if progress(campaign, rows)[1]:
            draw(campaign, rows, path.with_suffix(".png"))
        print(path)


if __name__ == "__main__":
    main()
