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
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
import psutil
import torch as th
from gymnasium import spaces
from scipy.stats import trim_mean
from speed import machine
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv
from timing import count_seconds, seconds

from sb3_per import PERDQN, PERSAC
from sb3_per.compare.campaign import read, run_missing
from sb3_per.distributed import make, make_actors
from sb3_per.distributed.engines import LocalEngine
from sb3_per.distributed.metrics import Metrics

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
        """See Gymnasium."""
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        """See Gymnasium."""
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


def dqn(env: Any, n_warm: int = 0, **kwargs: Any) -> Any:
    """Make a model with SB3's defaults, except for what is given, and train it until all is compiled and all actors act."""
    model = PERDQN("MlpPolicy", env, **{"train_freq": 1, "buffer_size": 100_000, "learning_starts": 0, **kwargs})
    return model.learn(n_warm) if n_warm else model


def sac(env: Any, n_warm: int = 0, **kwargs: Any) -> Any:
    """Make a model as :func:`dqn` does, of SAC."""
    model = PERSAC("MlpPolicy", env, **{"buffer_size": 100_000, "learning_starts": 0, **kwargs})
    return model.learn(n_warm) if n_warm else model


def learning_seconds(model: Any, n: int, **kwargs: Any) -> float:
    """Time some more steps of a model."""
    return seconds(lambda: model.learn(n, reset_num_timesteps=False, **kwargs))


# ---- the parts

# What was measured, figure, target, whether a larger figure is better.
Row = tuple[str, float | str, float | None, bool]


