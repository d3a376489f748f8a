"""Plan a comparison, run what is missing, and report: what ``sb3-per compare`` does with its options."""

import argparse
from pathlib import Path

import numpy as np
from gymnasium.error import Error
from tqdm import tqdm

from sb3_per.compare.campaign import Job, missing, read, run_missing
from sb3_per.compare.report import Results, comparisons, draw, table, verdict
from sb3_per.compare.runs import entry_of, prepare, run, seconds_of
from sb3_per.compare.task import TWIN, Arm, Task, arms_of, jobs_of


def compare(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """
    Run what is missing, and print a table and a sentence.

    :param parser: parser of the command, for messages
    :param options: options of the command
    :raises SystemExit: for options that cannot be used, and if the user stops the runs
    """
    task = Task(**{name: value for name, value in vars(options).items() if name in Task.__annotations__})
    try:
        prepare(task)
        entry = entry_of(task)
        arms = arms_of(task, options.setting)
        jobs = jobs_of(task, entry, arms, options.rates, options.seeds)
        path = Path(options.folder, "compare", f"{task.algo}-{task.env}.csv".replace("/", "-"))
        lacking = [name["arm"] for name, _ in missing(path, jobs)]
        _show_plan(task, arms, options.rates, options.seeds)
        if lacking:
            # Train each of these arms for a few seconds, which also finds settings that it refuses.
            seconds = sum(lacking.count(arm.name) * seconds_of(task, arm) for arm in arms if arm.name in lacking)
            duration = _duration(seconds / options.workers)
            print(f"about {duration} for {len(lacking)} missing runs, the random policy included", flush=True)
    except (ValueError, TypeError, KeyError, OSError, ImportError, NotImplementedError, Error) as error:
        parser.exit(2, f"{parser.prog}: {type(error).__name__}: {error}\n")
    if options.dry_run:
        return
    try:
        with tqdm(total=len(lacking), unit="run", disable=not lacking) as bar:
            run_missing(path, jobs, run, options.workers, show=lambda _: bar.update())
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped; the same command goes on\n")
    n_timesteps = task.n_timesteps if task.n_timesteps > 0 else int(entry["n_timesteps"])
    _report(arms, _results_of(path, jobs, arms, options.rates), n_timesteps, path.with_suffix(".png"))


def _show_plan(task: Task, arms: list[Arm], rates: list[float], seeds: int) -> None:
    print(f"{task.env}, {task.algo}, hyperparameters of {task.config}")
    print(f"arms: {'; '.join(arm.name for arm in arms)}")
    factors = ", ".join(f"{rate:.3g}" for rate in rates)
    n_runs = len(arms) * len(rates) * seeds
    print(f"{len(arms)} arms x {len(rates)} factors of the learning rate ({factors}) x {seeds} seeds = {n_runs} runs")


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{max(minutes, 1):.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _results_of(path: Path, jobs: list[Job], arms: list[Arm], rates: list[float]) -> Results:
    keys = list(jobs[0][0])
    rows = {tuple(row[key] for key in keys): row["returns"] for row in read(path)}
    of_random, *found = (np.array(rows[tuple(str(value) for value in name.values())].split(), dtype=float) for name, _ in jobs)
    # As the jobs are ordered: seeds, rates, arms.
    of_all = np.array(found).reshape(-1, len(rates), len(arms), len(of_random))
    return Results({arm.name: of_all[:, :, i].swapaxes(0, 1) for i, arm in enumerate(arms)}, of_random, rates)


def _report(arms: list[Arm], results: Results, n_timesteps: int, picture: Path) -> None:
    names = {arm.kind: arm.name for arm in arms}
    controls = {arm.setting: arm.name for arm in arms if arm.kind == "shuffled"}
    judged = {arm.name: controls.get(arm.setting) for arm in arms if arm.kind == "setting"}
    rows = comparisons(results, names.get("stock"), TWIN, judged)
    roles = {arm.name: arm.role() for arm in arms}
    roles.update({control: arm for arm, control in judged.items() if control is not None})
    draw(results, roles, n_timesteps, picture)
    print(f"\n{table(rows)}\n")
    print("difference: of the mean returns, with its 95% bootstrap interval; better in: share of the pairs of runs;")
    print("p: exact permutation test, corrected for the tests of the table by Holm's method")
    print(f"random policy: {results.of_random.mean():.4g}; learning curves: {picture}\n")
    print(verdict(results, rows, TWIN, judged))
