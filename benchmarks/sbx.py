"""
Measure compiled training (``sb3_per.sbx``) beside SB3, SBX and ``sb3_per``, in turn, in the same process.

    python benchmarks/sbx.py --out docs/benchmarks             # measure everything, write sbx.json and sbx.md
    python benchmarks/sbx.py --only sac --quick                # only rows whose key contains "sac", in a few rounds
    python benchmarks/sbx.py --out docs/benchmarks --device cuda    # adds rows for the GPU; JAX needs its CUDA wheels for that

Networks have two layers of 256. A gradient step draws a batch of 256 (DQN: 64), updates the networks and, with prioritized
replay, the priorities.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
# This file has the name of the package that it measures, whose folder must come first.
sys.path.append(sys.path.pop(0))

import numpy as np
import sbx
import stable_baselines3
import torch as th
from stable_baselines3.common.logger import Logger
from timing import Row, Rows, machine, options, publish, seconds

import sb3_per
import sb3_per.sbx

PACKAGES = {"SB3": stable_baselines3, "sb3_per": sb3_per, "SBX": sbx, "sb3_per.sbx": sb3_per.sbx}
RIVALS = ("SB3", "sb3_per", "SBX")


def model_of(package: str, name: str, device: str, **kwargs: Any) -> Any:
    """Make an algorithm of one of the packages, with the same networks in all of them."""
    prefix = "PER" if package.startswith("sb3_per") else ""
    cls = getattr(PACKAGES[package], prefix + name)
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    sizes = dict(batch_size=64 if name == "DQN" else 256, policy_kwargs=dict(net_arch=[256, 256]))
    return cls("MlpPolicy", env, device=device, **{**sizes, **kwargs})


def steps_of(package: str, name: str, gradient_steps: int, device: str) -> Callable[[], Any]:
    """Make a model with a filled buffer, and return a call of ``train``."""
    model = model_of(package, name, device, buffer_size=100_000, learning_starts=2_000, seed=0)
    model.learn(2_000)
    model.set_logger(Logger(None, []))
    return lambda: model.train(gradient_steps=gradient_steps, batch_size=model.batch_size)


def step_rows(name: str, gradient_steps: int, device: str, quick: bool) -> Rows:
    """Measure a gradient step of ``sb3_per.sbx`` in turn with other packages, all with the first row."""
    n_calls, n_rounds = max((10 if quick else 20) // gradient_steps, 4), 5 if quick else 15

    @functools.cache
    def times() -> dict[str, np.ndarray]:
        calls = {package: steps_of(package, name, gradient_steps, device) for package in (*RIVALS, "sb3_per.sbx")}
        for call in calls.values():
            seconds(call, 10)  # compile and warm up
        rounds = [[seconds(call, n_calls) / gradient_steps for call in calls.values()] for _ in range(n_rounds)]
        return dict(zip(calls, np.array(rounds).T, strict=True))

    def row(package: str) -> Row:
        ours, theirs, prefix = times()["sb3_per.sbx"], times()[package], "PER" if package.startswith("sb3_per") else ""
        medians = [float(np.median(each)) for each in (ours / theirs, ours, theirs)]
        what = f"gradient step, sbx.PER{name}" + ("" if gradient_steps == 1 else f", {gradient_steps} a call")
        return Row(what, f"{package}'s {prefix}{name} on {device}", *medians)

    for package in RIVALS:
        yield f"{name.lower()} {gradient_steps} {package} {device}", functools.partial(row, package)


def solved_row(device: str, quick: bool) -> Row:
    """
    Measure the wall time of ``learn()`` until Pendulum is solved, compile time included, for ten seeds in turn: until the mean
    return of the last ten episodes is above -200. The figure is that of the mean times, its range that of single seeds.
    """
    packages, (n_seeds, most) = ("sb3_per.sbx", "sb3_per"), (1, 600) if quick else (10, 20_000)
    found = np.zeros((n_seeds, 2, 2))  # seconds and steps by seed and package
    for seed in range(n_seeds):
        for i, package in enumerate(packages):
            model = model_of(package, "SAC", device, seed=seed, learning_rate=1e-3)

            def goes_on(*_: Any, model: Any = model) -> bool:
                returns = [episode["r"] for episode in model.ep_info_buffer][-10:]
                return len(returns) < 10 or float(np.mean(returns)) < -200.0

            found[seed, i] = seconds(lambda: model.learn(most, callback=goes_on)), model.num_timesteps  # noqa: B023
    (ours, our_steps), (theirs, their_steps) = found.mean(axis=0).tolist()
    ratios = found[:, 0, 0] / found[:, 1, 0]
    what = f"learn() until Pendulum is solved, sbx.PERSAC ({our_steps:,.0f} steps)"
    against = f"sb3_per's PERSAC on {device} ({their_steps:,.0f} steps)"
    return Row(what, against, ours / theirs, ours, theirs, n_seeds, float(ratios.min()), float(ratios.max()))


def rows(device: str, quick: bool) -> Rows:
    for name in ("SAC", "TD3", "DQN"):
        for gradient_steps in (1, 8):
            yield from step_rows(name, gradient_steps, device, quick)
    yield f"solved {device}", lambda: solved_row(device, quick)


def main() -> None:
    args = options(__doc__, "sac 1, sac 8, td3 1, td3 8, dqn 1, dqn 8, solved").parse_args()
    th.set_num_threads(2)
    publish(args, rows(args.device, args.quick), machine("sbx-rl", "jax"), "sbx")


if __name__ == "__main__":
    main()