def part_overhead(n: int) -> list[Row]:
    """Measure the learner's share of time beside learning, with one update per transition. Waiting does not count."""
    rows: list[Row] = []
    cases: Any = (("DQN", dqn, 4, 0.10), ("SAC", sac, 4, 0.03), ("DQN with 2 environments", dqn, 1, None))
    for name, make_model, n_envs, target in cases:
        with actors(2, n_envs=n_envs, env_kwargs=dict(discrete=make_model is dqn)) as env:
            model, inner = make_model(env, 300, gradient_steps=-1), [0.0]
            for method in ("sample", "update_priorities"):
                count_seconds(model.replay_buffer, method, inner)
            count_seconds(model, "_gradient_step", inner)
            total = learning_seconds(model, n if make_model is dqn else n // 4)
            share = 1 - inner[0] / (total - env.crew.seconds_waited)
        figure = share if target is not None else f"{share:.3g}"
        rows.append((f"learner's time outside of sample, update and gradient step, {name}", figure, target, False))
    return rows


def part_admission(n: int) -> list[Row]:
    """Measure the learner's time for a transition, without updates and waiting, against a step of SubprocVecEnv."""
    with actors(2, n_envs=N_ACTORS // 2) as env:
        ours = learning_seconds(dqn(env, 2_000, gradient_steps=0), n) - env.crew.seconds_waited
    with subprocesses() as env:
        env.reset()
        theirs = seconds(lambda: env.step(np.zeros(N_ACTORS, np.int64)), n // N_ACTORS) * (n // N_ACTORS)
    return [("admitting a transition / a step of SubprocVecEnv(8), by transition", ours / theirs, 0.25, False)]


def part_scaling(n: int) -> list[Row]:
    """Measure transitions a second of 8 actors against one, on an environment of 10 ms, without updates."""
    times = []
    for n_actors in (1, N_ACTORS):
        with actors(n_actors, env_kwargs=dict(seconds=0.01), chunk=25) as env:
            times.append(learning_seconds(dqn(env, 50 * n_actors, gradient_steps=0), n * n_actors))
    return [("8 actors / 8 times one, environment of 10 ms, no updates", times[0] / times[1], 0.9, True)]


def part_wall_time(n: int) -> list[Row]:
    """Measure the time against SubprocVecEnv(8), where a step of all environments takes as long as its updates."""
    probe = sac(make_vec_env(SleepingEnv, 8, env_kwargs=dict(discrete=False)), 800)
    t_update = seconds(lambda: probe.train(50, 256)) / 50
    rows: list[Row] = []
    for exponential, target in ((False, 0.6), (True, 0.45)):
        times = []
        for make_envs in (actors, subprocesses):
            with make_envs(env_kwargs=dict(seconds=t_update, exponential=exponential, discrete=False)) as env:
                times.append(learning_seconds(sac(env, 800), n))
        what = "exponential step times" if exponential else "equal step times"
        rows.append((f"wall time / SubprocVecEnv(8), t_env / N = g t_update, {what}", times[0] / times[1], target, False))
    return rows


def part_ratio(n: int) -> list[Row]:
    """Measure samples per insert against the number asked for."""
    with actors(env_kwargs=dict(seconds=0.001)) as env:
        model = dqn(env, n, train_freq=2, gradient_steps=3, learning_starts=500)
    asked, measured = 3 / (2 * N_ACTORS), model._n_updates / (model.num_timesteps - 500)
    return [("samples per insert / asked for - 1", abs(measured / asked - 1), 0.01, False)]


def part_kills(n: int) -> list[Row]:
    """
    Kill an actor (-9) every few seconds. Measure the run time against a run without kills, and check the buffer. Starting a
    process takes seconds of a core, so two cores that start one every two seconds have little time for acting.
    """
    without, *_ = _seconds_with_kills(n, None)
    rows: list[Row] = []
    for interval, target in ((2.0, 1.3), (5.0, None)):
        total, restarts, lost = _seconds_with_kills(n, interval)
        what = f"kill -9 of an actor every {interval:g} s ({restarts} restarts, {lost} transitions lost): time / without"
        rows.append((what, total / without if target else f"{total / without:.3g}", target, False))
    return rows


def _seconds_with_kills(n: int, interval: float | None) -> tuple[float, int, int]:
    """Run while actors are killed. Return the run time, and the numbers of restarts and of lost transitions."""
    ended = threading.Event()
    with actors(env_kwargs=dict(seconds=0.01), chunk=25, max_restarts=1000, timeout=300) as env:
        model = dqn(env, 50 * N_ACTORS, gradient_steps=0)
        if interval is not None:
            threading.Thread(target=_kill_again_and_again, args=(interval, ended), daemon=True).start()
        total = learning_seconds(model, n)
        ended.set()
        ids = model.replay_buffer.transition_ids[model.replay_buffer.transition_ids >= 0]
        is_same_end = model.replay_buffer.ring.added.sum() == model.num_timesteps and len(set(ids.tolist())) == len(ids)
        assert is_same_end, "The run has another end than it was asked for"
        assert interval is None or env.crew.restarts > 0, "Nobody was killed"
        return total, env.crew.restarts, env.crew.lost_transitions


def _kill_again_and_again(interval: float, ended: threading.Event) -> None:
    """Kill one of our own actors that acts right now, at intervals."""
    while not ended.wait(interval):
        with contextlib.suppress(psutil.Error):  # a process has ended
            ours = psutil.Process().children(recursive=True)
            acting = [each for each in ours if "ray::ActorProcess.call" in " ".join(each.cmdline())]
            if acting:
                acting[np.random.randint(len(acting))].kill()


def part_store(n: int) -> list[Row]:
    """Measure the largest growth of the object store in a run of many transitions, at ten times."""
    used: list[float] = []
    with actors(2, chunk=500, n_envs=4, initial_priorities="max") as env:
        model = dqn(env, 20_000, gradient_steps=0, learning_starts=10**9)
        begun = model.num_timesteps

        def note(*_: Any) -> bool:
            if model.num_timesteps - begun >= len(used) * n // 10:
                used.append(_store_used())
            return True

        learning_seconds(model, n, callback=note)
    return [(f"object store during {n:,} transitions, MiB more, at most", max(used[1:]) - used[0], 16.0, False)]


def _store_used() -> float:
    """Return the memory of Ray's object store in MiB."""
    from ray._private.internal_api import memory_summary

    line = next(line for line in memory_summary(stats_only=True).splitlines() if "Plasma memory usage" in line)
    return float(line.split("usage ")[1].split(" MiB")[0])


class SimulatedEngine(LocalEngine):
    """
    Local engine with a clock. A chunk takes the sum of exponential step times, with a mean of one, and an update ``t_update``.
    """

    def __init__(self, t_update: float):
        super().__init__()
        self.t_update = t_update
        self.clock, self.n_updates = 0.0, 0
        self._free: dict[int, float] = {}
        self._ends: dict[Any, float] = {}
        self._rng = np.random.default_rng(0)

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Ask as LocalEngine does, and schedule the answer."""
        handle = super().ask(actor, method, *args, **kwargs)
        n_steps = args[1] if method == "collect" else 0
        begin = max(self._free.get(actor, 0.0), self.clock + (self.n_updates * self.t_update))
        self._free[actor] = self._ends[handle] = begin + (self._rng.gamma(n_steps) if n_steps else 0.0)
        return handle

    def wait(self, handles: Sequence[Any], timeout: float) -> Any:
        """Return the answer that comes first."""
        handle = min(handles, key=self._ends.__getitem__)
        self.clock = max(self.clock + self.n_updates * self.t_update, self._ends.pop(handle))
        self.n_updates = 0
        self.answer(handle)
        return handle


def part_staleness(n: int) -> list[Row]:
    """Simulate lag in updates and samples per insert for 8 to 256 actors, with one update per step of all environments."""
    rows: list[Row] = []
    for n_actors, (per, gradient_steps) in itertools.product((8, 32, 128, 256), (("tick", 1), ("transition", -1))):
        # Steps and updates take equal times.
        engine, lags = SimulatedEngine(1.0 / n_actors if gradient_steps < 0 else 1.0), []
        with mock.patch.object(make, "LocalEngine", lambda engine=engine: engine):
            env = make_actors(SleepingEnv, n_actors=n_actors, engine="local", in_flight=2)
            object.__setattr__(env.crew.settings, "lockstep", False)
            model = dqn(env, gradient_steps=gradient_steps, policy_kwargs=dict(net_arch=[4]))

            def train(self: Any, gradient_steps: int, batch_size: int, engine: Any = engine) -> None:
                self._n_updates += gradient_steps
                engine.n_updates += gradient_steps

            note = lambda self, n, lags=lags: lags.append(n)  # noqa: E731
            with mock.patch.object(PERDQN, "train", train), mock.patch.object(Metrics, "lag", note):
                model.learn(max(n, n_actors * 300))
        metrics, later = env.learning_loop.metrics, lags[len(lags) // 3 :]
        ratio = metrics.n_sampled / metrics.n_inserted / model.batch_size
        figure = f"{np.mean(later):,.0f} ({max(later):,}); {ratio:.4f} updates per transition"
        rows.append((f"simulated, {n_actors} actors, one update per {per}: mean lag in updates (max)", figure, None, False))
    return rows


class Task(NamedTuple):
    """Task to learn with and without actors."""

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
    names = [{key: str(value) for key, value in name.items()} for name, _ in jobs]
    for row in read(path):
        if {key: row[key] for key in names[0]} in names:
            scores[row["environment"], row["collection"]].append(float(row["score"]))
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
    is_actors = collection == "actors"
    env = make_actors(env_id, n_actors=N_ACTORS, ray_options=RAY) if is_actors else make_vec_env(env_id, N_ACTORS)
    test_env = make_vec_env(env_id, 20)
    model = task.algorithm("MlpPolicy", env, seed=seed, **copy.deepcopy(task.settings))
    returns: list[float] = []

    def evaluate(*_: Any) -> bool:
        if model.num_timesteps >= steps * (len(returns) + 1) // N_EVALUATIONS:
            test_env.seed(1_000_000)
            returns.append(float(np.mean(evaluate_policy(model, test_env, 20)[0])))
        return True

    model.learn(steps, callback=evaluate)
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
    "kills": (part_kills, 24_000, 8_000),
    "store": (part_store, 1_000_000, 60_000),
    "staleness": (part_staleness, 20_000, 2_000),
    "learning": (part_learning, 5, 1),
}


def report(results: dict[str, Any]) -> str:
    """Write the table of all measured parts."""
    lines = [
        f"{machine()}, one thread each. Environments sleep. `python benchmarks/distributed.py`",
        "",
        "| what | figure | target | |",
        "|---|---|---|---|",
    ]
    for what, figure, target, larger in (row for part in PARTS for row in results.get(part, {}).get("rows", [])):
        if target is None:
            lines.append(f"| {what} | {figure} | | |")
            continue
        is_met, sign = (figure >= target, ">=") if larger else (figure <= target, "<=")
        lines.append(f"| {what} | {figure:.3g} | {sign} {target} | {'met' if is_met else '**missed**'} |")
    times = ", ".join(f"{part} {result['seconds']:.0f} s" for part, result in results.items())
    return "\n".join([*lines, "", f"Run time of the parts: {times}.", ""])


def main() -> None:
    """Measure, and write the table."""
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
        function, n, n_quick = PARTS[part]
        rows: list[Row] = []
        measure = partial(function, n_quick if args.quick else n, *((args.out, args.quick) if part == "learning" else ()))
        taken = seconds(lambda: rows.extend(measure()))  # noqa: B023
        results[part] = {"rows": rows, "seconds": taken}
        path.write_text(json.dumps(results, indent=1))
        for row in rows:
            print(part, *row[:3], sep=" | ", flush=True)
    (args.out / "distributed.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
