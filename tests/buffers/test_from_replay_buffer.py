"""`from_replay_buffer` makes a buffer of another kind or with other settings; stored transitions stay."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN

from sb3_per import LAP, PAL, PERDQN, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, Uniform
from sb3_per.buffers.slots import keyed
from sb3_per.monitoring.monitor import DrawRecord
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.buffers import (
    assert_same_batches,
    drawable_ids,
    fill,
    filled_buffer,
    make_buffer,
    stock_like,
)


@pytest.mark.parametrize("obs_space, n_rows_added", [("dict", 4), ("memory", 27)])
def test_adopting_an_sb3_buffer_shares_its_arrays(obs_space, n_rows_added):
    """Every adopted transition gets the maximum priority."""
    storage: dict[str, Any] = {}
    if obs_space == "memory":
        obs_space, storage = "box", dict(optimize_memory_usage=True, handle_timeout_termination=False)
    buffer = make_buffer(10, 2, obs_space, **storage)
    stock = stock_like(buffer)
    fill([stock, buffer], n_rows_added)
    adopted = type(buffer).from_replay_buffer(stock, n_steps=2, alpha=0.5)
    assert adopted.n_steps == 2 and adopted.size() == stock.size()
    for name in ("observations", "actions", "rewards", "dones", "timeouts"):
        shared, given = keyed(getattr(adopted, name)), keyed(getattr(stock, name))
        assert all(shared[key] is given[key] for key in given)
    np.testing.assert_array_equal(adopted.priorities, buffer.masses)
    fill([adopted, buffer], 3, seed=1)
    np.testing.assert_array_equal(adopted.priorities, buffer.masses)
    batch = adopted.sample(20)
    rows, envs = (batch.indices // 2) % 10, batch.indices % 2
    np.testing.assert_array_equal(batch.actions, adopted.actions[rows, envs])
    assert adopted.update_priorities(batch.indices, np.full(20, 0.1)) == 20
    np.testing.assert_allclose(adopted.priorities[rows, envs], (0.1 + 1e-6) ** 0.5)


@pytest.mark.parametrize("obs_space", ["box", "dict"])
def test_arrays_that_a_user_has_set_may_have_another_order_or_be_read_only(obs_space):
    """Such arrays are copied: kernels read contiguous ones, and later steps are written into them."""
    stock, twin = (stock_like(make_buffer(10, 2, obs_space)) for _ in range(2))
    fill([stock, twin], 7)
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    for i, name in enumerate(names):
        of_name = getattr(stock, name)
        for key, array in keyed(of_name).items():
            changed = np.asfortranarray(array) if i % 2 == 0 else array.copy()
            changed.flags.writeable = i % 2 == 0
            if key is None:
                setattr(stock, name, changed)
            else:
                of_name[key] = changed
    buffers = [type(make_buffer(10, 2, obs_space)).from_replay_buffer(each) for each in (stock, twin)]
    for _ in range(2):
        batches = []
        for buffer in buffers:
            np.random.seed(0)
            batches.append(buffer.sample(20))
        assert_same_batches(*batches)
        fill(buffers, 6, seed=1)


@pytest.mark.parametrize(
    "kind, scheme, changed",
    [
        ("plain", "proportional", dict(recency=0.99)),
        ("memory", "rank", dict(n_steps=3)),
        ("her", "lap", dict(unique=True)),
    ],
)
def test_priorities_stay_if_the_scheme_stays(kind, scheme, changed):
    buffer = filled_buffer(kind, scheme=scheme)
    buffer.beta = 0.7
    priorities = buffer.masses
    ids = buffer.transition_ids
    after = type(buffer).from_replay_buffer(buffer, **changed)
    np.testing.assert_array_equal(after.masses, priorities)
    np.testing.assert_array_equal(after.transition_ids, ids)
    assert (after.beta, after.max_priority) == (0.7, buffer.max_priority)
    expected = {**vars(buffer.settings), "scheme": buffer.scheme, **changed}
    assert vars(after.settings) == expected
    np.random.seed(0)
    assert after.update_priorities(after.sample(4).indices, np.ones(4)) == 4


@pytest.mark.parametrize("kind, changed", [("memory", dict(scheme="rank")), ("her", dict(epsilon=0.1))], ids=str)
def test_a_changed_scheme_resets_all_priorities_to_the_maximum(kind, changed):
    buffer = filled_buffer(kind)
    can_be_drawn = buffer.masses > 0
    after = type(buffer).from_replay_buffer(buffer, **changed)
    np.testing.assert_array_equal(after.masses > 0, can_be_drawn)
    if changed.get("scheme") == "rank":  # the masses of ranks differ, whatever the priorities
        expected = type(buffer).from_replay_buffer(buffer.to_replay_buffer(), **changed).masses
    else:
        expected = np.where(can_be_drawn, after.scheme.new_mass(after.max_priority), 0.0)
    np.testing.assert_array_equal(after.masses, expected)


def test_settings_of_the_scheme_that_are_not_named_stay():
    for scheme, settings, changed in (
        ("lap", dict(alpha=0.2, kappa=0.5), dict(alpha=0.3)),
        ("proportional", dict(epsilon=0.1, td_error_reduction="max"), dict(alpha=0.3)),
        ("rank", dict(alpha=0.2), dict(td_error_reduction="min")),
        (PAL(alpha=0.2, kappa=2.0), {}, dict(alpha=0.1)),
    ):
        buffer = make_buffer(6, scheme=scheme, **settings)
        after = type(buffer).from_replay_buffer(buffer, **changed)
        assert type(after.scheme) is type(buffer.scheme)
        assert after.scheme.settings == {**buffer.scheme.settings, **changed}
        # Another scheme brings its own.
        assert type(buffer).from_replay_buffer(after, scheme="uniform").scheme.equals(Uniform())


def test_a_scheme_object_without_a_name_is_not_replaced():
    buffer = make_buffer(6, scheme=Shuffled(LAP(alpha=0.2)))
    with pytest.raises(ValueError, match=r"to the scheme object Shuffled.*alpha"):
        type(buffer).from_replay_buffer(buffer, alpha=0.3)


def test_transitions_waiting_for_the_tree_get_the_maximum_of_the_source_buffer():
    """The maximum rises, then episodes end, and the tree has not seen their transitions before the conversion."""
    buffer = filled_buffer("her")
    buffer.update_priorities(drawable_ids(buffer)[:1], [500.0])
    zeros = {key: np.zeros((2, 2), np.float32) for key in buffer.observation_space.spaces}
    buffer.add(zeros, zeros, np.zeros((2, 1)), np.zeros(2), np.array([True, True]), [{}, {}])
    after = type(buffer).from_replay_buffer(buffer, beta_end=0.5)
    np.testing.assert_array_equal(after.masses, buffer.masses)


def test_masses_given_to_extend_are_dropped_if_the_scheme_changes():
    """Masses given to `extend` have a meaning only for the scheme that they were made for."""
    buffer = make_buffer(6, n_envs=2)
    zeros = np.zeros((3, 2, 3))
    buffer.extend(zeros, zeros, np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3, np.full((3, 2), 0.01))
    assert (buffer.masses[:3] == 0.01).all()
    changed = PrioritizedReplayBuffer.from_replay_buffer(buffer, alpha=0.9)
    assert (changed.priorities[:3] == 1.0).all()


def test_an_sb3_buffer_with_a_reward_of_nan_is_refused():
    fill([stock := stock_like(make_buffer(10, 2))], 4)
    stock.rewards[5] = np.nan  # holds nothing
    PrioritizedReplayBuffer.from_replay_buffer(stock)
    stock.rewards[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"rewards\[2, 1\] must be a finite number, not nan"):
        PrioritizedReplayBuffer.from_replay_buffer(stock)


def test_a_dict_buffer_refuses_to_take_over_a_plain_buffer():
    with pytest.raises(ValueError, match="PrioritizedDictReplayBuffer cannot take over a PrioritizedReplayBuffer"):
        PrioritizedDictReplayBuffer.from_replay_buffer(make_buffer(4))


class Counting(PrioritizedReplayBuffer):
    """Keeps an array of its own beside SB3's."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.counts = np.zeros((self.buffer_size, self.n_envs))

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.counts[self.pos] += 1
        super().add(*args, **kwargs)


