"""Plan a comparison, run what is missing, and report: what ``sb3-per compare`` does with its options."""

import argparse
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from sb3_per.compare.campaign import Job, missing, read, run_missing
from sb3_per.compare.report import UNIFORM, Names, Results, comparisons, draw, pairs_of, table, verdict
from sb3_per.compare.runs import Facts, entry_of, inspect_arm, prepare, require_known, run, seconds_of
from sb3_per.compare.statistics import least_seeds
from sb3_per.compare.task import TWIN, Arm, Task, arms_of, jobs_of

# Columns of the file of results.
_COLUMNS = ("arm", "rate", "seed", "task", "seconds", "returns", "updates", "spread")


class Plan(NamedTuple):
    """
    What is going to run.

    :param task: task
    :param arms: arms that differ from each other
    :param names: their names
    :param rates: factors of the learning rate
    :param seeds: number of runs of each arm at each rate
    :param jobs: all runs
    :param n_timesteps: environment steps of a run
    :param path: CSV file of the results
    :param impression: what a first impression ends with; empty: the seeds can decide
    """

    task: Task
    arms: list[Arm]
    names: Names
    rates: list[float]
    seeds: int
    jobs: list[Job]
    n_timesteps: int
    path: Path
    impression: str

    @property
    def picture(self) -> Path:
        """Path of the picture, which no other comparison has."""
        text = repr([name for name, _ in self.jobs])
        return self.path.with_name(f"{self.path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:6]}.png")


def compare(parser: argparse.ArgumentParser, options: argparse.Namespace, default_seeds: int) -> None:
    """
    Run what is missing, print a table and an answer, and draw the learning curves.

    :param parser: parser of the command, for messages
    :param options: options of the command
    :param default_seeds: number of seeds, unless the options say it, or more are needed
    :raises SystemExit: for options that cannot be used, and if the user stops the runs
    """
    try:
        plan = _plan(options, default_seeds)
        lacking = [name["arm"] for name, _ in missing(plan.path, plan.jobs)]
        if lacking:
            if not options.dry_run:
                _make_folder(plan.path.parent)
            # Train each of these arms for a few seconds.
            print("measuring the time of a run ...", flush=True)
            seconds = sum(lacking.count(arm.name) * seconds_of(plan.task, arm) for arm in plan.arms if arm.name in lacking)
            duration = _duration(seconds / options.workers)
            print(f"about {duration} for {len(lacking)} missing runs, the random policy included", flush=True)
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped before any run\n")
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        parser.exit(2, f"{parser.prog}: {' '.join(str(error).split())}\n")
    if options.dry_run:
        return
    try:
        with tqdm(total=len(lacking), unit="run", disable=not lacking) as bar:
            run_missing(plan.path, plan.jobs, run, options.workers, show=lambda _: bar.update())
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped; the same command goes on\n")
    _report(plan)


def _plan(options: argparse.Namespace, default_seeds: int) -> Plan:
    """
    Check everything that can be checked without training, and say what is going to run.

    :param options: options of the command
    :param default_seeds: number of seeds, unless the options say it, or more are needed
    :return: the plan
    :raises ValueError: for options that cannot be used
    """
    task = Task(**{name: value for name, value in vars(options).items() if name in Task.__annotations__})
    prepare(task)
    require_known(task)
    entry = entry_of(task)
    arms = arms_of(task, options.setting)
    path = Path(options.folder, "compare", f"{task.algo}-{task.env}.csv".replace("/", "-"))
    _require_usable(path)
    facts = {arm: inspect_arm(task, arm) for arm in arms}
    of_twin = next(facts[arm] for arm in arms if arm.kind == "uniform")
    _require_training(task, of_twin)
    notes = [
        f"warning: {' '.join(text.split())}" for text in dict.fromkeys(w for each in facts.values() for w in each.warnings)
    ]
    arms, equal = _distinct(arms, facts)
    names = Names(
        next((arm.name for arm in arms if arm.kind == "stock"), None),
        TWIN,
        {
            arm.name: next((each.name for each in arms if each.kind == "shuffled" and each.setting == arm.setting), None)
            for arm in arms
            if arm.kind == "setting"
        },
        of_twin.algorithm,
    )
    n_tests = len(pairs_of(names, options.rates))
    least = least_seeds(n_tests)
    seeds = options.seeds or max(default_seeds, 0 if options.quick else least)
    if options.quick:
        impression = "For a verdict, leave out --quick."
    else:
        impression = f"A verdict takes --seeds {least} or more." if seeds < least else ""
    jobs = jobs_of(task, entry, arms, options.rates, seeds)

    print(f"{task.env}, {task.algo}, {of_twin.n_timesteps:,} steps a run")
    print(f"hyperparameters of {task.config}")
    print(f"arms: {'; '.join(arm.name for arm in arms)}")
    factors = ", ".join(f"{rate:.3g}" for rate in options.rates)
    n_runs = len(arms) * len(options.rates) * seeds
    rates = "1 learning rate" if len(options.rates) == 1 else f"{len(options.rates)} factors of the learning rate ({factors})"
    print(f"{len(arms)} arms x {rates} x {seeds} seeds = {n_runs} runs")
    if impression:
        why = (
            "--quick gives"
            if options.quick
            else f"{seeds} seeds cannot show a difference, {n_tests} tests need {least}: this gives"
        )
        print(f"{why} a first impression, no verdict")
    for line in [*equal, *notes]:
        print(line)
    return Plan(task, arms, names, options.rates, seeds, jobs, of_twin.n_timesteps, path, impression)


