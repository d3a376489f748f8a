"""Environments, buffers and references for recurrent agents."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_per import PrioritizedSequenceReplayBuffer
from sb3_per.algorithms.recurrent.networks import transitions_in
from sb3_per.buffers.slots import map_arrays

SMALL: dict[str, Any] = dict(
    learning_starts=60,
    buffer_size=400,
    batch_size=8,
    sequence_length=6,
    burn_in=4,
    n_steps=2,
    train_freq=8,
    policy_kwargs=dict(lstm_hidden_size=8, net_arch=[8]),
    device="cpu",
    seed=0,
)


class Walk(gym.Env):
    """Walk at random, in episodes of random length, some of which are truncated. Observations and actions have any form."""

    def __init__(self, form: str = "box", is_continuous: bool = False):
        box, image = spaces.Box(-9, 9, (3,), np.float32), spaces.Box(0, 255, (1, 36, 36), np.uint8)
        self.form = form
        self.observation_space = {"box": box, "image": image, "dict": spaces.Dict({"a": box, "b": image})}[form]
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if is_continuous else spaces.Discrete(3)

    def _observe(self) -> Any:
        vector = self.np_random.normal(size=3).astype(np.float32)
        image = self.np_random.integers(0, 255, (1, 36, 36)).astype(np.uint8)
        return {"box": vector, "image": image, "dict": {"a": vector, "b": image}}[self.form]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ends = self.np_random.random()
        return self._observe(), float(self.np_random.normal() + np.sum(action)), ends < 0.05, 0.05 < ends < 0.12, {}


def envs(n_envs: int = 2, form: str = "box", is_continuous: bool = False) -> VecEnv:
    env = DummyVecEnv([lambda: Walk(form, is_continuous)] * n_envs)
    env.seed(1)
    return env


POLICIES = {"box": "MlpLstmPolicy", "image": "CnnLstmPolicy", "dict": "MultiInputLstmPolicy"}


class Recorder(PrioritizedSequenceReplayBuffer):
    """Also keep what the agent saw while acting: observations by id, and the recurrent state before each."""

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "seen"):
            self.seen: dict[int, Any] = {}
        first = int(self.transition_ids.max()) + 1
        super().add(obs, *args, **kwargs)
        for env in range(self.n_envs):
            states = [np.array(state[:, env]) for state in kwargs["states"]]
            self.seen[first + env] = (obs[env].copy(), states, bool(kwargs["episode_starts"][env]))


def histories(buffer: Recorder, batch: Any) -> Iterator[tuple[int, list[int], int, int]]:
    """List for each window: its number, the ids from the start of the episode to its last step, its length, and its prefix."""
    n_envs = buffer.n_envs
    for i, anchor in enumerate(batch.indices):
        first = anchor
        while not buffer.seen[first][2]:
            first -= n_envs
        length = int(batch.mask[:, i].sum())
        ids = list(range(first, anchor + n_envs * length, n_envs))
        yield i, ids, length, anchor - n_envs * int(batch.prefix_lengths[i])


def learn_with_seams(model: Any, is_continuous: bool = False) -> None:
    """Call `learn` without updates, once more, and on other environments."""
    model.learn(160)
    model.learn(60, reset_num_timesteps=False)
    model.set_env(envs(is_continuous=is_continuous))
    model.learn(60, reset_num_timesteps=False)
    assert sum(is_start for _, _, is_start in model.replay_buffer.seen.values()) > 8


def transitions_of(model: Any, batch: Any) -> Any:
    """Select the single steps of windows, as an update has them."""
    acting = model.policy.recurrent_networks[0]
    return transitions_in(batch, {acting: acting.unroll(batch)})


def critic_loss(model: Any, batch: Any) -> tuple[th.Tensor, th.Tensor]:
    """Compute the weighted loss of windows, and the TD errors in them."""
    transitions = transitions_of(model, batch)
    losses, td_errors = model._critic_losses(transitions)
    loss = model.replay_buffer.scheme.loss(losses, td_errors, transitions.weights)
    return loss, transitions.observations.in_windows(td_errors)


def spoiled(batch: Any) -> Any:
    """Copy windows with other numbers in the padding."""

    def spoil(part: th.Tensor, lengths: th.Tensor) -> th.Tensor:
        part = part.clone()
        part[th.arange(len(part))[:, None] >= lengths] = 255 if part.dtype is th.uint8 else np.nan
        return part

    lengths = {"prefix": batch.prefix_lengths, "observations": batch.next_steps.amax(dim=0) + 1}
    found = {name: map_arrays(lambda part, n=n: spoil(part, n), getattr(batch, name)) for name, n in lengths.items()}
    for name in ("rewards", "discounts", "dones"):
        found[name] = spoil(getattr(batch, name), batch.mask.sum(dim=0))
    return batch._replace(**found)


def mean_return(model: Any, env: VecEnv, n_episodes: int, **kwargs: Any) -> float:
    """Compute the mean return as `evaluate_policy` does, in one environment."""
    obs, returns, total, state, start = env.reset(), [], 0.0, None, np.ones(1, bool)
    while len(returns) < n_episodes:
        action, state = model.predict(obs, state, start, **kwargs)
        obs, reward, start, _ = env.step(action)
        total += reward[0]
        if start[0]:
            returns.append(total)
            total = 0.0
    return float(np.mean(returns))
