"""Checkpoints stay SB3's, in both directions; buffers keep what they know."""

import pickle
import subprocess
import sys
import zipfile
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.logger import configure

from sb3_per import (
    PERDQN,
    PERQRDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    Proportional,
    RankBased,
)
from tests.utils import STOCK, assert_same_state

ENV = {cls: "CartPole-v1" if issubclass(cls, (DQN, QRDQN)) else "Pendulum-v1" for pair in STOCK.items() for cls in pair}


class MyBuffer(PrioritizedReplayBuffer):
    """A user's own buffer class."""


def trained(cls: Any, timesteps: int = 60, **kwargs: Any) -> Any:
    kwargs = dict(buffer_size=40, learning_starts=20, batch_size=8, policy_kwargs=dict(net_arch=[8]), seed=0) | kwargs
    return cls("MlpPolicy", ENV[cls], **kwargs).learn(timesteps)


def assert_same_parameters(actual: Any, expected: Any) -> None:
    for key, value in expected.policy.state_dict().items():
        assert th.equal(actual.policy.state_dict()[key], value), key
    if getattr(expected, "log_ent_coef", None) is not None:
        assert th.equal(actual.log_ent_coef, expected.log_ent_coef)


@pytest.mark.parametrize("cls", STOCK)
def test_round_trip(cls, tmp_path):
    """Networks, settings and beta come back; the run goes on."""
    kwargs: dict[str, Any] = dict(alpha=0.8, beta_start=0.3, epsilon=1e-3, handle_timeout_termination=False)
    model = trained(cls, replay_buffer_kwargs=kwargs, n_steps=3)
    model.save(tmp_path / "model")
    assert model.replay_buffer_kwargs is kwargs  # saving leaves the model as it was
    loaded = cls.load(tmp_path / "model", env=gym.make(ENV[cls]))
    assert_same_parameters(loaded, model)
    assert loaded.replay_buffer_kwargs == kwargs
    buffer = loaded.replay_buffer
    assert (buffer.scheme.alpha, buffer.scheme.epsilon, buffer.n_steps) == (0.8, 1e-3, 3)
    assert not buffer.handle_timeout_termination
    assert buffer.beta == model.replay_buffer.beta == 1.0
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.replay_buffer.beta == 1.0
    assert loaded._n_updates > model._n_updates


@pytest.mark.parametrize("progress_remaining, beta", [(1.0, 0.4), (0.5, 0.7)])
def test_beta_survives_without_the_buffer(progress_remaining, beta, tmp_path):
    model = trained(PERDQN, 0)
    model.replay_buffer.update_beta(progress_remaining)
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model")
    assert loaded.replay_buffer.beta == pytest.approx(beta)
    loaded.replay_buffer.update_beta(0.9)
    assert loaded.replay_buffer.beta == pytest.approx(max(beta, 0.46))


@pytest.mark.parametrize("cls", STOCK)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_zip_loads_as_stock(cls, n_steps, tmp_path):
    model = trained(cls, n_steps=n_steps, replay_buffer_kwargs=dict(alpha=0.9, td_error_reduction="max"))
    model.save(tmp_path / "model")
    stock = STOCK[cls].load(tmp_path / "model", env=gym.make(ENV[cls]))
    assert type(stock.replay_buffer) is (ReplayBuffer if n_steps == 1 else NStepReplayBuffer)
    assert_same_parameters(stock, model)
    stock.learn(40)
    # ... and back again, with the settings still there.
    stock.save(tmp_path / "back")
    back = cls.load(tmp_path / "back", env=gym.make(ENV[cls]))
    assert type(back.replay_buffer) is PrioritizedReplayBuffer
    assert (back.replay_buffer.scheme.alpha, back.replay_buffer.n_steps) == (0.9, n_steps)
    assert_same_parameters(back, stock)


