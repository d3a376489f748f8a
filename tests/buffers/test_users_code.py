"""What scripts and classes of users do with SB3's buffers works with ours."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same_batches,
    assert_same_state,
    batch_of,
    contents_of,
    counting_env,
    fill,
    filled_buffer,
    make_buffer,
    stock_like,
)
from tests.helpers.demonstrations import demonstrations
from tests.helpers.own_store import OwnStoreBuffer

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "rank": ("plain", dict(scheme="rank")),
    "age": ("plain", dict(age_decay=3.0)),
    "by age alone": ("plain", dict(scheme="uniform", age_decay=3.0)),
    "recency, unique": ("plain", dict(recency=0.9, recency_min=4, unique=True)),
    "memory": ("memory", dict(scheme="lap")),
    "her": ("her", {}),
    "dict": ("plain", dict(obs_space="dict", n_steps=3)),
}


def made(kind: str) -> Any:
    base, settings = KINDS[kind]
    return filled_buffer(base, **settings)


def next_draws(buffer: Any) -> list[Any]:
    """Use a buffer, and return what it draws."""
    np.random.seed(0)
    batches = []
    for i in range(3):
        batches.append(buffer.sample(6))
        buffer.update_priorities(batches[-1].indices, np.arange(6.0) + i)
        if not hasattr(buffer, "ep_length"):
            fill([buffer], 2, seed=i)
    return batches


# ---- where the state is


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_can_be_pickled_and_set_one_by_one(kind):
    """As a script does that keeps the state of a run in a file of its own."""
    source = made(kind)
    env = vars(source).get("env")
    saved = pickle.dumps({name: value for name, value in vars(source).items() if name != "env"})
    target = copy.deepcopy(source)
    target.reset()
    if env is not None:
        target.set_env(env)
    for name, value in pickle.loads(saved).items():
        setattr(target, name, value)
    for one, other in zip(next_draws(target), next_draws(source), strict=True):
        assert_same_batches(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shallow_copy_shares_arrays_and_nothing_else(kind):
    buffer = made(kind)
    snapshot = copy.copy(buffer)
    assert snapshot.rewards is buffer.rewards and snapshot.actions is buffer.actions
    stood = snapshot.pos, snapshot.full, snapshot.beta, snapshot.max_priority
    before, masses = contents_of(buffer), buffer.masses
    snapshot.update_priorities(np.arange(buffer.transition_ids.max() + 1)[-4:], np.full(4, 99.0))
    snapshot.beta = 0.9
    assert_same_state(contents_of(buffer), before)
    snapshot = copy.copy(buffer)
    buffer.update_priorities(buffer.sample(4).indices, np.full(4, 77.0))
    np.testing.assert_array_equal(snapshot.masses, masses)
    assert (snapshot.pos, snapshot.full, snapshot.beta, snapshot.max_priority) == stood
    if kind != "her":  # there, `ep_length` is one of the arrays
        masses = buffer.masses
        snapshot.reset()
        assert snapshot.size() == 0 and buffer.size() > 0
        np.testing.assert_array_equal(buffer.masses, masses)


def test_a_shallow_copy_of_a_hindsight_buffer_needs_an_environment_as_in_sb3():
    buffer = made("her")
    snapshot = copy.copy(buffer)
    assert snapshot.env is None and buffer.env is not None
    snapshot.set_env(buffer.env)
    snapshot.sample(4)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_has_a_lock_of_its_own(clone):
    buffer = made("plain")
    with buffer.lock:
        twin = clone(buffer)
        assert twin.lock is not buffer.lock
        twin.sample(2)


def test_a_copy_keeps_demonstrations_of_its_own():
    buffer = make_buffer(8, 1, demonstration_fraction=0.5)
    fill([buffer], 6)
    buffer.add_demonstrations_from(copy.deepcopy(buffer))
    snapshot = copy.copy(buffer)
    snapshot.add_demonstrations_from(buffer)
    assert (len(buffer.demonstrations), len(snapshot.demonstrations)) == (6, 18)


# ---- a user's class is made, or made again


class Costs:
    """Keeps a cost of each step beside SB3's arrays, and what happened in a list."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.costs = np.zeros((self.buffer_size, self.n_envs), np.float32)  # type: ignore[attr-defined]
        self.infos = [None] * self.buffer_size  # type: ignore[attr-defined]

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.costs[self.pos] += 7.0  # type: ignore[attr-defined]
        self.infos[self.pos] = args[-1]  # type: ignore[attr-defined]
        super().add(*args, **kwargs)  # type: ignore[misc]


class PlainCosts(Costs, PrioritizedReplayBuffer):
    """Costs of arrays."""


class DictCosts(Costs, PrioritizedDictReplayBuffer):
    """Costs of dictionaries."""


@pytest.mark.parametrize("cls, obs_space", [(PlainCosts, "box"), (DictCosts, "dict")])
@pytest.mark.parametrize(
    "changed",
    [dict(gamma=0.9), dict(n_steps=3), dict(alpha=0.3), dict(scheme="rank"), dict(beta=0.5), dict(unique=True), {}],
    ids=str,
)
def test_own_fields_stay_when_settings_change(cls, obs_space, changed):
    buffer = cls(20, OBSERVATION_SPACES[obs_space], ACTION_SPACES["box"], "cpu", 2)
    fill([buffer], 7)
    after = type(buffer).from_replay_buffer(buffer, **changed)
    assert type(after) is cls and after.costs is buffer.costs and after.infos is buffer.infos
    for name, value in changed.items():
        assert name in ("beta", "scheme") or getattr(after.settings, name) == value
    fill([after], 4)
    assert after.costs.sum() == 11 * 2 * 7
    after.sample(4)


