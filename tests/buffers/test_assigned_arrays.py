"""Arrays of SB3's layout that are assigned to a buffer take effect, in the form in which the buffer stores them."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import SavedBuffer
from tests.helpers.buffers import (
    OtherStoreBuffer,
    assert_same_batches,
    assert_same_state,
    contents_of,
    fill,
    make_buffer,
    stock_like,
)
from tests.helpers.frames import ACTIONS, Stream, add, same_bytes, twins
from tests.helpers.steps import KINDS, N_ENVS, N_ROWS, filled, step_of

NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def arrays_of(buffer: Any) -> dict[str, Any]:
    """Copy the arrays of a buffer; frames are unpacked."""
    contents = contents_of(buffer)
    return {name: contents[name].get(None, contents[name]) for name in NAMES if name in contents}


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
    "frames": dict(obs_space="image", frames=2),
    "3 steps": dict(n_steps=3, scheme="rank"),
    "memory": dict(optimize_memory_usage=True, handle_timeout_termination=False),
}


def empty(form: str, folder: Any = None) -> Any:
    return make_buffer(10, 2, **FORMS[form], storage_folder=folder)


@pytest.mark.parametrize(
    "form, n_added, in_files",
    [("plain", 10, True), ("dict", 23, True), ("frames", 4, False), ("3 steps", 23, False), ("memory", 10, False)],
)
def test_a_buffer_filled_by_assignment_equals_one_filled_by_add(form, n_added, in_files, tmp_path):
    """The same batches, and so are those after further steps."""
    added, assigned = empty(form), empty(form, tmp_path / "folder" if in_files else None)
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


@pytest.mark.parametrize("form", ["frames", "3 steps"])
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
    for key, value, message in (
        ("vec", np.zeros((9, 2, 3)), r"observations\['vec'\] must have shape \(10, 2, 3\)"),
        ("x", 0, "keys"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.observations[key] = value
    assert buffer.observations["vec"] is array


def test_arrays_of_another_type_or_order_are_copied():
    """Kernels read contiguous arrays of the stored type, and steps are written into them."""
    buffer = empty("plain")
    fill([buffer], 10)
    arrays = arrays_of(buffer)
    buffer.dones = arrays["dones"] != 0
    buffer.rewards = arrays["rewards"].astype(np.float64).tolist()
    buffer.actions = th.tensor(arrays["actions"])
    buffer.observations = np.asfortranarray(arrays["observations"])
    frozen = arrays["next_observations"].copy()
    frozen.setflags(write=False)
    buffer.next_observations = frozen
    for name, array in arrays.items():
        shown = getattr(buffer, name)
        assert shown.dtype == array.dtype and shown.flags.carray
        np.testing.assert_array_equal(shown, array)
    fill([buffer], 3, seed=1)
    buffer.sample(5)


def wrong_arrays(stored: Any) -> list[tuple[Any, str]]:
    """List arrays that do not fit, and what the message says."""
    if isinstance(stored, dict):
        lacking = dict(list(stored.items())[1:])
        wrong: list[tuple[Any, str]] = [
            (lacking, "keys"),
            ({**stored, "more": 1}, "keys"),
            (np.zeros((N_ROWS, N_ENVS)), "ndarray"),
        ]
        return wrong + [({**stored, key: bad}, text) for key, part in stored.items() for bad, text in wrong_arrays(part)]
    shape = stored.shape
    shapes = ((shape[0] - 1, *shape[1:]), (shape[0], 1, *shape[2:]), (*shape, 1), (shape[0] * shape[1], *shape[2:]), ())
    wrong = [(np.zeros(bad), rf"must have shape {shape}.*not {bad}".replace("(", r"\(").replace(")", r"\)")) for bad in shapes]
    if stored.dtype != object:
        wrong += [(np.full(shape, "a"), str(stored.dtype)), (np.full(shape, {}), str(stored.dtype))]
    return [*wrong, ([[1], [1, 2]], "shape"), (None, "shape")]


@pytest.mark.parametrize("kind", ["optimize_memory", "separate, dict, frames", "her, infos", "sequences, dict"])
def test_arrays_that_do_not_fit_are_refused_before_anything_changes(kind):
    buffer = filled(kind)
    before = pickle.dumps(buffer)
    for name in (*NAMES, "infos"):
        stored = buffer.storage.arrays().get(name)
        if stored is None:
            with pytest.raises(ValueError, match=f"{name} cannot be assigned: this buffer does not store them"):
                setattr(buffer, name, np.zeros((N_ROWS, N_ENVS)))
            continue
        for value, message in wrong_arrays(stored):
            with pytest.raises(ValueError, match=rf"{name}.*{message}"):
                setattr(buffer, name, value)
    for value in (np.nan, np.inf, -np.inf):
        rewards = buffer.rewards.copy()
        rewards[1, 1] = value
        with pytest.raises(ValueError, match=r"rewards\[1, 1\] must be a finite number"):
            buffer.rewards = rewards
    for name in ("ep_start", "ep_length", "_current_ep_start") if "her" in kind else ():
        with pytest.raises(ValueError, match=f"{name} cannot be assigned: set pos or full"):
            setattr(buffer, name, getattr(buffer, name).copy())
    for pos in (-1, N_ROWS, N_ROWS + 3):
        with pytest.raises(ValueError, match=rf"pos must be a row in \[0, {N_ROWS}\), not {pos}"):
            buffer.pos = pos
    assert pickle.dumps(buffer) == before
    buffer.add(**step_of(buffer))


@pytest.mark.parametrize("form", [*FORMS, "own store"])
def test_the_advice_to_write_rows_is_given_only_where_it_works(form):
    """Observations in frames or in a store of the user's cannot be written to."""
    buffer = empty("plain")
    if form == "own store":
        buffer = OtherStoreBuffer(20, buffer.observation_space, buffer.action_space, "cpu", 2)
    elif form != "plain":
        buffer = empty(form)
    for name, stored in buffer.storage.arrays().items():
        for key, part in stored.items() if isinstance(stored, dict) else [(None, stored)]:
            wrong = part[:3] if key is None else {**stored, key: part[:3]}
            with pytest.raises(ValueError, match=r"must have shape .*, not \(3, 2") as caught:
                setattr(buffer, name, wrong)
            if "write into them" in str(caught.value):
                part[[0, 2]] = part[[1, 1]]
            else:
                assert not isinstance(part, np.ndarray)


