"""
A prioritization scheme of your own: prefer transitions whose critics disagree about the TD error.

    python examples/own_scheme.py

A mean return above -250 after 6,000 steps (docs/benchmarks/recipes.md).
"""

import os

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC, PriorityScheme

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md


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
    learning_rate=2e-3,
    batch_size=64,
    policy_kwargs=dict(net_arch=[64, 64]),
    verbose=1,
    seed=0,
)
model.learn(600 if os.environ.get("SB3_PER_SHORT") else 6_000, log_interval=1)
mean, std = evaluate_policy(model, make_vec_env("Pendulum-v1", seed=1), n_eval_episodes=10)
print(f"mean return {mean:.1f} +/- {std:.1f}")
