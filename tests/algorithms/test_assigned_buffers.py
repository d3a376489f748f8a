"""Buffers that a script assigns to `model.replay_buffer`: those of SB3 become prioritized, and any other class is refused."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import save_to_pkl

from sb3_per import (
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERRecurrentDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from tests.helpers.buffers import fill
from tests.helpers.messages import no_user_warnings

SMALL: dict[str, Any] = dict(buffer_size=60, learning_starts=10, batch_size=8, train_freq=1, device="cpu", seed=0)


def make(cls: Any = PERDQN, **kwargs: Any) -> Any:
    return cls("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=[8]), **{**SMALL, **kwargs})


def stock_for(model: Any, cls: Any = ReplayBuffer, n: int = 40, **kwargs: Any) -> Any:
    """Make a buffer of SB3 that fits a model, with some steps in it."""
    buffer = cls(60, model.observation_space, model.action_space, device="cpu", n_envs=model.n_envs, **kwargs)
    fill([buffer], n)
    return buffer


def assert_trains(model: Any) -> None:
    """Learning draws from the buffer and changes priorities in it."""
    before = model.replay_buffer.masses
    model.learn(20, reset_num_timesteps=False)
    assert (model.replay_buffer.masses != before).any() and model._n_updates > 0


# ---- what becomes prioritized


def test_a_stock_buffer_becomes_prioritized_and_shares_its_arrays():
    model = make(replay_buffer_kwargs=dict(alpha=0.9))
    stock = stock_for(model)
    with no_user_warnings():
        model.replay_buffer = stock
    buffer = model.replay_buffer
    assert type(buffer) is PrioritizedReplayBuffer
    assert (buffer.scheme.alpha, buffer.pos, buffer.size()) == (0.9, stock.pos, 40)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.shares_memory(getattr(buffer, name), getattr(stock, name)), name
    assert (buffer.masses[:40] == 1.0).all()
    assert_trains(model)


def test_n_step_returns_of_an_assigned_buffer_are_its_own():
    """As in the stock algorithm, which draws from the buffer that it was given."""
    for arguments in ({}, dict(n_steps=5)):
        model = make(**arguments)
        model.replay_buffer = stock_for(model, NStepReplayBuffer, n_steps=3, gamma=0.5)
        assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.5)
    model.replay_buffer = stock_for(model)  # has no number of steps
    assert model.replay_buffer.n_steps == 5
    assert_trains(model)


def test_dict_and_her_buffers_become_prioritized():
    model = PERDQN("MultiInputPolicy", SimpleMultiObsEnv(), **SMALL)
    model.replay_buffer = stock_for(model, DictReplayBuffer)
    assert type(model.replay_buffer) is PrioritizedDictReplayBuffer
    assert_trains(model)
    for buffer_class in (None, HerReplayBuffer):
        played = DQN("MultiInputPolicy", BitFlippingEnv(3), replay_buffer_class=HerReplayBuffer, **SMALL).learn(30)
        model = PERDQN("MultiInputPolicy", BitFlippingEnv(3), replay_buffer_class=buffer_class, **SMALL)
        model.replay_buffer = played.replay_buffer
        assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
        np.testing.assert_array_equal(model.replay_buffer.ep_length, played.replay_buffer.ep_length)
        assert_trains(model)


def test_the_buffer_becomes_what_the_model_learns_from():
    """A class of the user's own, or sequences for a recurrent agent."""

    class Own(PrioritizedReplayBuffer):
        pass

    model = make(replay_buffer_class=Own)
    model.replay_buffer = stock_for(model)
    assert type(model.replay_buffer) is Own
    model = PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", sequence_length=4, burn_in=2, **SMALL)
    model.replay_buffer = stock_for(model)
    assert type(model.replay_buffer) is PrioritizedSequenceReplayBuffer
    assert_trains(model)


