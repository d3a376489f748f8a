"""Arrays of SB3's layout that are assigned to a buffer take effect, as in SB3."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import PERDQN
from tests.helpers.buffers import (
    assert_same_batches,
    assert_same_state,
    contents_of,
    fill,
    make_buffer,
    stock_like,
)
from tests.helpers.steps import KINDS, step_of

NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def arrays_of(buffer: Any) -> dict[str, Any]:
    """Copy the arrays of a buffer."""
    return {name: array for name, array in contents_of(buffer).items() if name in NAMES}


def set_arrays(buffer: Any, arrays: dict[str, Any], pos: int, full: bool) -> None:
    """Fill a buffer as scripts do."""
    for name, array in arrays.items():
        setattr(buffer, name, array)
    buffer.pos = pos
    buffer.full = full


def sampled(buffer: Any, n: int = 30) -> Any:
    np.random.seed(0)
    return buffer.sample(n)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dict": dict(obs_space="dict"),
    "3 steps": dict(n_steps=3, scheme="rank"),
    "memory": dict(optimize_memory_usage=True, handle_timeout_termination=False),
}


def empty(form: str) -> Any:
    return make_buffer(10, 2, **FORMS[form])


@pytest.mark.parametrize("form, n_added", [("plain", 4), ("dict", 23), ("3 steps", 23), ("memory", 10)])
def test_a_buffer_filled_by_assignment_equals_one_filled_by_add(form, n_added):
    """The same batches, and so are those after further steps."""
    added, assigned = empty(form), empty(form)
    fill([added], n_added)
    set_arrays(assigned, arrays_of(added), added.pos, added.full)
    assert assigned.size() == added.size()
    assert_same_state(arrays_of(assigned), arrays_of(added))
    for n_more in (0, 3, 12):
        fill([added, assigned], n_more, seed=n_more)
        batches = [sampled(buffer) for buffer in (added, assigned)]
        assert_same_batches(batches[1], batches[0], batches[0]._fields[:-1])  # ids count another number of laps
        for buffer, batch in zip((added, assigned), batches, strict=True):
            buffer.update_priorities(batch.indices, np.arange(30.0))
    assert_same_state(arrays_of(assigned), arrays_of(added))


@pytest.mark.parametrize("form", ["dict", "memory"])
def test_assigned_arrays_are_shared_in_ram(form):
    """As in SB3: later changes of the user's array are seen, and steps are written into it."""
    buffer = empty(form)
    fill([buffer], 10)
    arrays = arrays_of(buffer)
    for name, array in arrays.items():
        setattr(buffer, name, array)
        shown = getattr(buffer, name)
        if isinstance(array, dict):
            assert all(shown[key] is part for key, part in array.items())
        else:
            assert shown is array
    arrays["rewards"][:] = 7.0
    assert (buffer.sample(20).rewards == 7.0).all()
    fill([buffer], 1, seed=3)
    assert (arrays["rewards"][0] != 7.0).all()
    twin = copy.deepcopy(buffer)
    assert_same_state(arrays_of(twin), arrays)
    assert not np.shares_memory(twin.rewards, arrays["rewards"])


@pytest.mark.parametrize("form", ["plain", "3 steps"])
def test_a_changed_copy_takes_effect_in_the_next_sample(form):
    """`buffer.rewards = buffer.rewards * 0.1` in a buffer that is in use: priorities and ids stay."""
    buffer, twin = empty(form), empty(form)
    fill([buffer, twin], 13)
    ids = buffer.sample(5).indices
    for each in (buffer, twin):
        each.update_priorities(ids, np.arange(5.0))
    buffer.rewards = buffer.rewards * 0.1
    twin.rewards[:] *= np.float32(0.1)
    buffer.actions = buffer.actions + 1
    twin.actions[:] += 1
    buffer.rewards *= 2  # which assigns the same array
    twin.rewards[:] *= 2
    assert_same_batches(sampled(buffer), sampled(twin))
    np.testing.assert_array_equal(buffer.masses, twin.masses)


def test_a_key_of_dict_observations_is_assigned_like_all_of_them():
    buffer, twin = empty("dict"), empty("dict")
    fill([buffer, twin], 10)
    array = buffer.observations["vec"] + 1
    buffer.observations["vec"] = array
    buffer.next_observations |= {"num": buffer.next_observations["num"] * 0}
    twin.observations["vec"][:] += 1
    twin.next_observations["num"][:] = 0
    assert buffer.observations["vec"] is array
    assert_same_batches(sampled(buffer), sampled(twin))
    for other in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        other.observations["vec"] = other.observations["vec"] * 0
        assert (other.sample(5).observations["vec"] == 0).all()
        assert (buffer.observations["vec"] is array) and not (buffer.sample(5).observations["vec"] == 0).all()


