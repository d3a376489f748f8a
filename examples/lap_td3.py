"""
TD3 with loss-adjusted prioritization (LAP), which replaces importance-sampling weights by a Huber loss.

    python examples/lap_td3.py
"""

import os

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

from sb3_per import PERTD3

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 300 if os.environ.get("SB3_PER_SHORT") else 8_000
os.makedirs("runs", exist_ok=True)

model = PERTD3(
    "MlpPolicy",
    "Pendulum-v1",
    # Why LAP: on MuJoCo, plain PER did not help TD3, LAP did (Fujimoto et al. 2020). The defaults are theirs: alpha 0.4,
    # and kappa 1, the error above which the Huber loss is linear and the priority grows.
    replay_buffer_kwargs=dict(scheme="lap"),
    learning_rate=2e-3,
    batch_size=64,
    policy_kwargs=dict(net_arch=[64, 64]),
    action_noise=NormalActionNoise(mean=np.zeros(1), sigma=np.full(1, 0.1)),
    seed=0,
)
model.learn(STEPS)
model.save("runs/lap_td3")
mean, std = evaluate_policy(model, make_vec_env("Pendulum-v1", seed=1), n_eval_episodes=10)
print(f"mean return {mean:.1f} +/- {std:.1f}")
