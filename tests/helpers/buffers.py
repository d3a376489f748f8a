"""Helpers of several test files: spaces, random transitions, and simple references."""

import copy
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)

OBSERVATION_SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "box64": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (2, 6, 6), np.uint8),
    "discrete": spaces.Discrete(7),
    "multi_discrete": spaces.MultiDiscrete([3, 5]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"vec": spaces.Box(-1, 1, (3,), np.float32), "num": spaces.Discrete(5)}),
}

ACTION_SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "box64": spaces.Box(-1, 1, (2,), np.float64),
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
}


def make_buffer(
    n_rows: int = 10, n_envs: int = 1, obs_space: str = "box", action_space: str = "box", **kwargs: Any
) -> PrioritizedReplayBuffer:
    """Make a prioritized buffer with ``n_rows`` rows of ``n_envs`` transitions."""
    cls = PrioritizedDictReplayBuffer if obs_space == "dict" else PrioritizedReplayBuffer
    spaces_ = (OBSERVATION_SPACES[obs_space], ACTION_SPACES[action_space])
    return cls(n_rows * n_envs, *spaces_, device="cpu", n_envs=n_envs, **kwargs)


def batch_of(space: spaces.Space, n_envs: int) -> Any:
    """Sample the space once per environment, and stack the samples as a VecEnv does."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(part, n_envs) for key, part in space.spaces.items()}
    return np.stack([np.asarray(space.sample()) for _ in range(n_envs)])


def fill(buffers: Sequence[ReplayBuffer], n_steps: int, seed: int = 0, p_end: float = 0.2) -> None:
    """Add the same random steps to all buffers; each observation is the next observation of the step before."""
    rng = np.random.default_rng(seed)
    space, action_space, n_envs = buffers[0].observation_space, buffers[0].action_space, buffers[0].n_envs
    space.seed(seed)
    action_space.seed(seed)
    obs = batch_of(space, n_envs)
    for _ in range(n_steps):
        next_obs = batch_of(space, n_envs)
        action = batch_of(action_space, n_envs)
        reward = rng.normal(size=n_envs)
        done = rng.random(n_envs) < p_end
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        for buffer in buffers:
            buffer.add(_copy(obs), _copy(next_obs), action.copy(), reward.copy(), done.copy(), infos)
        obs = next_obs


def _copy(obs: Any) -> Any:
    return {k: v.copy() for k, v in obs.items()} if isinstance(obs, dict) else obs.copy()


def add_one(buffer: ReplayBuffer, reward: float = 0.0, done: bool = False, truncated: bool = False) -> None:
    """Add one step of every environment with this reward."""
    n_envs = buffer.n_envs
    obs, next_obs = batch_of(buffer.observation_space, n_envs), batch_of(buffer.observation_space, n_envs)
    infos = [{"TimeLimit.truncated": truncated}] * n_envs
    buffer.add(obs, next_obs, batch_of(buffer.action_space, n_envs), np.full(n_envs, reward), np.full(n_envs, done), infos)


def normalizer(obs_space: spaces.Space, action_space: spaces.Space) -> VecNormalize:
    """Make a VecNormalize whose statistics clearly change rewards and observations."""

    class Env(gym.Env):
        def __init__(self) -> None:
            self.observation_space, self.action_space = obs_space, action_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 3.0, False, False, {}

    env = VecNormalize(DummyVecEnv([Env]), gamma=0.9, clip_reward=1.5)
    env.ret_rms.mean, env.ret_rms.var = 2.0, 0.3
    rms = env.obs_rms.values() if isinstance(env.obs_rms, dict) else [env.obs_rms]
    for stats in rms:
        stats.mean, stats.var = stats.mean + 0.7, stats.var * 0.2
    env.training = False
    return env


def stock_like(buffer: PrioritizedReplayBuffer, cls: type[ReplayBuffer] | None = None, **kwargs: Any) -> ReplayBuffer:
    """Make SB3's own buffer with the same storage settings."""
    cls = cls or (DictReplayBuffer if isinstance(buffer, PrioritizedDictReplayBuffer) else ReplayBuffer)
    return cls(
        buffer.buffer_size * buffer.n_envs,
        buffer.observation_space,
        buffer.action_space,
        device="cpu",
        n_envs=buffer.n_envs,
        optimize_memory_usage=buffer.optimize_memory_usage,
        handle_timeout_termination=buffer.handle_timeout_termination,
        **kwargs,
    )


