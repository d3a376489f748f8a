"""
Compare the speed of two checkouts. Each has a process of its own. The two take turns on one core, one row at a time, so that
changes of the machine reach both. This is repeated in several pairs of fresh processes, because where a process has its memory
moves its times by some percent.

    git worktree add ../before 55582f3
    python benchmarks/against.py ../before                   # all rows, on a quiet machine
    python benchmarks/against.py ../before --only sample     # rows whose name contains "sample"

The exit status says whether a row takes more of the other's time than its limit. The rows use only names that ``sb3_per``
exports, so that the other checkout may be older.
"""

import argparse
import functools
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from frame_rows import ACTIONS, IMAGES, steps
from gymnasium import spaces
from timing import add_again, box, filled, sample_and_update, seconds

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)

# Largest allowed share of the other checkout's time. A save and a load have a limit of their own: since format 1, files have
# checksums, and a load verifies them.
LIMIT, FILE_LIMIT = 1.03, 1.5
N_PAIRS, N_TURNS = 9, 16
TURN_SECONDS = 0.015
SIZE = 200_000
MUJOCO, CLASSIC = (box(17), box(6)), (box(4), spaces.Discrete(2))


def buffer(size: int = SIZE, what: Any = MUJOCO, **settings: Any) -> Any:
    return filled(PrioritizedReplayBuffer(size, *what, "cpu", **settings))


def draw(batch_size: int = 256, **settings: Any) -> Callable[[], None]:
    return sample_and_update(buffer(**settings), batch_size, 2)


def draw_with_demonstrations() -> Callable[[], None]:
    both = PrioritizedReplayBuffer(SIZE, *MUJOCO, "cpu", demonstration_fraction=0.25)
    both.add_demonstrations_from(buffer(10_000))
    return sample_and_update(filled(both), 256, 2)


def draw_goals() -> Callable[[], None]:
    space = spaces.Dict({"observation": box(10), "achieved_goal": box(3), "desired_goal": box(3)})
    return sample_and_update(filled(PrioritizedDictReplayBuffer(SIZE, space, box(4), "cpu")), 256, 2)


class Goals:
    """Stands in for an environment with goals: each reward is 0."""

    def env_method(self, name: str, achieved: Any, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        return [np.zeros(len(achieved), np.float32)]


def hindsight() -> tuple[Any, tuple[Any, ...]]:
    """Make a full buffer with HER, and a step for it."""
    space = spaces.Dict({"observation": box(10), "achieved_goal": box(3), "desired_goal": box(3)})
    full = PrioritizedHerReplayBuffer(20_000, space, box(4), Goals(), "cpu")  # type: ignore[arg-type]
    obs = {key: np.ones((1, *part.shape), np.float32) for key, part in space.spaces.items()}
    step = (obs, obs, np.ones((1, 4), np.float32), np.ones(1))
    for i in range(20_000):
        full.add(*step, np.array([i % 50 == 49]), [{}])
    return full, (*step, np.zeros(1), [{}])


def draw_hindsight() -> Callable[[], None]:
    return sample_and_update(hindsight()[0], 256, 2)


def add_hindsight() -> Callable[[], None]:
    full, step = hindsight()
    ends = itertools.cycle([*[np.zeros(1)] * 49, np.ones(1)])
    return lambda: full.add(*step[:4], next(ends), step[5])


def add(n_envs: int) -> Callable[[], None]:
    obs, actions = np.ones((n_envs, 17), np.float32), np.ones((n_envs, 6), np.float32)
    step = (obs, obs, actions, np.ones(n_envs), np.zeros(n_envs), [{}] * n_envs)
    return functools.partial(buffer(n_envs=n_envs).add, *step)


def frames(n_envs: int = 1) -> tuple[Any, list[Any]]:
    framed = PrioritizedReplayBuffer(10_000, IMAGES, ACTIONS, "cpu", n_envs=n_envs, frames=4)
    recorded = list(itertools.islice(steps(n_envs), 200))
    for step in itertools.islice(itertools.cycle(recorded), 10_400 // n_envs):
        framed.add(*step)
    return framed, recorded


def add_frames(n_envs: int) -> Callable[[], None]:
    return add_again(*frames(n_envs))


def draw_frames() -> Callable[[], None]:
    return sample_and_update(frames()[0], 32)


def sequences() -> Any:
    windows: dict[str, Any] = dict(sequence_length=40, burn_in=20, n_steps=5, state_shapes=((1, 64), (1, 64)))
    return PrioritizedSequenceReplayBuffer(SIZE, *MUJOCO, "cpu", **windows)


def draw_sequences() -> Callable[[], None]:
    full, td_errors = sequences(), th.randn(40, 32)
    full.observations[:] = full.next_observations[:] = 1
    full.dones[199::200] = 1
    full.full = True

    def run() -> None:
        batch = full.sample(32)
        full.update_priorities(batch.indices, td_errors, batch.mask)

    return run


def add_sequences() -> Callable[[], None]:
    obs, action, state = np.ones((1, 17), np.float32), np.ones((1, 6), np.float32), np.zeros((1, 1, 64), np.float32)
    return functools.partial(sequences().add, obs, obs, action, np.ones(1), np.zeros(1), [{}], states=(state, state))


def gradient_step(cls: Any, env: str) -> Callable[[], None]:
    model = cls("MlpPolicy", env, buffer_size=50_000, learning_starts=300, seed=0, device="cpu")
    model.learn(400)
    return functools.partial(model.train, gradient_steps=1, batch_size=model.batch_size)


def file(is_loaded: bool) -> Callable[[], None]:
    model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=SIZE, device="cpu")
    filled(model.replay_buffer)
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "buffer")
    model.save_replay_buffer(path)

    def run() -> None:
        folder.name  # noqa: B018  (the folder lives as long as this function)
        model.load_replay_buffer(path) if is_loaded else model.save_replay_buffer(path)

    return run


