"""
Find out whether prioritization pays on your task.

    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'" --dry-run
    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'"

It needs the extra ``compare``.
"""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_per.utils.extras import require

if TYPE_CHECKING:
    from sb3_per.compare.report import Results
    from sb3_per.compare.task import Arm, Task

# Seeds and factors of the learning rate: of a whole comparison, and of a quick one.
SEEDS, QUICK_SEEDS = 10, 3
RATES = (1 / 3, 1.0, 3.0)

_DESCRIPTION = """
Train the stock class, its uniform twin (the same class with uniform draws), your setting, and your setting with its priorities
shuffled within the batch, on your task: several seeds, several learning rates. The setting pays if it beats the twin, and the
priorities are the reason if it beats the shuffled ones. A stopped comparison continues with the same command.
"""


def main(arguments: Sequence[str] | None = None, typed: str = "sb3-per compare") -> int:
    """
    Run what is missing, and print a table and a sentence.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param typed: what the user has typed before them, for help and messages
    :return: exit status
    """
    parser = _parser(typed)
    options = parser.parse_args(arguments)
    for package in ("rl_zoo3", "matplotlib", "tqdm"):
        require(package, "compare", typed)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    rates = sorted({1.0, *(options.rates or ([] if options.quick else RATES))})

    from gymnasium.error import Error

    from sb3_per.compare import runs
    from sb3_per.compare.task import arms_of, jobs_of

    task = _task_of(options)
    try:
        runs.prepare(task)
        entry = runs.entry_of(task)
        arms = arms_of(task, options.setting)
        jobs = jobs_of(task, entry, arms, rates, seeds)
        path = Path(options.folder, "compare", f"{task.algo}-{task.env}.csv".replace("/", "-"))
        _show_plan(task, arms, rates, seeds)
        n_missing = _show_estimate(task, arms, path, jobs, options.workers)
    except (ValueError, TypeError, KeyError, OSError, ImportError, NotImplementedError, Error) as error:
        parser.exit(2, f"{typed}: {type(error).__name__}: {error}\n")
    if options.dry_run:
        return 0
    try:
        _run(path, jobs, n_missing, options.workers)
    except KeyboardInterrupt:
        parser.exit(130, f"\n{typed}: stopped; the same command goes on\n")
    n_timesteps = task.n_timesteps if task.n_timesteps > 0 else int(entry["n_timesteps"])
    _report(arms, _results_of(path, jobs, arms, rates, seeds), n_timesteps, path.with_suffix(".png"))
    return 0


def _parser(typed: str) -> argparse.ArgumentParser:
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    parser = argparse.ArgumentParser(typed, usage, _DESCRIPTION)
    add = parser.add_argument
    add("--algo", required=True, help="algorithm with RL Zoo's hyperparameters, e.g. dqn, or with ours, e.g. per_dqn")
    add("--env", required=True, help="id of the environment, e.g. LunarLander-v3")
    add("--setting", action="append", default=[], help="setting to judge, e.g. \"scheme='lap', kappa=0.1\"; repeatable")
    add("-n", "--n-timesteps", type=int, default=-1, metavar="N", help="environment steps of a run; default: of the file")
    add("-conf", "--conf-file", metavar="FILE", help="your own hyperparameter file")
    add("-params", "--hyperparams", nargs="+", default=[], metavar="NAME:VALUE", help="replace hyperparameters of the file")
    add("--env-kwargs", nargs="+", default=[], metavar="NAME:VALUE", help="arguments of the environment")
    add("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    add("--vec-env", default="dummy", choices=("dummy", "subproc"), help="where several environments run; default: dummy")
    add("--device", default="cpu", help="device of PyTorch; default: cpu")
    add("--seeds", type=int, metavar="N", help=f"runs of each arm at each learning rate; default: {SEEDS}")
    add(
        "--rates", type=_factor, nargs="+", metavar="F", help="factors of the learning rate; 1 is always one; default: 1/3 1 3"
    )
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds and one learning rate: a first impression")
    add("--eval-episodes", type=int, default=10, metavar="N", help="episodes of an evaluation; default: 10")
    add("--workers", type=int, default=1, metavar="N", help="runs at a time, one core each; default: 1")
    add("-f", "--folder", default="logs", help="results go to its folder compare; default: logs")
    add("--dry-run", action="store_true", help="show the arms, and how long it will take")
    return parser


def _factor(text: str) -> float:
    factor = float(Fraction(text))
    if factor <= 0:
        raise ValueError
    return factor


def _task_of(options: Any) -> "Task":
    from sb3_per.compare.task import Task

    return Task(
        algo=options.algo,
        env=options.env,
        n_timesteps=options.n_timesteps,
        conf_file=options.conf_file,
        hyperparams=tuple(options.hyperparams),
        env_kwargs=tuple(options.env_kwargs),
        gym_packages=tuple(options.gym_packages),
        vec_env=options.vec_env,
        device=options.device,
        n_episodes=options.eval_episodes,
    )


def _show_plan(task: "Task", arms: "list[Arm]", rates: list[float], seeds: int) -> None:
    print(f"{task.env}, {task.algo}, hyperparameters of {task.config}")
    print(f"arms: {'; '.join(arm.name for arm in arms)}")
    factors = ", ".join(f"{rate:.3g}" for rate in rates)
    n_runs = len(arms) * len(rates) * seeds
    print(f"{len(arms)} arms x {len(rates)} factors of the learning rate ({factors}) x {seeds} seeds = {n_runs} runs")


def _show_estimate(task: "Task", arms: "list[Arm]", path: Path, jobs: list[Any], workers: int) -> int:
    """
    Train each arm that lacks runs for a few seconds, which also finds settings that it refuses.

    :return: number of runs that are missing
    """
    from sb3_per.compare.campaign import missing
    from sb3_per.compare.runs import seconds_of

    lacking = missing(path, jobs)
    if lacking:
        wanted = [name["arm"] for name, _ in lacking]
        total = sum(wanted.count(arm.name) * seconds_of(task, arm) for arm in arms if arm.name in wanted) / workers
        print(f"about {_duration(total)} for {len(lacking)} missing runs, the random policy included", flush=True)
    return len(lacking)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{max(minutes, 1):.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _run(path: Path, jobs: list[Any], n_missing: int, workers: int) -> None:
    from tqdm import tqdm

    from sb3_per.compare.campaign import run_missing
    from sb3_per.compare.runs import run

    with tqdm(total=n_missing, unit="run", disable=not n_missing) as bar:
        run_missing(path, jobs, run, workers, show=lambda _: bar.update())


def _results_of(path: Path, jobs: list[Any], arms: "list[Arm]", rates: list[float], seeds: int) -> "Results":
    import numpy as np

    from sb3_per.compare.campaign import read
    from sb3_per.compare.report import Results

    keys = list(jobs[0][0])
    rows = {tuple(row[key] for key in keys): row["returns"] for row in read(path)}
    of_random, *found = (np.array(rows[tuple(str(value) for value in name.values())].split(), dtype=float) for name, _ in jobs)
    # As the jobs are ordered: seeds, rates, arms.
    of_all = np.array(found).reshape(seeds, len(rates), len(arms), -1)
    return Results({arm.name: of_all[:, :, i].swapaxes(0, 1) for i, arm in enumerate(arms)}, of_random, rates)


def _report(arms: "list[Arm]", results: "Results", n_timesteps: int, picture: Path) -> None:
    from sb3_per.compare.report import comparisons, draw, table, verdict
    from sb3_per.compare.task import TWIN

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
