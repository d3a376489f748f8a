"""What a model has after `load`: settings of the buffer, beta, n_steps and gamma, for every way to save and to load."""

import contextlib
import io
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import (
    LAP,
    PERDQN,
    PERRecurrentDQN,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    Proportional,
    RankBased,
)
from sb3_per.sampling.shuffled import Shuffled

SMALL: dict[str, Any] = dict(buffer_size=40, learning_starts=10, batch_size=4, policy_kwargs=dict(net_arch=[4]), seed=0)
SETTINGS: dict[str, Any] = dict(scheme="lap", alpha=0.3, kappa=0.5, beta_start=0.2, recency=0.99, recency_min=5)

# What saves the zip, and what a loaded model has: settings, beta, n_steps and gamma.
SAVED: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "ours": (PERDQN, dict(n_steps=3, gamma=0.9, replay_buffer_kwargs=SETTINGS), (SETTINGS, 0.7, 3, 0.9)),
    "ours, in the dictionary": (
        PERDQN,
        dict(replay_buffer_kwargs=dict(SETTINGS, n_steps=3, gamma=0.9)),
        (SETTINGS, 0.7, 3, 0.9),
    ),
    "stock": (DQN, dict(n_steps=3, gamma=0.9), ({}, 0.4, 3, 0.9)),
    "stock, in the dictionary": (
        DQN,
        dict(replay_buffer_class=NStepReplayBuffer, replay_buffer_kwargs=dict(n_steps=3, gamma=0.9)),
        ({}, 0.4, 3, 0.9),
    ),
    "stock, one step": (DQN, dict(gamma=0.9), ({}, 0.4, 1, 0.9)),
}

# Arguments of load, and what they change.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no argument": ({}, {}),
    "keywords": (dict(n_steps=5, gamma=0.8), dict(n_steps=5, gamma=0.8)),
    "one step": (dict(n_steps=1), dict(n_steps=1)),
    "settings": (dict(replay_buffer_kwargs=dict(alpha=0.5)), dict(settings=dict(alpha=0.5))),
    "all": (
        dict(n_steps=2, gamma=0.7, replay_buffer_kwargs=dict(scheme="rank", beta_start=0.9)),
        dict(n_steps=2, gamma=0.7, settings=dict(scheme="rank", beta_start=0.9)),
    ),
}
# Arguments that the algorithms of this package add: class, policy, name, values that are refused, and one that is not.
ADDED = [
    (PERDQN, "MlpPolicy", "double_q", ("no", 5, None, 1.0), np.True_),
    (PERRecurrentDQN, "MlpLstmPolicy", "double_q", ("no",), 1),
    (PERRecurrentDQN, "MlpLstmPolicy", "value_rescaling", ("no", 2), True),
]

# LAP has no weights; beta is still saved.
pytestmark = pytest.mark.filterwarnings("ignore:beta_start=0.2 has no effect")

# Each zip meets an argument that replaces something in it, and one that does not. Each path and each way to give arguments
# are there.
ROWS = [
    ("ours", "path", "keywords", "no argument"),
    ("ours", "BytesIO", "custom objects", "all"),
    ("ours, in the dictionary", "BytesIO", "keywords", "no argument"),
    ("ours, in the dictionary", "path without suffix", "custom objects", "keywords"),
    ("stock", "path without suffix", "keywords", "no argument"),
    ("stock", "path", "keywords", "one step"),
    ("stock, in the dictionary", "path", "keywords", "no argument"),
    ("stock, in the dictionary", "BytesIO", "custom objects", "settings"),
    ("stock, in the dictionary", "path", "keywords", "keywords"),
    ("stock, one step", "path without suffix", "keywords", "all"),
]


def saved_to(kind: str, model: Any, folder: Path) -> Any:
    if kind == "BytesIO":
        stream = io.BytesIO()
        model.save(stream)
        return io.BytesIO(stream.getvalue())
    path = folder / ("model.zip" if kind == "path" else "model")
    model.save(path)
    return path


class Scaled(Proportional):
    """A scheme with an array among its settings."""

    def __init__(self, scales: Any):
        super().__init__()
        self.scales = np.asarray(scales)


@pytest.mark.parametrize("other, is_same", [(Scaled([1.0, 2.0]), True), (Scaled([1.0, 3.0]), False), (Shuffled(LAP()), False)])
def test_a_loaded_buffer_keeps_its_priorities_if_the_scheme_objects_are_equal(other, is_same, tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme=Scaled([1.0, 2.0])), **SMALL)
    model.learn(30)
    masses = model.replay_buffer.masses
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme=other), **SMALL)
    with contextlib.nullcontext() if is_same else pytest.warns(UserWarning, match="all priorities become the largest"):
        loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert (loaded.replay_buffer.masses == masses).all() == is_same
    assert loaded.replay_buffer.scheme.equals(other)


