"""
Does prioritization pay on your task? Stock, its uniform twin, a setting, and that setting with its priorities shuffled within
the batch, each at a third, one and three times the learning rate, on any registered environment.

    python benchmarks/compare.py --algo DQN --env CartPole-v1 --steps 10000 --buffer "dict(scheme='lap', kappa=0.1)"
    python benchmarks/compare.py --algo SAC --env my_envs/Task-v0 --import my_envs --settings "dict(batch_size=100)"

A stopped comparison continues. A gain counts if it is there at each arm's own best learning rate, and gone when the priorities
are shuffled.
"""

import argparse
import importlib
import inspect
from pathlib import Path
from typing import Any

import stable_baselines3
from campaign import read, run_missing
from controls import control_of
from learning import THREE_RATES, Suite, Variant, at_rates, jobs_of, train
from report import load, report_rates


def arms_of(algorithm: str, buffer_kwargs: dict[str, Any]) -> dict[str, Variant]:
    """
    :param algorithm: a class of Stable-Baselines3 that this package has a prioritized one for
    :param buffer_kwargs: the setting to be judged
    :return: what is compared
    """
    settings = {"setting": buffer_kwargs, "setting, shuffled": control_of(buffer_kwargs)}
    prioritized = {"uniform": dict(scheme="uniform"), **settings}
    return {
        algorithm: Variant(algorithm),
        **{name: Variant(f"PER{algorithm}", dict(replay_buffer_kwargs=kwargs)) for name, kwargs in prioritized.items()},
    }


def train_with(package: str | None, *arguments: Any) -> dict[str, Any]:
    """One run; the package that registers the environment is imported in its process."""
    if package:
        importlib.import_module(package)
    return train(*arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", required=True, choices=("SAC", "TD3", "DDPG", "DQN"))
    parser.add_argument("--env", required=True, help="id of a registered environment")
    parser.add_argument("--import", dest="package", help="module that registers it")
    parser.add_argument("--steps", type=int, default=50_000, help="of each run")
    parser.add_argument(
        "--seeds", type=int, default=10, help="of each arm at each learning rate; half of them choose the rate"
    )
    parser.add_argument("--buffer", default="{}", help="replay_buffer_kwargs that are judged, a Python expression")
    parser.add_argument("--settings", default="{}", help="other keyword arguments of all runs, a Python expression")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder of runs and figure")
    args = parser.parse_args(arguments)

    settings = eval(args.settings)
    default = inspect.signature(getattr(stable_baselines3, args.algo)).parameters["learning_rate"].default
    learning_rate = settings.pop("learning_rate", default)
    suite = Suite(
        environments=(args.env,),
        variants=at_rates(arms_of(args.algo, eval(args.buffer)), learning_rate, THREE_RATES),
        rates=THREE_RATES,
        seeds=args.seeds,
        steps=args.steps,
        settings=settings,
        n_evaluations=10,
        n_episodes=10,
        endpoint="Mean return of the last two of ten evaluations.",
    )
    name = "".join(c if c.isalnum() else "_" for c in f"{args.algo}_{args.env}")
    path = args.out / f"{name}.csv"
    jobs = [(job, (args.package, *parts)) for job, parts in jobs_of(suite)]
    run_missing(path, jobs, train_with, args.workers)
    print("\n".join(report_rates(suite, load(suite, read(path)), path.with_suffix(".png"))))


if __name__ == "__main__":
    main()
