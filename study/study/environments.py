"""Two small tasks: a chain whose end alone has a reward, and a corridor whose doors ask for memory."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

N_SIDES, N_DOORS, DISTANCE = 4, 7, 7


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


class DoorsEnv(gym.Env[np.ndarray, np.int64]):
    """
    A T-maze (Bakker 2001) with many crossings. A sign at the entrance says on which of four sides the doors are open. There is
    a door every seven steps, and only there the action counts. An episode has 50 steps.

    The agent sees the sign at the first step only, and the number of the door at each door. So an answer that it learned at
    one door is none for the next. An agent that remembers the sign opens all doors, a return of 1. Others open one in four.
    """

    observation_space = spaces.Box(0.0, 1.0, (N_SIDES + N_DOORS,), np.float32)
    action_space = spaces.Discrete(N_SIDES)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._open_side = 0, int(self.np_random.integers(N_SIDES))
        observation = np.zeros(N_SIDES + N_DOORS, np.float32)
        observation[self._open_side] = 1.0
        return observation, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_open = self._is_at_door and int(action) == self._open_side
        self._step += 1
        observation = np.zeros(N_SIDES + N_DOORS, np.float32)
        if self._is_at_door:
            observation[N_SIDES + self._step // DISTANCE - 1] = 1.0
        return observation, is_open / N_DOORS, self._step > N_DOORS * DISTANCE, False, {}

    @property
    def _is_at_door(self) -> bool:
        return 0 < self._step <= N_DOORS * DISTANCE and self._step % DISTANCE == 0
