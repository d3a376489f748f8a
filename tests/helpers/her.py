"""Hindsight experience replay: buffers, and a player that fills them."""

import copy
from typing import Any

import numpy as np
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecEnv

N_BITS = 4


def make_env(n_envs: int) -> VecEnv:
    return make_vec_env(lambda: BitFlippingEnv(n_bits=N_BITS, continuous=False, max_steps=5), n_envs=n_envs)


def make_her(cls: type[HerReplayBuffer], env: VecEnv, n_rows: int = 17, **kwargs: Any) -> Any:
    size = n_rows * env.num_envs
    return cls(size, env.observation_space, env.action_space, env=env, device="cpu", n_envs=env.num_envs, **kwargs)


class Player:
    """Adds random steps of a real environment to several buffers; episodes end at the goal or after 5 steps."""

    def __init__(self, env: VecEnv, *buffers: Any, seed: int = 0):
        self.env, self.buffers = env, buffers
        env.seed(seed)
        env.action_space.seed(seed)
        self.obs = env.reset()

    def step(self, n_steps: int = 1) -> None:
        for _ in range(n_steps):
            action = np.array([self.env.action_space.sample() for _ in range(self.env.num_envs)])
            obs, rewards, dones, infos = self.env.step(action)
            next_obs = copy.deepcopy(obs)
            for i in np.flatnonzero(dones):
                for key, value in infos[i]["terminal_observation"].items():
                    next_obs[key][i] = value
            for buffer in self.buffers:
                old, new = copy.deepcopy(self.obs), copy.deepcopy(next_obs)
                buffer.add(old, new, action.copy(), rewards.copy(), dones.copy(), copy.deepcopy(infos))
            self.obs = obs
