"""
Report all tasks together: the main settings against the uniform twin (``summary.md`` and ``summary.png``), and against the
defaults (``defaults.md``). Draw the campaigns on rare success in one figure (``rarity.png``), and SAC's in two others: in
the plane (``replays.png``), and on tasks of others (``control.png``).

- effect: mean difference by seed, in percent of the mean of the reference, with a bootstrap interval over the seeds; for
  dose_response.py and chain_sizes.py, of the geometric means
- p: see tables.py, with one correction for all suites. Rows of the campaigns have the p of their own table.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.lines import Line2D

from sb3_per.compare.campaign import read
from sb3_per.compare.report import p_text
from sb3_per.compare.statistics import holm, paired_p
from sb3_per.utils.colours import CYAN, GREEN, PURPLE

from . import report
from .campaign import Campaign, Contrast, done, evaluations_of, reporting_jobs
from .chain_sizes import CAMPAIGN as CHAIN
from .control import CAMPAIGN as CONTROL
from .control import N_MEANS, UPDATES, offset_of
from .doorkey_sizes import CAMPAIGN as DOORKEY
from .dose_response import CAMPAIGN as DOSE
from .figures import ARMS, INK, LOOKS, STYLE, draw_arm, errorbar, figure_of, role_of, save, say_that_more_is_better
from .learning import CAMPAIGNS
from .modern_dqn import CAMPAIGN as MODERN
from .plane import BATCH_SIZE, JUDGED, N_ENVS, RADII, RANDOM_SHARES, task_of
from .plane import CAMPAIGN as PLANE
from .suites import SUITES
from .tables import Scores, improvement, is_paired, p_of, permutation_p, shown, table, with_interval

# Settings of the buffer: those declared first, and the winner of bits-rates.
SUMMED_UP = ("defaults", "LAP", "candidate", "no weights")
ONE_RATE, AT_MEAN, AT_BEST, OWN_RATE = "one rate", "mean over three rates", "best of three rates", "own rate"


def kind_of(arm: str) -> str | None:
    """Return ``"stock"``, ``"uniform"``, or the setting of an arm that the summary has, LAP with any alpha and kappa."""
    is_other = arm.startswith(("shuffled, ", "epsilon ", "uniform, ")) and arm not in ARMS
    kind = role_of(arm)
    return kind if kind in ("stock", "uniform", *SUMMED_UP) and not is_other else None


class Comparison(NamedTuple):
    """One setting on one task at one endpoint."""

    task: str
    suite: str
    endpoint: str
    kind: str
    reference: str
    n_runs: int
    effect: np.ndarray  # in percent, with the ends of its interval
    better: np.ndarray  # probability of improvement, with the ends of its interval
    p: float
    unpaired: float | None = None  # p of the test that a paired one has replaced


def in_percent(gains: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Give the mean gain in percent of the mean of the reference, with its interval; both by seed."""
    both = np.stack([gains, reference], axis=1)
    return with_interval(both, lambda pair: 100 * pair[:, 0].mean() / abs(pair[:, 1].mean()))


def compared(campaign: Campaign, scores: Scores, task: str, endpoint: str, over: str, against: str) -> list[Comparison]:
    """Compare the main settings on a task with one of them, with stock where it did not run; p is not corrected yet."""
    there = {kind_of(arm): arm for arm in scores}
    kinds = {kind: there[kind] for kind in ("stock", "uniform", *SUMMED_UP) if kind in there}
    against = "stock" if against == "uniform" and against not in kinds else against
    others = {kind: Contrast(arm, kinds[against], over) for kind, arm in kinds.items() if against in kinds and kind != against}
    pairs = {kind: report.pair_of(campaign, contrast, scores) for kind, contrast in others.items()}
    better, found = improvement(pairs), []
    for kind, (x, y) in pairs.items():
        unpaired = permutation_p(x, y) if is_paired([x]) else None
        row = (task, campaign.name, endpoint, kind, against, len(x), in_percent((x - y)[:, 0], y[:, 0]), better[kind][:, 0])
        found.append(Comparison(*row, p_of(x, y), unpaired))
    return found


