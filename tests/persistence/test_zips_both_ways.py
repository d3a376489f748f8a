"""Zips and buffers go from our classes to the stock classes and back, with other arguments, and with files of old versions."""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_per import PERDQN, PERSAC, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.models import RECURRENT, STOCK, env_of, trained
from tests.helpers.stock_runs import OURS, differences, learned, made

# All algorithms save and load with the same code.
CLASSES = [pytest.param(cls, marks=[] if cls in (PERDQN, PERSAC) else pytest.mark.slow) for cls in STOCK]


def policies_are_equal(one: Any, other: Any) -> bool:
    return not differences(dict(one.policy.state_dict()), dict(other.policy.state_dict()))


@pytest.mark.parametrize("cls", CLASSES)
def test_a_run_goes_on_in_the_other_class_as_in_its_own(cls):
    """From either side, by a stream; with uniform draws, the further updates are those of the stock class, to the bit."""
    for saver in (STOCK[cls], cls):
        model, zipped, pickled = made(saver).learn(50), io.BytesIO(), io.BytesIO()
        model.save(zipped)
        buffer = model.replay_buffer
        save_to_pkl(pickled, buffer if saver is STOCK[cls] else buffer.to_replay_buffer())
        found = []
        for loader in (STOCK[cls], cls):
            zipped.seek(0), pickled.seek(0)
            kwargs = dict(replay_buffer_kwargs=dict(scheme="uniform", stratified=False)) if loader is cls else {}
            loaded = loader.load(zipped, env=gym.make(env_of(cls)), **kwargs)
            loaded.load_replay_buffer(pickled)
            found.append(learned(loaded.learn(30, reset_num_timesteps=False)))
        assert not differences(*found)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_zip_that_includes_the_buffer_goes_both_ways(cls, tmp_path):
    for saver, loader in ((STOCK[cls], cls), (cls, cls), (cls, STOCK[cls])):
        model = trained(saver)
        model.save(tmp_path / "model", include=["replay_buffer"])
        loaded = loader.load(tmp_path / "model", env=gym.make(env_of(cls)))
        np.testing.assert_array_equal(loaded.replay_buffer.rewards, model.replay_buffer.rewards)
        assert loaded.replay_buffer.size() == 40
        if loader is cls:
            assert type(loaded.replay_buffer) is PrioritizedReplayBuffer
            if saver is cls:
                np.testing.assert_array_equal(loaded.replay_buffer.masses, model.replay_buffer.masses)
            loaded.learn(20)


# Arguments of load, and what the model and its buffer have then. The zip has n_steps=3, gamma=0.9 and alpha=0.8.
OVERRIDES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (dict(n_steps=5), dict(n_steps=5, gamma=0.9, alpha=0.8)),
    (dict(n_steps=1), dict(n_steps=1, alpha=0.8)),
    (dict(gamma=0.8), dict(n_steps=3, gamma=0.8, alpha=0.8)),
    (dict(n_steps=5, gamma=0.7), dict(n_steps=5, gamma=0.7, alpha=0.8)),
    (dict(replay_buffer_kwargs={}), dict(n_steps=3, gamma=0.9, alpha=0.6)),
    (dict(replay_buffer_kwargs=dict(alpha=0.3), n_steps=2), dict(n_steps=2, gamma=0.9, alpha=0.3)),
    (dict(replay_buffer_kwargs=dict(scheme="lap")), dict(n_steps=3, alpha=0.4)),
    (dict(custom_objects=dict(n_steps=4)), dict(n_steps=4, gamma=0.9, alpha=0.8)),
    (dict(custom_objects=dict(replay_buffer_kwargs=dict(alpha=0.2))), dict(n_steps=3, alpha=0.2)),
    (dict(buffer_size=7), dict(buffer_size=7, n_steps=3, alpha=0.8)),
    (dict(replay_buffer_class=ReplayBuffer), dict(n_steps=3, alpha=0.8)),
    (dict(learning_rate=0.5, batch_size=3), dict(n_steps=3, alpha=0.8)),
]


@pytest.mark.parametrize("given, expected", OVERRIDES)
def test_arguments_of_load_replace_what_the_zip_has(given, expected, tmp_path):
    trained(PERDQN, n_steps=3, gamma=0.9, replay_buffer_kwargs=dict(alpha=0.8)).save(tmp_path / "ours")
    DQN.load(tmp_path / "ours", env=gym.make("CartPole-v1")).save(tmp_path / "by_stock")  # keeps our settings
    for name in ("ours", "by_stock"):
        loaded = PERDQN.load(tmp_path / name, env=gym.make("CartPole-v1"), **given)
        buffer = loaded.replay_buffer
        found = dict(n_steps=buffer.n_steps, gamma=buffer.gamma, alpha=buffer.scheme.alpha, buffer_size=buffer.buffer_size)
        assert {key: found[key] for key in expected} == expected
        assert loaded.n_steps == expected["n_steps"]
        assert all(getattr(loaded, key) == value for key, value in given.items() if key in ("learning_rate", "batch_size"))
        assert not {"_given_to_load", "prioritized_replay"} & vars(loaded).keys()
        loaded.learn(20)


