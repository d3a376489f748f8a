"""
The SAC example of Stable-Baselines3's documentation with one import changed; train, save, load, evaluate.

    python examples/swap_import.py
"""

import os

import gymnasium as gym
import torch as th
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_per import PERSAC as SAC  # was: from stable_baselines3 import SAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 300 if os.environ.get("SB3_PER_SHORT") else 5_000
os.makedirs("runs", exist_ok=True)

env = Monitor(gym.make("Pendulum-v1"))
model = SAC("MlpPolicy", env, verbose=1)
model.learn(STEPS, log_interval=4)
model.save("runs/swap_import")

model = SAC.load("runs/swap_import")
mean, std = evaluate_policy(model, env, n_eval_episodes=10)
print(f"mean return {mean:.1f} +/- {std:.1f}")
