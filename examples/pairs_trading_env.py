"""
A Gymnasium environment: trade the spread of two assets. Mostly it reverts to its mean; now and then the regime breaks.

    from pairs_trading_env import PairsTradingEnv

`pairs_trading.py` trains on it.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class PairsTradingEnv(gym.Env[np.ndarray, np.ndarray]):
    """
    Hold a position in a mean-reverting spread.

    The spread is an Ornstein-Uhlenbeck process, observed once per bar, in units of the standard deviation of a quiet bar. On
    about 1% of the bars a regime breaks: either the mean jumps, or the volatility does and then decays.

    - action: the position in [-1, 1] to hold during the next bar
    - reward: position * change of the spread - cost * |change of the position|
    - observation: z-score of the spread over the last ``window`` bars; its last change; standard deviation of the last
      ``short_window`` changes; the position
    - info: ``spread``, and ``regime_break``, whether a regime broke on this bar. The mean itself is not observed.

    An episode is truncated after ``n_bars``, and never terminates.

    :param n_bars: length of an episode
    :param cost: cost of moving the position by 1
    :param reversion: share of the distance to the mean that the spread closes per bar
    :param p_break: probability that a regime breaks on a bar
    :param jump: by how much the mean jumps, up or down
    :param burst: volatility right after a break, in units of the volatility of a quiet bar
    :param burst_decay: factor per bar of the volatility above 1
    :param window: bars of the z-score
    :param short_window: bars of the recent volatility, fewer than ``window``
    """

    def __init__(
        self,
        n_bars: int = 250,
        cost: float = 0.1,
        reversion: float = 0.1,
        p_break: float = 0.01,
        jump: float = 10.0,
        burst: float = 4.0,
        burst_decay: float = 0.9,
        window: int = 50,
        short_window: int = 10,
    ):
        self.n_bars, self.cost, self.reversion = n_bars, cost, reversion
        self.p_break, self.jump, self.burst, self.burst_decay = p_break, jump, burst, burst_decay
        self.window, self.short_window = window, short_window
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the whole path of an episode, and the bars before it."""
        super().reset(seed=seed)
        spread, breaks = self._simulate(self.window + self.n_bars)
        windows = np.lib.stride_tricks.sliding_window_view(spread, self.window)
        changes = np.lib.stride_tricks.sliding_window_view(np.diff(spread), self.short_window)[-self.n_bars - 1 :]
        z_scores = (windows[:, -1] - windows.mean(axis=1)) / windows.std(axis=1)
        self._market = np.column_stack([z_scores, changes[:, -1], changes.std(axis=1)])
        self._spread, self._breaks = spread[self.window - 1 :], breaks[self.window - 1 :]
        self._bar, self._position = 0, 0.0
        return self._observation(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move to a position, pay for it, and hold it for one bar."""
        position = float(np.clip(action[0], -1.0, 1.0))
        self._bar += 1
        change = self._spread[self._bar] - self._spread[self._bar - 1]
        reward = float(position * change - self.cost * abs(position - self._position))
        self._position = position
        return self._observation(), reward, False, self._bar == self.n_bars, self._info()

    def _simulate(self, n_bars: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Simulate the spread.

        :param n_bars: number of bars
        :return: the spread, and whether a regime broke, both of shape (n_bars,)
        """
        breaks = self.np_random.random(n_bars) < self.p_break
        is_jump = self.np_random.random(n_bars) < 0.5
        directions = self.np_random.choice([-1.0, 1.0], n_bars)
        noise = self.np_random.standard_normal(n_bars)
        means = np.cumsum(self.jump * directions * (breaks & is_jump))
        spread = np.empty(n_bars)
        value, volatility = 0.0, 1.0
        for bar in range(n_bars):
            volatility = self.burst if breaks[bar] and not is_jump[bar] else 1.0 + self.burst_decay * (volatility - 1.0)
            value += self.reversion * (means[bar] - value) + volatility * noise[bar]
            spread[bar] = value
        return spread, breaks

    def _observation(self) -> np.ndarray:
        observation: np.ndarray = np.clip([*self._market[self._bar], self._position], -10.0, 10.0)
        return observation.astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"spread": float(self._spread[self._bar]), "regime_break": bool(self._breaks[self._bar])}