@pytest.mark.parametrize("saved_class", [DQN, PERDQN])
def test_a_loaded_buffer_becomes_one_of_the_users_class(saved_class, tmp_path):
    kwargs: dict[str, Any] = dict(buffer_size=60, learning_starts=10, batch_size=8, policy_kwargs=dict(net_arch=[4]), seed=0)
    saved = saved_class("MlpPolicy", "CartPole-v1", **kwargs).learn(40)
    saved.save_replay_buffer(tmp_path / "buffer.pkl")
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=Counting, **kwargs)
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    buffer = model.replay_buffer
    assert type(buffer) is Counting and buffer.counts.shape == (60, 1)
    np.testing.assert_array_equal(buffer.observations[:40], saved.replay_buffer.observations[:40])
    if saved_class is PERDQN:
        np.testing.assert_array_equal(buffer.masses, saved.replay_buffer.masses)
    model.learn(20)
    assert buffer.counts.sum() == 20


def test_equal_schemes_keep_priorities():
    """Whatever type a number has."""
    buffer = make_buffer(6, alpha=np.float64(0.6))
    fill([buffer], 6)
    buffer.update_priorities(buffer.sample(6).indices, np.arange(6.0))
    taken = type(buffer).from_replay_buffer(buffer, alpha=0.6)
    np.testing.assert_array_equal(taken.priorities, buffer.masses)
    other = type(buffer).from_replay_buffer(taken, alpha=0.5)
    assert len(np.unique(other.masses)) == 1


@pytest.mark.parametrize("n_added", [3, 8, 13])
def test_a_move_keeps_the_next_observation_of_the_newest_step(n_added, tmp_path):
    """With `optimize_memory_usage`, it is in the row that is written next."""
    buffer = make_buffer(8, 2, optimize_memory_usage=True, handle_timeout_termination=False)
    stock = stock_like(buffer)
    fill([stock, buffer], n_added)
    slots = np.flatnonzero(buffer.masses)
    expected = buffer.read_drawn(slots)
    for source in (stock, buffer):
        moved = PrioritizedReplayBuffer.from_replay_buffer(source, storage_folder=str(tmp_path))
        np.testing.assert_array_equal(moved.read_drawn(slots).next_observations, expected.next_observations)


def test_draws_are_counted_on_after_a_change_of_settings():
    buffer = filled_buffer()
    buffer.draw_record = DrawRecord(buffer.numbering.capacity, n_batches=3)
    changed = type(buffer).from_replay_buffer(buffer, alpha=0.5)
    assert changed.draw_record is buffer.draw_record is not None
