"""
Start from demonstrations: an expert shows a sparse task ten times, and half of every batch of the learner is from that.

    python examples/start_from_demonstrations.py

SAC mostly learns to stand still here: thrust costs reward, and it hardly ever sees the reward at the top of the hill. The
expert is a linear policy of position and velocity, found by the cross-entropy method in seconds. Yours may be a person.
"""

import os

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC, PrioritizedReplayBuffer

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

TASK = "MountainCarContinuous-v0"


def act(expert: np.ndarray, buffer: PrioritizedReplayBuffer, seed: int) -> float:
    """Store an episode of the expert in a buffer, and return its return."""
    env = gym.make(TASK)
    (obs, _), total, is_over = env.reset(seed=seed), 0.0, False
    while not is_over:
        thrust = np.array([expert @ [obs[0], 100 * obs[1], 1.0]], np.float32)
        action = np.clip(thrust, -1.0, 1.0)  # in [-1, 1], as buffers store actions
        next_obs, reward, terminated, truncated, _ = env.step(action)
        is_over, info = terminated or truncated, {"TimeLimit.truncated": truncated and not terminated}
        buffer.add(obs[None], next_obs[None], action[None], np.array([reward]), np.array([is_over]), [info])
        obs, total = next_obs, total + float(reward)
    return total


def expert_episodes(n_rounds: int = 10, n_episodes: int = 10) -> PrioritizedReplayBuffer:
    """Train the expert: sample policies, move the distribution to the best fifth, and repeat. Then let it act."""
    rng, env = np.random.default_rng(0), gym.make(TASK)
    buffer = PrioritizedReplayBuffer(20_000, env.observation_space, env.action_space, device="cpu")
    mean, std = np.zeros(3), np.ones(3)
    for i in range(n_rounds):
        candidates = mean + std * rng.normal(size=(20, 3))
        best = candidates[np.argsort([act(candidate, buffer, seed=i) for candidate in candidates])[-4:]]
        mean, std = best.mean(axis=0), best.std(axis=0) + 0.02
    buffer.reset()
    returns = [act(mean, buffer, seed=100 + i) for i in range(n_episodes)]
    print(f"demonstrations: {buffer.size()} transitions, mean return {np.mean(returns):.1f}")
    return buffer


if __name__ == "__main__":
    is_short, env = bool(os.environ.get("SB3_PER_SHORT")), make_vec_env(TASK, seed=0)
    networks, share = dict(net_arch=[64, 64]), dict(demonstration_fraction=0.5)
    model = PERSAC("MlpPolicy", env, 1e-3, learning_starts=0, policy_kwargs=networks, replay_buffer_kwargs=share, seed=0)
    model.replay_buffer.add_demonstrations_from(expert_episodes())
    model.learn(200 if is_short else 5_000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=2 if is_short else 20)
    print(f"mean return after {model.num_timesteps} steps: {mean:.1f} (solved: 90)")
