"""Environments with all that SB3's tests of vectorized environments use, and comparisons of two ``VecEnv``."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
}


class Custom(gym.Env):
    """Offer the methods and attributes that SB3's tests of vectorized environments use."""

    def __init__(self, space: Any = None, render_mode: str | None = "rgb_array"):
        self.observation_space = copy.deepcopy(space or SPACES["box"])  # each environment has its own generator
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.render_mode, self.number, self.options, self.t = render_mode, 0, None, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.options = 0, options
        if seed is not None:
            self.observation_space.seed(seed)
            self.given_seed = seed
        return self.observation_space.sample(), {"seed": seed, "options": options}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.sample(), float(action[0]), False, self.t == 3, {"t": self.t}

    def render(self) -> Any:
        return np.full((4, 4, 3), self.number, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return self.number + a + b

    def fail(self) -> None:
        raise KeyError("no such thing")


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    else:
        np.testing.assert_array_equal(actual, expected)


def compare_steps(ours: Any, theirs: Any) -> None:
    """Compare observations, rewards, dones, infos, terminal observations, seeds and options."""
    assert ours.num_envs == 4 and ours.observation_space == theirs.observation_space
    for env in (ours, theirs):
        env.seed(11)
        env.set_options([{"n": i} for i in range(4)])
    for _ in range(2):
        assert_same(ours.reset(), theirs.reset())
        assert_same(ours.reset_infos, theirs.reset_infos)
    rng = np.random.default_rng(0)
    for _ in range(7):
        actions = rng.uniform(-1, 1, (4, 1)).astype(np.float32)
        (obs, rewards, dones, infos), expected = ours.step(actions), theirs.step(actions)
        assert_same((obs, rewards, dones), expected[:3])
        for info, other in zip(infos, expected[3], strict=True):
            info.pop("episode", None), other.pop("episode", None)  # the entry has the time of day
        assert_same(infos, expected[3])
        assert_same(ours.reset_infos, theirs.reset_infos)
    for env in (ours, theirs):
        env.seed(3)
    assert_same(ours.reset(), theirs.reset())
    assert ours.get_attr("given_seed") == [3, 4, 5, 6]


def compare_answers(ours: Any, theirs: Any) -> None:
    """Compare attributes, methods and images of all or some environments, in the order of the indices."""
    answers = []
    for env in (ours, theirs):
        env.reset()
        env.set_attr("mark", 5, indices=[1, 2])
        env.env_method("set_wrapper_attr", "number", 9, indices=0)
        answers.append(
            [
                [env.has_attr("mark"), env.has_attr("number"), env.has_attr("no_such_attribute")],
                [env.get_attr("number"), env.get_attr("number", indices=[3, 0]), env.get_attr("mark", indices=2)],
                [env.env_method("add", 1, b=2), env.env_method("add", 1, indices=[2, 0])],
                [env.env_is_wrapped(Monitor), env.env_is_wrapped(gym.wrappers.TimeLimit, indices=1)],
                [image[0, 0, 0] for image in env.get_images()],
                [env.render().shape, env.render_mode],
            ]
        )
        with pytest.raises(AttributeError):
            env.get_attr("no_such_attribute")
        with pytest.raises(KeyError, match="no such thing"):
            env.env_method("fail")
        env.env_method("set_wrapper_attr", "number", 0, indices=0)
    assert answers[0] == answers[1]
    assert ours.get_attr("number", indices=-1) == [0]