def test_rows_that_hold_nothing_may_hold_anything():
    """Scripts fill a part of `np.empty` arrays."""
    buffer, rewards = empty("plain"), np.full((10, 2), np.nan, np.float32)
    rewards[:4] = 1.0
    buffer.rewards = rewards
    buffer.pos = 4
    assert (buffer.sample(20).rewards == 1.0).all()
    with pytest.raises(ValueError, match=r"rewards\[4, 0\] must be a finite number, not nan"):
        buffer.full = True
    assert (buffer.pos, buffer.full) == (4, False)


@pytest.mark.parametrize("k, pos, full", [(1, 0, True), (4, 5, True), (4, 7, False)])
def test_assigned_stacks_are_stored_once_and_stay_exact(pos, full, k):
    """Steps that are written after the assignment must not release frames that older rows still need."""
    framed, plain = twins("channels first", k, np.uint8, 12, 3)
    stream = Stream("channels first", k, np.uint8, 3, 0)
    add([plain], stream, 12 + pos if full else pos)
    set_arrays(framed, arrays_of(plain), pos, full)
    for n_more in (0, 1, 3, 5, 30):
        add((framed, plain), stream, n_more)
        for name in ("observations", "next_observations"):
            same_bytes(getattr(framed, name)[:], getattr(plain, name))
    # The observations may also come last, or after a change of the position.
    framed.pos = 3
    framed.full = False
    framed.observations, framed.next_observations = (
        getattr(plain, name)[::-1] for name in ("observations", "next_observations")
    )
    framed.pos = 9
    framed.full = True
    plain.observations, plain.next_observations = framed.observations[:], framed.next_observations[:]
    plain.pos, plain.full = 9, True
    for n_more in (1, 6, 30):
        add((framed, plain), stream, n_more)
        for name in ("observations", "next_observations"):
            same_bytes(getattr(framed, name)[:], getattr(plain, name))
    assert framed.frames_per_transition < 2 * k


def test_assigned_stacks_take_no_more_memory_than_added_ones():
    framed, added = (
        PrioritizedReplayBuffer(400, spaces.Box(0, 255, (4, 3, 5), np.uint8), ACTIONS, "cpu", 2, frames=4) for _ in "ab"
    )
    plain = twins("channels first", 4, np.uint8, 200, 2)[1]
    add((added, plain), Stream("channels first", 4, np.uint8, 2, 0, junk=False), 200)
    set_arrays(framed, arrays_of(plain), 0, True)
    assert framed.frames_per_transition <= added.frames_per_transition + 0.05


