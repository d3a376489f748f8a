"""
Train compiled SAC without importance-sampling weights in 32 environments of EnvPool, in about a minute on two cores.

    pip install "envpool>=1.2.2" "sbx-rl>=0.27,<0.30"
    python examples/envpool_reacher.py              # seed 0
    python examples/envpool_reacher.py 3 uniform    # seed 3, with uniform draws instead of priorities

The task is Reacher (hard) of the DeepMind Control Suite: a reward of 1 in each step in which the arm touches a small target,
otherwise 0. Every 1,000 updates it prints ep_rew_mean, the mean return of the last 32 episodes. 250 is the largest possible.
Scores over ten seeds are in docs/benchmarks/recipes.md.
"""

import os
import sys
from typing import Any

import envpool
import torch as th
from stable_baselines3.common.callbacks import LogEveryNTimesteps

from sb3_per.integrations import from_vector_env
from sb3_per.sbx import PERSAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

N_ENVS, LENGTH = 32, 250
UPDATES = 50 if os.environ.get("SB3_PER_SHORT") else 8_000
NUMBER = next((int(argument) for argument in sys.argv[1:] if argument.isdigit()), 0)
SEED = N_ENVS * NUMBER  # environment i gets SEED + i, so that no two runs share one
PRIORITIES: dict[str, Any] = dict(beta_start=0.0, beta_end=0.0)  # without weights, which take part of the effect back
DRAWS = dict(scheme="uniform") if "uniform" in sys.argv else PRIORITIES

# Each action lasts four steps of 20 milliseconds, so that an episode is as long as in the Control Suite.
pool = envpool.make(
    "ReacherHard-v1", env_type="gymnasium", num_envs=N_ENVS, num_threads=1, seed=SEED, frame_skip=4, max_episode_steps=LENGTH
)
# All episodes have the same length. With `stagger` they do not end together.
env = from_vector_env(pool, stagger=LENGTH, flatten=True)
model = PERSAC(
    "MlpPolicy",
    env,
    # One update for a step of all environments: each transition is drawn 256 / 32 = 8 times.
    train_freq=1,
    gradient_steps=1,
    batch_size=256,
    buffer_size=1_000_000,  # transitions of all environments together
    learning_starts=LENGTH * N_ENVS,  # an episode of each environment
    learning_rate=1e-3,
    policy_kwargs=dict(net_arch=[128, 128]),
    replay_buffer_kwargs=DRAWS,
    stats_window_size=N_ENVS,
    seed=SEED,  # EnvPool already has it
    verbose=1,
)
model.learn((LENGTH + UPDATES) * N_ENVS, callback=LogEveryNTimesteps(1_000 * N_ENVS), log_interval=None)
returns = [episode["r"] for episode in model.ep_info_buffer or []]
print(f"seed {NUMBER}: mean return {sum(returns) / len(returns):.0f} in the last {len(returns)} episodes")
env.close()
