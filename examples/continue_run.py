"""
Stop a run and continue it later, with the same priorities, ids, beta and largest priority.

    python examples/continue_run.py
"""

import os

import gymnasium as gym
import torch as th

from sb3_per import PERSAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS = 300 if os.environ.get("SB3_PER_SHORT") else 2_500
os.makedirs("runs", exist_ok=True)

model = PERSAC(
    "MlpPolicy",
    "Pendulum-v1",
    # By default beta reaches 1 at the end of learn(). A run in two parts counts the drawn batches of both instead.
    replay_buffer_kwargs=dict(beta_anneal_steps=2 * STEPS),
    learning_rate=2e-3,
    batch_size=64,
    policy_kwargs=dict(net_arch=[64, 64]),
    buffer_size=10_000,
    seed=0,
)
model.learn(STEPS)
model.save("runs/continue_run")
model.save_replay_buffer("runs/continue_run_buffer")
print(f"saved:  {model.num_timesteps} steps, beta {model.replay_buffer.beta:.3f}")

model = PERSAC.load("runs/continue_run", env=gym.make("Pendulum-v1"))
model.load_replay_buffer("runs/continue_run_buffer")
print(f"loaded: {model.num_timesteps} steps, beta {model.replay_buffer.beta:.3f}")

model.learn(STEPS, reset_num_timesteps=False)
print(f"end:    {model.num_timesteps} steps, beta {model.replay_buffer.beta:.3f}")
