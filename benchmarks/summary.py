"""
Report all tasks together: the main settings against the uniform twin (``summary.md`` and ``summary.png``), and against the
defaults (``defaults.md``). Draw the campaigns on rare success in one figure (``rarity.png``).

    python benchmarks/summary.py    # from the complete suites of learning.py, and the complete campaigns

- effect: mean difference by seed, in percent of the mean of the reference, with a bootstrap interval over the seeds; for
  dose_response.py and chain_sizes.py, of the geometric means
- p: see tables.py, with one correction for all suites. Rows of the campaigns have the p of their own table.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import report
from campaign import Campaign, Contrast, options
from chain_sizes import CAMPAIGN as CHAIN
from doorkey_sizes import CAMPAIGN as DOORKEY
from dose_response import CAMPAIGN as DOSE
from figures import ARMS, INK, LOOKS, Panel, draw_rarity, errorbars, figure_of, role_of, save, say_that_more_is_better
from matplotlib.lines import Line2D
from modern_dqn import CAMPAIGN as MODERN
from suites import MEMORY_SUITES, SUITES, arm_of
from tables import Scores, at_best_rates, improvement, is_paired, p_of, permutation_p, shown, table, with_interval

from sb3_per.compare.campaign import read
from sb3_per.compare.report import p_text
from sb3_per.compare.statistics import holm, paired_p

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


def compared(task: str, suite: str, endpoint: str, kinds: dict[str, str], against: str, scores: Scores) -> list[Comparison]:
    """Compare the arms of a task, given by kind of setting, with one of them; p is not corrected yet."""
    better = improvement(scores, {arm: kinds[against] for kind, arm in kinds.items() if kind != against})
    found = []
    for kind, arm in ((kind, arm) for kind, arm in kinds.items() if kind != against):
        x, y = scores[arm], scores[kinds[against]]
        effect = in_percent((x - y)[:, 0], y[:, 0])
        unpaired = permutation_p(x, y) if is_paired([x]) else None
        row = (task, suite, endpoint, kind, against, len(x), effect, better[arm][:, 0], p_of(x, y), unpaired)
        found.append(Comparison(*row))
    return found


def summarise(out: Path, against: str) -> list[Comparison]:
    """
    Compare the main settings on all complete suites, with stock where the reference did not run. Of several suites with the
    same task, take the last.
    """
    found: dict[str, list[Comparison]] = {}
    for name, suite in SUITES.items():
        if name in MEMORY_SUITES:
            continue  # of whole agents, not of settings
        curves = report.load(suite, read(out / f"{name}.csv"))
        if any(len(values) < suite.seeds for values in curves.values()):
            continue  # not complete
        for environment in suite.environments:
            if len(suite.rates) > 1:
                rates = report.by_rate(suite, curves)
                endpoints = {AT_MEAN: report.mean_over_rates(rates), AT_BEST: at_best_rates(rates)[1]}
            else:
                endpoints = {ONE_RATE: report.in_one(suite, report.score_of(suite, curves), environment)}
            arms = dict.fromkeys(map(arm_of, report.variants_in(suite, environment)))
            there = {kind_of(arm): arm for arm in arms}
            kinds = {kind: there[kind] for kind in ("stock", "uniform", *SUMMED_UP) if kind in there}
            other = "stock" if against == "uniform" and against not in kinds else against
            task = f"{environment}, {suite.steps:,} steps"
            found.pop(task, None)
            found[task] = []
            for endpoint, scores in endpoints.items() if other in kinds else ():
                rows = compared(task, name, endpoint, kinds, other, scores)
                found[task] += [row for row in rows if against == "uniform" or row.kind in SUMMED_UP]
    rows = [row for of_task in found.values() for row in of_task]
    p_values = holm({i: row.p for i, row in enumerate(rows)})
    unpaired = holm({i: row.p if row.unpaired is None else row.unpaired for i, row in enumerate(rows)})
    return [row._replace(p=p_values[i], unpaired=None if row.unpaired is None else unpaired[i]) for i, row in enumerate(rows)]


# By campaign: name of its task.
CAMPAIGNS = (
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
    for campaign, name in CAMPAIGNS:
        rows = read(out / f"{campaign.name}.csv")
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
                better = improvement(here, {kind: each.reference})[kind][:, 0]
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
    """Draw a dot for each setting, task and endpoint, relative to the reference; grey if the two cannot be told apart."""
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
        errorbars(axes, [each.effect], [place], each.kind, is_open, is_open)
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
    figure.legend(markers, [*kinds, "cannot be told apart"], loc="outside upper center", ncols=3)
    save(figure, path)


def draw_where_success_is_rare(out: Path) -> None:
    """Draw dose and response, the chain and DoorKey in one figure, ``rarity.png``, if all are complete."""
    episodes, states = [f"{2**n:,}" for n in DOSE.tasks], list(map(str, CHAIN.tasks))
    cells = [f"{n}x{n}" for n in DOORKEY.tasks]
    panels = []
    for campaign, *words, names in (
        (
            DOSE,
            "fixed buffer: Blind Cliffwalk",
            "random episodes for one success",
            "uniform's updates\nover the arm's",
            episodes,
        ),
        (CHAIN, "exploring agent: chain", "states", "uniform's steps\nover the arm's", states),
        (DOORKEY, "DoorKey", "cells", "success minus\nuniform's", cells),
    ):
        rows = read(out / f"{campaign.name}.csv")
        if not report.progress(campaign, rows)[1]:
            return
        panels.append(Panel(campaign, *words, names, report.scores_of(campaign, rows)))
    draw_rarity(panels, out / "rarity.png")


def main(arguments: list[str] | None = None) -> None:
    out = options(__doc__).parse_args(arguments).out
    found = [*summarise(out, "uniform"), *of_campaigns(out)]
    for path, those in ((out / "summary.md", found), (out / "defaults.md", summarise(out, "defaults"))):
        report.write_page(path, summary_table(those))
    draw(found, out / "summary.png")
    draw_where_success_is_rare(out)


if __name__ == "__main__":
    main()