def test_settings_that_store_otherwise_copy_the_transitions(tmp_path):
    for settings in (dict(storage_folder=str(tmp_path / "folder")), dict(frames=2)):
        model = make(replay_buffer_kwargs=settings)
        stock = stock_for(model)
        model.replay_buffer = stock
        stored = model.replay_buffer.observations[np.arange(stock.size()), 0]
        np.testing.assert_array_equal(stored, stock.observations[: stock.size(), 0])
        stock.observations[:] = -1
        np.testing.assert_array_equal(model.replay_buffer.observations[np.arange(stock.size()), 0], stored)
        assert_trains(model)


def test_an_empty_buffer_is_assigned_with_a_warning():
    """A script that fills it later by its own name would learn from nothing of that."""
    model = make()
    stock = stock_for(model, n=0)
    with pytest.warns(
        UserWarning, match=r"empty ReplayBuffer .* not its position: add transitions to model\.replay_buffer"
    ) as w:
        model.replay_buffer = stock
    assert w[0].filename == __file__
    fill([model.replay_buffer], 20)
    np.testing.assert_array_equal(model.replay_buffer.rewards[:20], stock.rewards[:20])
    assert_trains(model)


@pytest.mark.filterwarnings("ignore:The empty ReplayBuffer became")
def test_a_subclass_may_assign_a_stock_buffer_in_setup_model(tmp_path):
    class Before(PERDQN):
        def _setup_model(self) -> None:
            self.replay_buffer = self.make_stock()
            super()._setup_model()

        def make_stock(self) -> Any:
            return ReplayBuffer(30, self.observation_space, self.action_space, device="cpu", n_envs=self.n_envs)

    class After(Before):
        def _setup_model(self) -> None:
            super()._setup_model()
            self.replay_buffer = self.make_stock()

    for cls in (Before, After):
        model = make(cls, n_steps=3, replay_buffer_kwargs=dict(alpha=0.9))
        model.save(tmp_path / "model")
        for each in (model, cls.load(tmp_path / "model", env=gym.make("CartPole-v1"))):
            buffer = each.replay_buffer
            assert type(buffer) is PrioritizedReplayBuffer
            assert (buffer.buffer_size, buffer.n_steps, buffer.scheme.alpha) == (30, 3, 0.9)
            assert_trains(each)


def test_a_stock_buffer_given_to_load_becomes_prioritized(tmp_path):
    model = make()
    stock = stock_for(model)
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model", env=gym.make("CartPole-v1"), replay_buffer=stock)
    assert type(loaded.replay_buffer) is PrioritizedReplayBuffer
    assert np.shares_memory(loaded.replay_buffer.rewards, stock.rewards)
    assert_trains(loaded)


# ---- what is refused


class PositiveRewards(ReplayBuffer):
    pass


class OwnGoals(HerReplayBuffer):
    pass


def test_other_classes_are_refused_with_the_class_to_derive_from():
    model = make()
    before = model.replay_buffer
    spaces_ = (model.observation_space, model.action_space)
    for buffer in (PositiveRewards(60, *spaces_, device="cpu"), RolloutBuffer(60, *spaces_, device="cpu"), "buffer"):
        with pytest.raises(ValueError, match=rf"{type(buffer).__name__} is not: use a subclass of PrioritizedReplayBuffer,"):
            model.replay_buffer = buffer
        assert model.replay_buffer is before
    with_goals = PERDQN("MultiInputPolicy", BitFlippingEnv(3), replay_buffer_class=HerReplayBuffer, **SMALL)
    own = OwnGoals(60, with_goals.observation_space, with_goals.action_space, with_goals.env, device="cpu")
    with pytest.raises(ValueError, match="OwnGoals is not: use a subclass of PrioritizedHerReplayBuffer,"):
        with_goals.replay_buffer = own


