"""
One description of a campaign, and the runner of all that are described so: `chain_sizes.py`, `doorkey_sizes.py`, `ages.py`.

    python benchmarks/chain_sizes.py                  # what is missing; then campaign_report.py
    python benchmarks/chain_sizes.py --seconds 600    # start no run after ten minutes; call again to continue

All arms learn the same tasks with the same seeds. Each has its own learning rate, and its own option where it has several: the
choosing seeds choose them. Where an arm's choice is the smallest or the largest rate, the grid grows by one rate in that
direction, for all arms, at most ``growth`` times in each direction. The reporting seeds, which chose nothing, are reported.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_per.compare.campaign import Job, missing, read, run_missing

OUT = Path(__file__).resolve().parents[1] / "docs" / "evidence"
Row = dict[str, str]


class Contrast(NamedTuple):
    """
    One test: an arm against a reference.

    :param arm: arm that is judged
    :param reference: arm that it is compared with
    :param over: what the differences of a seed become: ``"mean"``, their mean over the tasks; ``"slope"``, their least-squares
        slope over the tasks, which are numbers; ``"pairs"``, one pair for each seed and task
    """

    arm: str
    reference: str
    over: str = "mean"


@dataclass(frozen=True)
class Campaign:
    """
    What runs, and what is tested.

    :param name: name of the CSV file and of the report
    :param endpoint: score of a run in words
    :param unit: what the numbers are that name the tasks, for headings
    :param tasks: tasks, which are numbers if a contrast is over their slope
    :param arms: by arm its options, one of which is chosen with the rate; the first arm is the twin
    :param rates: learning rates, ascending; the grid grows by the ratio of two neighbours
    :param choosing: seeds that choose; empty if there is one option and one rate
    :param reporting: seeds that are reported
    :param settings: all that a run depends on, as text and numbers; rows of other settings do not count
    :param train: takes task, arm, option, rate and seed; returns the columns of a row
    :param score: score of a row, more is better
    :param primary: tests of the primary endpoint, with Holm's correction over them
    :param secondary: other tests, with a correction of their own
    :param other_scores: by name: another score of a row; the primary tests are repeated for it, with a correction of their own
    :param growth: largest number of rates by which a grid grows in each direction
    :param chooses_by_task: whether each task has its own choice; otherwise an arm has one for all
    :param is_log: whether scores are logarithms, whose differences are reported as factors
    :param is_relative: whether scores are in units of the twin's mean in the task, or when choosing, of the mean of all runs
    :param seconds: measured CPU seconds of a run by task, for the budget
    :param random_successes: takes a task; counts the episodes of a random policy, and those that succeed
    """

    name: str
    endpoint: str
    unit: str
    tasks: tuple[Any, ...]
    arms: dict[str, tuple[str, ...]]
    rates: tuple[float, ...]
    choosing: range
    reporting: range
    settings: dict[str, Any]
    train: Callable[..., dict[str, Any]]
    score: Callable[[Row], float]
    primary: tuple[Contrast, ...]
    secondary: tuple[Contrast, ...] = ()
    other_scores: dict[str, Callable[[Row], float]] = field(default_factory=dict)
    growth: int = 2
    chooses_by_task: bool = True
    is_log: bool = False
    is_relative: bool = False
    seconds: dict[Any, float] = field(default_factory=dict)
    random_successes: Callable[[Any], tuple[int, int]] | None = None

    @property
    def twin(self) -> str:
        """Name of the arm with uniform draws."""
        return next(iter(self.arms))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the settings, a column of each row."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]


# ---- jobs


def job(campaign: Campaign, task: Any, arm: str, option: str, rate: float, seed: int) -> Job:
    """Make the job of a run."""
    name = dict(task=task, arm=arm, option=option, rate=f"{rate:.3g}", seed=seed, settings=campaign.fingerprint)
    return name, (task, arm, option, rate, seed)


def choosing_jobs(campaign: Campaign, task: Any, rates: Sequence[float]) -> list[Job]:
    """List the choosing runs of a task at these rates, seed by seed."""
    return [
        job(campaign, task, arm, option, rate, seed)
        for seed in campaign.choosing
        for rate in rates
        for arm, options in campaign.arms.items()
        for option in options
    ]


def all_choosing_jobs(campaign: Campaign, rows: list[Row]) -> list[Job]:
    """List the choosing runs of all tasks, the first task first, with grids as far as they have grown."""
    return [job for task in campaign.tasks for job in choosing_jobs(campaign, task, grid(campaign, task, rows))]


def reporting_jobs(campaign: Campaign, rows: list[Row]) -> list[Job]:
    """List the runs that are reported, seed by seed; empty before everything is chosen."""
    chosen = {task: choices(campaign, task, grid(campaign, task, rows), rows) for task in campaign.tasks}
    if any(choice is None for choice in chosen.values()):
        return []
    return [
        job(campaign, task, arm, *chosen[task][arm], seed)  # type: ignore[index]
        for seed in campaign.reporting
        for task in campaign.tasks
        for arm in campaign.arms
    ]


def key_of(name: dict[str, Any]) -> tuple[str, ...]:
    """Return the name of a run, or of its row, without the settings."""
    return tuple(str(name[key]) for key in ("task", "arm", "option", "rate", "seed"))


def runs_of(campaign: Campaign, rows: list[Row]) -> dict[tuple[str, ...], Row]:
    """Find the rows with the campaign's settings, by their names."""
    return {key_of(row): row for row in rows if row["settings"] == campaign.fingerprint}


