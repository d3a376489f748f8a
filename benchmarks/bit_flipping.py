"""
HER on SB3's 10-bit BitFlippingEnv with the settings of SB3's own performance test, stock against prioritized.

    python benchmarks/bit_flipping.py
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import PERDQN, PrioritizedHerReplayBuffer

VARIANTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "DQN": (DQN, HerReplayBuffer, {}),
    "PERDQN": (PERDQN, PrioritizedHerReplayBuffer, {}),
    "PERDQN, no weights": (PERDQN, PrioritizedHerReplayBuffer, dict(beta_start=0.0, beta_end=0.0)),
    "PERDQN, uniform": (PERDQN, PrioritizedHerReplayBuffer, dict(scheme="uniform")),
    "PERDQN, rank": (PERDQN, PrioritizedHerReplayBuffer, dict(scheme="rank")),
    "PERDQN, LAP": (PERDQN, PrioritizedHerReplayBuffer, dict(scheme="lap")),
    "PERDQN, real only": (PERDQN, PrioritizedHerReplayBuffer, dict(update_from_virtual=False)),
}


def success_rate(cls: Any, buffer_class: Any, settings: dict[str, Any], seed: int) -> float:
    """Share of the last 50 training episodes that reached the goal."""
    model = cls(
        "MultiInputPolicy",
        make_vec_env(lambda: BitFlippingEnv(n_bits=10, continuous=False), n_envs=2),
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs=dict(n_sampled_goal=5, goal_selection_strategy="future", **settings),
        learning_rate=2e-3,
        train_freq=1,
        gradient_steps=2,
        learning_starts=20,
        exploration_final_eps=0.02,
        target_update_interval=100,
        batch_size=32,
        buffer_size=100_000,
        stats_window_size=50,
        seed=seed,
    )
    model.learn(1_500)
    return float(np.mean(model.ep_success_buffer))


th.set_num_threads(1)
print("| variant | mean | seeds |\n|---|---|---|")
for name, (cls, buffer_class, settings) in VARIANTS.items():
    rates = [success_rate(cls, buffer_class, settings, seed) for seed in range(6)]
    print(f"| {name} | {np.mean(rates):.2f} | {' '.join(f'{rate:.2f}' for rate in rates)} |", flush=True)
