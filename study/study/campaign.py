"""
One description of a campaign, and the runner of all that are described so, e.g. in `chain_sizes.py`.

All arms learn the same tasks with the same seeds. Each has its own learning rate, and its own option where it has several: the
choosing seeds choose them. Where an arm's choice is the smallest or the largest rate, the grid grows by one rate in that
direction, for all arms, at most ``growth`` times in each direction. The reporting seeds, which chose nothing, are reported.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_per.compare.campaign import Job, missing, read, run_missing

# Of the processes that run: one core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
ROOT = Path(__file__).resolve().parents[1]  # has data/ and results/
Row = dict[str, str]


class Contrast(NamedTuple):
    arm: str  # arm that is judged
    reference: str  # arm that it is compared with
    # what the differences of a seed become: ``"mean"``, their mean over the tasks; ``"slope"``, their least-squares slope
    # over the tasks, which are numbers; the name of one of the campaign's axes, their slope over it; ``"pairs"``, one pair
    # for each seed and task; ``"each"``, a test for each task;
    # where the tasks are learning rates, ``"best"``, the best rate of each arm, see :func:`tables.at_best_rates`, and
    # ``"largest"``, the largest rate
    over: str = "mean"
    least: float | None = None  # smallest task that counts


@dataclass(frozen=True)
class Campaign:
    """What runs, and what is tested."""

    name: str  # name of the CSV file and of the report
    endpoint: str  # score of a run in words
    tasks: tuple[Any, ...]  # tasks, which are numbers if a contrast is over their slope
    arms: dict[str, tuple[str, ...]]  # by arm its options, one of which is chosen with the rate
    rates: tuple[float, ...]  # learning rates, ascending; the grid grows by the ratio of two neighbours
    # seeds that choose, for all tasks or by task; empty if there is one option and one rate; a task without any takes the
    # choices of the largest task that has some
    choosing: range | dict[Any, range]
    reporting: range  # seeds that are reported
    train: Callable[..., dict[str, Any]]  # takes task, arm, option, rate and seed; returns the columns of a row
    score: Callable[[Row], float]  # score of a row, more is better
    primary: tuple[Contrast, ...]  # tests of the primary endpoint, with Holm's correction over them
    title: str = "Primary endpoint"  # heading of the tests
    about_seeds: str = ", on which nothing was chosen"  # what the page says after their numbers
    partial: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # tasks of the arms that do not run in all of them
    kind: str = "tasks"  # what its tasks are: ``"tasks"``, or ``"rates"``, learning rates of one task
    unit: str = ""  # what the numbers are that name the tasks, for headings
    # all that a run depends on, as text and numbers; rows of other settings do not count
    settings: dict[str, Any] = field(default_factory=dict)
    secondary: tuple[Contrast, ...] = ()  # other tests, with a correction of their own
    by_task: tuple[Contrast, ...] = ()  # tests of single tasks, with a correction of their own
    undeclared: tuple[Contrast, ...] = ()  # tests that were thought of after the runs, without a correction
    # by name: another score of a row; the primary tests are repeated for it, with a correction of their own
    other_scores: dict[str, Callable[[Row], float]] = field(default_factory=dict)
    # of one task, by name: digits after the point, and another score of a row, which is reported beside the first
    also: dict[str, tuple[int, Callable[[Row], float]]] = field(default_factory=dict)
    most_workers: int = 99  # largest number of runs at a time
    growth: int = 2  # largest number of rates by which a grid grows in each direction
    chooses_by_task: bool = True  # whether each task has its own choice; otherwise an arm has one for all
    is_log: bool = False  # whether scores are logarithms of costs, whose differences are reported as factors
    is_cost: bool = False  # whether scores are negative costs, which are reported without the sign
    is_iqm: bool = False  # whether interquartile means of the scores are reported in place of means
    # takes a row; returns whether the run was not stopped
    solved: Callable[[Row], bool] = lambda row: row.get("solved") != "0"
    listed: float | None = None  # score of a solved run, for a table of all seeds
    # whether scores are in units of the twin's mean in the task, or when choosing, of the mean of all runs
    is_relative: bool = False
    # whether the test that was declared exchanges runs of the arms; its p stands beside that of the pairs
    was_unpaired: bool = False
    digits: tuple[int, int] = (3, 3)  # digits after the point of scores and of their differences
    seconds: dict[Any, float] = field(default_factory=dict)  # measured CPU seconds of a run by task, for the budget
    # takes a task; counts the ``episodes`` of a random policy, and the ``successes`` among them
    random_successes: Callable[[Any], dict[str, int]] | None = None
    others: tuple[tuple[Any, ...], ...] = ()  # other runs of the file: task, arm, option, rate and seed
    # score by which a task is learned: the best arm has at least twice the mean of the random policy, which is one of the
    # `others` for each task. A task that is not learned is shown, and counts in no test. ``None``: all tasks count
    learned: Callable[[Row], float] | None = None
    # by heading: takes a row, returns a share, whose means by arm and task are a table of its own
    shares: dict[str, Callable[[Row], float]] = field(default_factory=dict)
    # takes what `train` takes; returns the columns that name the run; without it, those are its arguments
    name_of: Callable[..., dict[str, Any]] | None = None
    # by name, for slopes over tasks that are no numbers: takes a task, returns the number that it stands for
    axes: dict[str, Callable[[Any], float]] = field(default_factory=dict)
    # takes the campaign and its rows; writes the tables of a complete campaign in place of those of `report.py`
    page: Callable[..., list[str]] | None = None
    figure: str = ""  # ``"runs"``, ``"updates"``, ``"rates"`` or ``"curves"``, see `figures.py`; ``""``: none
    cap: int = 0  # steps of a run that is stopped, for the figure
    floor: Callable[[Any], int] | None = None  # takes a task; returns the fewest steps that a run can need

    @property
    def twin(self) -> str:
        """Name of the first arm, in whose units relative scores are."""
        return next(iter(self.arms))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the settings, a column of each row."""
        return hash_of(self.settings)

    @property
    def runs_of_a_seed(self) -> list[tuple[Any, str]]:
        """Tasks and arms that each reporting seed runs, in their order."""
        return [(task, arm) for task in self.tasks for arm in self.arms_in(task)]

    def arms_in(self, task: Any) -> dict[str, tuple[str, ...]]:
        """Select the arms that run in a task, with their options."""
        return {arm: options for arm, options in self.arms.items() if task in self.partial.get(arm, self.tasks)}

    def seeds_choosing(self, task: Any) -> range:
        return self.choosing.get(task, range(0)) if isinstance(self.choosing, dict) else self.choosing