def choices(campaign: Campaign, task: Any, rates: Sequence[float], rows: list[Row]) -> dict[str, tuple[str, float]] | None:
    """
    Choose option and rate of each arm: the highest mean score over the choosing seeds.

    :param campaign: campaign
    :param task: task that is chosen for; all tasks count if the campaign has one choice for all
    :param rates: grid
    :param rows: rows of the file
    :return: by arm: option and rate; ``None`` while runs are missing
    """
    if not campaign.choosing:
        return {arm: (options[0], campaign.rates[0]) for arm, options in campaign.arms.items()}
    tasks = [task] if campaign.chooses_by_task else campaign.tasks
    found, means = runs_of(campaign, rows), []
    for each in tasks:
        keys = [key_of(name) for name, _ in choosing_jobs(campaign, each, rates)]
        if not all(key in found for key in keys):
            return None
        scores = np.array([campaign.score(found[key]) for key in keys]).reshape(len(campaign.choosing), -1).mean(axis=0)
        means.append(scores / max(abs(scores.mean()), 1e-9) if campaign.is_relative else scores)
    kinds = [(arm, option, rate) for rate in rates for arm, options in campaign.arms.items() for option in options]
    total = dict(zip(kinds, np.mean(means, axis=0), strict=True))
    return {arm: max((k for k in kinds if k[0] == arm), key=lambda k: total[k])[1:] for arm in campaign.arms}


def grid(campaign: Campaign, task: Any, rows: list[Row]) -> tuple[float, ...]:
    """Return the grid of a task. It has grown where a choice of the complete grid was at its edge."""
    rates, step = campaign.rates, (campaign.rates[-1] / campaign.rates[0]) ** (1 / max(len(campaign.rates) - 1, 1))
    n_below = n_above = 0
    while chosen := choices(campaign, task, rates, rows):
        taken = {rate for _, rate in chosen.values()}
        down, up = rates[0] in taken and n_below < campaign.growth, rates[-1] in taken and n_above < campaign.growth
        if not (down or up):
            break
        grown = (*([rates[0] / step] if down else []), *rates, *([rates[-1] * step] if up else []))
        rates = tuple(float(f"{rate:.3g}") for rate in grown)
        n_below, n_above = n_below + down, n_above + up
    return rates


# ---- runs


def run(campaign: Campaign, folder: Path, workers: int, deadline: float | None = None) -> None:
    """Run what the file lacks: the rarity, the choosing runs while the grid grows, and the runs that are reported."""
    if campaign.random_successes is not None:
        rarity = [(dict(campaign=campaign.name, task=task), (campaign, task)) for task in campaign.tasks]
        run_missing(folder / "rarity.csv", rarity, count_successes, workers, deadline)
    path = folder / f"{campaign.name}.csv"
    for jobs_of in (all_choosing_jobs, reporting_jobs):
        while lacking := missing(path, jobs_of(campaign, read(path))):
            if deadline is not None and time.time() > deadline:
                return
            run_missing(path, lacking, campaign.train, workers, deadline)


def count_successes(campaign: Campaign, task: Any) -> dict[str, int]:
    """Count the random episodes of a task that succeed."""
    assert campaign.random_successes is not None
    return dict(zip(("episodes", "successes"), campaign.random_successes(task), strict=True))


def main(campaigns: Sequence[Campaign], arguments: list[str] | None = None) -> None:
    """Run what is missing of the campaigns, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[each.name for each in campaigns], help="one of the campaigns")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--seconds", type=float, help="start no run after so long")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files of the runs")
    args = parser.parse_args(arguments)
    deadline = None if args.seconds is None else time.time() + args.seconds
    for campaign in campaigns:
        if args.only in (None, campaign.name):
            run(campaign, args.out, args.workers, deadline)
