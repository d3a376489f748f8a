"""
Measure the prices of wall_clock.py in milliseconds: EnvPool's own step of all environments, by task, and what training adds to
a common step, by arm, its updates included. All are measured in turn, in short rounds, in one process, since the speed of a
machine changes. The lower quartile is the price. SAC of SBX stands beside, because you can use it for uniform draws.

    OMP_NUM_THREADS=1 python -m study.prices                     # two minutes of one core, which nothing else should use
    OMP_NUM_THREADS=1 python -m study.prices --rounds 2          # try it
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger

from .wall_clock import ARMS, N_ENVS, N_UPDATES, OWN, make_env, make_model, settings_of

TASK = "ReacherHard"  # on which arms are measured; networks of other tasks have some more inputs
FILLED = 2_000  # common steps in the buffers before the first round, random ones
STEPS = 25  # common steps of a measurement


def stepping(env: Any) -> Callable[[], Any]:
    """Return a call that makes common steps of the environments alone, with random actions."""
    env.reset()
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (N_ENVS, *env.action_space.shape)).astype(np.float32)
    return lambda: [env.step(actions) for _ in range(STEPS)]


def training(model: Any) -> Callable[[], Any]:
    """Fill the buffer of a model, and return a call that makes common steps with their updates."""
    model.set_logger(Logger(None, []))
    model.learning_starts = FILLED * N_ENVS
    model.learn(FILLED * N_ENVS, log_interval=1_000_000)
    return lambda: model.learn(STEPS * N_ENVS, reset_num_timesteps=False, log_interval=1_000_000)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each; quartiles are printed")
    rounds = parser.parse_args(arguments).rounds
    os.environ["JAX_PLATFORMS"] = "cpu"
    import sbx

    th.set_num_threads(1)
    envs = {task: make_env(task, 1) for task in OWN}
    calls = {task: stepping(env) for task, env in envs.items()}
    # All models share their environments, which hold hundreds of megabytes. What they learn from does not matter here.
    for arm in filter(lambda arm: "shuffled" not in arm, ARMS):  # a control costs what its arm does
        calls[arm] = training(make_model(envs[TASK], arm, 1e-3, 1))
    for n in N_UPDATES["uniform"]:
        calls[f"SAC of SBX, {n} a step"] = training(sbx.SAC("MlpPolicy", envs[TASK], **settings_of(n, 1e-3, 1)))
    for call in calls.values():  # compile and warm up
        call()
    print(f"{len(calls)} things are measured in {rounds} rounds", flush=True)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start) / STEPS)
    for name, values in times.items():
        if name not in OWN:  # what training adds to the step of the same round
            values = list(np.subtract(values, times[TASK]))
        low, median, high = np.percentile(values, [25, 50, 75])
        print(f"{name:20} {low:7.3f} ms, median {median:.3f}, upper quartile {high:.3f}", flush=True)


if __name__ == "__main__":
    main()
