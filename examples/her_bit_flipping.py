"""
Hindsight experience replay with prioritized draws: flip 10 bits, one in each step, until they equal the goal.

    python examples/her_bit_flipping.py

The goal is reached in at least 80% of the episodes after 1,500 steps of both environments together
(docs/benchmarks/recipes.md).
"""

import os

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import PERDQN, PrioritizedHerReplayBuffer

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 400 if os.environ.get("SB3_PER_SHORT") else 1_500

model = PERDQN(
    "MultiInputPolicy",
    make_vec_env(lambda: BitFlippingEnv(n_bits=10, continuous=False), n_envs=2),
    replay_buffer_class=PrioritizedHerReplayBuffer,
    replay_buffer_kwargs=dict(
        n_sampled_goal=5,
        goal_selection_strategy="future",
        # For this task docs/choosing.md recommends scheme="uniform". This example shows prioritized draws, and without
        # importance-sampling weights no harm was seen. The weights are at most 1, and slow learning down to less than what
        # stock DQN reaches (the suite bits-rates of benchmarks/learning.py compares).
        beta=0,
    ),
    learning_rate=2e-3,
    train_freq=1,
    gradient_steps=2,
    learning_starts=20,
    exploration_final_eps=0.02,
    target_update_interval=100,
    buffer_size=100_000,
    stats_window_size=50,
    seed=0,
)
model.learn(STEPS)
assert model.ep_success_buffer is not None
successes = list(model.ep_success_buffer)
print(f"success rate of the last {len(successes)} training episodes: {np.mean(successes):.2f}")