def test_buffers_that_do_not_fit_are_refused():
    model = make()
    before = model.replay_buffer
    for buffer, message in (
        (
            ReplayBuffer(60, model.observation_space, model.action_space, device="cpu", n_envs=2),
            r"it has .*\(2, \(4,\), 1\), the model \(1, \(4,\), 1\)",
        ),
        (ReplayBuffer(60, spaces.Box(-1, 1, (3,)), model.action_space, device="cpu"), r"\(1, \(3,\), 1\)"),
    ):
        with pytest.raises(ValueError, match=f"ReplayBuffer does not fit this model: .*{message}"):
            model.replay_buffer = buffer
        assert model.replay_buffer is before


def test_a_buffer_that_an_algorithm_cannot_learn_from_is_refused():
    lap = make(replay_buffer_kwargs=dict(scheme="lap")).replay_buffer
    with pytest.raises(NotImplementedError, match="PERQRDQN with LAP"):
        make(PERQRDQN).replay_buffer = lap
    sequences = PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", **SMALL).replay_buffer
    with pytest.raises(NotImplementedError, match="not recurrent"):
        make().replay_buffer = sequences


# ---- what goes on as with SB3


def test_a_deleted_buffer_is_gone_until_another_is_assigned(tmp_path):
    model = make().learn(20)
    buffer = model.replay_buffer
    del model.replay_buffer
    with pytest.raises(AttributeError, match="replay_buffer of this PERDQN was deleted"):
        model.replay_buffer  # noqa: B018
    assert not hasattr(model, "replay_buffer")
    model.save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model").replay_buffer.size() == 0
    model.replay_buffer = buffer
    assert_trains(model)


def test_a_model_with_n_step_returns_is_saved_without_its_buffer(tmp_path):
    model = PERDQN(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=3,
        optimize_memory_usage=True,
        replay_buffer_kwargs=dict(handle_timeout_termination=False),
        **SMALL,
    )
    del model.replay_buffer
    model.save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model").n_steps == 3


def test_a_copy_of_a_model_has_a_buffer_of_its_own():
    model = PERSAC("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[8]), **SMALL).learn(20)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.replay_buffer is not model.replay_buffer
        np.testing.assert_array_equal(twin.replay_buffer.masses, model.replay_buffer.masses)
        assert_trains(twin)


def test_the_loader_of_sb3_makes_a_stock_buffer_prioritized(tmp_path):
    model = make()
    save_to_pkl(tmp_path / "buffer.pkl", stock_for(model))
    OffPolicyAlgorithm.load_replay_buffer(model, tmp_path / "buffer.pkl")
    assert type(model.replay_buffer) is PrioritizedReplayBuffer
    assert_trains(model)


def test_the_first_step_after_an_assignment_begins_an_episode():
    """No n-step window crosses from the steps of the assigned buffer to new ones."""
    model = make(n_steps=3).learn(15)
    stock = stock_for(model, n=20)
    stock.dones[19] = 0
    model.replay_buffer = stock
    model.learn(5, reset_num_timesteps=False)
    assert model.replay_buffer.dones[19].all() and model.replay_buffer.timeouts[19].all()


def test_n_step_returns_of_sb3s_class_have_its_default(tmp_path):
    """Where the algorithm does not name them, as in the stock algorithm, also if its zip is loaded."""
    kwargs: dict[str, Any] = dict(replay_buffer_class=NStepReplayBuffer, buffer_size=50)
    stock, ours = (cls("MlpPolicy", "CartPole-v1", **kwargs) for cls in (DQN, PERDQN))
    assert ours.replay_buffer.n_steps == ours.n_steps == stock.replay_buffer.n_steps > 1
    assert PERDQN("MlpPolicy", "CartPole-v1", n_steps=5, **kwargs).replay_buffer.n_steps == 5
    for model in (stock, ours):
        model.save(tmp_path / "model")
        assert PERDQN.load(tmp_path / "model").replay_buffer.n_steps == ours.n_steps
        assert PERDQN.load(tmp_path / "model", n_steps=1).replay_buffer.n_steps == 1
