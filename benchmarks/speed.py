"""
What prioritized replay costs, each figure as a ratio to a rival that is measured in turn with it, in this one process.

    python benchmarks/speed.py                # all rows, as a Markdown table
    python benchmarks/speed.py --only rank    # rows whose key contains this
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch as th
from baselines import NumpyTree, PythonTree
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    SumTree,
)

MILLION = 1_000_000
Row = tuple[str, str, float, float]  # what, against, ratio, target


def seconds(function: Callable[[], Any], repetitions: int) -> float:
    """Time of one call."""
    start = time.perf_counter()
    for _ in range(repetitions):
        function()
    return (time.perf_counter() - start) / repetitions


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any], repetitions: int, rounds: int = 9) -> float:
    """Median over the rounds of ours / theirs, the two in turn."""
    seconds(ours, max(repetitions // 10, 2)), seconds(theirs, max(repetitions // 10, 2))  # compiled and warm
    return float(np.median([seconds(ours, repetitions) / seconds(theirs, repetitions) for _ in range(rounds)]))


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    """Observation or action space of this shape."""
    return spaces.Box(0, 255, shape, dtype) if dtype == np.uint8 else spaces.Box(-1, 1, shape, dtype)


def filled(buffer: Any) -> Any:
    """A full buffer: arrays written through once, some episodes ended, priorities spread."""
    rng = np.random.default_rng(0)
    for stored in (buffer.observations, buffer.next_observations):
        for array in stored.values() if isinstance(stored, dict) else [stored]:
            array[:] = 1
    buffer.actions[:] = 0
    buffer.rewards[:] = rng.normal(size=buffer.rewards.shape)
    buffer.dones[:] = rng.random(buffer.dones.shape) < 0.005
    buffer.full = True
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.sample(1)
        ids = buffer._next_id - 1 - np.arange(buffer.buffer_size * buffer.n_envs)
        buffer.update_priorities(ids, rng.exponential(size=len(ids)))
    return buffer


def sample_and_update(buffer: PrioritizedReplayBuffer, batch_size: int, n_critics: int = 1) -> Callable[[], None]:
    """What an algorithm asks of the buffer at every gradient step."""
    td_errors = th.randn(batch_size, n_critics)

    def run() -> None:
        buffer.update_priorities(buffer.sample(batch_size).indices, td_errors)

    return run


def buffer_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """`sample` and `update_priorities` together, against SB3's `sample` alone."""
    size = 100_000 if quick else MILLION

    def row(name: str, cls: Any, rival: Any, size: int, obs: Any, act: Any, batch: int, target: float, **kwargs: Any) -> Row:
        n_critics = 2 if batch == 256 else 1
        ours = filled(cls(size, obs, act, device="cpu", **kwargs))
        theirs = filled(rival(size, obs, act, device="cpu", **kwargs))
        run = sample_and_update(ours, batch, n_critics)
        return name, rival.__name__, ratio(run, lambda: theirs.sample(batch), 300), target

    prioritized, mujoco, discrete = PrioritizedReplayBuffer, (box(17), box(6)), spaces.Discrete(2)
    yield "sample 256", lambda: row("sample(256) + update, obs 17, act 6", prioritized, ReplayBuffer, size, *mujoco, 256, 0.65)
    yield "sample 32", lambda: row("sample(32) + update, obs 4", prioritized, ReplayBuffer, size, box(4), discrete, 32, 0.80)
    images = box(4, 84, 84, dtype=np.uint8)
    n_images = 5_000 if quick else 50_000
    yield "images", lambda: row("sample(32) + update, images", prioritized, ReplayBuffer, n_images, images, discrete, 32, 1.0)
    goals = spaces.Dict({"observation": box(10), "achieved_goal": box(3), "desired_goal": box(3)})
    yield (
        "dict",
        lambda: row(
            "sample(256) + update, Dict", PrioritizedDictReplayBuffer, DictReplayBuffer, size, goals, box(4), 256, 1.0
        ),
    )
    yield (
        "n-step",
        lambda: row("sample(256) + update, 3 steps", prioritized, NStepReplayBuffer, size, *mujoco, 256, 1.0, n_steps=3),
    )

    def rank() -> Row:
        ours, theirs = (filled(prioritized(size, *mujoco, device="cpu", scheme=s)) for s in ("rank", "proportional"))
        return (
            "rank-based: sample(256) + update",
            "proportional",
            ratio(sample_and_update(ours, 256, 2), sample_and_update(theirs, 256, 2), 200),
            5.0,
        )

    yield "rank", rank


