"""Rows of the benchmark on sequences."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from timing import MILLION, Row, box, compare, filled

from sb3_per import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer

_SPACES = box(17), box(6)

# 20 steps of burn-in and 40 that are learned, with 5-step returns: 65 observations of each window.
_SETTINGS: dict[str, Any] = dict(sequence_length=40, burn_in=20, n_steps=5, state_shapes=((1, 64), (1, 64)))
_WINDOWS, _ROWS = 32, 32 * 65


def _full(size: int) -> PrioritizedSequenceReplayBuffer:
    """Episodes of 200 steps."""
    buffer = PrioritizedSequenceReplayBuffer(size, *_SPACES, "cpu", **_SETTINGS)
    buffer.observations[:] = buffer.next_observations[:] = 1
    buffer.dones[199::200] = 1
    buffer.full = True
    return buffer


def _cycle(buffer: PrioritizedSequenceReplayBuffer) -> Callable[[], None]:
    td_errors = th.randn(40, _WINDOWS)

    def run() -> None:
        batch = buffer.sample(_WINDOWS)
        buffer.update_priorities(batch.indices, td_errors, batch.mask)

    return run


def _add(buffer: Any, **kwargs: Any) -> Callable[[], None]:
    obs, action, zeros, infos = np.zeros((1, 17), np.float32), np.zeros((1, 6), np.float32), np.zeros(1), [{}]
    return lambda: buffer.add(obs, obs, action, zeros, zeros, infos, **kwargs)


def sequence_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Draw and update of windows, and what their states cost when a step is added."""
    size, large = (100_000, MILLION) if quick else (MILLION, 10 * MILLION)

    def sample_row() -> Row:
        stock = filled(ReplayBuffer(size, *_SPACES, "cpu"))
        what = f"sample + update of {_WINDOWS} windows of 65 rows"
        return compare(what, f"SB3 sample({_ROWS})", 1.0, _cycle(_full(size)), lambda: stock.sample(_ROWS), 100)

    def size_row() -> Row:
        what = f"the same, {large // MILLION}M transitions"
        return compare(what, "10k transitions", 3.0, _cycle(_full(large)), _cycle(_full(10_000)), 100)

    def add_row() -> Row:
        states = (np.zeros((1, 1, 64), np.float32),) * 2
        ours = _add(_full(100_000), episode_starts=np.zeros(1, np.bool_), states=states)
        theirs = _add(PrioritizedReplayBuffer(100_000, *_SPACES, "cpu", n_steps=5))
        return compare("add, sequences with states of 64", "PrioritizedReplayBuffer", 1.5, ours, theirs, 2000)

    yield "sequences sample", sample_row
    yield "sequences size", size_row
    yield "sequences add", add_row
