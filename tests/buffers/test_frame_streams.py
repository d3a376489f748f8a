"""Frames stored once: on streams of real wrappers, the buffer returns the same bytes as a plain buffer."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_per import PrioritizedReplayBuffer
from tests.helpers.frames import Frames, same_bytes


def record(env: VecEnv, n_steps: int, **kwargs: Any) -> tuple[Any, Any]:
    """Fill a framed and a plain buffer with the same steps, as an off-policy algorithm does."""
    arguments = (n_steps // 2 * env.num_envs, env.observation_space, env.action_space, "cpu", env.num_envs)
    framed, plain = PrioritizedReplayBuffer(*arguments, **kwargs), PrioritizedReplayBuffer(*arguments)
    env.seed(0)
    obs = env.reset()
    normalized = isinstance(env, VecNormalize)
    raw = env.get_original_obs() if normalized else obs
    for _ in range(n_steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        new_obs, rewards, dones, infos = env.step(actions)
        new_raw = env.get_original_obs() if normalized else new_obs
        next_obs = new_raw.copy()
        for i in np.flatnonzero(dones):
            terminal = infos[i]["terminal_observation"]
            next_obs[i] = env.unnormalize_obs(terminal) if normalized else terminal
        for buffer in (framed, plain):
            buffer.add(raw, next_obs, actions, rewards, dones, infos)
        raw = new_raw
    return framed, plain


STREAMS = {
    "transposed before stacking": lambda n: VecFrameStack(
        VecTransposeImage(make_vec_env(lambda: Frames((36, 40, 3)), n)), 4, channels_order="first"
    ),
    "transposed after stacking": lambda n: VecTransposeImage(VecFrameStack(make_vec_env(lambda: Frames((36, 40, 3)), n), 4)),
    "gymnasium FrameStackObservation": lambda n: make_vec_env(stacked_by_gymnasium, n),
    "vectors": lambda n: VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), n), 4),
    # Unnormalizing rounds terminal observations, so those that differ are stored in full.
    "normalized vectors": lambda n: VecNormalize(VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), n), 4)),
    "one frame": lambda n: VecTransposeImage(make_vec_env(Frames, n)),
    "MinAtar": lambda n: VecFrameStack(make_vec_env(minatar, n), 4),
    # Life loss, no-ops and frame skip
    "Atari": lambda n: VecTransposeImage(VecFrameStack(atari(n), 4)),
}


def stacked_by_gymnasium() -> gym.Env:
    if not hasattr(gym.wrappers, "FrameStackObservation"):
        pytest.skip("needs gymnasium 1.0")
    return gym.wrappers.FrameStackObservation(Frames((10, 12)), 4)


def minatar() -> gym.Env:
    """Make MinAtar Breakout: bool observations of shape (10, 10, channels); the game has no time limit of its own."""
    pytest.importorskip("minatar")
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    return gym.make("MinAtar/Breakout-v1", max_episode_steps=60)


def atari(n_envs: int) -> VecEnv:
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    return make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=0)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_wrappers_are_stored_exactly(name):
    framed, plain = record(STREAMS[name](2), 120, frames=1 if name == "one frame" else 4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    if name != "normalized vectors":
        assert framed.frames_per_transition < 1.25