def tree_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Find and update 256 leaves among a million."""
    size = 100_000 if quick else MILLION
    rng = np.random.default_rng(0)

    def cycle(tree: Any) -> Callable[[], None]:
        masses = rng.random(256)

        def run() -> None:
            tree.update(tree.find(np.random.random_sample(256) * tree.total), masses)

        return run

    def row(rival: Any, repetitions: int, target: float) -> Row:
        ours, theirs = SumTree(size), rival(size)
        for tree in (ours, theirs):
            tree.update(np.arange(size), np.ones(size))
        return "find + update of 256", rival.__name__, ratio(cycle(ours), cycle(theirs), repetitions), target

    yield "tree numpy", lambda: row(NumpyTree, 200, 0.20)
    yield "tree python", lambda: row(PythonTree, 20, float("nan"))

    def cpprb_row() -> Row:
        import cpprb

        rival = cpprb.PrioritizedReplayBuffer(size, {"x": {}}, alpha=0.6)
        rival.add(x=np.zeros(size), priorities=np.ones(size))
        ours = SumTree(size)
        ours.update(np.arange(size), np.ones(size))
        masses = rng.random(256)

        def run() -> None:
            rival.update_priorities(rival.sample(256, beta=0.4)["indexes"], masses)

        def ours_run() -> None:
            ours.update(ours.draw(np.random.random_sample(256))[0], masses)

        return "draw + update of 256", "cpprb, one float field", ratio(ours_run, run, 100), 0.12

    yield "tree cpprb", cpprb_row


def add_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """One step of all environments."""

    def row(n_envs: int) -> Row:
        spaces_ = (box(17), box(6))
        ours, theirs = (c(MILLION, *spaces_, device="cpu", n_envs=n_envs) for c in (PrioritizedReplayBuffer, ReplayBuffer))
        obs, actions = np.ones((n_envs, 17), np.float32), np.ones((n_envs, 6), np.float32)
        step = (obs, obs, actions, np.ones(n_envs), np.zeros(n_envs), [{}] * n_envs)
        return (
            f"add, {n_envs} environments",
            "ReplayBuffer.add",
            ratio(lambda: ours.add(*step), lambda: theirs.add(*step), 3000),
            1.15,
        )

    yield "add 1", lambda: row(1)
    yield "add 16", lambda: row(16)


def training_rows(device: str) -> Iterator[tuple[str, Callable[[], Row]]]:
    """A gradient step with default networks, and a short run."""

    def row(ours: Any, theirs: Any, env: str, target: float) -> Row:
        models = []
        for cls in (ours, theirs):
            model = cls("MlpPolicy", env, buffer_size=100_000, learning_starts=2_000, seed=0, device=device)
            models.append(model.learn(2_000))
        steps = [lambda model=model: model.train(gradient_steps=1, batch_size=model.batch_size) for model in models]
        return f"gradient step, {ours.__name__}", theirs.__name__, ratio(steps[0], steps[1], 100, rounds=15), target

    yield "step sac", lambda: row(PERSAC, SAC, "Pendulum-v1", 1.00)
    yield "step td3", lambda: row(PERTD3, TD3, "Pendulum-v1", 1.00)
    yield "step dqn", lambda: row(PERDQN, DQN, "CartPole-v1", 1.02)


def once_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Whole runs, scaling, memory and start-up."""

    def learn() -> Row:
        def run(cls: Any) -> None:
            cls("MlpPolicy", "Pendulum-v1", seed=0).learn(300 if quick else 5_000)

        rounds = 1 if quick else 3
        return "learn() of 5,000 steps", "SAC", ratio(lambda: run(PERSAC), lambda: run(SAC), 1, rounds=rounds), 1.02

    def scaling() -> Row:
        sizes = (10_000, MILLION if quick else 10 * MILLION)
        small, large = (filled(PrioritizedReplayBuffer(n, box(4), box(1), device="cpu")) for n in sizes)
        return (
            "10M slots, sample + update",
            "10k slots",
            ratio(sample_and_update(large, 256, 2), sample_and_update(small, 256, 2), 300),
            3.0,
        )

    def memory() -> Row:
        tree = SumTree(MILLION)
        n_bytes = sum(array.nbytes for array in vars(tree).values() if isinstance(array, np.ndarray))
        return "tree memory, bytes per slot", "", n_bytes / MILLION, 17.0

    def started(program: str, cache: str) -> float:
        """Median over 3 fresh processes of the time that the program prints."""
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        runs = [subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)]
        runs += [subprocess.run(runs[0].args, env=environment, capture_output=True, text=True, check=True) for _ in range(3)]
        times = [float(run.stdout) for run in runs]
        return times[0] if "cold" in program else float(np.median(times[1:]))

    importing = "import time, torch, stable_baselines3\nt = time.time()\nimport sb3_per\nprint(time.time() - t)"
    sampling = """
import time, numpy as np
from gymnasium import spaces
from sb3_per import PrioritizedReplayBuffer
buffer = PrioritizedReplayBuffer(100, spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (1,)), device="cpu")
buffer.rewards[:], buffer.full = 1, True
t = time.time()
buffer.sample(32)
print(time.time() - t)
"""
    with tempfile.TemporaryDirectory() as cache:
        yield "start cold", lambda: ("first sample, cold cache, seconds", "", started("# cold" + sampling, cache), 10.0)
        yield "start warm", lambda: ("first sample, warm cache, seconds", "", started(sampling, cache), 0.3)
        yield "start import", lambda: ("import after torch and SB3, seconds", "", started(importing, cache), 0.5)
    yield "memory", memory
    yield "scaling", scaling
    yield "learn", learn


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="rows whose key contains this: sample, tree, add, step, start, learn, rank, ..."
    )
    parser.add_argument("--quick", action="store_true", help="small buffers and short runs, to try the script")
    parser.add_argument("--device", default="cpu", help="of the networks in the gradient steps")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    args = parser.parse_args()

    th.set_num_threads(2)
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").open() if "model name" in line), "")
    machine = f"{processor or platform.processor()}, {os.cpu_count()} cores, torch {th.__version__}, numpy {np.__version__}"
    print(f"{machine}\n\n| what | against | figure | target | |\n|---|---|---|---|---|")
    groups = (tree_rows, add_rows, buffer_rows, once_rows)
    makers = (maker for makers in (*(group(args.quick) for group in groups), training_rows(args.device)) for maker in makers)
    rows = []
    for key, maker in makers:
        if args.only not in key:
            continue
        try:
            rows.append(maker())
        except ImportError as error:
            print(f"| left out: {error} | | | | |")
            continue
        name, rival, figure, target = rows[-1]
        verdict = "" if np.isnan(target) else "met" if figure <= target else "**missed**"
        print(f"| {name} | {rival} | {figure:.3g} | {target:.3g} | {verdict} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
