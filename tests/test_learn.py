"""Constructors, the choice of the buffer, and whole runs with the options of the stock classes."""

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvBox, SimpleMultiObsEnv

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)
from tests.test_algorithms import DISCRETE, SMALL, filled_model, image_env, normalized, parameters
from tests.utils import STOCK


@pytest.mark.parametrize("cls", STOCK)
def test_constructor_is_that_of_the_stock_class(cls):
    stock, ours = inspect.signature(STOCK[cls].__init__).parameters, inspect.signature(cls.__init__).parameters
    added = {"double_q": False} if cls is PERDQN else {}
    assert list(ours) == [*stock, *added]
    assert all(ours[name] == stock[name] for name in stock)
    assert all(ours[name].default == default for name, default in added.items())
    assert issubclass(cls, STOCK[cls])


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("dict_obs", [False, True])
def test_choice_of_the_buffer(dict_obs, n_steps, recwarn):
    """The class that fits the observations; `n_steps` and `gamma` reach it, without a warning; the dict stays as it was."""
    env = SimpleMultiObsEnv() if dict_obs else "CartPole-v1"
    policy = "MultiInputPolicy" if dict_obs else "MlpPolicy"
    buffer_class = PrioritizedDictReplayBuffer if dict_obs else PrioritizedReplayBuffer
    for replay_buffer_class in (None, buffer_class):
        kwargs = dict(alpha=0.9, beta_start=0.2)
        model = PERDQN(
            policy,
            env,
            n_steps=n_steps,
            gamma=0.95,
            buffer_size=100,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=kwargs,
        )
        assert type(model.replay_buffer) is buffer_class
        assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (n_steps, 0.95)
        assert (model.replay_buffer.scheme.alpha, model.replay_buffer.beta) == (0.9, 0.2)
        assert kwargs == dict(alpha=0.9, beta_start=0.2)
    assert not [w for w in recwarn if "n_steps" in str(w.message)]


def test_n_steps_in_replay_buffer_kwargs():
    model = PERDQN("MlpPolicy", "CartPole-v1", gamma=0.9, buffer_size=100, replay_buffer_kwargs=dict(n_steps=4))
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (4, 0.9)
    with pytest.raises(ValueError, match="n_steps=3 contradicts"):
        PERDQN("MlpPolicy", "CartPole-v1", n_steps=3, buffer_size=100, replay_buffer_kwargs=dict(n_steps=4))


@pytest.mark.parametrize("cls", STOCK)
@pytest.mark.parametrize("buffer_class", [ReplayBuffer, DictReplayBuffer, NStepReplayBuffer])
def test_a_buffer_that_is_not_prioritized_is_refused(cls, buffer_class):
    env = "CartPole-v1" if cls in DISCRETE else "Pendulum-v1"
    with pytest.raises(ValueError, match=rf"\b{buffer_class.__name__} is not"):
        cls("MlpPolicy", env, replay_buffer_class=buffer_class)


@pytest.mark.parametrize("cls", STOCK)
def test_errors_of_the_buffer_reach_the_user(cls):
    env = "CartPole-v1" if cls in DISCRETE else "Pendulum-v1"
    with pytest.raises(ValueError, match=r"-0\.5"):
        cls("MlpPolicy", env, replay_buffer_kwargs=dict(alpha=-0.5))
    with pytest.raises(TypeError, match="unknown_keyword"):
        cls("MlpPolicy", env, replay_buffer_kwargs=dict(unknown_keyword=1))


# ---- options of the stock classes, a few steps each


@pytest.mark.parametrize(
    "cls, policy, make_env, kwargs",
    [
        (PERSAC, "MlpPolicy", lambda: "Pendulum-v1", dict(train_freq=(1, "episode"), gradient_steps=-1)),
        (PERSAC, "MlpPolicy", lambda: make_vec_env("Pendulum-v1", n_envs=3), dict(train_freq=2, gradient_steps=-1)),
        (PERSAC, "MlpPolicy", lambda: "Pendulum-v1", dict(use_sde=True, ent_coef=0.1, n_steps=2)),
        (PERSAC, "MlpPolicy", lambda: normalized("Pendulum-v1"), dict(n_steps=3)),
        (PERSAC, "MlpPolicy", lambda: IdentityEnvBox(eps=0.5), dict(gradient_steps=0)),
        (
            PERSAC,
            "MlpPolicy",
            lambda: "Pendulum-v1",
            dict(optimize_memory_usage=True, buffer_size=40, replay_buffer_kwargs=dict(handle_timeout_termination=False)),
        ),
        (
            PERSAC,
            "MultiInputPolicy",
            lambda: make_vec_env(lambda: SimpleMultiObsEnv(discrete_actions=False), n_envs=2),
            dict(n_steps=3),
        ),
        (PERDQN, "MlpPolicy", lambda: make_vec_env("CartPole-v1", n_envs=3), dict(gradient_steps=2)),
        (PERDQN, "MlpPolicy", lambda: "CartPole-v1", dict(train_freq=(2, "episode"), gradient_steps=3, double_q=True)),
        (PERDQN, "MlpPolicy", lambda: IdentityEnv(dim=3), dict(n_steps=3)),
        (PERDQN, "MultiInputPolicy", lambda: SimpleMultiObsEnv(), dict(n_steps=3, double_q=True)),
        (PERDQN, "CnnPolicy", lambda: image_env(True), dict(optimize_memory_usage=False, n_steps=2)),
    ],
)
def test_learn(cls, policy, make_env, kwargs):
    kwargs = {"buffer_size": 300, "learning_starts": 20, "batch_size": 16, "policy_kwargs": SMALL, "seed": 0, **kwargs}
    model = cls(policy, make_env(), **copy.deepcopy(kwargs))
    updated: list[int] = []
    update = model.replay_buffer.update_priorities
    model.replay_buffer.update_priorities = lambda *args: updated.append(update(*args))
    model.learn(100)
    gradient_steps = kwargs.get("gradient_steps", 1)
    assert (len(updated) > 0) == (gradient_steps != 0)
    assert len(updated) == model._n_updates
    assert all(n == 16 for n in updated)
    masses = model.replay_buffer.priorities
    drawable = masses[masses > 0]
    assert len(drawable) == (model.replay_buffer.size() - (model.optimize_memory_usage and model.replay_buffer.full)) * (
        model.n_envs
    )
    assert (len(np.unique(drawable)) > 1) == (gradient_steps != 0)


@pytest.mark.parametrize("cls", STOCK)
def test_seed_reproduces_a_run(cls):
    env = "CartPole-v1" if cls in DISCRETE else "Pendulum-v1"
    runs = []
    for _ in range(2):
        model = cls("MlpPolicy", env, seed=7, learning_starts=20, batch_size=16, policy_kwargs=dict(SMALL), buffer_size=60)
        model.learn(90)
        runs.append((parameters(model), model.replay_buffer.priorities))
    for key, value in runs[0][0].items():
        assert th.equal(value, runs[1][0][key]), key
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_callbacks_see_the_buffer_and_can_stop():
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=10, buffer_size=100)
    sizes: list[int] = []

    def callback(local_variables: dict[str, Any], global_variables: dict[str, Any]) -> bool:
        sizes.append(local_variables["self"].replay_buffer.size())
        return len(sizes) < 30

    model.learn(1000, callback=callback)
    assert sizes == list(range(30))


def test_a_diverged_network_is_reported():
    model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1")
    with th.no_grad():
        next(model.q_net.parameters()).fill_(np.nan)
    with pytest.raises(ValueError, match="td_errors must be finite, not nan"):
        model.train(1, 8)
