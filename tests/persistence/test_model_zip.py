"""Zip files of models: stock algorithms load our zips, and our algorithms load stock zips."""

import functools
import io
import json
import os
import pickle
import signal
import stat
import sys
import warnings
import zipfile
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    Proportional,
)
from sb3_per.persistence import atomic
from tests.helpers.forks import forked
from tests.helpers.messages import no_user_warnings
from tests.helpers.models import RECURRENT, STOCK, env_of, trained
from tests.helpers.saved import watch_disk


class MyBuffer(PrioritizedReplayBuffer):
    """A buffer class that a user wrote."""


def assert_same_parameters(actual: Any, expected: Any) -> None:
    for key, value in expected.policy.state_dict().items():
        assert th.equal(actual.policy.state_dict()[key], value), key
    if getattr(expected, "log_ent_coef", None) is not None:
        assert th.equal(actual.log_ent_coef, expected.log_ent_coef)


@pytest.mark.parametrize("cls", [PERSAC, *RECURRENT])
def test_a_zip_restores_the_model(cls, tmp_path):
    """Weights, settings and beta are restored, and training can continue."""
    kwargs: dict[str, Any] = dict(alpha=0.8, beta_start=0.3, epsilon=1e-3, handle_timeout_termination=False)
    model = trained(cls, replay_buffer_kwargs=kwargs, n_steps=3)
    model.save(tmp_path / "model")
    assert model.replay_buffer_kwargs == kwargs  # saving does not change the model
    loaded = cls.load(tmp_path / "model", env=gym.make(env_of(cls)))
    assert_same_parameters(loaded, model)
    assert loaded.replay_buffer_kwargs == kwargs
    buffer = loaded.replay_buffer
    assert type(buffer) is type(model.replay_buffer)
    assert (buffer.scheme.alpha, buffer.scheme.epsilon, buffer.n_steps) == (0.8, 1e-3, 3)
    assert not buffer.handle_timeout_termination
    assert buffer.beta == model.replay_buffer.beta == 1.0
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.replay_buffer.beta == 1.0
    assert loaded._n_updates > model._n_updates


@pytest.mark.parametrize("suffix", [".pkl", ".buffer"])
def test_weights_can_be_switched_off_after_loading(tmp_path, suffix):
    """The beta of the saved run, 1 at its end, is above the end that is asked for."""
    model = trained(PERDQN)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / f"buffer{suffix}")
    loaded = PERDQN.load(tmp_path / "model", env=model.get_env(), replay_buffer_kwargs=dict(beta=0))
    assert loaded.replay_buffer.beta == 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loaded buffer has other settings")
        loaded.load_replay_buffer(tmp_path / f"buffer{suffix}")
    loaded.learn(30, reset_num_timesteps=False)
    assert loaded.replay_buffer.beta == 0.0
    assert (loaded.replay_buffer.sample(8).weights == 1.0).all()


def test_constant_beta_goes_through_files(tmp_path):
    model = trained(PERDQN, replay_buffer_kwargs=dict(beta=0.5))
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model", env=model.get_env())
    settings = loaded.replay_buffer.settings
    assert (loaded.replay_buffer.beta, settings.beta_start, settings.beta_end) == (0.5, 0.5, 0.5)
    with pytest.raises(TypeError, match=r"replay_buffer_kwargs=dict\(beta=0\)"):
        PERDQN.load(tmp_path / "model", beta=0)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the settings are the same
        loaded.load_replay_buffer(tmp_path / "buffer.pkl")


def test_beta_is_restored_without_the_buffer(tmp_path):
    """And does not decrease."""
    model = trained(PERDQN, 0)
    model.replay_buffer.update_beta(0.5)
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model")
    assert loaded.replay_buffer.beta == pytest.approx(0.7)
    loaded.replay_buffer.update_beta(0.9)
    assert loaded.replay_buffer.beta == pytest.approx(0.7)


@pytest.mark.parametrize("cls, n_steps", [(PERDQN, 1), (PERSAC, 3)])
def test_a_zip_loads_as_the_stock_algorithm(cls, n_steps, tmp_path):
    model = trained(cls, n_steps=n_steps, replay_buffer_kwargs=dict(alpha=0.9, td_error_reduction="max"))
    model.save(tmp_path / "model")
    stock = STOCK[cls].load(tmp_path / "model", env=gym.make(env_of(cls)))
    assert type(stock.replay_buffer) is (ReplayBuffer if n_steps == 1 else NStepReplayBuffer)
    assert_same_parameters(stock, model)
    stock.learn(40)
    # The stock model keeps our settings, so that its zip loads here with them.
    stock.save(tmp_path / "back")
    back = cls.load(tmp_path / "back", env=gym.make(env_of(cls)))
    assert type(back.replay_buffer) is PrioritizedReplayBuffer
    assert (back.replay_buffer.scheme.alpha, back.replay_buffer.n_steps) == (0.9, n_steps)
    assert_same_parameters(back, stock)