def stock_rows(stock: ReplayBuffer, indices: np.ndarray, env: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what SB3 returns for these transitions; its random choice of the environment is replaced."""
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *args, **kwargs: indices % stock.n_envs)
        return stock._get_samples((indices // stock.n_envs) % stock.buffer_size, env=env)


def assert_same(actual: Any, expected: Any) -> None:
    """Check that tensors, or dictionaries of tensors, are equal bit for bit, with the same shape and type."""
    if expected is None:
        assert actual is None
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert th.equal(actual, expected)


def assert_same_batches(actual: Any, expected: Any, names: Sequence[str] | None = None) -> None:
    """Check that fields of two batches are equal bit for bit; without names, all fields of the expected batch."""
    for name in expected._fields if names is None else names:
        one, other = getattr(actual, name), getattr(expected, name)
        for pair in zip(one, other, strict=True) if isinstance(other, tuple) else [(one, other)]:
            np.testing.assert_array_equal(*pair) if isinstance(other, np.ndarray) else assert_same(*pair)


def assert_same_state(actual: Any, expected: Any) -> None:
    """Check that two objects of the package or of its tests have the same attributes, bit for bit; locks are ignored."""
    assert type(actual) is type(expected)
    if isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
    elif isinstance(expected, (list, tuple)):
        for pair in zip(actual, expected, strict=True):
            assert_same_state(*pair)
    elif isinstance(expected, dict) or type(expected).__module__.startswith(("sb3_per", "tests")):
        actual, expected = (d if isinstance(d, dict) else vars(d) for d in (actual, expected))
        assert actual.keys() == expected.keys()
        for key in expected.keys() - {"lock"}:
            assert_same_state(actual[key], expected[key])
    else:
        assert actual == expected


def contents_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Copy everything that a buffer holds and draws by, after the rows that wait have entered the tree."""
    buffer.insert_new_rows()
    others = ("env", "update_reminder", "draw_record")
    return copy.deepcopy({name: value for name, value in vars(buffer).items() if name not in others})


def python_work(function: Callable[[], Any]) -> tuple[int, int]:
    """Count the Python instructions that a call executes and the functions that it calls, compiled ones too."""
    n_instructions = n_calls = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal n_instructions
        frame.f_trace_opcodes = True
        n_instructions += event == "opcode"
        return trace

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    previous = sys.gettrace(), sys.getprofile()
    gc.disable()  # finalizers of objects from other tests would be counted
    try:
        sys.settrace(trace)
        function()
        sys.settrace(previous[0])
        sys.setprofile(profile)
        function()
    finally:
        gc.enable()
        sys.settrace(previous[0])
        sys.setprofile(previous[1])
    return n_instructions, n_calls


class CountingEnv(gym.Env):
    """Observations are (episode, step), which shows whether two belong to the same episode. No episode ends."""

    def __init__(self, goals: bool = False, discrete: bool = True):
        self.goals = goals
        box = spaces.Box(0, 1e6, (2,), np.float32)
        parts = {key: box for key in ("observation", "achieved_goal", "desired_goal")}
        self.observation_space = spaces.Dict(parts) if goals else box
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.episode = self.t = 0

    def observation(self) -> Any:
        obs = np.array([self.episode, self.t], np.float32)
        return {key: obs.copy() for key in self.observation_space.spaces} if self.goals else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation(), 1.0, False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, infos: Any) -> np.ndarray:
        # Both goals are (episode, step), so a goal from another episode changes the reward.
        return (achieved_goal[:, 0] != desired_goal[:, 0]).astype(np.float32)


def counting_env(n_envs: int = 2, **kwargs: Any) -> VecEnv:
    """Make a VecEnv of several CountingEnv."""
    return make_vec_env(lambda: CountingEnv(**kwargs), n_envs=n_envs)


# ---- draws


# With this many stratified draws, every transition is drawn as often as its probability says, within two draws.
MANY = 50_000


def filled_buffer(kind: str = "plain", n_rows: int = 9, n_added: int = 14, **kwargs: Any) -> Any:
    """
    Make a buffer of two environments that has made more than one lap, with priorities of very different sizes. With HER
    ("her") and with ``optimize_memory_usage`` ("memory"), some transitions cannot be drawn.
    """
    if kind == "her":
        env = counting_env(goals=True)
        arguments = (n_rows * 2, env.observation_space, env.action_space, env, "cpu", 2)
        buffer: Any = PrioritizedHerReplayBuffer(*arguments, **kwargs)
        for step in range(n_added):
            obs = {key: np.full((2, 2), step, np.float32) for key in env.observation_space.spaces}
            done = np.array([step % 4 == 3, step % 6 == 5])
            buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), done, [{}] * 2)
    else:
        memory = dict(optimize_memory_usage=True, handle_timeout_termination=False) if kind == "memory" else {}
        buffer = make_buffer(n_rows, 2, **memory, **kwargs)
        fill([buffer], n_added)
    ids = drawable_ids(buffer)
    buffer.update_priorities(ids, np.random.default_rng(0).exponential(size=len(ids)) ** 3 * 20)
    return buffer


def drawable_ids(buffer: PrioritizedReplayBuffer) -> np.ndarray:
    """Return the ids of all transitions that can be drawn, oldest first."""
    return np.sort(buffer.transition_ids[buffer.masses > 0])


def probabilities(buffer: PrioritizedReplayBuffer, ids: np.ndarray) -> np.ndarray:
    """Return m / sum m for these transitions, if only they can be drawn."""
    masses = buffer.masses.ravel()[ids % buffer.masses.size]
    return masses / masses.sum()


def counts_of(indices: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Count how often each of these ids was drawn, and check that no other id was drawn."""
    found, counts = np.unique(indices, return_counts=True)
    assert set(found) <= set(ids.tolist())
    result = np.zeros(len(ids), np.int64)
    result[np.searchsorted(ids, found)] = counts
    return result


def brute_force_n_step(steps: list[tuple[float, bool, bool]], start: int, n_steps: int, gamma: float) -> Any:
    """Compute return, discount, last step and termination of the window that begins at ``start``, step by step."""
    value, discount = 0.0, 1.0
    for last in range(start, min(start + n_steps, len(steps))):
        reward, done, truncated = steps[last]
        value += discount * reward
        discount *= gamma
        if done or truncated:
            break
    return value, discount, last, float(steps[last][1] and not steps[last][2])