def hash_of(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def evaluations_of(row: Row) -> dict[int, float]:
    """Return the evaluations of a run by their step, in order, NaN after it was solved; columns that are numbers are steps."""
    return {step: float(row[str(step)] or "nan") for step in sorted(map(int, filter(str.isdigit, row)))}


def mean_of_all(row: Row) -> float:
    return float(np.mean(list(evaluations_of(row).values())))


def mean_of_last_fifth(row: Row) -> float:
    returns = list(evaluations_of(row).values())
    return float(np.mean(returns[-len(returns) // 5 :]))


def last(row: Row) -> float:
    return list(evaluations_of(row).values())[-1]


def steps_until(level: float, row: Row) -> int:
    """Return the steps of the first evaluation with at least this score, or of the last one if none has it."""
    found = evaluations_of(row)
    return next((step for step, score in found.items() if score >= level), max(found))


def job(campaign: Campaign, task: Any, arm: str, option: str, rate: float, seed: int) -> Job:
    run = (task, arm, option, rate, seed)
    if campaign.name_of is not None:
        return campaign.name_of(*run), run
    return dict(task=task, arm=arm, option=option, rate=f"{rate:.3g}", seed=seed, settings=campaign.fingerprint), run


def choosing_jobs(campaign: Campaign, task: Any, rates: Sequence[float]) -> list[Job]:
    """List the choosing runs of a task at these rates, seed by seed."""
    return [
        job(campaign, task, arm, option, rate, seed)
        for seed in campaign.seeds_choosing(task)
        for rate in rates
        for arm, options in campaign.arms_in(task).items()
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
        for task, arm in campaign.runs_of_a_seed
    ]


def done(rows: list[Row], jobs: list[Job]) -> list[tuple[Sequence[Any], Row]]:
    """List the arguments and the row of each job that has run, in the order of the jobs."""
    if not jobs:
        return []
    found = {tuple(row[column] for column in jobs[0][0]): row for row in rows}
    pairs = ((run, found.get(tuple(map(str, name.values())))) for name, run in jobs)
    return [(run, row) for run, row in pairs if row is not None]


def choices(campaign: Campaign, task: Any, rates: Sequence[float], rows: list[Row]) -> dict[str, tuple[str, float]] | None:
    """Choose option and rate of each arm by the mean score over the choosing seeds; ``None`` while runs are missing."""
    if not campaign.choosing:
        return {arm: (options[0], campaign.rates[0]) for arm, options in campaign.arms.items()}
    if isinstance(campaign.choosing, dict) and task not in campaign.choosing:
        task = max(campaign.choosing)
    tasks, arms = ([task] if campaign.chooses_by_task else campaign.tasks), campaign.arms_in(task)
    means = []
    for each in tasks:
        jobs = choosing_jobs(campaign, each, rates)
        runs = done(rows, jobs)
        if len(runs) < len(jobs):
            return None
        scores = np.array([campaign.score(row) for _, row in runs])
        scores = scores.reshape(len(campaign.seeds_choosing(each)), -1).mean(axis=0)
        means.append(scores / max(abs(scores.mean()), 1e-9) if campaign.is_relative else scores)
    kinds = [(arm, option, rate) for rate in rates for arm, options in arms.items() for option in options]
    total = dict(zip(kinds, np.mean(means, axis=0), strict=True))
    return {arm: max((k for k in kinds if k[0] == arm), key=lambda k: total[k])[1:] for arm in arms}


def grid(campaign: Campaign, task: Any, rows: list[Row]) -> tuple[float, ...]:
    """Return the grid of a task. It has grown where a choice of the complete grid was at its edge."""
    rates, step = campaign.rates, (campaign.rates[-1] / campaign.rates[0]) ** (1 / max(len(campaign.rates) - 1, 1))
    n_below = n_above = 0
    while campaign.growth and campaign.choosing and (chosen := choices(campaign, task, rates, rows)):
        taken = {rate for _, rate in chosen.values()}
        down, up = rates[0] in taken and n_below < campaign.growth, rates[-1] in taken and n_above < campaign.growth
        if not (down or up):
            break
        grown = (*([rates[0] / step] if down else []), *rates, *([rates[-1] * step] if up else []))
        rates = tuple(float(f"{rate:.3g}") for rate in grown)
        n_below, n_above = n_below + down, n_above + up
    return rates


def run(campaign: Campaign, out: Path, workers: int, deadline: float | None = None) -> None:
    """Run what the file lacks: the rarity, the choosing runs while the grid grows, and the runs that are reported."""
    if campaign.random_successes is not None:
        rarity = [(dict(campaign=campaign.name, task=task), (task,)) for task in campaign.tasks]
        run_missing(out / "data" / "rarity.csv", rarity, campaign.random_successes, workers, deadline)
    path, workers = out / "data" / f"{campaign.name}.csv", min(workers, campaign.most_workers)
    others = [job(campaign, *run) for run in campaign.others]
    for jobs_of in (lambda *_: others, all_choosing_jobs, reporting_jobs):
        while lacking := missing(path, jobs_of(campaign, read(path))):
            if deadline is not None and time.time() > deadline:
                return
            run_missing(path, lacking, campaign.train, workers, deadline)
    print(f"{path}: all runs are there")


def main(campaign: Campaign, about: str | None, arguments: list[str] | None = None) -> None:
    """Run what the file of one campaign lacks, without a report."""
    args = options(about, [campaign.name]).parse_args(arguments)
    run(campaign, args.out, args.workers, args.deadline)


def options(about: str | None, names: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Make the options of a script that runs what has these names."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder with data/, the runs, and results/, tables and figures")
    if names:
        parser.add_argument("--only", default="", help=f"one of these, or a part of several names: {', '.join(names)}")
        parser.add_argument("--workers", type=int, default=1, help="runs at a time, one core each")
        until = lambda seconds: time.time() + float(seconds)  # noqa: E731
        until.__name__ = "number"  # for the message on text that is none
        parser.add_argument("--seconds", type=until, dest="deadline", help="start no run after so long")
    return parser


def selected(names: Sequence[str], only: str) -> list[str]:
    """Select the one with this name, or all whose name contains it."""
    found = [only] if only in names else [name for name in names if only in name]
    if not found:
        raise SystemExit(f"{only!r} is none of {', '.join(names)}")
    return found
