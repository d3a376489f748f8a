"""Frames stored once in Dict and HER buffers, and conversion from and to buffers without frames."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)
from tests.helpers.frames import ACTIONS, Stream, same_batches, same_bytes, shape_of


def dict_step(streams: dict[str, Stream], rng: Any, n_envs: int) -> tuple[Any, Any, np.ndarray, list[dict[str, Any]]]:
    parts = {key: stream.step() for key, stream in streams.items()}
    obs, next_obs = ({key: part[i] for key, part in parts.items()} for i in (0, 1))
    for each in (obs, next_obs):
        each["vector"] = rng.normal(size=(n_envs, 3)).astype(np.float32)
    return obs, next_obs, parts["image"][2], parts["image"][3]


def test_some_dict_keys_are_stored_as_frames_and_others_as_arrays():
    """The two image keys stack different numbers of frames."""
    box = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    last = spaces.Box(0, 255, shape_of("channels last", 2), np.uint8)
    space = spaces.Dict({"image": box, "last": last, "vector": spaces.Box(-9, 9, (3,))})
    arguments = (24, space, ACTIONS, "cpu", 2)
    framed = PrioritizedDictReplayBuffer(*arguments, frames=dict(image=4, last=2), n_steps=3)
    plain = PrioritizedDictReplayBuffer(*arguments, n_steps=3)
    streams = {
        key: Stream(form, k, np.uint8, 2, k) for key, form, k in (("image", "channels first", 4), ("last", "channels last", 2))
    }
    rng = np.random.default_rng(0)
    for _ in range(40):
        obs, next_obs, dones, infos = dict_step(streams, rng, 2)
        for buffer in (framed, plain):
            buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
        same_batches(framed, plain)
    for key in space.spaces:
        same_bytes(framed.observations[key][:], plain.observations[key])


class GoalImages(gym.Env):
    """An environment whose observations are stacks of random images, with goals."""

    def __init__(self) -> None:
        goal = spaces.Box(-9, 9, (2,), np.float32)
        box = spaces.Box(0, 255, (4, 36, 36), np.uint8)
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": goal, "desired_goal": goal})
        self.action_space = spaces.Discrete(2)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> np.ndarray:
        return -np.abs(achieved_goal - desired_goal).sum(axis=-1).astype(np.float32)

    def _observation(self) -> dict[str, np.ndarray]:
        goals = {key: self.np_random.normal(size=2).astype(np.float32) for key in ("achieved_goal", "desired_goal")}
        return {"observation": np.concatenate(self.frames), **goals}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.frames = [np.zeros((1, 36, 36), np.uint8)] * 3 + [self.np_random.integers(1, 255, (1, 36, 36), np.uint8)]
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.frames = [*self.frames[1:], self.np_random.integers(1, 255, (1, 36, 36), np.uint8)]
        self.t += 1
        return self._observation(), -1.0, False, self.t == 7, {}


def test_a_her_run_with_frames_gives_the_same_parameters():
    """Compare a run with `frames` and one without, bit for bit."""
    found = []
    for frames in (None, dict(observation=4)):
        model = PERDQN(
            "MultiInputPolicy",
            make_vec_env(GoalImages, n_envs=2, seed=0),
            buffer_size=60,
            learning_starts=20,
            batch_size=8,
            n_steps=3,
            replay_buffer_class=PrioritizedHerReplayBuffer,
            replay_buffer_kwargs=dict(frames=frames, scheme="rank"),
            policy_kwargs=dict(net_arch=[8]),
            seed=0,
        ).learn(100)
        found.append(model)
    for key, value in found[0].policy.state_dict().items():
        assert th.equal(value, found[1].policy.state_dict()[key]), key
    same_bytes(found[1].replay_buffer.observations["observation"][:], found[0].replay_buffer.observations["observation"])
    assert found[1].replay_buffer.frames_per_transition < 1.4


@pytest.mark.parametrize("dict_obs, n_added", [(False, 5), (True, 30)])
def test_buffers_with_and_without_frames_convert_into_each_other(dict_obs, n_added):
    """Convert an SB3 buffer to frames, then to plain arrays, then to frames again; every transition stays."""
    box = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    space = spaces.Dict({"image": box, "vector": spaces.Box(-9, 9, (3,))}) if dict_obs else box
    cls, stock_cls = (PrioritizedDictReplayBuffer, DictReplayBuffer) if dict_obs else (PrioritizedReplayBuffer, ReplayBuffer)
    frames: Any = dict(image=4) if dict_obs else 4
    arguments = (24, space, ACTIONS, "cpu", 2)
    stock, plain = stock_cls(*arguments), cls(*arguments)
    streams = {"image": Stream("channels first", 4, np.uint8, 2, 0)}
    rng = np.random.default_rng(0)

    def step(*buffers: Any) -> None:
        obs, next_obs, dones, infos = dict_step(streams, rng, 2)
        parts = (obs, next_obs) if dict_obs else (obs["image"], next_obs["image"])
        for buffer in buffers:
            buffer.add(*parts, np.zeros((2, 1)), np.zeros(2), dones, infos)

    for _ in range(n_added):
        step(stock, plain)
    framed = cls.from_replay_buffer(stock, frames=frames)
    again = cls.from_replay_buffer(pickle.loads(pickle.dumps(framed)), frames=None)
    framed_again = cls.from_replay_buffer(copy.deepcopy(again), frames=frames, alpha=0.6)
    for _ in range(5):
        step(plain, framed, again, framed_again)
    for buffer in (framed, again, framed_again):
        for name in ("observations", "next_observations"):
            actual, expected = getattr(buffer, name), getattr(plain, name)
            for key in space.spaces if dict_obs else [None]:
                same_bytes(*((each if key is None else each[key])[:] for each in (actual, expected)))
        same_batches(copy.deepcopy(buffer), copy.deepcopy(plain), 10, same_ids=n_added <= 12)  # SB3's buffer counts no laps
    assert type(again.observations["image"] if dict_obs else again.observations) is np.ndarray
    assert tuple(buffer.settings.frames for buffer in (framed, again, framed_again)) == (frames, None, frames)


def filled_by_hand(n_envs: int, k: int, n_rows: int, n_steps: int) -> ReplayBuffer:
    """Make a buffer of SB3 whose rows hold stacks of random frames; now and then one that is no stack."""
    rng = np.random.default_rng([n_envs, k, n_rows, n_steps])
    buffer = ReplayBuffer(n_rows * n_envs, spaces.Box(0, 255, (k, 2, 3), np.uint8), ACTIONS, "cpu", n_envs)
    frames = rng.integers(0, 255, (n_steps + k, n_envs, 2, 3), np.uint8)
    frames[rng.random((n_steps + k, n_envs)) < 0.1] = 0
    held = np.arange(max(n_steps - n_rows, 0), n_steps)
    for array, shift in ((buffer.observations, 0), (buffer.next_observations, 1)):
        stacks = frames[held[:, None] + shift + np.arange(k)].swapaxes(1, 2)
        stacks[rng.random((len(held), n_envs)) < 0.1] = rng.integers(0, 255, (k, 2, 3), np.uint8)
        array[held % n_rows] = stacks
    buffer.pos, buffer.full = n_steps % n_rows, n_steps >= n_rows
    return buffer


@pytest.mark.parametrize("n_envs", [1, 9])
def test_any_number_of_environments_converts_to_frames_and_back(n_envs, tmp_path):
    """Compare with the plain buffer's bytes, for stacks of 1 to 4 frames, several sizes, and less than a lap to several."""
    for k in range(1, 5):
        for n_rows, n_steps in ((1, 1), (2, 5), (7, 6), (40, 39), (130, 280)):
            stock = filled_by_hand(n_envs, k, n_rows, n_steps)
            n = stock.size()
            framed = PrioritizedReplayBuffer.from_replay_buffer(stock, frames=k)
            store = framed.observations.store
            forms = [framed]
            if (n_envs, k, n_rows) in ((1, 1, 7), (9, 4, 40)):
                folder = tmp_path / f"{n_rows}-{n_steps}"
                forms.append(PrioritizedReplayBuffer.from_replay_buffer(framed, storage_folder=folder))
            forms.append(PrioritizedReplayBuffer.from_replay_buffer(forms[-1], frames=None, storage_folder=None))
            for buffer in forms:
                same_bytes(buffer.observations[:n], stock.observations[:n])
                same_bytes(buffer.next_observations[:n], stock.next_observations[:n])
            assert store.n_held <= 2 * k * n * n_envs + 1