def summarise(out: Path, against: str) -> list[Comparison]:
    """Compare the main settings in all complete suites but those of recurrent agents. Of several on a task, take the last."""
    found: dict[str, list[Comparison]] = {}
    for name, campaign in CAMPAIGNS.items():
        suite, rows = SUITES[name], read(out / "data" / f"{name}.csv")
        if name.startswith("memory-") or not report.progress(campaign, rows)[1]:
            continue
        values = report.values_of(campaign, rows, campaign.score)
        endpoints = {AT_MEAN: "mean", AT_BEST: "best"} if campaign.kind == "rates" else {ONE_RATE: "mean"}
        for i, environment in enumerate(suite.environments):
            columns = slice(None) if campaign.kind == "rates" else slice(i, i + 1)
            scores = {arm: each[:, columns] for arm, each in values.items() if not np.isnan(each[:, columns]).any()}
            task = f"{environment}, {suite.steps:,} steps"
            found.pop(task, None)
            found[task] = [row for e, over in endpoints.items() for row in compared(campaign, scores, task, e, over, against)]
    rows = [row for of_task in found.values() for row in of_task if against == "uniform" or row.kind in SUMMED_UP]
    p_values = holm({i: row.p for i, row in enumerate(rows)})
    unpaired = holm({i: row.p if row.unpaired is None else row.unpaired for i, row in enumerate(rows)})
    return [row._replace(p=p_values[i], unpaired=None if row.unpaired is None else unpaired[i]) for i, row in enumerate(rows)]


# By campaign that chose its rates on other seeds: name of its task.
DECLARED = (
    (DOSE, "Blind Cliffwalk, 1 success in {:,} episodes"),
    (CHAIN, "Chain, 5 to 15 states"),
    (DOORKEY, "DoorKey, 5x5 and 6x6"),
    (MODERN, "MinAtar, five games, 300,000 steps"),
)


def effect_of(campaign: Campaign, contrast: Contrast, scores: Scores, gain: np.ndarray) -> np.ndarray:
    """Estimate the effect of an arm in percent, from its gain by seed; of costs if scores are their logarithms."""
    if campaign.is_log:
        return 100 * (1 - np.exp(-with_interval(gain)))
    if campaign.is_relative:
        return with_interval(scores[contrast.arm], lambda values: 100 * (values.mean() - 1))
    return in_percent(gain, scores[contrast.reference].mean(axis=1))


def of_campaigns(out: Path) -> list[Comparison]:
    """
    List the gains of dose and response at each size, of the chain and of DoorKey over their sizes, and the effects over the
    five games of MinAtar, with the p of their tables.
    """
    found = []
    for campaign, name in DECLARED:
        rows = read(out / "data" / f"{campaign.name}.csv")
        if not report.progress(campaign, rows)[1]:
            continue
        scores, contrasts = report.scores_of(campaign, rows), campaign.by_task or campaign.primary
        gains = {each: report.differences(campaign, each, scores) for each in contrasts}
        tests = {(each, i): gain for each in contrasts for i, gain in enumerate(np.atleast_2d(gains[each].T))}
        p_values = holm({test: paired_p(gain) for test, gain in tests.items()})
        if campaign.was_unpaired:
            p_values = holm({(each, 0): p_of(scores[each.arm], scores[each.reference]) for each in contrasts})
        for (i, task), kind in itertools.product(enumerate(campaign.tasks if campaign.by_task else [0]), SUMMED_UP):
            for each in (contrast for contrast in contrasts if contrast.arm == kind and contrast.over != "slope"):
                here = {arm: values[:, i : i + 1] if campaign.by_task else values for arm, values in scores.items()}
                effect = effect_of(campaign, each, scores, tests[each, i])
                better = improvement({kind: (here[kind], here[each.reference])})[kind][:, 0]
                place = (name.format(2 ** int(task)), campaign.name, OWN_RATE, kind, each.reference)
                found.append(Comparison(*place, len(scores[kind]), effect, better, p_values[each, i]))
    return found


def summary_table(found: list[Comparison]) -> list[str]:
    rows = []
    for each in found:
        p = p_text(each.p) + ("" if each.unpaired is None else f" ({p_text(each.unpaired)})")
        what = [each.task, f"`{each.suite}`", each.endpoint, each.kind, each.reference, str(each.n_runs)]
        rows.append([*what, shown(each.effect, 0), shown(each.better, 2), p])
    heading = ["task", "suite", "learning rate", "setting", "compared with", "runs", "effect, %"]
    return table([*heading, "probability of improvement", "p (unpaired)"], rows)