@pytest.mark.parametrize(
    "replay_buffer_kwargs", [pytest.param(dict(alpha=0.9), marks=pytest.mark.slow), dict(scheme=Proportional(alpha=0.9))]
)
def test_zip_loads_where_this_package_is_missing(replay_buffer_kwargs, tmp_path):
    trained(PERDQN, replay_buffer_kwargs=replay_buffer_kwargs).save(tmp_path / "model")
    program = (
        "import sys; sys.modules['sb3_per'] = None\n"
        "from stable_baselines3 import DQN; import gymnasium as gym\n"
        f"model = DQN.load({str(tmp_path / 'model')!r}, env=gym.make('CartPole-v1'))\n"
        "model.learn(40)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert '"replay_buffer_class"' not in archive.read("data").decode()
    loaded = PERDQN.load(tmp_path / "model")
    assert loaded.replay_buffer.scheme.alpha == 0.9


@pytest.mark.parametrize("cls", STOCK)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_stock_zip_loads(cls, n_steps, tmp_path):
    stock = trained(STOCK[cls], n_steps=n_steps, gamma=0.9)
    stock.save(tmp_path / "stock")
    loaded = cls.load(tmp_path / "stock", env=gym.make(ENV[cls]))
    assert type(loaded.replay_buffer) is PrioritizedReplayBuffer
    assert (loaded.replay_buffer.n_steps, loaded.replay_buffer.gamma) == (n_steps, 0.9)
    assert_same_parameters(loaded, stock)
    loaded.learn(40)
    changed = cls.load(tmp_path / "stock", n_steps=5, gamma=0.8, replay_buffer_kwargs=dict(alpha=0.3))
    assert (changed.replay_buffer.n_steps, changed.replay_buffer.gamma) == (5, 0.8)
    assert changed.replay_buffer.scheme.alpha == 0.3
    if n_steps > 1:
        changed = cls.load(tmp_path / "stock", n_steps=5, gamma=0.8)
        assert (changed.replay_buffer.n_steps, changed.replay_buffer.gamma) == (5, 0.8)


def test_stock_dict_zip_loads(tmp_path):
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
        assert (loaded.replay_buffer.scheme.alpha, loaded.replay_buffer.beta_start) == (0.6, 0.2)
        assert loaded.replay_buffer.beta == 0.2
    assert PERDQN.load(tmp_path / "model", buffer_size=1).replay_buffer.buffer_size == 1
    with pytest.raises(ValueError, match=r"\bReplayBuffer is not"):
        PERDQN.load(tmp_path / "model", replay_buffer_class=ReplayBuffer)


def test_own_buffer_class_is_kept(tmp_path):
    trained(PERDQN, replay_buffer_class=MyBuffer, replay_buffer_kwargs=dict(alpha=0.9)).save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model")
    assert type(loaded.replay_buffer) is MyBuffer
    assert loaded.replay_buffer.scheme.alpha == 0.9


def test_double_q_is_kept(tmp_path):
    trained(PERDQN, double_q=True).save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model").double_q
    DQN.load(tmp_path / "model", env=gym.make("CartPole-v1")).learn(30)


@pytest.mark.parametrize("cls", [PERSAC, PERDQN])
def test_replay_buffer_round_trip(cls, tmp_path):
    """Priorities, ids, beta and maximum survive, and so does what was handed out before."""
    model = trained(cls, n_steps=2)
    batch = model.replay_buffer.sample(8)
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = trained(cls, 0, n_steps=2)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert_same_state(loaded.replay_buffer, model.replay_buffer)
    for each in (model, loaded):
        each.replay_buffer.update_priorities(batch.indices, np.arange(8.0))
    np.testing.assert_array_equal(loaded.replay_buffer.priorities, model.replay_buffer.priorities)
    loaded.learn(40, reset_num_timesteps=False)


@pytest.mark.parametrize("cls", [PERSAC, PERDQN])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize(
    "memory", [{}, dict(optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False})]
)
def test_stock_replay_buffer_becomes_prioritized(cls, n_steps, memory, tmp_path, monkeypatch):
    """Its data kept and not copied, all of it at the maximum, with the settings of the model."""
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
    np.testing.assert_array_equal(buffer.priorities, expected)
    assert (buffer.scheme.alpha, buffer.n_steps, buffer.beta) == (0.8, n_steps, 0.6)
    assert buffer.device == model.device
    model.learn(40, reset_num_timesteps=False)
    assert len(np.unique(buffer.priorities)) > 2