# The same for recurrent agents, whose buffers share more arguments with them. Their zip has sequence_length=4, burn_in=2, too.
RECURRENT_OVERRIDES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, dict(n_steps=3, gamma=0.9, sequence_length=4, burn_in=2, alpha=0.8)),
    (dict(n_steps=1), dict(n_steps=1, gamma=0.9, alpha=0.8)),
    (dict(gamma=0.8, burn_in=0), dict(gamma=0.8, burn_in=0, sequence_length=4, alpha=0.8)),
    (dict(sequence_length=5), dict(sequence_length=5, burn_in=2, alpha=0.8)),
    (dict(replay_buffer_kwargs=dict(alpha=0.3), n_steps=2), dict(n_steps=2, gamma=0.9, sequence_length=4, alpha=0.3)),
    (dict(custom_objects=dict(burn_in=1)), dict(burn_in=1, sequence_length=4, alpha=0.8)),
]


@pytest.mark.parametrize("cls", RECURRENT)
def test_arguments_of_load_replace_what_the_zip_of_a_recurrent_agent_has(cls, tmp_path):
    trained(cls, n_steps=3, gamma=0.9, replay_buffer_kwargs=dict(alpha=0.8)).save(tmp_path / "model")
    for given, expected in RECURRENT_OVERRIDES:
        loaded = cls.load(tmp_path / "model", env=gym.make(env_of(cls)), **given)
        buffer = loaded.replay_buffer
        for name in cls.shared_arguments:
            assert getattr(loaded, name) == getattr(buffer, name), name
        found = {name: getattr(buffer, name) for name in cls.shared_arguments} | dict(alpha=buffer.scheme.alpha)
        assert {name: found[name] for name in expected} == expected
    before = loaded._n_updates
    assert loaded.learn(40)._n_updates > before
    with pytest.raises(ValueError, match="n_steps=3 contradicts n_steps=2"):
        cls.load(tmp_path / "model", replay_buffer_kwargs=dict(n_steps=2))


def test_gamma_that_was_changed_before_a_stock_model_was_saved_counts(tmp_path):
    """The stock class has copied the old value into the dictionary of its buffer."""
    stock = trained(DQN, n_steps=3, gamma=0.9)
    stock.gamma = 0.5
    stock.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model")
    assert (loaded.n_steps, loaded.gamma, loaded.replay_buffer.gamma) == (3, 0.5, 0.5)


@pytest.mark.parametrize("cls", CLASSES)
def test_parameters_are_set_from_the_zip_of_the_other_class(cls, tmp_path):
    for saver, loader in ((cls, STOCK[cls]), (STOCK[cls], cls)):
        model = trained(saver)
        model.save(tmp_path / "model")
        other = trained(loader, 0, seed=1)
        assert not policies_are_equal(model, other)
        other.set_parameters(str(tmp_path / "model"))
        assert policies_are_equal(model, other)
        third = trained(loader, 0, seed=2)
        third.set_parameters(model.get_parameters())
        assert policies_are_equal(model, third)


def test_a_loaded_model_without_an_environment_gets_one(tmp_path):
    for n_envs in (1, 2):
        env = make_vec_env("Pendulum-v1", n_envs=n_envs)
        model = PERSAC("MlpPolicy", env, buffer_size=40, learning_starts=10, batch_size=4)
        model.learn(30).save(tmp_path / "model")
        loaded = PERSAC.load(tmp_path / "model")
        assert loaded.get_env() is None and loaded.replay_buffer.n_envs == n_envs
        loaded.set_env(make_vec_env("Pendulum-v1", n_envs=n_envs))
        loaded.learn(20)
        with pytest.raises(AssertionError, match="number of environments"):
            loaded.set_env(make_vec_env("Pendulum-v1", n_envs=3))
        more = PERSAC.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", n_envs=3))
        assert more.replay_buffer.n_envs == 3
        more.learn(30)


@pytest.mark.parametrize("kind", ["Dict", "HER"])
def test_models_with_other_observations_go_both_ways(kind, tmp_path):
    env = SimpleMultiObsEnv() if kind == "Dict" else BitFlippingEnv(3)
    arguments: dict[str, Any] = dict(buffer_size=40, learning_starts=15, batch_size=4)
    if kind == "HER":
        arguments |= dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=dict(n_sampled_goal=2))
    for saver, loader in ((PERDQN, DQN), (DQN, PERDQN)):
        model = saver("MultiInputPolicy", env, **arguments).learn(30)
        stream = io.BytesIO()
        model.save(stream)
        loaded = loader.load(io.BytesIO(stream.getvalue()), env=env)
        assert policies_are_equal(model, loaded)
        if kind == "HER":
            expected = PrioritizedHerReplayBuffer if loader is PERDQN else HerReplayBuffer
            assert (type(loaded.replay_buffer), loaded.replay_buffer.n_sampled_goal) == (expected, 2)
        loaded.learn(30)