def draw(found: list[Comparison], path: Path) -> None:
    """Draw a dot for each setting, task and endpoint, relative to the reference; grey if the corrected p is at least 0.05."""
    found = [each for each in found if each.kind in SUMMED_UP]
    # The largest size of dose and response, and the smallest at which no run ends at the first checks.
    sizes = {f"Blind Cliffwalk, 1 success in {2**n:,} episodes" for n in (10, 16)}
    found = [each for each in found if each.suite != "dose-response" or each.task in sizes]
    places = list(dict.fromkeys((each.task, each.endpoint) for each in found))
    height = {place: np.mean([each.effect[0] for each in found if (each.task, each.endpoint) == place]) for place in places}
    places.sort(key=lambda place: height[place])
    kinds = [kind for kind in SUMMED_UP if any(each.kind == kind for each in found)]
    figure = figure_of(1.6 + 0.72 * len(places))
    axes = figure.subplots()
    axes.axvline(0, color=INK)
    for each in found:
        place = places.index((each.task, each.endpoint)) + 0.27 - 0.18 * kinds.index(each.kind)
        is_open = each.p >= 0.05
        errorbar(axes, each.effect, place, each.kind, is_open, is_open)
    labels = []
    for task, endpoint in places:
        n_runs = max(each.n_runs for each in found if (each.task, each.endpoint) == (task, endpoint))
        name, _, what = task.partition(", ")
        name = name.partition("-v")[0].replace("MinAtar/", "MinAtar ")
        second = {AT_MEAN: "mean of three rates", AT_BEST: "best rate", ONE_RATE: "one rate", OWN_RATE: "own rate"}[endpoint]
        if endpoint == OWN_RATE:
            second = what.replace(" success", "").partition(" episodes")[0].partition(", 300")[0]
        labels.append(f"{name}\n{second}, {n_runs} runs")
    axes.set_yticks(range(len(places)), labels)
    axes.set_xlabel("effect, %")
    say_that_more_is_better(axes)
    markers = [Line2D([], [], color=LOOKS[kind][0], marker=LOOKS[kind][2], linestyle="") for kind in kinds]
    markers.append(Line2D([], [], color=INK, marker="o", linestyle="", markerfacecolor="none"))
    figure.legend(markers, [*kinds, "p of at least 0.05, corrected"], loc="outside upper center", ncols=3)
    save(figure, path)


def draw_where_success_is_rare(out: Path) -> None:
    """
    Draw the gains over the twin in dose and response, the chain and DoorKey, ``rarity.png``, if all are complete. The text can
    be read where the figure is 360 pixels wide.
    """
    panels = (
        (DOSE, "fixed buffer: Blind Cliffwalk", "random episodes for one success", "uniform's updates\nover the arm's"),
        (CHAIN, "exploring agent: chain", "states", "uniform's steps\nover the arm's"),
        (DOORKEY, "DoorKey", "cells", "success minus\nuniform's"),
    )
    rows = {campaign.name: read(out / "data" / f"{campaign.name}.csv") for campaign, *_ in panels}
    if not all(report.progress(campaign, rows[campaign.name])[1] for campaign, *_ in panels):
        return
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(8.6)
        places = figure.subplot_mosaic("AA;BC", width_ratios=[3, 2]).values()
        for (campaign, title, tasks, gain), axes in zip(panels, places, strict=True):
            scores = report.scores_of(campaign, rows[campaign.name])
            form = {"dose-response": lambda n: f"{2**n:,}", "doorkey-sizes": lambda n: f"{n}x{n}"}.get(campaign.name, str)
            names = list(map(form, campaign.tasks))
            for arm in ("defaults", "no weights", "shuffled, defaults", "shuffled, no weights"):
                estimate = with_interval(scores[arm] - scores["uniform"])
                draw_arm(axes, names, np.exp(estimate) if campaign.is_log else estimate, arm)
            axes.axhline(1.0 if campaign.is_log else 0.0, color=INK, linewidth=1)
            axes.set(title=title, xlabel=tasks, ylabel=gain, xlim=(-0.3, len(names) - 0.7))
            if campaign.is_log:
                axes.set_yscale("log")
                axes.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
                axes.set_yticks([], minor=True)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save(figure, out / "results" / "rarity.png")


