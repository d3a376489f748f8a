"""Saving and loading a model's buffer, as a directory or as SB3's pickle. The model's settings win over the saved ones."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, PERQRDQN, PERSAC, PERTD3, PERRecurrentDQN, PrioritizedReplayBuffer, Proportional
from sb3_per.persistence.buffer_files import save_buffer
from tests.helpers.models import STOCK, trained
from tests.helpers.saved import assert_same, snapshot


@pytest.mark.parametrize("cls", [PERSAC, PERRecurrentDQN])
def test_a_model_saves_and_restores_its_buffer(cls, tmp_path):
    """The suffix chooses the format. The buffer that the model had is replaced, and does not change."""
    model = trained(cls)
    model.save_replay_buffer(tmp_path / "a.buffer")
    assert (tmp_path / "a.buffer").is_dir()
    model.save_replay_buffer(str(tmp_path / "b"))
    assert (tmp_path / "b.pkl").is_file()
    expected = snapshot(model.replay_buffer)

    fresh = trained(cls, 0)
    fresh.load_replay_buffer(str(tmp_path / "a.buffer"))
    assert_same(snapshot(fresh.replay_buffer), expected)

    other = trained(cls, 30)
    old = other.replay_buffer
    before = snapshot(old)
    other.load_replay_buffer(tmp_path / "a.buffer")
    assert other.replay_buffer is not old
    assert_same(snapshot(old), before)
    assert_same(snapshot(other.replay_buffer), expected)

    other.replay_buffer = None  # to save RAM
    with pytest.raises(ValueError, match=r"a\.buffer holds transitions alone, and this model has no buffer"):
        other.load_replay_buffer(tmp_path / "a.buffer")
    other.load_replay_buffer(tmp_path / "b.pkl")
    assert_same(snapshot(other.replay_buffer), expected)


def test_loading_detects_the_format_by_content(tmp_path):
    """
    A pickle named ``a.buffer`` loads as a pickle, and a saved directory loads by any name. A missing file or an empty
    directory is an error, even if a file with a similar name exists.
    """
    model = trained(PERSAC)
    with (tmp_path / "a.buffer").open("wb") as file:
        pickle.dump(model.replay_buffer, file)
    with pytest.raises(NotADirectoryError, match=r"a\.buffer"):
        model.save_replay_buffer(tmp_path / "a.buffer")
    expected = snapshot(model.replay_buffer)
    model.load_replay_buffer(tmp_path / "a.buffer")
    assert_same(snapshot(model.replay_buffer), expected)

    save_buffer(model.replay_buffer, tmp_path / "plain_name")
    model.load_replay_buffer(tmp_path / "plain_name")
    assert_same(snapshot(model.replay_buffer), expected)
    for path in ("none.buffer", "none"):
        with pytest.raises(FileNotFoundError, match="none"):
            model.load_replay_buffer(tmp_path / path)
    (tmp_path / "empty.buffer").mkdir()
    model.save_replay_buffer(tmp_path / "empty")  # writes empty.pkl, which must not load in place of empty.buffer
    with pytest.raises(FileNotFoundError, match=r"empty\.buffer"):
        model.load_replay_buffer(tmp_path / "empty.buffer")
    assert_same(snapshot(model.replay_buffer), expected)


def test_a_failed_load_does_not_change_the_model(tmp_path):
    model = trained(PERSAC)
    model.save_replay_buffer(tmp_path / "a.buffer")
    next((tmp_path / "a.buffer").glob("rows-*")).write_bytes(b"")
    buffer, before = model.replay_buffer, snapshot(model.replay_buffer)
    with pytest.raises(ValueError, match=r"rows-.* has 0 bytes"):
        model.load_replay_buffer(tmp_path / "a.buffer")
    assert model.replay_buffer is buffer
    assert_same(snapshot(buffer), before)


def test_an_empty_buffer_can_be_saved_and_loaded(tmp_path):
    model = trained(PERTD3, 0)
    model.save_replay_buffer(tmp_path / "a.buffer")
    model.load_replay_buffer(tmp_path / "a.buffer")
    assert model.replay_buffer.size() == 0
    model.learn(30)


def test_steps_after_loading_begin_a_new_episode(tmp_path):
    """No n-step window crosses from loaded steps to new ones."""
    model = trained(PERDQN, n_steps=3)
    model.save(tmp_path / "m")
    model.save_replay_buffer(tmp_path / "a.buffer")
    resumed = PERDQN.load(tmp_path / "m", env=model.get_env())
    resumed.load_replay_buffer(tmp_path / "a.buffer")
    newest = resumed.replay_buffer.pos - 1
    resumed.learn(3, reset_num_timesteps=False)
    assert resumed.replay_buffer.dones[newest].all()


# ---- pickles


@pytest.mark.parametrize("cls", [PERDQN])
def test_a_pickle_restores_the_buffer(cls, tmp_path):
    """
    Priorities, transition ids, beta and the largest priority are restored. A batch that was drawn before can still be updated.
    """
    model = trained(cls, n_steps=2)
    batch = model.replay_buffer.sample(8)
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = trained(cls, 0, n_steps=2)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert_same(snapshot(loaded.replay_buffer), snapshot(model.replay_buffer))
    for each in (model, loaded):
        each.replay_buffer.update_priorities(batch.indices, np.arange(8.0))
    np.testing.assert_array_equal(loaded.replay_buffer.masses, model.replay_buffer.masses)
    loaded.learn(40, reset_num_timesteps=False)


MEMORY: dict[str, Any] = dict(optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False})


@pytest.mark.parametrize("cls, n_steps, memory", [(PERSAC, 3, {}), (PERDQN, 3, MEMORY)])
def test_a_stock_buffer_becomes_prioritized(cls, n_steps, memory, tmp_path, monkeypatch):
    """
    The arrays of the stock buffer are used without a copy. All transitions get the largest priority, and the model's settings
    apply.
    """
    stock = trained(STOCK[cls], **memory)
    stock.save_replay_buffer(tmp_path / "buffer")
    kwargs = {**memory, "n_steps": n_steps}
    kwargs["replay_buffer_kwargs"] = {**memory.get("replay_buffer_kwargs", {}), "alpha": 0.8}
    model = trained(cls, 0, **kwargs)
    model.replay_buffer.beta = 0.6
    read: list[ReplayBuffer] = []
    unpickle = sys.modules["stable_baselines3.common.off_policy_algorithm"].load_from_pkl
    monkeypatch.setattr(
        "stable_baselines3.common.off_policy_algorithm.load_from_pkl", lambda *args: read.append(unpickle(*args)) or read[0]
    )
    model.load_replay_buffer(tmp_path / "buffer")
    buffer = model.replay_buffer
    assert type(buffer) is PrioritizedReplayBuffer
    assert buffer.observations is read[0].observations
    np.testing.assert_array_equal(buffer.observations, stock.replay_buffer.observations)
    np.testing.assert_array_equal(buffer.rewards, stock.replay_buffer.rewards)
    expected = np.ones((40, 1))
    if memory:
        expected[buffer.pos] = 0.0
    np.testing.assert_array_equal(buffer.masses, expected)
    assert (buffer.scheme.alpha, buffer.n_steps, buffer.beta) == (0.8, n_steps, 0.6)
    assert buffer.device == model.device
    model.learn(40, reset_num_timesteps=False)
    assert len(np.unique(buffer.masses)) > 2


def test_a_deleted_buffer_can_be_loaded_again(tmp_path):
    """Users of SB3 set the buffer to ``None`` or delete it to save RAM."""
    model = trained(PERDQN)
    model.save_replay_buffer(tmp_path / "buffer")
    model.replay_buffer = None
    model.save(tmp_path / "model")
    del model.replay_buffer
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.beta == 1.0
    assert PERDQN.load(tmp_path / "model").replay_buffer.beta == 0.4


def test_a_buffer_with_an_unsupported_scheme_is_refused(tmp_path):
    trained(PERDQN, replay_buffer_kwargs=dict(scheme="lap")).save_replay_buffer(tmp_path / "buffer")
    model = trained(PERQRDQN)
    buffer = model.replay_buffer
    with pytest.raises(NotImplementedError, match="PERQRDQN with LAP"):
        model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer is buffer


def saved_buffer(path: Any, **kwargs: Any) -> Any:
    model = trained(PERDQN, **kwargs)
    model.save_replay_buffer(path)
    return model.replay_buffer


def test_settings_of_the_model_win_over_saved_ones(tmp_path):
    """A warning names both values. Priorities and transition ids stay."""
    for saved, asked, attribute, value in (
        (dict(n_steps=3), {}, "n_steps", 1),
        (dict(n_steps=3, gamma=0.9), dict(n_steps=3, gamma=0.8), "gamma", 0.8),
        ({}, dict(replay_buffer_kwargs=dict(beta_end=0.7, beta_start=0.5)), "beta_end", 0.7),
        ({}, dict(replay_buffer_kwargs=dict(stratified=False)), "stratified", False),
    ):
        before = saved_buffer(tmp_path / "buffer", **saved)
        model = trained(PERDQN, 0, **asked)
        with pytest.warns(
            UserWarning, match=rf"{attribute}={getattr(before.settings, attribute)!r} \(this model: {value!r}\)"
        ):
            model.load_replay_buffer(tmp_path / "buffer")
        buffer = model.replay_buffer
        assert getattr(buffer.settings, attribute) == value
        np.testing.assert_array_equal(buffer.masses, before.priorities)
        np.testing.assert_array_equal(buffer.transition_ids, before.transition_ids)
        end = buffer.settings.beta_end
        assert (buffer.max_priority, buffer.beta) == (before.max_priority, min(before.beta, end))
        model.learn(30, reset_num_timesteps=False)
        assert model.replay_buffer.beta == end


def test_loading_with_another_scheme_sets_all_priorities_to_the_largest(tmp_path):
    before = saved_buffer(tmp_path / "buffer")
    model = trained(PERDQN, 0, replay_buffer_kwargs=dict(scheme=Proportional(alpha=0.3)))
    expected = model.replay_buffer.scheme
    with pytest.warns(UserWarning, match=r"scheme=Proportional\(alpha=0.6.*this model: .*all priorities"):
        model.load_replay_buffer(tmp_path / "buffer")
    buffer = model.replay_buffer
    assert repr(buffer.scheme) == repr(expected)
    np.testing.assert_array_equal(buffer.transition_ids, before.transition_ids)
    np.testing.assert_array_equal(buffer.rewards, before.rewards)
    assert len(np.unique(buffer.masses)) == 1
    assert buffer.max_priority == before.max_priority
    model.learn(30, reset_num_timesteps=False)


def test_loading_does_not_warn_without_a_conflict(tmp_path, recwarn):
    for saved, asked in (
        (dict(replay_buffer_kwargs=dict(alpha=0.8, beta_start=0.1)), {}),  # the model has only default settings
        (dict(gamma=0.9), dict(gamma=0.8)),  # only n-step returns use gamma
        (dict(replay_buffer_kwargs=dict(scheme="rank", alpha=0.8)), dict(replay_buffer_kwargs=dict(stratified=True))),
        (dict(buffer_size=40), dict(buffer_size=30)),
    ):
        before = saved_buffer(tmp_path / "buffer", **saved)
        model = trained(PERDQN, 0, **asked)
        model.load_replay_buffer(tmp_path / "buffer")
        assert not [w for w in recwarn if "other settings" in str(w.message)]
        np.testing.assert_array_equal(model.replay_buffer.masses, before.priorities)
        assert repr(model.replay_buffer.scheme) == repr(before.scheme)


def test_a_buffer_of_another_shape_is_refused(tmp_path):
    for env, message, plain in (
        ("n_envs", r"it has .*\(2, \(4,\), 1\), the model \(1, \(4,\), 1\)", False),
        ("Acrobot-v1", r"\(1, \(6,\), 1\), the model \(1, \(4,\), 1\)", True),
    ):
        other = make_vec_env("CartPole-v1", n_envs=2) if env == "n_envs" else env
        cls = DQN if plain else PERDQN
        cls("MlpPolicy", other, buffer_size=40, learning_starts=100).learn(20).save_replay_buffer(tmp_path / "buffer")
        model = trained(PERDQN)
        buffer, before = model.replay_buffer, pickle.dumps(model.replay_buffer)
        with pytest.raises(ValueError, match=message):
            model.load_replay_buffer(tmp_path / "buffer")
        assert model.replay_buffer is buffer
        assert pickle.dumps(buffer) == before


def test_loading_an_older_buffer_does_not_lower_beta(tmp_path):
    saved_buffer(tmp_path / "buffer", timesteps=0)
    model = trained(PERDQN)
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.beta == 1.0


def test_beta_that_started_at_an_integer_is_restored(tmp_path):
    """``beta_start=0`` is what the documentation suggests, so beta must not become an integer that a saved 0.5 contradicts."""
    settings = dict(beta_start=0, beta_end=1, beta_anneal_steps=40)
    saved, fresh = (PERDQN("MlpPolicy", "CartPole-v1", learning_starts=10, replay_buffer_kwargs=settings) for _ in range(2))
    saved.learn(30)
    assert 0.0 < saved.replay_buffer.beta < 1.0
    saved.save_replay_buffer(tmp_path / "a.buffer")
    fresh.load_replay_buffer(tmp_path / "a.buffer")
    assert fresh.replay_buffer.beta == saved.replay_buffer.beta


@pytest.mark.filterwarnings("ignore:The empty ReplayBuffer became a PrioritizedReplayBuffer")
def test_an_empty_pickled_buffer_can_be_loaded_and_filled(tmp_path):
    for cls in (DQN, PERDQN):
        trained(cls, 0).save_replay_buffer(tmp_path / "buffer")
        model = trained(PERDQN, 0)
        model.load_replay_buffer(tmp_path / "buffer")
        assert not model.replay_buffer.masses.any()
        model.learn(30)
        assert (model.replay_buffer.masses[:30] > 0).all()