def test_deleted_buffer_can_be_loaded_again(tmp_path):
    """SB3 users drop the buffer to save memory."""
    model = trained(PERDQN)
    model.save_replay_buffer(tmp_path / "buffer")
    model.replay_buffer = None
    model.save(tmp_path / "model")
    del model.replay_buffer
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.beta == 1.0
    assert PERDQN.load(tmp_path / "model").replay_buffer.beta == 0.4


def test_a_plain_buffer_cannot_be_put_in_by_hand():
    model = trained(PERDQN, 0)
    buffer = model.replay_buffer
    model.replay_buffer = ReplayBuffer(40, buffer.observation_space, buffer.action_space, device="cpu")
    with pytest.raises(ValueError, match="ReplayBuffer is not"):
        model.learn(40)


def test_a_buffer_with_an_unsupported_scheme_is_refused(tmp_path):
    trained(PERDQN, replay_buffer_kwargs=dict(scheme="lap")).save_replay_buffer(tmp_path / "buffer")
    model = trained(PERQRDQN)
    buffer = model.replay_buffer
    with pytest.raises(NotImplementedError, match="PERQRDQN with LAP"):
        model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer is buffer


# ---- a buffer that contradicts the model


def saved_buffer(path: Any, **kwargs: Any) -> Any:
    model = trained(PERDQN, **kwargs)
    model.save_replay_buffer(path)
    return model.replay_buffer


@pytest.mark.parametrize(
    "saved, asked, attribute, value",
    [
        (dict(n_steps=3), {}, "n_steps", 1),
        ({}, dict(n_steps=3), "n_steps", 3),
        (dict(n_steps=3, gamma=0.9), dict(n_steps=3, gamma=0.8), "gamma", 0.8),
        ({}, dict(replay_buffer_kwargs=dict(beta_end=0.7, beta_start=0.5)), "beta_end", 0.7),
        ({}, dict(replay_buffer_kwargs=dict(beta_anneal_steps=50)), "beta_anneal_steps", 50),
        ({}, dict(replay_buffer_kwargs=dict(stratified=False)), "stratified", False),
    ],
)
def test_settings_of_the_model_count(saved, asked, attribute, value, tmp_path):
    """With a warning that names both values; priorities and ids stay."""
    before = saved_buffer(tmp_path / "buffer", **saved)
    model = trained(PERDQN, 0, **asked)
    with pytest.warns(UserWarning, match=rf"{attribute}={getattr(before, attribute)!r} \(this model: {value!r}\)"):
        model.load_replay_buffer(tmp_path / "buffer")
    buffer = model.replay_buffer
    assert getattr(buffer, attribute) == value
    np.testing.assert_array_equal(buffer.priorities, before.priorities)
    np.testing.assert_array_equal(buffer.transition_ids, before.transition_ids)
    assert (buffer.max_priority, buffer.beta) == (before.max_priority, before.beta)
    model.learn(30, reset_num_timesteps=False)
    assert model.replay_buffer.beta == 1.0


@pytest.mark.parametrize(
    "asked",
    [
        dict(scheme="rank"),
        dict(scheme="lap"),
        dict(alpha=0.9),
        dict(scheme=Proportional(alpha=0.3)),
        dict(td_error_reduction="max"),
    ],
)
def test_another_scheme_makes_all_priorities_the_largest(asked, tmp_path):
    before = saved_buffer(tmp_path / "buffer")
    model = trained(PERDQN, 0, replay_buffer_kwargs=asked)
    expected = model.replay_buffer.scheme
    with pytest.warns(UserWarning, match=r"scheme=Proportional\(alpha=0.6.*this model: .*priorities anew"):
        model.load_replay_buffer(tmp_path / "buffer")
    buffer = model.replay_buffer
    assert repr(buffer.scheme) == repr(expected)
    np.testing.assert_array_equal(buffer.transition_ids, before.transition_ids)
    np.testing.assert_array_equal(buffer.rewards, before.rewards)
    if "rank" not in asked.values():
        assert len(np.unique(buffer.priorities)) == 1
    assert buffer.max_priority == before.max_priority
    model.learn(30, reset_num_timesteps=False)


