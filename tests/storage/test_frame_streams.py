"""Frames stored once, on recorded streams of real environments and in whole runs: equal to the plain twin by bytes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedReplayBuffer,
)
from tests.test_frames import same_bytes


def record(env: VecEnv, n_steps: int, **kwargs: Any) -> tuple[Any, Any]:
    """A framed buffer and its twin, filled as an off-policy algorithm does it."""
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


class Frames(gym.Env):
    """Images or vectors that move, in episodes of different lengths; some are cut off."""

    def __init__(self, shape: tuple[int, ...] = (10, 10, 1), dtype: Any = np.uint8):
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(3)

    def _observation(self) -> np.ndarray:
        return self.np_random.integers(0, 255, self.observation_space.shape).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.length = 0, self.np_random.integers(2, 30)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = self.t >= self.length
        return self._observation(), 1.0, bool(ends and self.length % 2), bool(ends and not self.length % 2), {}


STREAMS = {
    "stack": lambda n: VecFrameStack(make_vec_env(Frames, n), 4),
    "transposed before": lambda n: VecFrameStack(
        VecTransposeImage(make_vec_env(lambda: Frames((36, 40, 3)), n)), 4, channels_order="first"
    ),
    "transposed after": lambda n: VecTransposeImage(VecFrameStack(make_vec_env(lambda: Frames((36, 40, 3)), n), 4)),
    "channels last": lambda n: VecFrameStack(make_vec_env(lambda: Frames((36, 40, 3)), n), 4),
    "gymnasium": lambda n: make_vec_env(lambda: gym.wrappers.FrameStackObservation(Frames((10, 12)), 4), n),
    "vectors": lambda n: VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), n), 4),
    "one frame": lambda n: VecTransposeImage(make_vec_env(Frames, n)),
    "MinAtar": lambda n: VecFrameStack(make_vec_env(minatar, n), 4),
}


def minatar() -> gym.Env:
    """Bools of 10 x 10 x channels, without a time limit of their own."""
    pytest.importorskip("minatar")
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    return gym.make("MinAtar/Breakout-v1", max_episode_steps=60)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_wrappers(name, n_envs):
    framed, plain = record(STREAMS[name](n_envs), 300, frames=1 if name == "one frame" else 4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    assert framed.frames_per_transition < 1.2


def test_normalized_stacks():
    """Rounding makes a terminal observation another one than was seen: stored in full where it differs, and exact."""
    env = VecNormalize(VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), 2), 4))
    framed, plain = record(env, 300, frames=4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_atari(n_envs):
    """With SB3's wrappers: life loss, no-ops, frame skip."""
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    env = VecTransposeImage(VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=0), 4))
    framed, plain = record(env, 400, frames=4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    assert framed.frames_per_transition < 1.1


# ---- in an algorithm


@pytest.mark.parametrize("frames", [4, "auto"])
@pytest.mark.parametrize("scheme", ["proportional", "uniform"])
def test_a_run_is_that_of_the_plain_twin(scheme, frames, tmp_path):
    """Two calls of learn, set_env, save and load: parameters equal to the bit."""

    def make() -> VecEnv:
        env = VecFrameStack(make_vec_env(lambda: Frames((36, 36, 1)), 2, seed=0), 4)
        return env

    found = []
    for setting in (frames, None):
        kwargs = dict(scheme=scheme) if setting is None else dict(scheme=scheme, frames=setting)
        model = PERDQN(
            "CnnPolicy", make(), buffer_size=60, learning_starts=20, batch_size=8, replay_buffer_kwargs=kwargs, seed=0
        )
        model.learn(60)
        model.learn(40)
        model.set_env(make())
        model.learn(40, reset_num_timesteps=False)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        loaded = PERDQN.load(tmp_path / "model", env=make())
        if setting is not None:
            assert kwargs["frames"] == setting  # the caller's dictionary
            assert loaded.replay_buffer_kwargs["frames"] == loaded.replay_buffer.frames == 4
        loaded.load_replay_buffer(tmp_path / "buffer")
        np.random.seed(0)
        th.manual_seed(0)
        loaded.learn(20, reset_num_timesteps=False)
        found.append(loaded)
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.observations[:], found[1].replay_buffer.observations)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_atari_run_is_that_of_the_plain_twin(n_envs):
    """PERDQN with CnnPolicy on a game, with SB3's wrappers: parameters and stored bytes."""
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    found = []
    for kwargs in (dict(frames="auto"), {}):
        env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=0), 4)
        small: dict[str, Any] = dict(
            buffer_size=80, learning_starts=40, batch_size=8, policy_kwargs=dict(net_arch=[8]), seed=0
        )
        found.append(PERDQN("CnnPolicy", env, replay_buffer_kwargs=kwargs, **small).learn(150))
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.next_observations[:], found[1].replay_buffer.next_observations)


def test_auto_without_a_stack():
    with pytest.raises(ValueError, match=r"frames='auto' found no VecFrameStack.*frames=4"):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(frames="auto"))


def test_auto_with_dictionaries():
    """All keys that are stacked."""

    class Two(Frames):
        def __init__(self) -> None:
            super().__init__((36, 36, 1))
            self.observation_space = spaces.Dict({"image": self.observation_space, "vector": spaces.Box(-1, 1, (3,))})

        def _observation(self) -> Any:
            return {"image": self.np_random.integers(0, 255, (36, 36, 1)).astype(np.uint8), "vector": np.zeros(3, np.float32)}

    env = VecFrameStack(make_vec_env(Two, 2), 3)
    model = PERDQN(
        "MultiInputPolicy", env, buffer_size=40, learning_starts=10, batch_size=4, replay_buffer_kwargs=dict(frames="auto")
    )
    model.learn(40)
    assert model.replay_buffer.frames == dict(image=3, vector=3)
    assert model.replay_buffer.frames_per_transition < 1.5


def test_continuous_actions():
    env = VecFrameStack(make_vec_env("Pendulum-v1", 2), 3)
    model = PERSAC("MlpPolicy", env, learning_starts=20, batch_size=8, replay_buffer_kwargs=dict(frames="auto", n_steps=3))
    model.learn(60)
    assert model.replay_buffer.frames == 3