def _require_usable(path: Path) -> None:
    """
    Check the file of results, without making it.

    :param path: path of the file
    :raises ValueError: if it cannot be written, or if another version has written it
    """
    parent = next(folder for folder in path.parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"-f: {parent} is a file, so the folder {path.parent} cannot be made")
    rows = read(path)
    if rows and tuple(rows[0]) != _COLUMNS:
        raise ValueError(f"{path} has columns of another version: move it away, or name another folder with -f")


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


def _require_training(task: Task, facts: Facts) -> None:
    """
    Refuse runs that cannot be evaluated, or that make no gradient step.

    :param task: task
    :param facts: facts of an arm
    :raises ValueError: for too few steps
    """
    least = task.n_evaluations * facts.n_envs
    if facts.n_timesteps < least:
        raise ValueError(
            f"-n {facts.n_timesteps} is too short: {task.n_evaluations} evaluations with {facts.n_envs} environments need "
            f"{least} steps or more"
        )
    if facts.n_timesteps <= facts.learning_starts:
        raise ValueError(
            f"no run reaches learning_starts={facts.learning_starts} in {facts.n_timesteps} steps, so nothing would be "
            f"trained: give a larger -n, or -params learning_starts:{max(facts.n_timesteps // 10, 1)}"
        )


def _distinct(arms: list[Arm], facts: dict[Arm, Facts]) -> tuple[list[Arm], list[str]]:
    """
    Leave out settings that equal another.

    :param arms: arms
    :param facts: facts of each
    :return: arms that differ, and a line for each that was left out
    :raises ValueError: for a setting that equals the uniform twin
    """
    (twin,) = (facts[arm].identity for arm in arms if arm.kind == "uniform")
    first: dict[str, Arm] = {}
    lines = []
    for arm in arms:
        if arm.kind != "setting":
            continue
        if facts[arm].identity == twin:
            raise ValueError(
                f"--setting {arm.name} draws uniformly, and the uniform twin is compared anyway: name one that prioritizes"
            )
        same = first.setdefault(facts[arm].identity, arm)
        if same is not arm:
            lines.append(f"{arm.name} is the same as {same.name}: it is trained once")
    kept = {arm.setting for arm in first.values()}
    once: dict[str, Arm] = {}
    for arm in arms:
        if arm.kind in ("stock", "uniform") or arm.setting in kept:
            once.setdefault(arm.name, arm)
    return list(once.values()), lines


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{max(minutes, 1):.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _report(plan: Plan) -> None:
    """Print what the runs say, then draw them."""
    keys = list(plan.jobs[0][0])
    by_name = {tuple(row[key] for key in keys): row for row in read(plan.path)}
    of_random, *rows = (by_name[tuple(str(value) for value in name.values())] for name, _ in plan.jobs)
    results = _results_of(of_random, rows, plan)
    judged = {arm.name: arm for arm in plan.arms if arm.kind == "setting"}
    compared = comparisons(results, plan.names)
    uniform = [name for name in judged if name in plan.names.judged and _drew_uniformly(rows, name, plan.names)]
    print(f"\n{table(results, compared, plan.names, not plan.impression)}\n")
    print("mean return: of the last fifth of each run")
    print("interval: of the mean difference, paired by seed")
    print("seeds: with how many of them the first is better")
    if not plan.impression:
        print(f"p: paired test, corrected for {len(compared)} tests (Holm)")
    print(f"learning curves: {plan.picture}\n")
    untrained = sorted({row["arm"] for row in rows if not int(row["updates"])})
    if untrained:
        print(f"warning: runs of these arms made no gradient step: {', '.join(untrained)}")
    for name in uniform:
        print(
            f"warning: {name} drew uniformly in all runs: no TD error raised a priority above the others.{_cure(judged[name])}"
        )
    print(verdict(results, compared, plan.names, uniform, plan.impression), flush=True)
    roles = {arm.name: arm.role() for arm in plan.arms if arm.kind != "shuffled"}
    controls = {control: arm for arm, control in plan.names.judged.items() if control is not None}
    draw(results, roles, controls, plan.n_timesteps, plan.picture)


def _results_of(of_random: dict[str, str], rows: list[dict[str, str]], plan: Plan) -> Results:
    # As the jobs are ordered: seeds, rates, arms.
    found = np.array([row["returns"].split() for row in rows], dtype=float)
    of_all = found.reshape(plan.seeds, len(plan.rates), len(plan.arms), -1)
    curves = {arm.name: of_all[:, :, i].swapaxes(0, 1) for i, arm in enumerate(plan.arms)}
    return Results(curves, np.array(of_random["returns"].split(), dtype=float), plan.rates)


def _drew_uniformly(rows: list[dict[str, str]], arm: str, names: Names) -> bool:
    """
    Tell whether the priorities of an arm have never differed.

    :param rows: rows of the file
    :param arm: name of a setting
    :param names: names of the arms
    :return: whether all its runs drew uniformly; never for a setting that is meant to, which has no control
    """
    return names.judged[arm] is not None and all(float(row["spread"]) >= UNIFORM for row in rows if row["arm"] == arm)


def _cure(arm: Arm) -> str:
    return " A smaller kappa, near the size of the errors, lets them differ." if arm.role() == "LAP" else ""
