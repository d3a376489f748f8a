"""
Double DQN with 3-step returns and prioritized replay.

    python examples/double_dqn.py
"""

import os

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 2_000 if os.environ.get("SB3_PER_SHORT") else 50_000
os.makedirs("runs", exist_ok=True)

model = PERDQN(
    "MlpPolicy",
    "CartPole-v1",
    double_q=True,
    n_steps=3,
    replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4),  # the defaults, which are the paper's
    # RL Zoo's settings for DQN. The paper divides the learning rate by 4, with RMSProp; under Adam that is no rule.
    learning_rate=2.3e-3,
    batch_size=64,
    learning_starts=1_000,
    target_update_interval=10,
    train_freq=256,
    gradient_steps=128,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
    policy_kwargs=dict(net_arch=[256, 256]),
    seed=0,
)
model.learn(STEPS)
model.save("runs/double_dqn")
mean, std = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), n_eval_episodes=20)
print(f"mean return {mean:.1f} +/- {std:.1f} (500 is the largest)")
