"""A corridor of doors: the agent must remember a sign that it saw long before it counts."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

N_SIDES = 4
N_DOORS = 7
DISTANCE = 7


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
