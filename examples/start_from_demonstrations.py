"""
Start from demonstrations: an expert shows a sparse task ten times, and every batch of the learner has a share of that.

    python examples/start_from_demonstrations.py

The car must leave the valley, and thrust costs reward. SAC mostly learns to stand still. The expert explores with correlated
noise until it has found the way. The learner then has ten of its episodes, and no noise of its own.
"""

import os
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

from sb3_per import PERSAC, PrioritizedReplayBuffer

TASK = "MountainCarContinuous-v0"
SHORT = bool(os.environ.get("SB3_PER_SHORT"))


def train_expert(seed: int = 0, steps: int = 50_000) -> PERSAC:
    """Learn with noise that keeps its direction for a while, until the task is solved, a return of 90."""
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))
    settings: dict[str, Any] = dict(
        learning_rate=1e-3, policy_kwargs=dict(net_arch=[64, 64]), learning_starts=1_000, device="cpu"
    )
    expert = PERSAC("MlpPolicy", make_vec_env(TASK, seed=seed), action_noise=noise, seed=seed, **settings)
    solved = StopTrainingOnRewardThreshold(90.0)
    test_env = make_vec_env(TASK, seed=1_000)
    return expert.learn(steps, EvalCallback(test_env, callback_on_new_best=solved, eval_freq=1_000, verbose=0))


def record(expert: PERSAC, n_episodes: int, seed: int = 100) -> PrioritizedReplayBuffer:
    """
    Let the expert act.

    :param expert: trained
    :param n_episodes: number of episodes
    :param seed: of the first episode
    :return: buffer that holds all transitions
    """
    env = make_vec_env(TASK, seed=seed)
    buffer = PrioritizedReplayBuffer(n_episodes * 999, env.observation_space, env.action_space, device="cpu")
    obs: Any = env.reset()
    n_ended = 0
    while n_ended < n_episodes:
        action, _ = expert.predict(obs, deterministic=True)
        next_obs, rewards, dones, infos = env.step(action)
        # VecEnv has begun the next episode already, and keeps the last observation in the info.
        last_obs = infos[0]["terminal_observation"][None] if dones[0] else next_obs
        buffer.add(obs, last_obs, expert.policy.scale_action(action), rewards, dones, infos)
        obs, n_ended = next_obs, n_ended + int(dones[0])
    return buffer


if __name__ == "__main__":
    expert = train_expert(steps=1_200 if SHORT else 50_000)
    episodes = record(expert, n_episodes=1 if SHORT else 10)
    print(f"demonstrations: {episodes.size()} transitions")

    model = PERSAC(
        "MlpPolicy",
        make_vec_env(TASK, seed=0),
        learning_rate=1e-3,
        learning_starts=0,
        policy_kwargs=dict(net_arch=[64, 64]),
        replay_buffer_kwargs=dict(demonstration_fraction=0.5),
        seed=0,
    )
    model.replay_buffer.add_demonstrations_from(episodes)
    model.learn(200 if SHORT else 10_000)
    mean, _ = evaluate_policy(model, make_vec_env(TASK, seed=1_000), n_eval_episodes=1 if SHORT else 20)
    print(f"mean return after {model.num_timesteps} steps: {mean:.1f} (solved: 90)")
