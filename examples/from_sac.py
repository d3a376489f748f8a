"""
Continue a run of stock SAC with prioritized replay: its zip loads as PERSAC, and its replay buffer becomes a prioritized
one.

    python examples/from_sac.py
"""

import os

import gymnasium as gym
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 300 if os.environ.get("SB3_PER_SHORT") else 2_500
os.makedirs("runs", exist_ok=True)

env, eval_env = gym.make("Pendulum-v1"), make_vec_env("Pendulum-v1", seed=1)
networks = dict(net_arch=[64, 64])
stock = SAC("MlpPolicy", env, learning_rate=2e-3, batch_size=64, buffer_size=10_000, policy_kwargs=networks, seed=0)
stock.learn(STEPS)
stock.save("runs/from_sac")
stock.save_replay_buffer("runs/from_sac_buffer")

model = PERSAC.load("runs/from_sac", env=env)
model.load_replay_buffer("runs/from_sac_buffer")
buffer = model.replay_buffer
print(f"{buffer.size()} transitions in a {type(buffer).__name__}")
mean, std = evaluate_policy(model, eval_env, n_eval_episodes=10)
print(f"SAC, {model.num_timesteps} steps: mean return {mean:.1f} +/- {std:.1f}")

model.learn(STEPS, reset_num_timesteps=False)
mean, std = evaluate_policy(model, eval_env, n_eval_episodes=10)
print(f"PERSAC, {model.num_timesteps} steps: mean return {mean:.1f} +/- {std:.1f}")
