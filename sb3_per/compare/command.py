"""Plan a comparison, run the jobs that are missing, and report: what ``sb3-per compare`` does with its options."""

import argparse
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from sb3_per.compare.campaign import Job, missing, processes, read, run_missing
from sb3_per.compare.literals import words_of
from sb3_per.compare.report import SAME_TIME, Results, comparisons, draw, table, verdict
from sb3_per.compare.runs import Trial, entry_of, has_own_entry, prepare, run, try_arm
from sb3_per.compare.statistics import least_difference, least_seeds
from sb3_per.compare.task import RANDOM, TWIN, Arm, Task, arms_of, jobs_of, pairs_of, timed_pairs_of
from sb3_per.zoo.hyperparameters import check_names
from sb3_per.zoo.names import split_env

#: Least seconds of training that are measured of each arm.
TIMED_SECONDS = 2.0

# Share of the buffer above which draws count as uniform.
_UNIFORM = 0.99

_DAY = 86_400.0

# Columns of the file of results.
_COLUMNS = ("arm", "rate", "seed", "task", "packages", "seconds", "training", "returns", "updates", "spread")


class Plan(NamedTuple):
    """
    A comparison before it runs.

    :param task: task
    :param arms: arms
    :param rates: factors of the learning rate
    :param seeds: number of runs of each arm at each learning rate
    :param jobs: all runs, the random policy first
    :param n_timesteps: environment steps of a run
    :param path: CSV file of the results
    """

    task: Task
    arms: list[Arm]
    rates: list[float]
    seeds: int
    jobs: list[Job]
    n_timesteps: int
    path: Path


def compare(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    make_pool: Callable[[int], Executor] = processes,
    timed_seconds: float = TIMED_SECONDS,
) -> None:
    """
    Run what is missing, print a table and a sentence, and draw the learning curves.

    :param parser: parser of the command, for messages
    :param options: options of the command
    :param make_pool: makes the pool of workers
    :param timed_seconds: least time of training of each arm that is measured before the runs
    :raises SystemExit: for options that cannot be used, and if the user stops the runs
    """
    try:
        plan = plan_of(options)
        lacking = missing(plan.path, plan.jobs)
        if lacking:
            print("measuring the time of a run ...", flush=True)
            trials = {arm.name: try_arm(plan.task, arm, timed_seconds) for arm in plan.arms}
            trials[RANDOM] = Trial(0.0, trials[TWIN].evaluation)
            _print_time(plan, lacking, trials, options)
            if not options.dry_run:
                plan.path.parent.mkdir(parents=True, exist_ok=True)
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped before any run\n")
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        parser.error(str(error))
    if options.dry_run:
        return
    try:
        with tqdm(total=len(lacking), unit="run", disable=not lacking) as bar:
            run_missing(plan.path, plan.jobs, run, options.workers, show=lambda _: bar.update(), make_pool=make_pool)
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: stopped; the same command goes on\n")
    except OSError as error:  # e.g. a full disk
        parser.exit(1, f"\n{parser.prog}: stopped by an error: {error}; the same command goes on\n")
    report(plan)


def plan_of(options: argparse.Namespace) -> Plan:
    """
    Read the options, and say what is going to run and what it can decide.

    :param options: options of the command
    :return: the plan
    :raises ValueError: for options that cannot be used
    """
    module, env = split_env(options.env)
    hyperparams = words_of("-params", options.hyperparams)
    if options.n_envs is not None:
        hyperparams["n_envs"] = options.n_envs
    task = Task(
        options.algo,
        env,
        n_timesteps=options.n_timesteps,
        conf_file=options.conf_file,
        hyperparams=hyperparams,
        env_kwargs=words_of("--env-kwargs", options.env_kwargs),
        gym_packages=[*options.gym_packages, module] if module else options.gym_packages,
        vec_env=options.vec_env,
        device=options.device,
        n_episodes=options.n_episodes,
    )
    prepare(task)
    arms = arms_of(task, options.setting, options.more_updates)
    check_names(hyperparams, '--setting "{}"')
    entry = entry_of(task, arms[0])
    n_timesteps = task.n_timesteps if task.n_timesteps > 0 else int(entry["n_timesteps"])
    path = Path(options.folder, "compare", f"{task.algo}-{task.env}.csv".replace("/", "-"))
    rows = read(path)
    if rows and tuple(rows[0]) != _COLUMNS:
        raise ValueError(f"{path} has columns of another version: move it away, or name another folder with -f")
    jobs = jobs_of(task, entry, arms, options.rates, options.seeds)

    n_envs = entry.get("n_envs", 1)
    print(f"{task.env}, {task.algo}, {n_timesteps:,} steps a run in {n_envs} environment{'s' if n_envs > 1 else ''}")
    print(f"hyperparameters of {task.config}")
    if not has_own_entry(task):
        print(
            f"it has none for {task.env} itself, so the runs take its entry for all environments, or for Atari. -conf names a "
            "file of your own"
        )
    print(f"arms: {'; '.join(arm.name for arm in arms)}")
    if entry.get("double_q"):
        print("stock DQN has no double_q, which the file sets: the other arms differ from it by more than the draw")
    factors = ", ".join(f"{rate:.3g}" for rate in options.rates)
    print(f"{len(arms)} arms x {options.seeds} seeds x learning rate times {factors} = {len(jobs) - 1} runs")
    n_tests = 2 * (len(pairs_of(arms)) + len(timed_pairs_of(arms)))
    least = least_seeds(n_tests)
    if options.seeds < least:
        print(f"{options.seeds} seeds cannot show a difference: {n_tests} tests need --seeds {least} or more")
    else:
        difference = least_difference(options.seeds, n_tests)
        print(f"{options.seeds} seeds can show a difference of {difference:.1f} standard deviations between seeds")
    return Plan(task, arms, options.rates, options.seeds, jobs, n_timesteps, path)


