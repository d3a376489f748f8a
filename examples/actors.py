"""
Eight actors collect, each in a process of its own, while one learner learns: the environments are the only line that changes.

    python examples/actors.py
"""

import os

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN
from sb3_per.distributed import make_actors

SHORT = bool(os.environ.get("SB3_PER_SHORT"))
STEPS, N_ACTORS = (500, 2) if SHORT else (50_000, 8)

if __name__ == "__main__":
    env = make_actors("CartPole-v1", n_actors=N_ACTORS)  # was: make_vec_env("CartPole-v1", n_envs=8)
    model = PERDQN(
        "MlpPolicy",
        env,
        learning_rate=2.3e-3,
        learning_starts=100,
        train_freq=1,
        gradient_steps=4,  # for every step of all environments, as with make_vec_env
        target_update_interval=80,
        exploration_fraction=0.2,
        policy_kwargs=dict(net_arch=[256, 256]),
        verbose=1,
    )
    model.learn(STEPS, log_interval=20)
    env.close()

    mean, std = evaluate_policy(model, make_vec_env("CartPole-v1"), n_eval_episodes=10)
    print(f"mean return {mean:.1f} +/- {std:.1f}")
