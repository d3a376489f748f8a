"""
Measure what actors cost and bring, on an idle machine. Slow environments sleep, so that many fit on two cores.

    python benchmarks/distributed.py --out docs/benchmarks    # everything
    python benchmarks/distributed.py --only wall              # only rows whose key contains "wall"
"""

import contextlib
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from timing import Row, Rows, machine, options, publish, seconds

from sb3_per import PERDQN, PERSAC
from sb3_per.distributed import make_actors

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


def count_seconds(owner: Any, method: str, total: list[float]) -> None:
    """Add the time of all calls of a method to a total."""
    original = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        total[0] += time.perf_counter() - start
        return result

    setattr(owner, method, counted)


def overhead(n: int, cls: Any) -> Row:
    """Measure the learner's share of time beside learning, with one update per transition. Waiting does not count."""
    with actors(2, n_envs=4, env_kwargs=dict(discrete=cls is PERDQN)) as env:
        model, inner = warm(cls, env, 300, gradient_steps=-1), [0.0]
        for method in ("sample", "update_priorities"):
            count_seconds(model.replay_buffer, method, inner)
        count_seconds(model, "_update", inner)
        total = learning_seconds(model, n)
        share = 1 - inner[0] / (total - env.pool.seconds_waited)
    return Row(f"learner's time outside of sample, update and gradient step, {cls.__name__}", "", share)


def admission(n: int) -> Row:
    """Measure the learner's time for a transition, without updates and waiting, against a step of SubprocVecEnv."""
    with actors(2, n_envs=N_ACTORS // 2) as env:
        ours = learning_seconds(warm(PERDQN, env, 2_000, gradient_steps=0), n) - env.pool.seconds_waited
    with subprocesses() as env:
        env.reset()
        theirs = seconds(lambda: env.step(np.zeros(N_ACTORS, np.int64)), n // N_ACTORS) * (n // N_ACTORS)
    return Row("admitting a transition", "step of SubprocVecEnv(8), by transition", ours / theirs)


def scaling(n: int) -> Row:
    """Measure the time of 8 actors for 8 times the transitions of one, without updates."""
    times = []
    for n_actors in (1, N_ACTORS):
        with actors(n_actors, env_kwargs=dict(seconds=0.01), chunk=25) as env:
            times.append(learning_seconds(warm(PERDQN, env, 50 * n_actors, gradient_steps=0), n * n_actors))
    return Row("8 actors, 8 times the steps of 10 ms, no updates", "one actor", times[1] / times[0])


def wall_time(n: int, exponential: bool) -> Row:
    """Measure the time against SubprocVecEnv(8), where a step of all environments takes as long as its updates."""
    probe = warm(PERSAC, make_vec_env(SleepingEnv, 8, env_kwargs=dict(discrete=False)), 800)
    settings, times = dict(seconds=seconds(lambda: probe.train(50, 256)) / 50, exponential=exponential, discrete=False), []
    for make_envs in (actors, subprocesses):
        with make_envs(env_kwargs=settings) as env:
            times.append(learning_seconds(warm(PERSAC, env, 800), n))
    what = f"wall time, t_env / N = g t_update, {'exponential' if exponential else 'equal'} step times"
    return Row(what, "SubprocVecEnv(8)", times[0] / times[1])


def rows(quick: bool) -> Rows:
    def size(full: int) -> int:
        return full // 10 if quick else full

    yield "overhead DQN", lambda: overhead(size(8_000), PERDQN)
    yield "overhead SAC", lambda: overhead(size(2_000), PERSAC)
    yield "admission", lambda: admission(size(60_000))
    yield "scaling", lambda: scaling(size(1_000))
    yield "wall time, equal", lambda: wall_time(size(12_000), False)
    yield "wall time, exponential", lambda: wall_time(size(12_000), True)


def main() -> None:
    args = options(__doc__, "overhead, admission, scaling, wall time", ("cpu",)).parse_args()
    th.set_num_threads(1)
    publish(args, rows(args.quick), f"{machine()}, one thread each", "distributed")


if __name__ == "__main__":
    main()
