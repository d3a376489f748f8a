"""Plan a comparison, run the jobs that are missing, and report: what ``sb3-per compare`` does with its options."""

import argparse
import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from sb3_per.compare.campaign import Job, missing, read, run_missing
from sb3_per.compare.report import UNIFORM, Names, Results, comparisons, draw, pairs_of, table, verdict
from sb3_per.compare.runs import Facts, Seconds, entry_of, inspect_arm, prepare, run, seconds_of
from sb3_per.compare.statistics import least_seeds
from sb3_per.compare.task import TWIN, Arm, Task, arms_of, jobs_of
from sb3_per.zoo.names import split_env

_DAY = 86_400.0

# Columns of the file of results.
_COLUMNS = ("arm", "rate", "seed", "task", "seconds", "returns", "spread")


class Plan(NamedTuple):
    """
    A comparison before it runs.

    :param task: task
    :param arms: arms that differ from each other
    :param names: their names
    :param rates: factors of the learning rate
    :param jobs: all runs
    :param n_timesteps: environment steps of a run
    :param path: CSV file of the results
    :param impression: end of a first impression: how to get a verdict; empty: the seeds can decide
    """

    task: Task
    arms: list[Arm]
    names: Names
    rates: list[float]
    jobs: list[Job]
    n_timesteps: int
    path: Path
    impression: str


def compare(parser: argparse.ArgumentParser, options: argparse.Namespace, seeds: int, quick_seeds: int) -> None:
    """
    Run what is missing, print a table and an answer, and draw the learning curves.

    :param parser: parser of the command, for messages
    :param options: options of the command
    :param seeds: number of seeds, unless the options say it, or more are needed
    :param quick_seeds: number of seeds with ``--quick``
    :raises SystemExit: for options that cannot be used, and if the user stops the runs
    """
    try:
        plan = _plan(options, quick_seeds if options.quick else seeds)
        n_missing = Counter(arm for _, (_, arm, *_) in missing(plan.path, plan.jobs))
        if n_missing:
            if not options.dry_run:
                _make_folder(plan.path.parent)
            print("measuring the time of a run ...", flush=True)
            seconds = {arm: seconds_of(plan.task, arm) for arm in n_missing}
            total = sum(n * sum(seconds[arm]) for arm, n in n_missing.items()) / options.workers
            print(f"about {duration_text(total)} for {n_missing.total()} missing runs, the random policy included", flush=True)
            if total > _DAY:
                print(_shorter(plan, seconds, n_missing, options, quick_seeds), flush=True)
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped before any run\n")
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        parser.error(str(error))
    if options.dry_run:
        return
    try:
        with tqdm(total=n_missing.total(), unit="run", disable=not n_missing) as bar:
            run_missing(plan.path, plan.jobs, run, options.workers, show=lambda _: bar.update())
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped; the same command goes on\n")
    except OSError as error:  # e.g. a full disk
        parser.exit(1, f"\n{parser.prog}: stopped by an error: {error}; the same command goes on\n")
    _report(plan)


def duration_text(seconds: float) -> str:
    """
    Format a duration.

    :param seconds: duration in seconds
    :return: e.g. ``"12 min"``, ``"3.4 h"`` or ``"5 days"``
    """
    minutes, hours, days = seconds / 60, seconds / 3_600, seconds / _DAY
    if minutes < 100:
        return f"{max(minutes, 1):.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{days:,.0f} days"


