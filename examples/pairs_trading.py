"""
Compare the learning curves of SAC and PERSAC, with the same seed and settings, on a spread that mostly reverts to its mean.

    python examples/pairs_trading.py

One seed shows how to compare, not which is better. Needs matplotlib: pip install "matplotlib"
"""

import os
from typing import Any

import numpy as np
import torch as th
from matplotlib.figure import Figure
from pairs_trading_env import PairsTradingEnv
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 800 if os.environ.get("SB3_PER_SHORT") else 80_000
N_EPISODES = 20
os.makedirs("runs", exist_ok=True)


class Rule:
    """To beat: the further the spread is from its mean, the more against it."""

    def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[np.ndarray, None]:
        """Position = -clip(z-score)."""
        return -np.clip(observation[:, :1], -1.0, 1.0), None


def evaluate(model: Any) -> float:
    """Mean return on the same paths of the spread every time: one episode in each of the newly seeded environments."""
    envs = make_vec_env(PairsTradingEnv, n_envs=N_EPISODES, seed=1_000)
    return float(np.mean(evaluate_policy(model, envs, n_eval_episodes=N_EPISODES)[0]))


def record(*_: Any) -> bool:
    """Evaluate ten times during training; the callback of learn()."""
    if model.num_timesteps % (STEPS // 10) == 0:
        curve.append((model.num_timesteps, evaluate(model)))
    return True


figure = Figure(layout="constrained")
axes = figure.subplots()
for cls in (SAC, PERSAC):
    curve: list[tuple[int, float]] = []
    model = cls("MlpPolicy", make_vec_env(PairsTradingEnv, n_envs=4), policy_kwargs=dict(net_arch=[64, 64]), seed=0)
    model.learn(STEPS, callback=record)
    axes.plot(*zip(*curve, strict=True), marker=".", label=cls.__name__)
    print(f"{cls.__name__}: mean return {curve[-1][1]:.1f}")
axes.axhline(rule := evaluate(Rule()), color="grey", linestyle="--", label="position = -clip(z-score)")
print(f"rule: mean return {rule:.1f} (position = -clip(z-score))")
axes.set(xlabel="environment steps", ylabel=f"mean return of {N_EPISODES} fixed episodes")
axes.legend()
figure.savefig("runs/pairs_trading.png", dpi=150)