def test_no_memory_for_assigned_stacks_changes_nothing(monkeypatch):
    framed, plain = twins("channels first", 4, np.uint8, 64, 2)
    stream = Stream("channels first", 4, np.uint8, 2, 0)
    add((framed, plain), stream, 70)
    before, zeros, empty_array = contents_of(framed), plain.observations * 0, np.empty

    def refuse(shape: Any, dtype: Any = float, **kwargs: Any) -> Any:
        if np.prod(shape) >= 1000 and np.dtype(dtype) == np.uint8:
            raise MemoryError
        return empty_array(shape, dtype, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", refuse)
        with pytest.raises(MemoryError):
            framed.observations = zeros
    assert_same_state(contents_of(framed), before)


@pytest.mark.parametrize("form", ["dict", "frames"])
def test_a_save_after_an_assignment_has_the_new_rows(form, tmp_path):
    """A save writes only what is new; rows that were assigned are."""
    buffer = empty(form)
    fill([buffer], 10)
    saved = SavedBuffer(tmp_path / "saved.buffer")
    saved.save(buffer)
    arrays = arrays_of(buffer)
    buffer.rewards = arrays["rewards"] * 0.5
    observations = arrays["observations"]
    buffer.observations = {key: part[::-1] for key, part in observations.items()} if "dict" in form else observations[::-1]
    saved.save(buffer)
    assert_same_state(contents_of(saved.load(empty(form))), contents_of(buffer))


@pytest.mark.parametrize("kind, n_added", [("her, frames", 9), ("her, infos", 5), ("her", 13)])
def test_a_hindsight_buffer_finds_assigned_episodes_by_their_ends(kind, n_added):
    added, assigned = KINDS[kind](), KINDS[kind]()
    for i in range(n_added):
        added.add(**step_of(added, i))
    arrays = arrays_of(added)
    if "infos" in kind:
        arrays["infos"] = added.infos
    set_arrays(assigned, arrays, added.pos, added.full)
    rows = np.arange(n_added - added.size(), n_added) % N_ROWS
    (*_, last_end) = np.flatnonzero(added.dones[rows, 0])
    can_be_drawn = assigned.priorities[rows] > 0
    assert not can_be_drawn[last_end + 1 :].any()  # the episode under way
    # The oldest episode may have lost its beginning, which nobody can tell: it may be left out as a whole.
    np.testing.assert_array_equal(can_be_drawn | (added.priorities[rows] == 0), True)
    assert len(assigned.sample(10).rewards) == 10
    for i in range(8):  # after a lap, both know the same episodes
        for buffer in (added, assigned):
            buffer.add(**step_of(added, i))
    np.testing.assert_array_equal(assigned.priorities, added.priorities)
    assert_same_state(assigned.state()["eligible"], added.state()["eligible"])


def test_a_sequence_buffer_finds_assigned_episodes_by_their_ends():
    kind = "sequences, dict"
    added, assigned = KINDS[kind](), KINDS[kind]()
    for i in range(6):
        added.add(**step_of(added, i))
        assigned.add(**step_of(added, i + 20))
    set_arrays(assigned, arrays_of(added), 5, False)
    expected = KINDS[kind]()
    for i in range(5):
        expected.add(**step_of(added, i))
    np.testing.assert_array_equal(assigned.priorities, expected.priorities)
    batches = sampled(assigned), sampled(expected)
    assert_same_batches(*batches, batches[0]._fields[:-1])  # ids count another number of laps


def test_arrays_of_a_store_of_the_user_cannot_be_assigned():
    buffer = OtherStoreBuffer(20, make_buffer().observation_space, make_buffer().action_space, "cpu", 2)
    fill([buffer], 5)
    with pytest.raises(ValueError, match=r"Observations in a PickledObservations cannot be assigned\. Write steps"):
        buffer.observations = np.zeros((10, 2, 3))
    buffer.rewards = buffer.rewards * 0
    assert (buffer.sample(4).rewards == 0).all()


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


def test_add_sets_no_attribute_of_the_buffer(monkeypatch):
    """So the check of assigned attributes takes no time of it."""
    for kind in KINDS:
        buffer, seen = filled(kind), []
        monkeypatch.setattr(type(buffer), "__setattr__", lambda self, name, value: seen.append(name))  # noqa: B023
        buffer.add(**step_of(buffer))
        buffer.sample(2)
        assert not seen, kind
        monkeypatch.undo()


def test_sb3s_own_class_gets_plain_dictionaries():
    buffer = empty("dict")
    fill([buffer], 10)
    stock = buffer.to_replay_buffer()
    del buffer
    assert type(stock.observations) is type(stock.next_observations) is dict


def test_only_rewards_of_transitions_must_be_finite():
    """Also where one environment is ahead of the other; rewards of empty rows may be anything, and are in no return."""
    buffer = make_buffer(10, 2, n_steps=3)
    step = np.zeros((5, 1, 3), np.float32)
    numbers = np.zeros((5, 1))
    buffer.add_steps(np.array([1]), step, step, np.zeros((5, 1, 2)), numbers, numbers, numbers)
    rewards = np.full((10, 2), np.nan, np.float32)
    with pytest.raises(ValueError, match="must be a finite number, not nan"):
        buffer.rewards = rewards
    rewards[:5, 1] = 1.0
    buffer.rewards = rewards
    returns = buffer.sample(64).rewards
    assert returns.isfinite().all() and returns.max() > 1.0
