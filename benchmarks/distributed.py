"""
Measure what actors cost and bring, and write docs/benchmarks/distributed.md.

    python benchmarks/distributed.py                              # on an idle machine
    python benchmarks/distributed.py --only scaling wall_time     # some parts; the rest stays
    python benchmarks/distributed.py --quick --out runs/try       # to try it
    python benchmarks/distributed.py --only learning              # 5 seeds, with and without actors; continues

Slow environments sleep, so that many fit on two cores. Each part writes its figures into ``distributed.json``, and the table
follows from that file.
"""

import argparse
import contextlib
import copy
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from campaign import done
from gymnasium import spaces
from learning import evaluations, returns_of
from scipy.stats import trim_mean
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from timing import machine, seconds

from sb3_per import PERDQN, PERSAC
from sb3_per.compare.campaign import read, run_missing
from sb3_per.distributed import make_actors

OUT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
N_ACTORS = 8
RAY = dict(num_cpus=2, object_store_memory=200_000_000, log_to_driver=False)


class SleepingEnv(gym.Env):
    """Environment whose steps take a given number of seconds, with 3 observations, like Pendulum, or 2 actions."""

    def __init__(self, seconds: float = 0.0, exponential: bool = False, discrete: bool = True):
        self.observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.seconds, self.exponential = seconds, exponential
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.seconds > 0.0:
            time.sleep(self.np_random.exponential(self.seconds) if self.exponential else self.seconds)
        return np.full(3, self.t / 1000, np.float32), 1.0, False, self.t >= 1000, {}


def actors(n: int = N_ACTORS, **kwargs: Any) -> Any:
    """Make actors on this machine, with a Ray of their own; they end with the context."""
    return contextlib.closing(make_actors(SleepingEnv, n_actors=n, ray_options=RAY, **kwargs))


def subprocesses(**kwargs: Any) -> Any:
    """Make as many environments in processes of SB3; they end with the context."""
    return contextlib.closing(make_vec_env(SleepingEnv, N_ACTORS, vec_env_cls=SubprocVecEnv, **kwargs))


def warm(cls: Any, env: Any, n_steps: int, **kwargs: Any) -> Any:
    """Make a model with an update at every step, and train it until all is compiled and all actors act."""
    return cls("MlpPolicy", env, train_freq=1, buffer_size=100_000, learning_starts=0, **kwargs).learn(n_steps)


def learning_seconds(model: Any, n: int) -> float:
    return seconds(lambda: model.learn(n, reset_num_timesteps=False))


# ---- the parts

# What was measured, figure, target, whether a larger figure is better.
Row = tuple[str, float, float, bool]


def count_seconds(owner: Any, method: str, total: list[float]) -> None:
    """Add the time of all calls of a method to a total."""
    original = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        total[0] += time.perf_counter() - start
        return result

    setattr(owner, method, counted)


