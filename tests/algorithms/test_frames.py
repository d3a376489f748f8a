"""Training with frames that are stored once equals training with plain arrays."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_per import PERDQN, PERSAC
from tests.helpers.frames import Frames, same_bytes


@pytest.mark.parametrize("frames, scheme", [(4, "uniform"), ("auto", "proportional")])
def test_training_with_frames_equals_training_without(frames, scheme, tmp_path):
    """Parameters are equal, bit for bit, after two calls of learn, set_env, save and load."""

    def make() -> VecEnv:
        env = VecFrameStack(make_vec_env(lambda: Frames((36, 36, 1)), 2, seed=0), 4)
        return env

    found = []
    for setting in (frames, None):
        kwargs = dict(scheme=scheme) if setting is None else dict(scheme=scheme, frames=setting)
        model = PERDQN(
            "CnnPolicy", make(), buffer_size=60, learning_starts=20, batch_size=8, replay_buffer_kwargs=kwargs, seed=0
        )
        model.learn(40)
        model.learn(20)
        model.set_env(make())
        model.learn(20, reset_num_timesteps=False)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        loaded = PERDQN.load(tmp_path / "model", env=make())
        if setting is not None:
            assert kwargs["frames"] == setting  # the caller's dictionary
            assert loaded.replay_buffer_kwargs["frames"] == loaded.replay_buffer.settings.frames == 4
        loaded.load_replay_buffer(tmp_path / "buffer")
        np.random.seed(0)
        th.manual_seed(0)
        loaded.learn(20, reset_num_timesteps=False)
        found.append(loaded)
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.observations[:], found[1].replay_buffer.observations)


def test_training_on_a_game_with_frames_equals_training_without():
    """Parameters and stored bytes are equal with CnnPolicy and the Atari wrappers of SB3."""
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    found = []
    for kwargs in (dict(frames="auto"), {}):
        env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=2, seed=0), 4)
        small: dict[str, Any] = dict(
            buffer_size=60, learning_starts=40, batch_size=4, policy_kwargs=dict(net_arch=[8]), seed=0
        )
        model = PERDQN("CnnPolicy", env, replay_buffer_kwargs=kwargs, **small).learn(80)
        assert model.replay_buffer.full and model._n_updates > 3
        found.append(model)
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.next_observations[:], found[1].replay_buffer.next_observations)


def stacked_by_gymnasium() -> VecEnv:
    stack = getattr(gym.wrappers, "FrameStackObservation", None)
    if stack is None:
        pytest.skip("gymnasium 0.29 has another wrapper")
    return make_vec_env(lambda: Frames((36, 36)), 2, wrapper_class=stack, wrapper_kwargs=dict(stack_size=4))


def test_frames_auto_without_a_stack_is_refused():
    with pytest.raises(ValueError, match=r"frames='auto' found no VecFrameStack.*frames=4"):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(frames="auto"))


def test_frames_auto_finds_all_stacked_keys():

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
    assert model.replay_buffer.settings.frames == dict(image=3, vector=3)
    assert model.replay_buffer.frames_per_transition < 1.5


def test_frames_work_with_continuous_actions():
    env = VecFrameStack(make_vec_env("Pendulum-v1", 2), 3)
    model = PERSAC("MlpPolicy", env, learning_starts=20, batch_size=8, replay_buffer_kwargs=dict(frames="auto", n_steps=3))
    model.learn(60)
    assert model.replay_buffer.settings.frames == 3


def test_another_number_of_frames_than_the_environment_stacks_is_refused():
    """2 divides the first axis of the observations as well, and 84 / 3 is an integer, but no frame would ever be shared."""
    stacked_by_sb3 = VecFrameStack(make_vec_env(lambda: Frames((36, 36, 1)), 2), 4)
    for env in (stacked_by_sb3, stacked_by_gymnasium()):
        for frames in (2, 3, 36):
            with pytest.raises(ValueError, match=rf"frames={frames}.* stacks 4 frames: write frames=4"):
                PERDQN("CnnPolicy", env, buffer_size=10, replay_buffer_kwargs=dict(frames=frames))
        for frames in (4, 1):
            model = PERDQN("CnnPolicy", env, buffer_size=10, replay_buffer_kwargs=dict(frames=frames))
            assert model.replay_buffer.frames == frames


def test_another_number_of_frames_of_a_key_is_refused():
    class One(Frames):
        def __init__(self) -> None:
            super().__init__((36, 36, 1))
            self.observation_space = spaces.Dict({"image": self.observation_space})

    env = VecFrameStack(make_vec_env(One, 1), 4)
    with pytest.raises(ValueError, match=r"frames=\{'image': 2\}.* stacks 4 frames: write frames=\{'image': 4\}"):
        PERDQN("MultiInputPolicy", env, buffer_size=10, replay_buffer_kwargs=dict(frames=dict(image=2)))
