"""A chain of states with a single way to its end, where the only reward is: rare events carry the signal."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class ChainEnv(gym.Env):
    """
    In every state one of two actions leads on, and the other one back to the first state. Nothing but the end of the chain has
    a reward or ends an episode, which random actions reach about once in 2^(n + 1) steps; a time limit says nothing.

    :param n_states: in a row
    :param max_steps: of an episode
    """

    def __init__(self, n_states: int = 9, max_steps: int = 50):
        self.n_states, self.max_steps = n_states, max_steps
        # Which action leads on differs from state to state, so that nothing can be learned of one from another.
        self.ways = np.random.default_rng(0).integers(0, 2, n_states)
        self.observation_space = spaces.Box(0, 1, (n_states,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.state = self.n_steps = 0

    def _observation(self) -> np.ndarray:
        return np.eye(self.n_states, dtype=np.float32)[min(self.state, self.n_states - 1)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Back to the first state."""
        super().reset(seed=seed)
        self.state = self.n_steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """On, or back."""
        self.n_steps += 1
        self.state = self.state + 1 if int(action) == self.ways[self.state] else 0
        arrived = self.state == self.n_states
        return self._observation(), float(arrived), arrived, not arrived and self.n_steps == self.max_steps, {}
