"""Environments whose observations identify the environment, the episode and the step. Actor processes import this module."""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Tracked(gym.Env):
    """
    Observe (who, episode, step): a random number of the episode, and two counters.

    With these numbers, tests check whether one step follows another.
    """

    def __init__(self, length: int = 7, truncates: bool = False, is_dict: bool = False, discrete: bool = True):
        self.length, self.truncates, self.is_dict = length, truncates, is_dict
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space: Any = spaces.Dict({"vec": box, "copy": box}) if is_dict else box
        self.action_space: Any = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.who, self.episode, self.seeds = 0.0, 0, []
        self.render_mode = None

    def pid(self) -> int:
        return os.getpid()

    def _obs(self) -> Any:
        obs = np.array([self.who, self.episode, self.t], np.float32)
        return {"vec": obs, "copy": -obs} if self.is_dict else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.who, self.t, self.episode = float(self.np_random.integers(1, 2**20)), 0, self.episode + 1
        return self._obs(), {"options": options}

    def step(self, action: Any) -> Any:
        self.t += 1
        done = self.t >= self.length
        return self._obs(), float(self.t), done and not self.truncates, done and self.truncates, {}


class Slow(Tracked):
    """Sleep for some time in each step."""

    def __init__(self, seconds: float = 0.01, exponential: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.seconds, self.exponential = seconds, exponential

    def step(self, action: Any) -> Any:
        time.sleep(self.np_random.exponential(self.seconds) if self.exponential else self.seconds)
        return super().step(action)


class Unlucky(Tracked):
    """Raise an error after ``lifetime`` steps."""

    def __init__(self, lifetime: int = 30, **kwargs: Any):
        super().__init__(**kwargs)
        self.steps_left = lifetime

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise ArithmeticError("the environment is broken")
        return super().step(action)


class Mortal(Tracked):
    """Kill the process after ``lifetime`` steps, but only once: a file records it."""

    def __init__(self, folder: str, lifetime: int = 30, **kwargs: Any):
        super().__init__(**kwargs)
        self.folder, self.steps_left = folder, lifetime

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        if self.steps_left == 0:
            killed = Path(self.folder, "killed")
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), 9)
        return super().step(action)


class Images(gym.Env):
    """Observe images with channels last, which SB3 transposes."""

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space: Any = spaces.Discrete(2)
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0, False, self.t >= 5, {}