def test_a_zip_loads_without_this_package(tmp_path, monkeypatch):
    """Nor does it hold anything of the directories that the buffer was saved to."""
    model = trained(PERDQN, replay_buffer_kwargs=dict(scheme=Proportional(alpha=0.9)))
    model.save_replay_buffer(tmp_path / "x.buffer")
    model.save(tmp_path / "model")
    pickled = pickle.dumps(model.replay_buffer)
    with monkeypatch.context() as patch, no_user_warnings():
        for name in list(sys.modules):
            if name.partition(".")[0] == "sb3_per":
                patch.setitem(sys.modules, name, None)  # as if there were no such module
        with pytest.raises(ModuleNotFoundError):
            pickle.loads(pickled)
        DQN.load(tmp_path / "model", env=gym.make("CartPole-v1")).learn(40)
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = archive.read("data").decode()
    assert json.loads(data)["replay_buffer_class"] is None and "saved_buffers" not in data
    loaded = PERDQN.load(tmp_path / "model")
    assert loaded.replay_buffer.scheme.alpha == 0.9


def test_a_stock_zip_loads_with_prioritization(tmp_path):
    stock = trained(SAC, n_steps=3, gamma=0.9)
    stock.save(tmp_path / "stock")
    loaded = PERSAC.load(tmp_path / "stock", env=gym.make("Pendulum-v1"))
    assert type(loaded.replay_buffer) is PrioritizedReplayBuffer
    assert (loaded.replay_buffer.n_steps, loaded.replay_buffer.gamma) == (3, 0.9)
    assert_same_parameters(loaded, stock)
    loaded.learn(40)
    for settings, alpha in ((dict(replay_buffer_kwargs=dict(alpha=0.3)), 0.3), ({}, 0.6)):
        changed = PERSAC.load(tmp_path / "stock", n_steps=5, gamma=0.8, **settings)
        assert (changed.replay_buffer.n_steps, changed.replay_buffer.gamma) == (5, 0.8)
        assert changed.replay_buffer.scheme.alpha == alpha


def test_a_stock_zip_with_dict_observations_loads(tmp_path):
    stock = DQN("MultiInputPolicy", SimpleMultiObsEnv(), buffer_size=40, learning_starts=10).learn(30)
    stock.save(tmp_path / "stock")
    loaded = PERDQN.load(tmp_path / "stock", env=SimpleMultiObsEnv())
    assert type(loaded.replay_buffer) is PrioritizedDictReplayBuffer
    loaded.learn(30)
    loaded.save(tmp_path / "ours")
    assert type(DQN.load(tmp_path / "ours", env=SimpleMultiObsEnv()).replay_buffer) is DictReplayBuffer


def test_settings_given_to_load_replace_those_of_the_zip(tmp_path):
    trained(PERDQN, replay_buffer_kwargs=dict(alpha=0.9, beta_start=0.1)).save(tmp_path / "model")
    for loaded in (
        PERDQN.load(tmp_path / "model", replay_buffer_kwargs=dict(beta_start=0.2)),
        PERDQN.load(tmp_path / "model", custom_objects=dict(replay_buffer_kwargs=dict(beta_start=0.2))),
    ):
        assert (loaded.replay_buffer.scheme.alpha, loaded.replay_buffer.settings.beta_start) == (0.6, 0.2)
        assert loaded.replay_buffer.beta == 1.0  # of the saved run: beta never decreases
    assert PERDQN.load(tmp_path / "model", buffer_size=1).replay_buffer.buffer_size == 1
    stock = PERDQN.load(tmp_path / "model", replay_buffer_class=ReplayBuffer)
    assert type(stock.replay_buffer) is PrioritizedReplayBuffer


def test_a_custom_buffer_class_is_kept(tmp_path):
    trained(PERDQN, replay_buffer_class=MyBuffer, replay_buffer_kwargs=dict(alpha=0.9)).save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model")
    assert type(loaded.replay_buffer) is MyBuffer
    assert loaded.replay_buffer.scheme.alpha == 0.9


def test_double_q_is_restored(tmp_path):
    trained(PERDQN, double_q=True).save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model").double_q
    DQN.load(tmp_path / "model", env=gym.make("CartPole-v1")).learn(30)


# ---- a buffer that conflicts with the model


def test_n_steps_given_to_load_win_over_the_zip(tmp_path):
    """An explicit ``n_steps=1`` counts, although it is SB3's default."""
    trained(DQN, n_steps=3).save(tmp_path / "stock")
    trained(PERDQN, n_steps=3).save(tmp_path / "ours")
    for path in ("stock", "ours"):
        loaded = PERDQN.load(tmp_path / path, n_steps=1)
        assert (loaded.n_steps, loaded.replay_buffer.n_steps) == (1, 1)


# ---- contents of the zip


