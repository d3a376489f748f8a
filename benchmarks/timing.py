"""Time two things in turn, and make the buffers and models for that."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer

MILLION = 1_000_000
BATCH_SIZE = 256
ROUNDS = 9


class Row(NamedTuple):
    """One line of the table. With a rival, ``figure`` is ours / theirs, both in seconds."""

    what: str
    against: str
    figure: float
    target: float = np.nan
    ours: float | None = None
    theirs: float | None = None


# By key: what measures a row.
Rows = Iterator[tuple[str, Callable[[], Row]]]


class Absent(Exception):
    """A rival is not installed, or does not load."""


def seconds(function: Callable[[], Any], repetitions: int = 1) -> float:
    """Time one call."""
    start = time.perf_counter()
    for _ in range(repetitions):
        function()
    return (time.perf_counter() - start) / repetitions


def compare(
    what: str,
    against: str,
    target: float,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    repetitions: int,
    rounds: int = ROUNDS,
) -> Row:
    """Compute the median over the rounds of ours / theirs, timed in turn."""
    for function in (ours, theirs):  # compile and warm up
        seconds(function, max(repetitions // 10, 2))
    times = np.array([(seconds(ours, repetitions), seconds(theirs, repetitions)) for _ in range(rounds)])
    return Row(what, against, float(np.median(times[:, 0] / times[:, 1])), target, *np.median(times, axis=0).tolist())


def learn_in_turn(what: str, against: str, models: list[Any], n_steps: int, n_parts: int) -> Row:
    """Train our model and a rival in turn, in parts, so that changes of the machine reach both."""
    each = n_steps // n_parts
    times = [[seconds(lambda: model.learn(each, reset_num_timesteps=False)) for model in models] for _ in range(n_parts)]  # noqa: B023
    ours, theirs = np.array(times).T
    return Row(what, against, float(np.median(ours / theirs)), 1.02, float(ours.sum()), float(theirs.sum()))


def count_seconds(owner: Any, method: str, total: list[float]) -> None:
    """Add the time of all calls of a method to a total."""
    original = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        total[0] += time.perf_counter() - start
        return result

    setattr(owner, method, counted)


def gradient_step(cls: Any, env: str, device: str, **kwargs: Any) -> Callable[[], None]:
    """Make a model with default networks, fill its buffer, and return a gradient step."""
    model = cls("MlpPolicy", env, learning_starts=2_000, seed=0, device=device, **kwargs).learn(2_000)
    return lambda: model.train(gradient_steps=1, batch_size=model.batch_size)


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    """Make an observation or action space of this shape."""
    return spaces.Box(0, 255, shape, dtype) if dtype == np.uint8 else spaces.Box(-1, 1, shape, dtype)


def filled(buffer: Any) -> Any:
    """Fill a buffer: all rows written, some episodes ended, priorities spread."""
    rng = np.random.default_rng(0)
    for stored in (buffer.observations, buffer.next_observations):
        for array in stored.values() if isinstance(stored, dict) else [stored]:
            array[:] = 1
    buffer.actions[:] = 0
    buffer.rewards[:] = rng.normal(size=buffer.rewards.shape)
    buffer.dones[:] = rng.random(buffer.dones.shape) < 0.005
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.ring.advance(None, buffer.buffer_size)  # rows are written by hand, which is faster than `add`
        buffer.sample(1)
        ids = buffer.ring.next_id - 1 - np.arange(buffer.buffer_size * buffer.n_envs)
        buffer.update_priorities(ids, rng.exponential(size=len(ids)))
    else:
        buffer.full = True
    return buffer


def sample_and_update(buffer: PrioritizedReplayBuffer, batch_size: int, n_critics: int = 1) -> Callable[[], None]:
    """Draw and update, as an algorithm does at every gradient step."""
    td_errors = th.randn(batch_size, n_critics)

    def run() -> None:
        buffer.update_priorities(buffer.sample(batch_size).indices, td_errors)

    return run


def add_again(buffer: Any, steps: list[Any]) -> Callable[[], None]:
    """Add recorded steps, one a call, again and again."""
    stream = itertools.cycle(steps)
    return lambda: buffer.add(*next(stream))