def part_overhead(n: int) -> list[Row]:
    """Measure the learner's share of time beside learning, with one update per transition. Waiting does not count."""
    rows: list[Row] = []
    for name, cls, target in (("DQN", PERDQN, 0.10), ("SAC", PERSAC, 0.03)):
        with actors(2, n_envs=4, env_kwargs=dict(discrete=cls is PERDQN)) as env:
            model, inner = warm(cls, env, 300, gradient_steps=-1), [0.0]
            for method in ("sample", "update_priorities"):
                count_seconds(model.replay_buffer, method, inner)
            count_seconds(model, "_gradient_step", inner)
            total = learning_seconds(model, n if cls is PERDQN else n // 4)
            share = 1 - inner[0] / (total - env.crew.seconds_waited)
        rows.append((f"learner's time outside of sample, update and gradient step, {name}", share, target, False))
    return rows


def part_admission(n: int) -> list[Row]:
    """Measure the learner's time for a transition, without updates and waiting, against a step of SubprocVecEnv."""
    with actors(2, n_envs=N_ACTORS // 2) as env:
        ours = learning_seconds(warm(PERDQN, env, 2_000, gradient_steps=0), n) - env.crew.seconds_waited
    with subprocesses() as env:
        env.reset()
        theirs = seconds(lambda: env.step(np.zeros(N_ACTORS, np.int64)), n // N_ACTORS) * (n // N_ACTORS)
    return [("admitting a transition / a step of SubprocVecEnv(8), by transition", ours / theirs, 0.25, False)]


def part_scaling(n: int) -> list[Row]:
    """Measure transitions a second of 8 actors against one, on an environment of 10 ms, without updates."""
    times = []
    for n_actors in (1, N_ACTORS):
        with actors(n_actors, env_kwargs=dict(seconds=0.01), chunk=25) as env:
            times.append(learning_seconds(warm(PERDQN, env, 50 * n_actors, gradient_steps=0), n * n_actors))
    return [("8 actors / 8 times one, environment of 10 ms, no updates", times[0] / times[1], 0.9, True)]


def part_wall_time(n: int) -> list[Row]:
    """Measure the time against SubprocVecEnv(8), where a step of all environments takes as long as its updates."""
    probe = warm(PERSAC, make_vec_env(SleepingEnv, 8, env_kwargs=dict(discrete=False)), 800)
    t_update = seconds(lambda: probe.train(50, 256)) / 50
    rows: list[Row] = []
    for exponential, target in ((False, 0.6), (True, 0.45)):
        times = []
        for make_envs in (actors, subprocesses):
            with make_envs(env_kwargs=dict(seconds=t_update, exponential=exponential, discrete=False)) as env:
                times.append(learning_seconds(warm(PERSAC, env, 800), n))
        what = "exponential step times" if exponential else "equal step times"
        rows.append((f"wall time / SubprocVecEnv(8), t_env / N = g t_update, {what}", times[0] / times[1], target, False))
    return rows


def part_ratio(n: int) -> list[Row]:
    """Measure samples per insert against the number asked for."""
    with actors(env_kwargs=dict(seconds=0.001)) as env:
        model = PERDQN("MlpPolicy", env, train_freq=2, gradient_steps=3, buffer_size=100_000, learning_starts=500).learn(n)
    asked, measured = 3 / (2 * N_ACTORS), model._n_updates / (model.num_timesteps - 500)
    return [("samples per insert / asked for - 1", abs(measured / asked - 1), 0.01, False)]


class Task(NamedTuple):
    algorithm: Any  # name of a class of this package
    steps: int  # number of transitions of a run
    floor: float  # return of a policy that has learned nothing; returns are compared by their distance from it
    settings: dict[str, Any]  # settings of the algorithm


# Updates for each transition are those of RL Zoo.
TASKS = {
    "CartPole-v1": Task(PERDQN, 50_000, 0.0, dict(learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
        learning_starts=1000, train_freq=1, gradient_steps=4, target_update_interval=80, exploration_fraction=0.16,
        exploration_final_eps=0.04, policy_kwargs=dict(net_arch=[256, 256]))),
    "Pendulum-v1": Task(PERSAC, 20_000, -1200.0, dict(learning_rate=1e-3, learning_starts=500, gradient_steps=-1)),
}  # fmt: skip
N_EVALUATIONS, N_SCORED = 10, 3


def part_learning(n: int, out: Path, is_quick: bool = False) -> list[Row]:
    """
    Compare returns with actors and with synchronous training: the mean of the last evaluations of a run, and the interquartile
    mean over seeds. Each run is a row of ``distributed-learning.csv``.
    """
    path = out / "distributed-learning.csv"
    jobs = []
    for seed, (env_id, task), collection in itertools.product(range(n), TASKS.items(), ("synchronous", "actors")):
        name = dict(environment=env_id, collection=collection, seed=seed, steps=task.steps // (50 if is_quick else 1))
        jobs.append((name, tuple(name.values())))
    run_missing(path, jobs, learned, workers=1)  # actors need the other cores
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (env_id, collection, *_), row in done(read(path), jobs):
        scores[env_id, collection].append(float(row["score"]))
    rows: list[Row] = []
    for env_id, task in TASKS.items():
        ours, theirs = (float(trim_mean(scores[env_id, name], 0.25)) for name in ("actors", "synchronous"))
        what = f"learning, {env_id}, {n} seeds, IQM with actors {ours:.1f}, synchronous {theirs:.1f}; ratio"
        what += f" of the distances from {task.floor:.0f}" if task.floor else ""
        rows.append((what, (ours - task.floor) / (theirs - task.floor), 0.95, True))
    return rows


def learned(env_id: str, collection: str, seed: int, steps: int) -> dict[str, Any]:
    """Train a run. Return its score, and its evaluations: mean returns of 20 episodes of the deterministic policy."""
    th.set_num_threads(1)
    task = TASKS[env_id]
    has_actors, test_env = collection == "actors", make_vec_env(env_id, 20)
    env = make_actors(env_id, n_actors=N_ACTORS, ray_options=RAY) if has_actors else make_vec_env(env_id, N_ACTORS)
    model = task.algorithm("MlpPolicy", env, seed=seed, **copy.deepcopy(task.settings))
    at = [steps * (i + 1) // N_EVALUATIONS for i in range(N_EVALUATIONS)]
    returns = evaluations(model, at, lambda: float(np.mean(returns_of(model, test_env, 20))))
    env.close()
    numbered = {f"evaluation_{i + 1}": round(value, 2) for i, value in enumerate(returns)}
    return {"score": round(float(np.mean(returns[-N_SCORED:])), 3), **numbered}


# Function of each part, with its size in full and with --quick.
PARTS: dict[str, tuple[Callable[..., list[Row]], int, int]] = {
    "overhead": (part_overhead, 8_000, 400),
    "admission": (part_admission, 60_000, 4_000),
    "scaling": (part_scaling, 1_000, 100),
    "wall_time": (part_wall_time, 12_000, 1_200),
    "ratio": (part_ratio, 10_000, 2_000),
    "learning": (part_learning, 5, 1),
}


def report(results: dict[str, Any]) -> str:
    lines = [f"{machine()}, one thread each. Environments sleep. `python benchmarks/distributed.py`", ""]
    lines += ["| what | figure | target | |", "|---|---|---|---|"]
    for what, figure, target, larger in (row for part in PARTS for row in results.get(part, {}).get("rows", [])):
        is_met, sign = (figure >= target, ">=") if larger else (figure <= target, "<=")
        lines.append(f"| {what} | {figure:.3g} | {sign} {target} | {'met' if is_met else '**missed**'} |")
    times = ", ".join(f"{part} {result['seconds']:.0f} s" for part, result in results.items())
    return "\n".join([*lines, "", f"Run time of the parts: {times}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts; without, all but learning")
    parser.add_argument("--quick", action="store_true", help="much less of everything")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of distributed.json and distributed.md")
    args = parser.parse_args()
    if args.quick and args.out == OUT:
        parser.error("--quick needs --out: its figures do not belong to the documentation")
    th.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "distributed.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for part in args.only or [part for part in PARTS if part != "learning"]:
        function, *sizes = PARTS[part]
        start = time.perf_counter()
        rows = function(sizes[args.quick], *((args.out, args.quick) if part == "learning" else ()))
        results[part] = {"rows": rows, "seconds": time.perf_counter() - start}
        path.write_text(json.dumps(results, indent=1))
        for row in rows:
            print(part, *row[:3], sep=" | ", flush=True)
    (args.out / "distributed.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
