"""
Eight actors collect in their own processes while one learner learns. Only the line that makes the environments changes.

    python examples/actors.py
"""

import os

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC
from sb3_per.distributed import make_actors

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

SHORT = bool(os.environ.get("SB3_PER_SHORT"))
STEPS, N_ACTORS = (600, 2) if SHORT else (8_000, 8)

if __name__ == "__main__":
    env = make_actors("Pendulum-v1", n_actors=N_ACTORS)  # was: make_vec_env("Pendulum-v1", n_envs=8)
    model = PERSAC(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        gradient_steps=-1,  # one for every transition, as with make_vec_env
        verbose=1,
    )
    model.learn(STEPS, log_interval=N_ACTORS)
    env.close()

    mean, std = evaluate_policy(model, make_vec_env("Pendulum-v1", seed=1), n_eval_episodes=20)
    print(f"mean return {mean:.1f} +/- {std:.1f}")