# ---- files of old versions: each function makes a file of today one of the past


def without(*names: str) -> Callable[[Any], None]:
    def change(buffer: Any) -> None:
        for name in names:
            delattr(buffer, name)

    return change


OLD_BUFFERS: list[tuple[Any, dict[str, Any], Callable[[Any], None]]] = [
    (DQN, {}, without("handle_timeout_termination", "timeouts")),
    (SAC, {}, without("handle_timeout_termination", "timeouts")),
    (DQN, dict(buffer_size=200), without("handle_timeout_termination", "timeouts")),
    (DQN, dict(n_steps=3), without("handle_timeout_termination", "timeouts")),
    (SAC, dict(gamma=0.9, n_steps=2), without("handle_timeout_termination", "timeouts")),
    (
        DQN,
        dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)),
        without("handle_timeout_termination", "timeouts"),
    ),
    (DQN, dict(policy="MultiInputPolicy", env=SimpleMultiObsEnv), without("handle_timeout_termination", "timeouts")),
    (DQN, {}, lambda buffer: setattr(buffer, "device", th.device("cuda"))),  # pickled on a machine with a GPU
    (DQN, {}, lambda buffer: setattr(buffer, "pos", np.int64(buffer.pos))),
    (SAC, {}, lambda buffer: setattr(buffer, "full", np.bool_(buffer.full))),
]


@pytest.mark.parametrize("stock, arguments, change", OLD_BUFFERS)
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
def test_a_buffer_of_an_old_version_of_sb3_loads_as_the_stock_class_loads_it(stock, arguments, change, tmp_path):
    arguments = dict(arguments)
    make_env = arguments.pop("env", lambda: env_of(stock))
    old = made(stock, env=make_env(), **arguments).learn(50)
    change(old.replay_buffer)
    old.save_replay_buffer(tmp_path / "buffer")
    found = []
    for cls in (stock, OURS[stock]):
        model = made(cls, env=make_env(), **arguments)
        model.load_replay_buffer(tmp_path / "buffer")
        model.learn(30)
        found.append((model.replay_buffer.size(), model.replay_buffer.handle_timeout_termination, model.replay_buffer.rewards))
    assert found[0][:2] == found[1][:2]
    np.testing.assert_array_equal(found[0][2], found[1][2])


def change_zip(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(files["data"])
    change(data)
    files["data"] = json.dumps(data).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def without_entries(*names: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: [data.pop(name) for name in names] and None


OLD_ZIPS: list[Callable[[dict[str, Any]], None]] = [
    without_entries("n_steps"),  # before 2.7
    without_entries("replay_buffer_class"),
    without_entries("replay_buffer_kwargs"),
    without_entries("replay_buffer_kwargs", "replay_buffer_class", "n_steps", "optimize_memory_usage"),
    lambda data: data.update(replay_buffer_kwargs={}),
    without_entries("_stats_window_size"),
    without_entries("_num_timesteps_at_start"),
    without_entries("_last_original_obs", "_last_episode_starts"),
    lambda data: data.update(_vectorize_action_noise=None),  # an attribute that is gone
    lambda data: data.update(prioritized_replay='{"settings": {"alpha": 0.8}}'),  # ours, without beta
]


@pytest.mark.parametrize("number", range(len(OLD_ZIPS)))
def test_a_zip_of_an_old_version_loads_as_the_stock_class_loads_it(number, tmp_path):
    model = trained(DQN)
    model.save(tmp_path / "model.zip")
    change_zip(tmp_path / "model.zip", OLD_ZIPS[number])
    loaded = [cls.load(tmp_path / "model.zip", env=gym.make("CartPole-v1")) for cls in (DQN, PERDQN)]
    assert all(policies_are_equal(model, each) for each in loaded)
    assert (loaded[1].n_steps, loaded[1].replay_buffer.n_steps, loaded[1].replay_buffer.buffer_size) == (1, 1, 40)
    loaded[1].learn(20)


def test_a_pickle_that_was_made_by_nstep_returns_of_sb3_keeps_them(tmp_path):
    stock = trained(DQN, replay_buffer_class=NStepReplayBuffer, replay_buffer_kwargs=dict(n_steps=4, gamma=0.7))
    stock.save_replay_buffer(tmp_path / "buffer")
    model = trained(PERDQN, n_steps=4, gamma=0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_replay_buffer(tmp_path / "buffer")
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (4, 0.7)
    assert load_from_pkl(tmp_path / "buffer").n_steps == 4
