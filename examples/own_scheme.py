"""
A prioritization scheme of your own: prefer transitions whose critics disagree about the TD error.

    python examples/own_scheme.py
"""

import numpy as np

from sb3_per import PERSAC, PriorityScheme


class Disagreement(PriorityScheme):
    """p = |td| + the spread of |td| over the critics."""

    def __init__(self, alpha: float = 0.6, spread: float = 2.0):
        super().__init__(alpha)
        self.spread = spread

    def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """One number for each transition, from |td| of every critic, shape (batch_size, n_critics)."""
        mean: np.ndarray = abs_td_errors.mean(axis=1) + self.spread * np.ptp(abs_td_errors, axis=1)
        return mean

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """Above 0, so that every transition can be drawn again."""
        return abs_td_errors + 1e-6


model = PERSAC(
    "MlpPolicy",
    "Pendulum-v1",
    replay_buffer_kwargs=dict(scheme=Disagreement(alpha=0.5)),
    policy_kwargs=dict(net_arch=[32, 32]),
    verbose=1,
)
model.learn(600, log_interval=1)