@pytest.mark.parametrize(
    "saved, asked",
    [
        (dict(replay_buffer_kwargs=dict(alpha=0.8, beta_start=0.1)), {}),  # nothing is asked for
        (dict(gamma=0.9), dict(gamma=0.8)),  # only n-step returns use it
        (dict(replay_buffer_kwargs=dict(alpha=0.8)), dict(replay_buffer_kwargs=dict(alpha=0.8, beta_end=1.0))),
        (dict(replay_buffer_kwargs=dict(scheme="rank", alpha=0.8)), dict(replay_buffer_kwargs=dict(scheme="rank"))),
        (dict(buffer_size=40), dict(buffer_size=30)),
    ],
)
def test_no_warning_without_contradiction(saved, asked, tmp_path, recwarn):
    before = saved_buffer(tmp_path / "buffer", **saved)
    model = trained(PERDQN, 0, **asked)
    model.load_replay_buffer(tmp_path / "buffer")
    assert not [w for w in recwarn if "other settings" in str(w.message)]
    np.testing.assert_array_equal(model.replay_buffer.priorities, before.priorities)
    assert repr(model.replay_buffer.scheme) == repr(before.scheme)
    assert model.replay_buffer.gamma == model.gamma


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "env, message", [("n_envs", "n_envs 2, and the model has 1"), ("Acrobot-v1", "observations of shape")]
)
def test_a_buffer_of_another_shape_is_refused(env, message, plain, tmp_path):
    other = make_vec_env("CartPole-v1", n_envs=2) if env == "n_envs" else env
    cls = DQN if plain else PERDQN
    cls("MlpPolicy", other, buffer_size=40, learning_starts=100).learn(20).save_replay_buffer(tmp_path / "buffer")
    model = trained(PERDQN)
    buffer, before = model.replay_buffer, pickle.dumps(model.replay_buffer)
    with pytest.raises(ValueError, match=message):
        model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer is buffer
    assert pickle.dumps(buffer) == before


def test_beta_does_not_fall_with_an_older_buffer(tmp_path):
    saved_buffer(tmp_path / "buffer", timesteps=0)
    model = trained(PERDQN)
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.beta == 1.0


def test_fewer_steps_than_the_zip(tmp_path):
    """What `load` is told counts, also if it is SB3's default."""
    trained(DQN, n_steps=3).save(tmp_path / "stock")
    trained(PERDQN, n_steps=3).save(tmp_path / "ours")
    for path in ("stock", "ours"):
        loaded = PERDQN.load(tmp_path / path, n_steps=1)
        assert (loaded.n_steps, loaded.replay_buffer.n_steps) == (1, 1)


def test_a_buffer_in_which_nothing_can_be_drawn(tmp_path):
    for cls in (DQN, PERDQN):
        trained(cls, 0).save_replay_buffer(tmp_path / "buffer")
        model = trained(PERDQN, 0)
        model.load_replay_buffer(tmp_path / "buffer")
        assert not model.replay_buffer.priorities.any()
        model.learn(30)
        assert (model.replay_buffer.priorities[:30] > 0).all()