@pytest.mark.filterwarnings("ignore:Could not deserialize object settings")
def test_a_missing_scheme_class_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "GoneScheme", type("GoneScheme", (Proportional,), {"__module__": __name__}), raising=False
    )
    scheme = sys.modules[__name__].GoneScheme()  # type: ignore[attr-defined]
    trained(PERDQN, replay_buffer_kwargs=dict(scheme=scheme)).save(tmp_path / "model")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"(?s)class of its scheme is missing.*pass replay_buffer_kwargs to load\(\)"):
        PERDQN.load(tmp_path / "model")
    assert isinstance(PERDQN.load(tmp_path / "model", replay_buffer_kwargs={}).replay_buffer.scheme, Proportional)


def test_calling_train_after_loading_does_not_anneal_beta(tmp_path):
    """The zip has the progress of a finished run. Beta ignores this progress until ``learn`` starts to count."""
    trained(DQN).save(tmp_path / "stock")
    loaded = PERDQN.load(tmp_path / "stock", env=gym.make("CartPole-v1"))
    loaded.set_logger(configure(None, []))
    add_transitions(loaded.replay_buffer)
    loaded.train(2, 8)
    assert loaded.replay_buffer.beta == 0.4
    loaded.learn(40)
    assert loaded.replay_buffer.beta == 1.0


def add_transitions(buffer: ReplayBuffer) -> None:
    for _ in range(20):
        buffer.add(np.zeros((1, 4)), np.zeros((1, 4)), np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])


# ---- writing the zip


def test_a_failed_save_keeps_the_old_zip(tmp_path, monkeypatch):
    """An error while writing, syncing or renaming leaves the old zip and no other file."""
    model = trained(PERSAC, 0)
    model.save(tmp_path / "m.zip")
    before = (tmp_path / "m.zip").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, name, fail)
            with pytest.raises(OSError, match="No space"):
                model.save(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", fail)
        with pytest.raises(OSError, match="No space"):
            model.save(str(tmp_path / "m.zip"))
    assert os.listdir(tmp_path) == ["m.zip"]
    assert (tmp_path / "m.zip").read_bytes() == before
    SAC.load(tmp_path / "m.zip")


def test_a_kill_at_any_disk_operation_leaves_the_old_zip_or_the_new_one(tmp_path, monkeypatch):
    """With the mode that the file had, and nothing that the next save does not remove."""
    path = tmp_path / "model.zip"
    policies = dict(old=trained(PERDQN, 0, seed=1), new=trained(PERDQN, 0, seed=2))

    def save_and_die(number: int) -> None:
        left = [number]

        def announce(operation: str, *args: Any) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        watch_disk(announce, pytest.MonkeyPatch())
        policies["new"].save(path)

    policies["old"].save(path)
    path.chmod(0o640)
    found, status = [], -signal.SIGKILL
    while status == -signal.SIGKILL:
        pid = forked(functools.partial(save_and_die, len(found)))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        loaded = DQN.load(path).policy.state_dict()
        is_of = [name for name, model in policies.items() if same_values(loaded, model.policy.state_dict())]
        assert len(is_of) == 1 and stat.S_IMODE(path.stat().st_mode) == 0o640
        found += is_of
        policies["old"].save(path)
        assert os.listdir(tmp_path) == ["model.zip"]
    assert status == 0 and len(found) > 5
    assert found == sorted(found, reverse=True) and set(found) == {"old", "new"}  # old until the rename, and new from then on


def same_values(one: dict[str, th.Tensor], other: dict[str, th.Tensor]) -> bool:
    return all(th.equal(value, other[name]) for name, value in one.items())


@pytest.mark.filterwarnings("ignore:Path .* does not exist")
def test_zips_get_the_same_names_as_stock_zips(tmp_path):
    """Names may have a suffix or not, or be in a new folder. A link stays a link, and a stream can be written as well."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "stock").mkdir()
    for folder, model in (("ours", trained(PERSAC, 0)), ("stock", SAC("MlpPolicy", "Pendulum-v1", buffer_size=10))):
        for name in ("a", "b.zip", "c.d", "new/deep/e"):
            model.save(str(tmp_path / folder / name))
    found = [{path.relative_to(tmp_path / part) for path in (tmp_path / part).rglob("*")} for part in ("ours", "stock")]
    assert found[0] == found[1]
    link = tmp_path / "link.zip"
    link.symlink_to(tmp_path / "ours" / "a.zip")
    trained(PERSAC, 0).save(link)
    assert link.is_symlink()
    stream = io.BytesIO()
    trained(PERSAC, 0).save(stream)
    PERSAC.load(io.BytesIO(stream.getvalue()))


def test_a_policy_of_the_user_is_loaded(tmp_path):
    class OwnPolicy(DQNPolicy):
        pass

    PERDQN(OwnPolicy, "CartPole-v1", buffer_size=10).save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model", custom_objects=dict(policy_class=OwnPolicy)).policy_class is OwnPolicy


def test_the_zip_of_a_model_is_no_replay_buffer(tmp_path):
    """The buffer of the model stays."""
    model = trained(PERDQN)
    model.save(tmp_path / "model")
    before = model.replay_buffer
    with pytest.raises(pickle.UnpicklingError):
        model.load_replay_buffer(tmp_path / "model.zip")
    assert model.replay_buffer is before
