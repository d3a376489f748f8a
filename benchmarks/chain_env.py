"""A chain of states with a reward at its end only: rare events carry the signal."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class ChainEnv(gym.Env):
    """
    In every state one of two actions leads on, and the other one back to the first state. Only the end of the chain has a
    reward and terminates an episode. Random actions reach it about once in 2^(n + 1) steps. A time limit truncates.

    :param n_states: number of states in a row
    :param max_steps: largest number of steps in an episode
    """

    def __init__(self, n_states: int = 9, max_steps: int = 50):
        self.n_states, self.max_steps = n_states, max_steps
        # The action that leads on differs from state to state, so that no state teaches anything about another.
        self.ways = np.random.default_rng(0).integers(0, 2, n_states)
        self.observation_space = spaces.Box(0, 1, (n_states,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.state = self.n_steps = 0

    def _observation(self) -> np.ndarray:
        return np.eye(self.n_states, dtype=np.float32)[min(self.state, self.n_states - 1)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.n_steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        self.state = self.state + 1 if int(action) == self.ways[self.state] else 0
        arrived = self.state == self.n_states
        return self._observation(), float(arrived), arrived, not arrived and self.n_steps == self.max_steps, {}
