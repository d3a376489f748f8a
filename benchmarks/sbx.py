"""
Measure compiled training (``sb3_per.sbx``) beside SB3, SBX and ``sb3_per``, in turn, in the same process.

    python benchmarks/sbx.py --out docs/benchmarks             # measure everything, write sbx.json and sbx.md
    python benchmarks/sbx.py --only sac --quick                # only rows whose key contains "sac", in a few rounds
    python benchmarks/sbx.py --out docs/benchmarks --device cuda    # adds rows for the GPU; JAX needs its CUDA wheels for that

Networks have two layers of 256. A gradient step draws a batch of 256 (DQN: 64), updates the networks and, with prioritized
replay, the priorities.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
# This file has the name of the package that it measures, whose folder must come first.
sys.path.append(sys.path.pop(0))

import jax
import jax.numpy as jnp
import numpy as np
import sbx
import stable_baselines3
import torch as th
from speed import as_line, machine
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from timing import Row, compare, seconds

import sb3_per
import sb3_per.sbx

PACKAGES = {"SB3": stable_baselines3, "sb3_per": sb3_per, "SBX": sbx, "sb3_per.sbx": sb3_per.sbx}


def model_of(package: str, name: str, device: str, **kwargs: Any) -> Any:
    """Make an algorithm of one of the packages, with the same networks in all of them."""
    prefix = "PER" if package.startswith("sb3_per") else ""
    cls = getattr(PACKAGES[package], prefix + name)
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    sizes = dict(batch_size=64 if name == "DQN" else 256, policy_kwargs=dict(net_arch=[256, 256]))
    return cls("MlpPolicy", env, device=device, **{**sizes, **kwargs})


def step_rows(
    name: str, gradient_steps: int, targets: dict[str, float], device: str, quick: bool
) -> Iterator[tuple[str, Row]]:
    """
    Measure a gradient step in turn, in many rounds.

    :param name: of the algorithm, e.g. ``"SAC"``
    :param gradient_steps: of a call of ``train``
    :param targets: packages to compare ``sb3_per.sbx`` with, and the targets
    :param device: of the networks
    :param quick: whether to make few rounds
    :return: key and row of each comparison
    """
    calls: dict[str, Callable[[], Any]] = {}
    for package in (*targets, "sb3_per.sbx"):
        model = model_of(package, name, device, buffer_size=100_000, learning_starts=2_000, seed=0)
        model.learn(2_000)
        model.set_logger(Logger(None, []))
        calls[package] = lambda model=model: model.train(gradient_steps=gradient_steps, batch_size=model.batch_size)
        seconds(calls[package], 10)  # compile and warm up
    n_calls = max((10 if quick else 60) // gradient_steps, 4)
    times = [
        {package: seconds(call, n_calls) / gradient_steps for package, call in calls.items()}
        for _ in range(5 if quick else 41)
    ]
    ours = np.array([each["sb3_per.sbx"] for each in times])
    for package, target in targets.items():
        theirs = np.array([each[package] for each in times])
        prefix = "PER" if package.startswith("sb3_per") else ""
        at_once = "" if gradient_steps == 1 else f", {gradient_steps} a call"
        row = Row(
            f"gradient step, sbx.PER{name}{at_once}",
            f"{package}'s {prefix}{name} on {device}",
            float(np.median(ours / theirs)),
            target,
            float(np.median(ours)),
            float(np.median(theirs)),
        )
        yield f"{name.lower()} {gradient_steps} {package}", row


def products_row(device: str, quick: bool) -> Row:
    """
    Measure the matrix products of a step of SAC alone, compiled: what a compiler cannot save. Of 256 x 256 x 256 there are 5
    forward to the critics' loss, 4 backward, 3 forward to the actor's loss and 4 backward.
    """
    weights, rows = jnp.ones((16, 256, 256)) / 256, jnp.ones((256, 256))

    @jax.jit
    def products(rows: jax.Array, weights: jax.Array) -> jax.Array:
        for each in weights:
            rows = rows @ each
        return rows

    model = model_of("SB3", "SAC", device, buffer_size=100_000, learning_starts=2_000, seed=0)
    model.learn(2_000)
    model.set_logger(Logger(None, []))
    what = "the 16 matrix products of a step of SAC alone, in JAX"
    return compare(
        what,
        f"gradient step, SB3's SAC on {device}",
        float("nan"),
        lambda: products(rows, weights).block_until_ready(),
        lambda: model.train(gradient_steps=1, batch_size=256),
        repetitions=10 if quick else 60,
        rounds=5 if quick else 41,
    )


class Solved(BaseCallback):
    """Stop when the mean return of the last ten episodes is above -200."""

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer][-10:]
        return len(returns) < 10 or float(np.mean(returns)) < -200.0


def solved_row(device: str, quick: bool) -> Row:
    """Measure the wall time of ``learn()`` until Pendulum is solved, compile time included, for several seeds in turn."""
    totals, n_steps = {"sb3_per": 0.0, "sb3_per.sbx": 0.0}, {"sb3_per": 0, "sb3_per.sbx": 0}
    n_seeds, most = (1, 600) if quick else (3, 20_000)
    for seed in range(n_seeds):
        for package in totals:
            model = model_of(package, "SAC", device, seed=seed, learning_rate=1e-3)
            start = time.perf_counter()
            model.learn(most, callback=Solved())
            totals[package] += time.perf_counter() - start
            n_steps[package] += model.num_timesteps
    ours, theirs = totals["sb3_per.sbx"] / n_seeds, totals["sb3_per"] / n_seeds
    what = f"learn() until Pendulum is solved, sbx.PERSAC ({n_steps['sb3_per.sbx'] // n_seeds:,} steps)"
    return Row(
        what, f"sb3_per's PERSAC on {device} ({n_steps['sb3_per'] // n_seeds:,} steps)", ours / theirs, 0.6, ours, theirs
    )


def rows(device: str, quick: bool, only: str) -> Iterator[tuple[str, Row]]:
    """Measure the rows whose key contains ``only``."""
    nan = float("nan")
    groups: list[tuple[str, int, dict[str, float]]] = [
        ("SAC", 1, {"SB3": 0.42, "sb3_per": nan, "SBX": 1.00}),
        ("SAC", 8, {"SB3": 0.42, "sb3_per": nan, "SBX": nan}),
        ("TD3", 1, {"SB3": 0.42, "sb3_per": nan, "SBX": nan}),
        ("DQN", 1, {"SB3": 0.75, "sb3_per": nan, "SBX": 0.45}),
    ]
    for name, gradient_steps, targets in groups:
        if only in f"{name.lower()} {gradient_steps}":
            yield from step_rows(name, gradient_steps, targets, device, quick)
    if only in "products":
        yield "products", products_row(device, quick)
    if only in "solved":
        yield "solved", solved_row(device, quick)


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose key contains this: sac 1, sac 8, td3, dqn, products, solved")
    parser.add_argument("--quick", action="store_true", help="few rounds and short runs, to try the script")
    parser.add_argument("--device", default="cpu", help="of PyTorch's networks; JAX takes a GPU where it has one")
    parser.add_argument("--out", type=Path, help="folder for sbx.json and sbx.md; rows measured before stay")
    args = parser.parse_args()

    th.set_num_threads(2)
    described = f"{machine()}, {', '.join(f'{name} {version(name)}' for name in ('sbx-rl', 'jax'))}"
    head = [f"{described}; medians of several rounds.", "", "| what | against | ours | theirs | figure | target | |"]
    head.append("|---|---|---|---|---|---|---|")
    print("\n".join(head), flush=True)
    measured: dict[str, Any] = {}
    for key, row in rows(args.device, args.quick, args.only):
        measured[f"{key} {args.device}"] = row._asdict()
        print(as_line(row), flush=True)
    if args.out:
        path = args.out / "sbx.json"
        before = json.loads(path.read_text())["rows"] if path.exists() else {}
        results = {"machine": described, "rows": {**before, **measured}}
        path.write_text(json.dumps(results, indent=1) + "\n")
        table = [as_line(Row(**row)) for row in results["rows"].values()]
        (args.out / "sbx.md").write_text("\n".join([*head, *table, ""]))


if __name__ == "__main__":
    main()