def test_what_the_model_does_not_name_stays_as_in_the_pickle(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme=LAP(alpha=0.4, kappa=2.0)), **SMALL)
    model.learn(30).save_replay_buffer(tmp_path / "buffer.pkl")
    for given, expected in (
        ({}, LAP(alpha=0.4, kappa=2.0)),
        (dict(stratified=True), LAP(alpha=0.4, kappa=2.0)),
        (dict(scheme="LAP"), LAP()),  # any setting of a scheme means all of them
        (dict(scheme="lap", alpha=0.2), LAP(alpha=0.2)),
        (dict(scheme=LAP()), LAP()),
        (dict(scheme="rank"), RankBased()),
    ):
        loaded = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=given, **SMALL)
        is_same = expected.equals(model.replay_buffer.scheme)
        with contextlib.nullcontext() if is_same else pytest.warns(UserWarning, match="all priorities become the largest"):
            loaded.load_replay_buffer(tmp_path / "buffer.pkl")
        assert loaded.replay_buffer.scheme.equals(expected)
        if is_same:
            np.testing.assert_array_equal(loaded.replay_buffer.masses, model.replay_buffer.masses)


class WithScales(PrioritizedReplayBuffer):
    """A buffer with an array among its arguments. The class lists it, so that it is compared with that of a loaded buffer."""

    extra_arguments = ("scales",)

    def __init__(self, *args: Any, scales: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.scales = scales


def test_arguments_that_are_arrays_are_compared(tmp_path):
    def made(scales: Any) -> Any:
        settings = dict(replay_buffer_class=WithScales, replay_buffer_kwargs=dict(scales=np.array(scales)))
        return PERDQN("MlpPolicy", "CartPole-v1", **settings, **SMALL)

    made([1.0, 2.0]).learn(30).save_replay_buffer(tmp_path / "buffer.pkl")
    made([1.0, 2.0]).load_replay_buffer(tmp_path / "buffer.pkl")
    other = made([1.0, 3.0])
    with pytest.warns(UserWarning, match="scales=.*this model: array"):
        other.load_replay_buffer(tmp_path / "buffer.pkl")
    assert other.replay_buffer.scales.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("alpha", [0.4, 0.3])
@pytest.mark.parametrize("name", ["buffer.pkl", "folder.buffer"])
def test_a_setting_of_the_default_scheme_counts_as_that_scheme(alpha, name, tmp_path):
    """Also where the scheme of the file has the same setting."""
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="lap", alpha=0.4), **SMALL)
    model.learn(30).save_replay_buffer(tmp_path / name)
    loaded = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(alpha=alpha), **SMALL)
    with pytest.warns(UserWarning, match="all (priorities become|transitions get) the largest"):
        loaded.load_replay_buffer(tmp_path / name)
    assert loaded.replay_buffer.scheme.equals(Proportional(alpha=alpha))


@pytest.mark.parametrize("saved, path, way, change", ROWS)
def test_a_loaded_model_has_what_was_saved_or_what_load_was_given(saved, path, way, change, tmp_path):
    cls, arguments, (settings, beta, n_steps, gamma) = SAVED[saved]
    given, changed = CHANGES[change]
    model = cls("MlpPolicy", "CartPole-v1", **arguments, **SMALL)
    if cls is PERDQN:
        model.replay_buffer.beta = 0.7
    where = saved_to(path, model, tmp_path)
    loading = given if way == "keywords" else dict(custom_objects=given)
    loaded = PERDQN.load(where, env=gym.make("CartPole-v1"), **loading)

    if saved == "stock, in the dictionary" and "settings" in changed:
        n_steps, gamma = 3, 0.99  # they were settings, and load was given others: those of SB3's class
    settings = changed.get("settings", settings)
    expected = (changed.get("n_steps", n_steps), changed.get("gamma", gamma))
    assert (loaded.n_steps, loaded.gamma) == expected
    buffer = loaded.replay_buffer
    assert buffer.n_steps == expected[0]
    assert buffer.gamma == expected[1] or buffer.n_steps == 1  # which has no use for it
    # Beta never decreases: it goes on where it was, also with other settings.
    assert buffer.beta == max(beta, settings.get("beta_start", 0.4))
    assert loaded.replay_buffer_kwargs == settings
    reference = PERDQN("MlpPolicy", "CartPole-v1", n_steps=expected[0], gamma=expected[1], replay_buffer_kwargs=settings)
    assert buffer.settings == reference.replay_buffer.settings
    assert repr(buffer.scheme) == repr(reference.replay_buffer.scheme)
    loaded.learn(20)