def rows() -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """List what is measured: name, and function that prepares it and returns the call that is timed."""
    part = functools.partial
    for n_envs in (1, 16, 64, 1_024):
        yield f"add, {n_envs} environments", part(add, n_envs)
    yield "add, sequences", add_sequences
    yield "add, HER", add_hindsight
    for n_envs in (1, 16):
        yield f"add, frames, {n_envs} environments", part(add_frames, n_envs)
    for n_envs in (1, 64, 1_024):
        yield f"sample 256, {n_envs} environments", part(draw, n_envs=n_envs)
    yield "sample 32", part(draw, 32, what=CLASSIC)
    yield "sample 32, images", part(draw, 32, size=5_000, what=(IMAGES, ACTIONS))
    yield "sample 32, frames", draw_frames
    yield "sample 256, Dict", draw_goals
    yield "sample 256, HER", draw_hindsight
    settings: dict[str, dict[str, Any]] = {
        "3 steps": dict(n_steps=3),
        "ranks": dict(scheme="rank"),
        "LAP": dict(scheme="lap"),
        "unique": dict(unique=True),
        "recency": dict(recency=0.996),
        "age_decay": dict(age_decay=3.0),
        "uniform, age_decay": dict(scheme="uniform", age_decay=3.0),
    }
    for name, kwargs in settings.items():
        yield f"sample 256, {name}", part(draw, **kwargs)
    yield "sample 256, demonstrations", draw_with_demonstrations
    yield "sample 32, sequences", draw_sequences
    yield "gradient step, PERSAC", part(gradient_step, PERSAC, "Pendulum-v1")
    yield "gradient step, PERTD3", part(gradient_step, PERTD3, "Pendulum-v1")
    yield "gradient step, PERDQN", part(gradient_step, PERDQN, "CartPole-v1")
    yield "file, save", part(file, is_loaded=False)
    yield "file, load", part(file, is_loaded=True)


class Process:
    """A process that runs the code of one checkout, see :func:`serve`."""

    def __init__(self, checkout: Path):
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *question: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


def serve() -> None:
    """Answer each line of the input, a row's name and a number of calls, with the mean seconds of a call."""
    th.set_num_threads(1)
    makers, run, prepared = dict(rows()), None, None
    for line in sys.stdin:
        name, n_calls = json.loads(line)
        if name != prepared:
            run = None  # frees the memory of the row before
            gc.collect()
            run, prepared = makers[name](), name
            seconds(run, 3)
        assert run is not None
        print(json.dumps(seconds(run, n_calls)), flush=True)


def ratio_of_pair(name: str, ours: Process, theirs: Process, n_turns: int) -> float:
    """Measure a row in turn: the median over the turns of our time / theirs."""
    n_calls = max(int(TURN_SECONDS / min(process.ask(name, 5) for process in (ours, theirs))), 1)
    ratios = []
    for turn in range(n_turns):
        order = (ours, theirs) if turn % 2 else (theirs, ours)
        times = {process: process.ask(name, n_calls) for process in order}
        ratios.append(times[ours] / times[theirs])
    return statistics.median(ratios)


def main() -> None:
    """Print a line for each row: the median over the pairs of processes, and the ratios of all pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--only", default="", help="rows whose name contains this: add, sample, frames, gradient, file, ...")
    parser.add_argument("--quick", action="store_true", help="one pair of processes and two turns, to try the script")
    args = parser.parse_args()
    if not (args.other / "sb3_per").is_dir():
        parser.error(f"{args.other} is not a checkout with a folder sb3_per")
    names = [name for name, _ in rows() if args.only in name]
    if not names:
        parser.error(f"no row has {args.only!r} in its name")
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 if args.quick else N_PAIRS):
        pair = [Process(checkout.resolve()) for checkout in (Path(__file__).parents[1], args.other)]
        for name in names:
            found[name].append(ratio_of_pair(name, *pair, n_turns=2 if args.quick else N_TURNS))
            print(".", end="", file=sys.stderr, flush=True)
        for process in pair:
            process.end()
    print(file=sys.stderr)
    too_slow = 0
    for name, ratios in found.items():
        limit = FILE_LIMIT if name.startswith("file") else LIMIT
        is_slow = statistics.median(ratios) > limit
        too_slow += is_slow
        verdict = f"more than {limit}" if is_slow else ""
        print(f"{name:28}{statistics.median(ratios):6.3f}   {' '.join(f'{ratio:.3f}' for ratio in ratios)}   {verdict}")
    sys.exit(bool(too_slow))


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # all processes on one core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    serve() if sys.argv[1:] == ["--serve"] else main()
