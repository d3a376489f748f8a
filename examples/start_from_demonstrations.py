"""
Start from demonstrations: an expert shows a sparse task ten times, and every batch of the learner has a share of that.

    python examples/start_from_demonstrations.py

The car must leave the valley, and thrust costs reward. SAC mostly learns to stand still: it hardly ever sees the reward at the
top of the hill. The expert is a linear policy, found by the cross-entropy method in seconds; yours may be a person.
"""

import os
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC, PrioritizedReplayBuffer

TASK = "MountainCarContinuous-v0"
SHORT = bool(os.environ.get("SB3_PER_SHORT"))


def action_of(expert: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """Thrust of a linear policy of position, velocity and a constant, shape (1,)."""
    thrust = expert @ [obs[0], 100 * obs[1], 1.0]
    return np.clip(np.array([thrust], np.float32), -1.0, 1.0)


def return_of(expert: np.ndarray, env: gym.Env, seed: int) -> float:
    """Return of an episode."""
    obs, _ = env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        obs, reward, terminated, truncated, _ = env.step(action_of(expert, obs))
        total, is_over = total + float(reward), terminated or truncated
    return total


def train_expert(n_rounds: int = 10, seed: int = 0) -> np.ndarray:
    """Cross-entropy method: sample policies, and move the distribution to the best fifth, again and again."""
    rng, env = np.random.default_rng(seed), gym.make(TASK)
    mean, std = np.zeros(3), np.ones(3)
    for i in range(n_rounds):
        candidates = mean + std * rng.normal(size=(20, 3))
        returns = [return_of(candidate, env, seed=i) for candidate in candidates]
        best = candidates[np.argsort(returns)[-4:]]
        mean, std = best.mean(axis=0), best.std(axis=0) + 0.02
    return mean


def record(expert: np.ndarray, n_episodes: int, seed: int = 100) -> PrioritizedReplayBuffer:
    """
    Let the expert act.

    :param expert: linear policy
    :param n_episodes: number of episodes
    :param seed: seed of the first episode, the others follow
    :return: buffer that holds all transitions
    """
    env = gym.make(TASK)
    buffer = PrioritizedReplayBuffer(n_episodes * 999, env.observation_space, env.action_space, device="cpu")
    for episode in range(n_episodes):
        (obs, _), is_over = env.reset(seed=seed + episode), False
        while not is_over:
            action = action_of(expert, obs)  # in [-1, 1] already, as buffers store actions
            next_obs, reward, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            info = {"TimeLimit.truncated": truncated and not terminated}
            buffer.add(obs[None], next_obs[None], action[None], np.array([reward]), np.array([is_over]), [info])
            obs = next_obs
    return buffer


def make_learner(**settings: Any) -> PERSAC:
    """A learner that has a share of demonstrations in every batch, and begins to learn at once."""
    return PERSAC(
        "MlpPolicy",
        make_vec_env(TASK, seed=0),
        learning_rate=1e-3,
        learning_starts=0,
        policy_kwargs=dict(net_arch=[64, 64]),
        replay_buffer_kwargs=dict(demonstration_fraction=0.5),
        seed=0,
        **settings,
    )


if __name__ == "__main__":
    episodes = record(train_expert(n_rounds=1 if SHORT else 10), n_episodes=1 if SHORT else 10)
    print(f"demonstrations: {episodes.size()} transitions, mean return {episodes.rewards.sum() / (1 if SHORT else 10):.1f}")
    model = make_learner(device="cpu")
    model.replay_buffer.add_demonstrations_from(episodes)
    model.learn(200 if SHORT else 5_000)
    mean, _ = evaluate_policy(model, make_vec_env(TASK, seed=1_000), n_eval_episodes=1 if SHORT else 20)
    print(f"mean return after {model.num_timesteps} steps: {mean:.1f} (solved: 90)")
