"""
Points in the plane, all in one NumPy VecEnv: a sparse task with as many environments as you like.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv


class PlaneVecEnv(VecEnv):
    """
    Points that are pushed from the left fifth of [-1, 1]^2 to a small goal on the right.

    An observation is position and velocity, an action the push. The reward is 1 at the goal, where the episode ends, and 0
    elsewhere. After 50 steps an episode is truncated. Random pushes reach the goal in one episode of 200.

    :param n_envs: number of points
    :param seed: seed of the starts
    """

    goal = np.array([0.7, 0.0])
    radius = 0.1
    max_steps = 50

    def __init__(self, n_envs: int, seed: int = 0):
        super().__init__(n_envs, spaces.Box(-2.0, 2.0, (4,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.rng = np.random.default_rng(seed)
        self.positions = np.zeros((n_envs, 2))
        self.velocities = np.zeros((n_envs, 2))
        self.ages = np.zeros(n_envs, np.int64)

    def reset(self) -> np.ndarray:
        """Start all points."""
        self._start(np.ones(self.num_envs, np.bool_))
        # Otherwise all episodes would end together.
        self.ages = self.rng.integers(self.max_steps, size=self.num_envs)
        return self._observations()

    def step_async(self, actions: np.ndarray) -> None:
        """Take the pushes."""
        self.pushes = np.clip(actions, -1.0, 1.0)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Move all points."""
        self.velocities = 0.8 * self.velocities + 0.04 * self.pushes
        self.positions = np.clip(self.positions + self.velocities, -1.0, 1.0)
        self.ages += 1
        arrived = np.linalg.norm(self.positions - self.goal, axis=1) < self.radius
        ended = arrived | (self.ages == self.max_steps)
        last = self._observations()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(ended):
            infos[i] = {"terminal_observation": last[i], "TimeLimit.truncated": not arrived[i], "is_success": arrived[i]}
        self._start(ended)  # a VecEnv begins the next episode at once
        return self._observations(), arrived.astype(np.float32), ended, infos

    def _start(self, which: np.ndarray) -> None:
        self.positions[which] = self.rng.uniform([-1.0, -1.0], [-0.6, 1.0], (which.sum(), 2))
        self.velocities[which] = 0.0
        self.ages[which] = 0

    def _observations(self) -> np.ndarray:
        return np.concatenate([self.positions, self.velocities], axis=1, dtype=np.float32)

    # What else a VecEnv must have. The points share one object, so they have no attributes and no methods of their own.

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of all points, for each of them."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Say that there are no wrappers."""
        return [False] * self.num_envs
