"""Whole runs work with the options of the stock classes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnvBox

from sb3_per import PERDQN, PERSAC, PERCrossQ, PERRecurrentDQN
from tests.helpers.algorithms import SMALL, filled_model, image_env, parameters
from tests.helpers.models import RECURRENT, trained


@pytest.mark.parametrize(
    "cls, policy, make_env, kwargs",
    [
        (PERSAC, "MlpPolicy", lambda: make_vec_env("Pendulum-v1", n_envs=3), dict(train_freq=2, gradient_steps=-1)),
        (PERSAC, "MlpPolicy", lambda: "Pendulum-v1", dict(use_sde=True, ent_coef=0.1, n_steps=2)),
        (PERSAC, "MlpPolicy", lambda: IdentityEnvBox(eps=0.5), dict(gradient_steps=0)),
        (
            PERSAC,
            "MlpPolicy",
            lambda: "Pendulum-v1",
            dict(optimize_memory_usage=True, buffer_size=40, replay_buffer_kwargs=dict(handle_timeout_termination=False)),
        ),
        (PERDQN, "MlpPolicy", lambda: make_vec_env("CartPole-v1", n_envs=3), dict(gradient_steps=2)),
        (PERDQN, "MlpPolicy", lambda: "CartPole-v1", dict(train_freq=(2, "episode"), gradient_steps=3, double_q=True)),
        (PERDQN, "CnnPolicy", lambda: image_env(True), dict(optimize_memory_usage=False, n_steps=2)),
    ],
)
def test_training_updates_priorities(cls, policy, make_env, kwargs):
    kwargs = {"buffer_size": 300, "learning_starts": 20, "batch_size": 16, "policy_kwargs": SMALL, "seed": 0, **kwargs}
    model = cls(policy, make_env(), **copy.deepcopy(kwargs))
    updated: list[int] = []
    update = model.replay_buffer.update_priorities
    model.replay_buffer.update_priorities = lambda *args: updated.append(update(*args))
    model.learn(60)
    gradient_steps = kwargs.get("gradient_steps", 1)
    assert (len(updated) > 0) == (gradient_steps != 0)
    assert len(updated) == model._n_updates
    assert all(n == 16 for n in updated)
    masses = model.replay_buffer.masses
    drawable = masses[masses > 0]
    assert len(drawable) == (model.replay_buffer.size() - (model.optimize_memory_usage and model.replay_buffer.full)) * (
        model.n_envs
    )
    assert (len(np.unique(drawable)) > 1) == (gradient_steps != 0)


@pytest.mark.parametrize("cls", [PERDQN, PERCrossQ, *RECURRENT])
def test_a_seed_reproduces_a_run(cls):
    runs = []
    for _ in range(2):
        model = trained(cls, 50, seed=7)
        assert model._n_updates > 0
        runs.append((parameters(model), model.replay_buffer.masses))
    for key, value in runs[0][0].items():
        assert th.equal(value, runs[1][0][key]), key
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_updates_of_transitions_that_are_overwritten_are_counted():
    """A batch may be drawn, and steps of the environment stored, before its update: by threads of the user."""
    model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1", buffer_size=60)
    model.train(1, 8)
    assert model.n_stale_updates == 0
    batch = model.replay_buffer.sample(8)
    n_old = np.count_nonzero(batch.indices < 30)
    assert 0 < n_old < 8
    model.learn(30)
    model.replay_buffer.sample = lambda batch_size, env: batch
    model.train(1, 8)
    assert model.n_stale_updates == n_old


@pytest.mark.parametrize("cls", [PERDQN, *RECURRENT])
def test_callbacks_see_the_buffer_and_can_stop_training(cls):
    model = trained(cls, 0, buffer_size=100)
    sizes: list[int] = []

    def callback(local_variables: dict[str, Any], global_variables: dict[str, Any]) -> bool:
        sizes.append(local_variables["self"].replay_buffer.size())
        return len(sizes) < 30

    model.learn(1000, callback=callback)
    assert sizes == list(range(30))


@pytest.mark.parametrize("cls", [PERDQN, PERRecurrentDQN])
def test_a_diverged_network_raises_an_error(cls):
    model = trained(cls, learning_starts=100)
    before = model.replay_buffer.masses
    with th.no_grad():
        next(model.q_net.parameters()).fill_(np.nan)
    with pytest.raises(ValueError, match="td_errors must be finite, not nan"):
        model.train(1, 8)
    np.testing.assert_array_equal(model.replay_buffer.masses, before)


def test_a_reward_of_nan_stops_a_run_before_the_networks_change(monkeypatch):
    env = IdentityEnvBox(eps=0.5)
    model = PERSAC(
        "MlpPolicy", env, learning_starts=5, batch_size=8, buffer_size=100, policy_kwargs=dict(SMALL), seed=0
    ).learn(20)
    before = copy.deepcopy(parameters(model))
    monkeypatch.setattr(IdentityEnvBox, "_get_reward", lambda *args: np.nan)
    with pytest.raises(ValueError, match=r"reward\[0\] must be a finite number, not nan"):
        model.learn(20, reset_num_timesteps=False)
    for key, value in parameters(model).items():
        assert th.equal(value, before[key]), key


def test_a_run_has_the_name_of_the_stock_class(tmp_path):
    """A run that the stock class began continues in the same log."""
    pytest.importorskip("tensorboard", reason="needs the extra extra")

    class Mine(PERDQN):
        pass

    kwargs: Any = dict(learning_starts=20, batch_size=8, buffer_size=100, tensorboard_log=str(tmp_path / "log"))
    DQN("MlpPolicy", "CartPole-v1", **kwargs).learn(20).save(tmp_path / "model")
    model = PERDQN.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
    model.learn(20, reset_num_timesteps=False)
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["DQN_1"]
    assert len(list((tmp_path / "log" / "DQN_1").iterdir())) == 2
    model.learn(20, None, 4, "mine")
    Mine("MlpPolicy", "CartPole-v1", **kwargs).learn(10)
    PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", **kwargs).learn(10)
    PERSAC("MlpPolicy", "Pendulum-v1", **kwargs).learn(10)
    assert {path.name for path in (tmp_path / "log").iterdir()} == {"DQN_1", "DQN_2", "DQN_3", "mine_1", "SAC_1"}