def draw_gain_over_replays(out: Path) -> None:
    """
    Draw the gains over the twin in the plane, ``replays.png``, if the campaign is complete: over the draws of a transition, a
    line for each rarity, dashed for the shuffled control. The text can be read where the figure is 360 pixels wide.
    """
    rows = read(out / "data" / f"{PLANE.name}.csv")
    if not report.progress(PLANE, rows)[1]:
        return
    scores = report.scores_of(PLANE, rows)
    draws = [BATCH_SIZE / n_envs for n_envs in N_ENVS]
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(7.0)
        for arm, axes in zip(JUDGED, figure.subplots(1, len(JUDGED), sharey=True), strict=True):
            for radius, color, marker in zip(RADII, (CYAN, PURPLE, GREEN), "os^", strict=True):
                columns = [PLANE.tasks.index(task_of(n_envs, radius)) for n_envs in N_ENVS]
                gain, low, high = np.exp(with_interval(scores[arm][:, columns] - scores["uniform"][:, columns]))
                control = np.exp((scores[f"shuffled, {arm}"] - scores["uniform"])[:, columns].mean(axis=0))
                label = f"{100 * RANDOM_SHARES[radius]:.2g}% of random episodes succeed"
                axes.plot(draws, gain, color=color, marker=marker, label=label)
                axes.fill_between(draws, low, high, color=color, alpha=0.18, linewidth=0)
                axes.plot(draws, control, color=color, marker=marker, linestyle="--", linewidth=1.5, markerfacecolor="none")
            axes.axhline(1.0, color=INK, linewidth=1)
            axes.set(title=arm, xscale="log", yscale="log", xlim=(1.2 * max(draws), min(draws) / 1.2))
            axes.set_xlabel("draws of a transition")
            axes.set_xticks(draws, [f"{each:g}" for each in draws])
            axes.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
            axes.set_xticks([], minor=True)
            axes.set_yticks([], minor=True)
        figure.axes[0].set_ylabel("uniform's updates\nover the arm's")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        save(figure, out / "results" / "replays.png")


def draw_control(out: Path) -> None:
    """
    Draw the learning curves of SAC on tasks of others, ``control.png``, if the campaign is complete. The text can be read
    where the figure is 360 pixels wide.
    """
    rows = read(out / "data" / f"{CONTROL.name}.csv")
    if not report.progress(CONTROL, rows)[1]:
        return
    runs = done(rows, reporting_jobs(CONTROL, rows))
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(7.2)
        for task, axes in zip(CONTROL.tasks, figure.subplots(2, 2).ravel(), strict=True):
            updates = UPDATES[task] / N_MEANS[task] * (np.arange(N_MEANS[task]) + 1) / 1_000
            for arm in CONTROL.arms:
                # The columns of all tasks have the names of the first; their order counts.
                curves = [list(evaluations_of(row).values()) for run, row in runs if run[:2] == (task, arm)]
                draw_arm(axes, updates.tolist(), with_interval(np.array(curves) + offset_of(task)), arm)
            axes.set(title=task.partition("-v")[0], ylabel="return", ylim=(0, None), xlim=(0, None))
            axes.set_xticks(np.linspace(0, updates[-1], 5))
        for axes in figure.axes[-2:]:
            axes.set_xlabel("thousand updates")
        figure.axes[-1].set_ylabel("steps at the goal")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save(figure, out / "results" / "control.png")


def write(out: Path) -> None:
    """Write the tables and figures of all complete campaigns, whose CSV files are in ``data/`` of this folder."""
    found = [*summarise(out, "uniform"), *of_campaigns(out)]
    for name, those in (("summary.md", found), ("defaults.md", summarise(out, "defaults"))):
        report.write_page(out / "results" / name, summary_table(those))
    draw(found, out / "results" / "summary.png")
    draw_where_success_is_rare(out)
    draw_gain_over_replays(out)
    draw_control(out)