def _shorter(
    plan: Plan, seconds: dict[Arm, Seconds], n_missing: Counter[Arm], options: argparse.Namespace, quick_seeds: int
) -> str:
    """Say how long fewer steps and a first impression would take."""
    n_tenth = max(plan.n_timesteps // 10, 1)

    def estimate(n_runs: dict[Arm, int], share: float) -> str:
        total = sum(n * (share * seconds[arm].training + seconds[arm].evaluation) for arm, n in n_runs.items())
        return duration_text(total / options.workers)

    ways = [f"-n {n_tenth}: about {estimate(n_missing, 0.1)}"]
    if not options.quick:
        n_quick = dict.fromkeys(n_missing, quick_seeds)
        ways += [f"--quick: about {estimate(n_quick, 1.0)}", f"both: about {estimate(n_quick, 0.1)}"]
    return f"shorter, with {'; '.join(ways)}"


def _plan(options: argparse.Namespace, default_seeds: int) -> Plan:
    """
    Check everything that can be checked without training, and say what is going to run.

    :param options: options of the command
    :param default_seeds: number of seeds, unless the options say it, or more are needed
    :return: the plan
    :raises ValueError: for options that cannot be used
    """
    task = Task(**{name: value for name, value in vars(options).items() if name in Task.__annotations__})
    module, env = split_env(task.env)
    if module:
        task = dataclasses.replace(task, env=env, gym_packages=[*task.gym_packages, module])
    prepare(task)
    entry = entry_of(task)
    arms = arms_of(task, options.setting)
    path = Path(options.folder, "compare", f"{task.algo}-{task.env}.csv".replace("/", "-"))
    rows = read(path)
    if rows and tuple(rows[0]) != _COLUMNS:
        raise ValueError(f"{path} has columns of another version: move it away, or name another folder with -f")
    facts = {arm: inspect_arm(task, arm) for arm in arms}
    of_twin = next(facts[arm] for arm in arms if arm.kind == "uniform")
    arms = _distinct(arms, facts)
    controls = {arm.setting: arm.name for arm in arms if arm.kind == "shuffled"}
    stock = next((arm.name for arm in arms if arm.kind == "stock"), None)
    judged = {arm.name: controls.get(arm.setting) for arm in arms if arm.kind == "setting"}
    names = Names(stock, TWIN, judged, of_twin.algorithm)
    n_tests = len(pairs_of(names, options.rates))
    least = least_seeds(n_tests)
    seeds = options.seeds or max(default_seeds, 0 if options.quick else least)
    impression = ""
    if options.quick:
        why, impression = "--quick gives", "For a verdict, leave out --quick."
    elif seeds < least:
        why = f"{seeds} seeds cannot show a difference, {n_tests} tests need {least}: this gives"
        impression = f"A verdict takes --seeds {least} or more."

    print(f"{task.env}, {task.algo}, {of_twin.n_timesteps:,} steps a run")
    print(f"hyperparameters of {task.config}")
    print(f"arms: {'; '.join(arm.name for arm in arms)}")
    factors = ", ".join(f"{rate:.3g}" for rate in options.rates)
    rates = "1 learning rate" if factors == "1" else f"{len(options.rates)} factors of the learning rate ({factors})"
    jobs = jobs_of(task, entry, arms, options.rates, seeds)
    print(f"{len(arms)} arms x {rates} x {seeds} seeds = {len(jobs) - 1} runs")
    if impression:
        print(f"{why} a first impression, no verdict")
    for text in dict.fromkeys(text for each in facts.values() for text in each.warnings):
        print(f"warning: {' '.join(text.split())}")
    return Plan(task, arms, names, options.rates, jobs, of_twin.n_timesteps, path, impression)


def _make_folder(folder: Path) -> None:
    """
    Make the folder of the results.

    :param folder: path of the folder
    :raises ValueError: if it cannot be made
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"-f: the folder {folder} cannot be made ({error.strerror})") from error


def _distinct(arms: list[Arm], facts: dict[Arm, Facts]) -> list[Arm]:
    """
    Leave out settings that equal an earlier one, and say so.

    :param arms: arms
    :param facts: facts of each
    :return: arms that differ
    :raises ValueError: for a setting that equals the uniform twin
    """
    without_control = [arm for arm in arms if arm.kind in ("uniform", "setting")]
    left_out = set()
    for arm in without_control:
        first = next(each for each in without_control if facts[each].identity == facts[arm].identity)
        if first is arm:
            continue
        if first.kind == "uniform":
            raise ValueError(
                f"--setting {arm.name} draws uniformly, and the uniform twin is compared anyway: name one that prioritizes"
            )
        print(f"{arm.name} is the same as {first.name}: it is trained once")
        left_out.add(arm.setting)
    return [arm for arm in arms if arm.setting not in left_out]


def _report(plan: Plan) -> None:
    """Print what the runs say, then draw them."""
    keys = list(plan.jobs[0][0])
    by_name = {tuple(row[key] for key in keys): row for row in read(plan.path)}
    of_random, *rows = (by_name[tuple(str(value) for value in name.values())] for name, _ in plan.jobs)
    # As the jobs are ordered: seeds, rates, arms.
    shape = (-1, len(plan.rates), len(plan.arms), plan.task.n_evaluations)
    returns = np.array([row["returns"].split() for row in rows], dtype=float).reshape(shape)
    curves = {arm.name: returns[:, :, i].swapaxes(0, 1) for i, arm in enumerate(plan.arms)}
    results = Results(curves, np.array(of_random["returns"].split(), dtype=float), plan.rates)
    compared = comparisons(results, plan.names)
    print(f"\n{table(results, compared, plan.names, not plan.impression)}\n")
    print("mean return: of the last fifth of each run")
    print("interval: of the mean difference, paired by seed")
    print("seeds: with how many of them the first is better")
    if not plan.impression:
        print(f"p: paired test, corrected for {len(compared)} tests (Holm)")
    # Every comparison has a picture of its own.
    text = repr([name for name, _ in plan.jobs])
    picture = plan.path.with_name(f"{plan.path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:6]}.png")
    print(f"learning curves: {picture}\n")
    roles = {arm.name: arm.role() for arm in plan.arms if arm.kind != "shuffled"}
    # A setting that is meant to draw uniformly has no control.
    controls = {control: arm for arm, control in plan.names.judged.items() if control is not None}
    uneven = {row["arm"] for row in rows if float(row["spread"]) < UNIFORM}
    uniform = [arm for arm in controls.values() if arm not in uneven]
    for arm in uniform:
        cure = " A smaller kappa, near the size of the errors, lets them differ." if roles[arm] == "LAP" else ""
        print(f"warning: {arm} drew uniformly in all runs: no TD error raised a priority above the others.{cure}")
    print(verdict(results, compared, plan.names, uniform, plan.impression), flush=True)
    draw(results, roles, controls, plan.n_timesteps, picture)