def test_an_agent_trains_on_assigned_arrays():
    """A stock buffer and ours that were filled by the same script give the same batches."""
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, learning_starts=0, batch_size=16, seed=0)
    buffer = model.replay_buffer
    stock = stock_like(buffer)
    for each in (buffer, stock):
        each.observations = np.ones((50, 1, 4), np.float32)
        each.next_observations = np.ones((50, 1, 4), np.float32) * 2
        each.actions = np.ones((50, 1, 1), np.int64)
        each.rewards = np.full((50, 1), 3.0, np.float32)
        each.full = True
    for name in ("observations", "next_observations", "actions", "rewards"):
        assert th.equal(getattr(buffer.sample(8), name), getattr(stock.sample(8), name))
    before = copy.deepcopy(model.q_net.state_dict())
    model._setup_learn(1)
    model.train(2)
    assert any(not th.equal(part, before[key]) for key, part in model.q_net.state_dict().items())


def test_sb3s_own_class_gets_plain_dictionaries():
    buffer = empty("dict")
    fill([buffer], 10)
    stock = buffer.to_replay_buffer()
    del buffer
    assert type(stock.observations) is type(stock.next_observations) is dict


def test_arrays_of_any_type_and_order_are_read_as_in_sb3():
    """Also those that kernels cannot read in place."""
    buffer = empty("plain")
    stock = stock_like(buffer)
    fill([buffer, stock], 10)
    for each in (buffer, stock):
        each.dones = each.dones != 0
        each.timeouts = np.asfortranarray(each.timeouts)
        each.rewards = np.repeat(each.rewards.astype(np.float64), 2, axis=0)[::2]
        each.observations = np.asfortranarray(each.observations)
        each.next_observations.setflags(write=False)
    batch = buffer.sample(30)
    rows, envs = np.divmod(batch.indices % 20, 2)
    np.testing.assert_array_equal(batch.observations, stock.observations[rows, envs])
    np.testing.assert_array_equal(batch.next_observations, stock.next_observations[rows, envs])
    np.testing.assert_array_equal(batch.rewards[:, 0], stock.rewards[rows, envs])
    np.testing.assert_array_equal(batch.dones[:, 0], (stock.dones * (1 - stock.timeouts))[rows, envs])


def test_an_array_of_another_shape_fails_at_the_next_call():
    """A plain attribute cannot refuse it earlier, in SB3 neither."""
    buffer = empty("plain")
    fill([buffer], 10)
    buffer.actions = buffer.actions[..., :1]
    with pytest.raises(ValueError, match="action"):
        fill([buffer], 1)


def test_rows_that_hold_nothing_may_hold_anything():
    """Scripts fill a part of `np.empty` arrays. Rewards of transitions must be finite, which is seen when they come to be."""
    buffer, rewards = empty("plain"), np.full((10, 2), np.nan, np.float32)
    rewards[:4] = 1.0
    buffer.rewards = rewards
    buffer.pos = 4
    assert (buffer.sample(20).rewards == 1.0).all()
    buffer.full = True
    with pytest.raises(ValueError, match=r"rewards\[4, 0\] must be a finite number, not nan"):
        buffer.sample(20)


@pytest.mark.parametrize("pos", [-1, 11])
def test_a_position_outside_of_the_buffer_is_named_at_the_next_call(pos):
    buffer = empty("plain")
    fill([buffer], 4)
    buffer.pos = pos
    with pytest.raises(ValueError, match=rf"pos must be a row in \[0, 10\), not {pos}"):
        buffer.sample(4)


@pytest.mark.parametrize("n_added", [5, 9, 13])
def test_a_hindsight_buffer_takes_assigned_episodes_as_sb3_does(n_added):
    """From `ep_start` and `ep_length`."""
    added, assigned = KINDS["her"](), KINDS["her"]()
    for i in range(n_added):
        added.add(**step_of(added, i))
    for name in (*NAMES, "ep_start", "ep_length", "_current_ep_start", "pos", "full"):
        setattr(assigned, name, copy.deepcopy(getattr(added, name)))
    for i in range(8):
        np.testing.assert_array_equal(assigned.masses, added.masses)
        for buffer in (added, assigned):
            buffer.add(**step_of(buffer, i))
