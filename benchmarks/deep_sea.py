"""A Gymnasium environment: DeepSea (Osband et al. 2020, Behaviour Suite for Reinforcement Learning, arXiv 1908.03568)."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class DeepSea(gym.Env[np.ndarray, int]):
    """
    A grid of size x size; every step goes down a row, and one column to the left or to the right.

    Only whoever goes right at every step finds the treasure, a reward of 1 in the last row; every step to the right costs
    0.01 / size. Which of the two actions means right differs from cell to cell, so random actions find it once in 2^size
    episodes, and there is nothing to generalise from.

    :param size: rows, columns and steps of an episode
    :param mapping_seed: of the meaning of the actions
    """

    def __init__(self, size: int = 8, mapping_seed: int = 0):
        self.size = size
        self.right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0.0, 1.0, (size * size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in the upper left corner."""
        super().reset(seed=seed)
        self._row, self._column = 0, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go down, and left or right; the walls hold."""
        reward = 0.0
        if action == self.right[self._row, self._column]:
            reward -= 0.01 / self.size
            reward += float(self._column == self.size - 1)
            self._column = min(self._column + 1, self.size - 1)
        else:
            self._column = max(self._column - 1, 0)
        self._row += 1
        return self._observation(), reward, self._row == self.size, False, {}

    def _observation(self) -> np.ndarray:
        """The cell, one-hot; zeros at the end."""
        observation = np.zeros(self.size * self.size, np.float32)
        if self._row < self.size:
            observation[self._row * self.size + self._column] = 1.0
        return observation