def test_what_the_stock_class_does_not_know_survives_it(tmp_path):
    for path in ("path", "BytesIO"):
        model = PERDQN("MlpPolicy", "CartPole-v1", n_steps=3, gamma=0.9, replay_buffer_kwargs=SETTINGS, **SMALL)
        before = dict(vars(model))
        stock = DQN.load(saved_to(path, model, tmp_path), env=gym.make("CartPole-v1"))
        assert vars(model).keys() == before.keys() and model.replay_buffer_kwargs == SETTINGS  # as before it was saved
        buffer = stock.replay_buffer
        assert (type(buffer), buffer.n_steps, buffer.gamma) == (NStepReplayBuffer, 3, 0.9)
        stock.learn(20)
        back = PERDQN.load(saved_to(path, stock, tmp_path), n_steps=2)
        assert (back.replay_buffer.n_steps, back.replay_buffer.gamma, back.replay_buffer_kwargs) == (2, 0.9, SETTINGS)


def test_hindsight_stays_hindsight(tmp_path):
    kwargs: dict[str, Any] = dict(n_sampled_goal=2, goal_selection_strategy="final")
    both = dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=dict(kwargs, alpha=0.9))
    model = PERDQN("MultiInputPolicy", BitFlippingEnv(3), **both, **SMALL)
    model.save(tmp_path / "model")
    stock = DQN.load(tmp_path / "model", env=BitFlippingEnv(3))
    assert (type(stock.replay_buffer), stock.replay_buffer.n_sampled_goal) == (HerReplayBuffer, 2)
    stock.save(tmp_path / "stock")
    for name in ("model", "stock"):
        loaded = PERDQN.load(tmp_path / name, env=BitFlippingEnv(3))
        buffer = loaded.replay_buffer
        assert (type(buffer), buffer.n_sampled_goal, buffer.scheme.alpha) == (PrioritizedHerReplayBuffer, 2, 0.9)


def test_annealing_by_draws_goes_on_after_load(tmp_path):
    """Also without the buffer."""
    settings = dict(beta_start=0.4, beta_end=1.0, beta_anneal_steps=100)
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=settings, train_freq=1, **SMALL).learn(60)
    n_draws = model.replay_buffer.beta_schedule.n_draws
    assert 0 < n_draws < 60
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    assert loaded.replay_buffer.beta == model.replay_buffer.beta
    loaded.learn(40)
    n_draws += loaded._n_updates - model._n_updates
    assert loaded.replay_buffer.beta == pytest.approx(min(0.4 + 0.6 * n_draws / 100, 1.0))
    assert loaded.replay_buffer.beta > model.replay_buffer.beta


def test_a_failed_save_leaves_the_model_as_it_was(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(SETTINGS), **SMALL)
    before = dict(vars(model))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        model.save(tmp_path / "file" / "model")
    assert vars(model) == before


def test_a_buffer_that_does_not_fit_leaves_the_model_as_it_was(tmp_path):
    """Also whether the running episode continues: the next `learn` must not truncate it."""
    PERDQN("MlpPolicy", "MountainCar-v0", **SMALL).learn(15).save_replay_buffer(tmp_path / "other.pkl")
    model = PERDQN("MlpPolicy", "CartPole-v1", **SMALL).learn(15)
    before = dict(vars(model))
    for path in ("other.pkl", "missing.pkl", "missing.buffer"):
        with pytest.raises((ValueError, OSError)):
            model.load_replay_buffer(tmp_path / path)
        assert model.saved_buffers == {}
        assert all(value is before[name] for name, value in vars(model).items() if name != "saved_buffers")
    ends = model.replay_buffer.dones.sum()
    model.learn(1, reset_num_timesteps=False)
    assert model.replay_buffer.dones[:15].sum() == ends


def test_added_arguments_are_checked_by_the_constructor_and_by_load(tmp_path):
    for cls, policy, name, refused, allowed in ADDED:
        env = gym.make("CartPole-v1")
        small = dict(buffer_size=500, policy_kwargs=dict(net_arch=[4]))
        model = cls(policy, env, **small, **{name: allowed})
        assert getattr(model, name) == allowed
        model.save(tmp_path / "model")
        for value in refused:
            with pytest.raises(ValueError, match=f"{name} must be True or False, not {value!r}"):
                cls(policy, env, **small, **{name: value})
            with pytest.raises(ValueError, match=f"{name} must be True or False, not {value!r}"):
                cls.load(tmp_path / "model", **{name: value})
