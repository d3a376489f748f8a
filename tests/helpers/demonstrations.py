"""Demonstrations, and what a buffer holds of them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter

from sb3_per import (
    PrioritizedReplayBuffer,
)
from tests.helpers.buffers import OBSERVATION_SPACES, fill, make_buffer


def demonstrations(space: spaces.Space, n: int, k: int = 1, seed: int = 0, p_end: float = 0.2) -> list[Any]:
    """Make arguments of ``add_demonstrations``: random steps with terminations, truncations and rewards 1000, 1001, ..."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    dones = rng.random((n, k)) < p_end
    infos = [[{"TimeLimit.truncated": bool(done and rng.random() < 0.5)} for done in row] for row in dones]

    def observations() -> Any:
        samples = [[space.sample() for _ in range(k)] for _ in range(n)]
        if isinstance(space, spaces.Dict):
            return {key: np.array([[sample[key] for sample in row] for row in samples]) for key in space.spaces}
        return np.array(samples)

    actions = rng.uniform(-1, 1, (n, k, 2)).astype(np.float32)
    return [observations(), observations(), actions, 1000.0 + np.arange(n * k).reshape(n, k), dones, infos]


def mixed(n_demonstrations: int = 7, **kwargs: Any) -> PrioritizedReplayBuffer:
    """Make a buffer of two environments with experience and demonstrations, all with different priorities."""
    buffer = make_buffer(12, 2, **{"demonstration_fraction": 0.25, **kwargs})
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, n_demonstrations))
    fill([buffer], 20)
    ids = np.concatenate([buffer.transition_ids[buffer.transition_ids >= 0], demonstration_ids(buffer)])
    buffer.update_priorities(ids, np.random.default_rng(1).exponential(size=len(ids)) ** 2)
    return buffer


def demonstration_ids(buffer: PrioritizedReplayBuffer) -> np.ndarray:
    """Collect the ids of all demonstrations from batches, and sort them."""
    found: set[int] = set()
    while len(found) < len(buffer.demonstrations):
        found |= {int(i) for batch in [buffer.sample(256)] for i in batch.indices[batch.is_demonstration]}
    return np.sort(np.array(list(found)))


def bounded(low: Any, high: Any, shape: tuple[int, ...] = (2,), dtype: Any = np.float32) -> PrioritizedReplayBuffer:
    """Make a buffer for actions with these bounds."""
    space = spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), dtype=dtype)
    return PrioritizedReplayBuffer(12, OBSERVATION_SPACES["box"], space, device="cpu", n_envs=2, demonstration_fraction=0.5)


def record(buffer: PrioritizedReplayBuffer, actions: np.ndarray, is_demonstration: bool) -> None:
    """Store actions of the environment, shape (n, 2, ...), as experience or as demonstrations."""
    low, high = buffer.action_space.low, buffer.action_space.high
    steps = demonstrations(buffer.observation_space, len(actions), 2)
    steps[2] = (2 * (actions - low) / (high - low) - 1).reshape(len(actions), 2, -1)
    (buffer.add_demonstrations if is_demonstration else buffer.extend)(*steps)


class Records(KVWriter):
    """Keep the values that are logged."""

    def __init__(self):
        self.lines = []

    def write(self, key_values, key_excluded, step=0):
        self.lines.append(dict(key_values))
