"""What several test files need: spaces, random transitions, obvious references."""

import contextlib
import fcntl
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_per import (
    PERDDPG,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def alone_with_ray() -> Iterator[None]:
    """One at a time, of all processes of the tests: two that start Ray and kill its processes disturb each other."""
    with open(Path(tempfile.gettempdir(), "sb3_per_tests_with_ray"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Every algorithm and the class that it takes the place of.
STOCK = {PERSAC: SAC, PERTD3: TD3, PERDDPG: DDPG, PERDQN: DQN, PERQRDQN: QRDQN, PERTQC: TQC, PERCrossQ: CrossQ}

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


def benchmark(name: str) -> ModuleType:
    """A script of ``benchmarks/`` as a module; they import each other as scripts do."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def make_buffer(
    n_rows: int = 10, n_envs: int = 1, obs_space: str = "box", action_space: str = "box", **kwargs: Any
) -> PrioritizedReplayBuffer:
    """A prioritized buffer of ``n_rows`` rows of ``n_envs`` transitions."""
    cls = PrioritizedDictReplayBuffer if obs_space == "dict" else PrioritizedReplayBuffer
    spaces_ = (OBSERVATION_SPACES[obs_space], ACTION_SPACES[action_space])
    return cls(n_rows * n_envs, *spaces_, device="cpu", n_envs=n_envs, **kwargs)


def batch_of(space: spaces.Space, n_envs: int) -> Any:
    """One sample of the space per environment, stacked as a VecEnv does it."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(part, n_envs) for key, part in space.spaces.items()}
    return np.stack([np.asarray(space.sample()) for _ in range(n_envs)])


def fill(buffers: Sequence[ReplayBuffer], n_steps: int, seed: int = 0, p_end: float = 0.2) -> None:
    """Add the same random steps to all buffers; an episode continues from its last observation, as in an environment."""
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
    """One step of every environment with this reward."""
    n_envs = buffer.n_envs
    obs, next_obs = batch_of(buffer.observation_space, n_envs), batch_of(buffer.observation_space, n_envs)
    infos = [{"TimeLimit.truncated": truncated}] * n_envs
    buffer.add(obs, next_obs, batch_of(buffer.action_space, n_envs), np.full(n_envs, reward), np.full(n_envs, done), infos)


def normalizer(obs_space: spaces.Space, action_space: spaces.Space) -> VecNormalize:
    """A VecNormalize with statistics that are far from the identity, for rewards and observations."""
    import gymnasium as gym

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


def assert_same_state(actual: Any, expected: Any) -> None:
    """Two objects of the package have the same attributes, arrays equal to the bit."""
    assert type(actual) is type(expected)
    if isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
    elif isinstance(expected, dict) or type(expected).__module__.startswith("sb3_per"):
        actual, expected = (d if isinstance(d, dict) else vars(d) for d in (actual, expected))
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same_state(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        for pair in zip(actual, expected, strict=True):
            assert_same_state(*pair)
    else:
        assert actual == expected


def interrupt(function: Callable[[], Any], n_lines: int) -> bool:
    """Call it, with a KeyboardInterrupt at the n-th line of buffer code; whether it came."""
    left = n_lines

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if "buffers" not in frame.f_code.co_filename and "her" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return False