def seconds_of(jobs: list[Job], trials: dict[str, Trial], share: float = 1.0) -> float:
    """
    Estimate how long jobs take, one after the other.

    :param jobs: jobs
    :param trials: facts of each arm, by its name
    :param share: share of the environment steps
    :return: seconds
    """
    job_trials = [trials[arm.name] for _, (_, arm, _, _) in jobs]
    return sum(share * trial.training + trial.evaluation for trial in job_trials)


def _print_time(plan: Plan, lacking: list[Job], trials: dict[str, Trial], options: argparse.Namespace) -> None:
    """Say how long the missing runs take and, if that is more than a day, how long shorter comparisons take."""
    seconds = seconds_of(lacking, trials) / options.workers
    workers = "1 worker" if options.workers == 1 else f"{options.workers} workers"
    runs = f"{len(lacking)} missing runs, the random policy included"
    print(f"about {duration_text(seconds)} with {workers} for {runs}", flush=True)
    if seconds > _DAY:
        shorter = duration_text(seconds_of(lacking, trials, 0.1) / options.workers)
        ways = [f"-n {max(plan.n_timesteps // 10, 1)}: about {shorter}"]
        if not options.quick:
            quick = [job for job in lacking if job[1][2] == 1.0 and job[1][3] < options.quick_seeds]
            ways.append(f"--quick: about {duration_text(seconds_of(quick, trials) / options.workers)}")
        print(f"shorter, with {'; '.join(ways)}", flush=True)


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


def results_of(plan: Plan) -> Results:
    """
    Read the results of a comparison.

    :param plan: comparison, all of whose runs are there
    :return: its results
    """
    keys = list(plan.jobs[0][0])
    rows_by_name = {tuple(row[key] for key in keys): row for row in read(plan.path)}
    rows = {
        (arm.name, rate, seed): rows_by_name[tuple(str(value) for value in name.values())]
        for name, (_, arm, rate, seed) in plan.jobs
    }

    def numbers(arm: Arm, column: str) -> np.ndarray:
        """Read a column of the runs of an arm, shape (rates, seeds, numbers of a run)."""
        cells = [[rows[arm.name, rate, seed][column].split() for seed in range(plan.seeds)] for rate in plan.rates]
        return np.array(cells, dtype=float)

    return Results(
        plan.arms,
        curves={arm.name: numbers(arm, "returns") for arm in plan.arms},
        updates={arm.name: float(numbers(arm, "updates").mean()) for arm in plan.arms},
        random_returns=np.array(rows[RANDOM, 1.0, 0]["returns"].split(), dtype=float),
        rates=plan.rates,
        spreads={arm.name: float(numbers(arm, "spread").min()) for arm in plan.arms},
        seconds={arm.name: float(np.median(numbers(arm, "training"))) for arm in plan.arms},
    )


def report(plan: Plan) -> None:
    """
    Print what the runs say, then draw them.

    :param plan: comparison, all of whose runs are there
    """
    results = results_of(plan)
    compared = comparisons(results)
    # Every comparison has a picture of its own.
    digest = hashlib.sha256(repr([name for name, _ in plan.jobs]).encode()).hexdigest()
    picture = plan.path.with_name(f"{plan.path.stem}-{digest[:6]}.png")
    print(f"\n{table(results, compared)}\n")
    print(f"updates: gradient updates in the {plan.n_timesteps:,} steps of a run; seconds: median run, without evaluations")
    if any(row.endpoint in SAME_TIME for row in compared):
        print("same time: of the shorter of the two runs. The curve of the longer one is read there, between its evaluations")
    print("interval: of the mean difference, paired by seed, not corrected: it may exclude 0 where p is large")
    print("seeds: with how many of them the first is better; a tie counts half")
    print("p: paired test, corrected for all tests of the table (Holm)")
    print(f"learning curves: {picture}\n")
    for arm in plan.arms:
        if arm.control_for is not None and results.spreads[arm.name] >= _UNIFORM:
            print(
                f"warning: {arm.label}: no TD error raised a priority above the others, so it drew uniformly in all runs. "
                "With LAP, lower kappa"
            )
    print(verdict(results, compared), flush=True)
    draw(results, plan.n_timesteps, picture)