@pytest.mark.parametrize(
    "settings", [dict(alpha=0.9), dict(scheme="rank"), dict(n_steps=3, gamma=0.5), dict(beta_end=0.5), {}]
)
def test_prioritized_buffer_with_other_settings(settings):
    """`from_replay_buffer` with a prioritized buffer: what is not named stays."""
    buffer = trained(PERDQN, replay_buffer_kwargs=dict(epsilon=1e-3, beta_start=0.2)).replay_buffer
    batch = buffer.sample(8)
    priorities = buffer.priorities
    changed = PrioritizedReplayBuffer.from_replay_buffer(buffer, **settings)
    for name, value in settings.items():
        if name == "scheme":
            assert isinstance(changed.scheme, RankBased)
        else:
            assert getattr(changed.scheme if name == "alpha" else changed, name) == value
    assert changed.beta_start == 0.2
    assert changed.observations is buffer.observations
    np.testing.assert_array_equal(changed.transition_ids, buffer.transition_ids)
    if not {"alpha", "scheme"} & settings.keys():
        assert changed.scheme is buffer.scheme
        np.testing.assert_array_equal(changed.priorities, priorities)
    elif "alpha" in settings:
        assert len(np.unique(changed.priorities)) == 1
    assert changed.update_priorities(batch.indices, np.ones(8)) == 8
    with pytest.raises(ValueError, match="PrioritizedDictReplayBuffer cannot take over a PrioritizedReplayBuffer"):
        PrioritizedDictReplayBuffer.from_replay_buffer(buffer)


# ---- what is in the files


def test_unknown_versions_of_pickles_are_refused(tmp_path, monkeypatch):
    buffer = trained(PERDQN).replay_buffer
    pickled = {version: with_version(buffer, version, monkeypatch) for version in (1, 2, 17)}
    assert_same_state(pickle.loads(pickled[1]), buffer)
    for version in (2, 17):
        with pytest.raises(ValueError, match=f"version {version} of its state.*reads version 1"):
            pickle.loads(pickled[version])
    state = buffer.__getstate__()
    del state["state_version"]  # before there were versions
    with pytest.raises(ValueError, match=r"version 0 of its state.*reads version 1"):
        PrioritizedReplayBuffer.__new__(PrioritizedReplayBuffer).__setstate__(state)


def with_version(buffer: Any, version: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patch:
        patch.setattr("sb3_per.buffers.replay._STATE_VERSION", version)
        return pickle.dumps(buffer)


def test_a_scheme_that_is_not_there_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "GoneScheme", type("GoneScheme", (Proportional,), {"__module__": __name__}), raising=False
    )
    scheme = sys.modules[__name__].GoneScheme()  # type: ignore[attr-defined]
    trained(PERDQN, replay_buffer_kwargs=dict(scheme=scheme)).save(tmp_path / "model")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"(?s)class of its scheme is not there.*pass replay_buffer_kwargs to load\(\)"):
        PERDQN.load(tmp_path / "model")
    assert isinstance(PERDQN.load(tmp_path / "model", replay_buffer_kwargs={}).replay_buffer.scheme, Proportional)


@pytest.mark.parametrize(
    "policy, env, kwargs, what",
    [
        ("MultiInputPolicy", SimpleMultiObsEnv, {}, "Dict observations"),
        (
            "MlpPolicy",
            lambda: gym.make("CartPole-v1"),
            dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)),
            "optimize_memory_usage",
        ),
    ],
)
def test_saving_says_what_stock_does_not_load(policy, env, kwargs, what, tmp_path, recwarn):
    for n_steps in (1, 3):
        recwarn.clear()
        PERDQN(policy, env(), n_steps=n_steps, buffer_size=40, **kwargs).save(tmp_path / "model")
        said = [str(w.message) for w in recwarn if "not as the stock algorithm" in str(w.message)]
        assert len(said) == (n_steps > 1)
        if n_steps == 1:
            DQN.load(tmp_path / "model", env=env())
        else:
            assert what in said[0]
            with pytest.raises(Exception):  # noqa: B017
                DQN.load(tmp_path / "model", env=env())
        assert PERDQN.load(tmp_path / "model", env=env()).replay_buffer.n_steps == n_steps


def test_training_a_loaded_model_by_hand_does_not_end_the_schedule(tmp_path):
    """Its progress is that of the run before, until `learn` counts anew."""
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
