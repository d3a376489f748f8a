"""How two things are timed in turn, and the buffers that are timed."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer

MILLION = 1_000_000
BATCH_SIZE = 256
ROUNDS = 9


class Row(NamedTuple):
    """One line of the table. ``figure`` is ours / theirs where there is a rival, which both are measured in seconds for."""

    what: str
    against: str
    figure: float
    target: float
    ours: float | None = None
    theirs: float | None = None


class Absent(Exception):
    """A rival that is not installed, or does not load."""


def seconds(function: Callable[[], Any], repetitions: int) -> float:
    """Time of one call."""
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
    """Median over the rounds of ours / theirs, the two in turn."""
    for function in (ours, theirs):  # compiled and warm
        seconds(function, max(repetitions // 10, 2))
    times = np.array([(seconds(ours, repetitions), seconds(theirs, repetitions)) for _ in range(rounds)])
    return Row(what, against, float(np.median(times[:, 0] / times[:, 1])), target, *np.median(times, axis=0).tolist())


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
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.ring.advance(None, buffer.buffer_size)  # written by hand, which is faster than `add`
        buffer.sample(1)
        ids = buffer.ring.next_id - 1 - np.arange(buffer.buffer_size * buffer.n_envs)
        buffer.update_priorities(ids, rng.exponential(size=len(ids)))
    else:
        buffer.full = True
    return buffer


def sample_and_update(buffer: PrioritizedReplayBuffer, batch_size: int, n_critics: int = 1) -> Callable[[], None]:
    """What an algorithm asks of the buffer at every gradient step."""
    td_errors = th.randn(batch_size, n_critics)

    def run() -> None:
        buffer.update_priorities(buffer.sample(batch_size).indices, td_errors)

    return run