@pytest.mark.parametrize("cls, stock", [(PlainCosts, ReplayBuffer), (DictCosts, DictReplayBuffer)])
def test_own_fields_have_the_size_of_the_buffer_that_is_taken_over(cls, stock):
    space = OBSERVATION_SPACES["dict" if stock is DictReplayBuffer else "box"]
    given: Any = stock(20, space, ACTION_SPACES["box"], "cpu", 2)
    fill([given], 7)
    buffer = cls.from_replay_buffer(given)
    assert buffer.costs.shape == (10, 2) and buffer.rewards is given.rewards
    fill([buffer], 5)
    assert buffer.costs.sum() == 5 * 2 * 7 and (buffer.pos, buffer.full) == (2, True)
    buffer.sample(4)


def test_a_constructor_that_passes_no_settings_on_works_with_the_defaults():
    class Scaled(PrioritizedReplayBuffer):
        def __init__(
            self, buffer_size: int, observation_space: Any, action_space: Any, device: Any = "auto", scale: float = 1.0
        ):
            super().__init__(buffer_size, observation_space, action_space, device)
            self.scale = scale

    buffer = Scaled(10, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", scale=5.0)
    fill([buffer], 4)
    after = Scaled.from_replay_buffer(buffer, n_steps=3, alpha=0.3)
    assert (after.scale, after.n_steps, after.scheme.alpha) == (5.0, 3, 0.3)


# ---- files of older versions, and settings that change on the buffer


@pytest.mark.parametrize("obs_space", ["box", "dict"])
def test_a_buffer_of_sb3_before_timeouts_is_taken_over_as_sb3_loads_it(obs_space):
    stock = stock_like(make_buffer(10, 2, obs_space))
    fill([stock], 7)
    del stock.handle_timeout_termination, stock.timeouts
    buffer = type(make_buffer(10, 2, obs_space)).from_replay_buffer(stock)
    assert buffer.handle_timeout_termination is False and buffer.timeouts.shape == (10, 2) and not buffer.timeouts.any()
    fill([buffer], 5)
    assert not buffer.timeouts.any()
    np.testing.assert_array_equal(buffer.sample(40).dones.unique(), [0, 1])


def test_timeouts_can_be_switched_off_and_on_again():
    buffer = make_buffer(30, 2)
    stock = stock_like(buffer)
    for i, handles in enumerate((True, False, True)):
        for each in (buffer, stock):
            each.handle_timeout_termination = handles
        fill([buffer, stock], 8, seed=i, p_end=0.5)
    np.testing.assert_array_equal(buffer.timeouts, stock.timeouts)
    np.testing.assert_array_equal(buffer.dones, stock.dones)
    buffer.handle_timeout_termination = False
    zeros = np.zeros((2, 3))
    for infos in ({}, None, [{}], [None, 5]):  # nobody reads them
        buffer.add(zeros, zeros, zeros[:, :2], np.zeros(2), np.zeros(2), infos)  # type: ignore[arg-type]
    assert buffer.pos == 28


@pytest.mark.parametrize("device", ["cpu", th.device("cpu")])
def test_the_device_may_be_set_later(device):
    buffer = made("plain")
    buffer.device = device
    batch = buffer.sample(4)
    assert batch.rewards.device == batch.weights.device == th.device("cpu")


def test_goals_of_a_hindsight_buffer_may_be_drawn_otherwise_later():
    env = counting_env(goals=True)
    buffer = PrioritizedHerReplayBuffer(40, env.observation_space, env.action_space, env, "cpu", 2)
    fill([buffer], 16, p_end=0.5)
    buffer.end_episodes()
    buffer.her_ratio = 0.0
    batch = buffer.sample(30)
    rows, envs = np.divmod(batch.indices % 40, 2)
    np.testing.assert_array_equal(batch.observations["desired_goal"], buffer.observations["desired_goal"][rows, envs])


# ---- an object of a user in place of an array, as in the developer guide


def with_own_store(**settings: Any) -> list[Any]:
    spaces_ = OBSERVATION_SPACES["box"], ACTION_SPACES["box"]
    return [cls(9, *spaces_, "cpu", **settings) for cls in (OwnStoreBuffer, PrioritizedReplayBuffer)]


def test_chunks_and_demonstrations_go_into_an_own_store():
    buffers = with_own_store(demonstration_fraction=0.5)
    chunk = batch_of(buffers[0].observation_space, 20)
    actions = np.array([buffers[0].action_space.sample() for _ in range(20)])
    ends = np.arange(20) % 7 == 6
    for buffer in buffers:
        buffer.append_rows(chunk, chunk, actions, np.arange(20.0), ends, ends)
        buffer.add_demonstrations(*demonstrations(buffer.observation_space, 5))
        buffer.add_demonstrations(*demonstrations(buffer.observation_space, 30, seed=1))
    for one, other in zip(*map(next_draws, buffers), strict=True):
        assert_same_batches(one, other)


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_an_own_store_is_saved_and_loaded(optimize_memory_usage, tmp_path):
    settings = dict(optimize_memory_usage=optimize_memory_usage, handle_timeout_termination=not optimize_memory_usage)
    buffers = with_own_store(**settings)
    fill(buffers, 14)
    save_buffer(buffers[0], tmp_path / "x.buffer")
    loaded = load_buffer(with_own_store(**settings)[0], tmp_path / "x.buffer")
    for one, other in zip(next_draws(loaded), next_draws(buffers[1]), strict=True):
        assert_same_batches(one, other)
