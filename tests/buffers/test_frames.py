"""Frames stored once: a framed buffer returns the same bytes as a plain twin with the same steps and seeds."""

import copy
import functools
import pickle
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.buffers.frame_setting import stack_axis
from sb3_per.buffers.frames import FrameStore
from tests.helpers.frames import ACTIONS, FORMS, Stream, add, same_batches, same_bytes, stacked, twins
from tests.helpers.messages import caught_user_warnings, no_user_warnings


def check_references(store: FrameStore) -> None:
    """Check that the store counts each reference, that no free frame is in use, and that no frame is lost."""
    counted = np.bincount(store.references.reshape(-1), minlength=len(store.n_references))
    assert (counted == store.n_references).all()
    n_used, n_free = store.counters
    free = set(store.free[:n_free].tolist())
    assert len(free) == n_free and all(counted[number] == 0 for number in free)
    assert n_used - 1 - n_free == np.count_nonzero(counted[1:])


DTYPES = (np.uint8, np.bool_, np.float32, np.float64)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_stored_bytes_equal_a_plain_twin(data):
    """Compare the whole buffer and batches through four laps, resets, copies and restarts."""
    form, k = data.draw(st.sampled_from(list(FORMS))), data.draw(st.integers(1, 4))
    dtype, n_envs = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([1, 2, 3, 4, 9]))
    n_rows, n_steps = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([1, 2, 3, 5]))
    junk = data.draw(st.booleans())
    framed, plain = twins(form, k, dtype, n_rows, n_envs, n_steps=n_steps)
    stream = Stream(form, k, dtype, n_envs, data.draw(st.integers(0, 10**6)), junk)
    for _ in range(4):
        add((framed, plain), stream, n_rows)
        for name in ("observations", "next_observations"):
            stored, expected = getattr(framed, name), getattr(plain, name)
            assert (stored.shape, stored.dtype, len(stored), stored.ndim) == (
                expected.shape,
                expected.dtype,
                len(expected),
                expected.ndim,
            )
            same_bytes(stored[:], expected)
        same_batches(framed, plain)
        check_references(framed.observations.store)
        operation = data.draw(st.sampled_from(["nothing", "reset", "pickle", "deepcopy", "end", "few"]))
        if operation == "reset":
            framed.reset()
            plain.reset()
        elif operation == "pickle":
            framed = pickle.loads(pickle.dumps(framed))
        elif operation == "deepcopy":
            original, framed = framed, copy.deepcopy(framed)
            add([original], Stream(form, k, dtype, n_envs, 1), 2)  # steps of the original must not reach the copy
        elif operation == "end":
            framed.end_episodes()
            plain.end_episodes()
        elif operation == "few":
            add((framed, plain), stream, 1)
    if framed.size():
        assert framed.frames_per_transition <= 2 * k


ROWS, ENVS, SHAPE = 4, 2, (3, 3, 5)


@st.composite
def indices(draw: Any) -> Any:
    """Make an index of the whole array, with a part for some of its axes; NumPy refuses some of them."""
    shape = (ROWS, ENVS, *SHAPE)
    parts: list[Any] = []
    for i in range(draw(st.integers(1, len(shape)))):
        n = shape[i]
        number = st.integers(-n, n - 1)
        usual = st.one_of(st.just(slice(None)), st.slices(n), number, st.lists(number, min_size=2, max_size=2))
        rare = st.one_of(
            st.sampled_from([None, True, n]),
            hnp.arrays(np.int64, st.sampled_from([(), (1,), (2, 1), (0,)]), elements=number),
            hnp.arrays(np.bool_, n),
            hnp.arrays(np.bool_, shape[i : i + 2]),
        )
        parts.append(draw(usual if draw(st.integers(0, 3)) else rare))
    if draw(st.booleans()):
        parts[draw(st.integers(0, len(parts) - 1))] = ...
    return draw(st.sampled_from([parts[0], tuple(parts)])) if len(parts) == 1 else tuple(parts)


@functools.cache
def wrapped_twins() -> list[Any]:
    """Make a framed buffer and a plain one that hold the same. Do not change them."""
    buffers = twins("channels first", 3, np.uint8, ROWS, ENVS)
    add(buffers, Stream("channels first", 3, np.uint8, ENVS, 0), 6)
    return list(buffers)


@settings(max_examples=300, deadline=None)
@given(index=indices())
@example(index=(slice(None), None, 0))
@example(index=([0, 1], [0, 1], [2, 1]))
@example(index=(0, slice(None), [1, 2]))
@example(index=(slice(None), [0, 1], slice(None), 2))
@example(index=(slice(None), [0, 1], 2, 2))
@example(index=np.ones((ROWS, ENVS, *SHAPE), np.bool_))
@example(index=(np.arange(ROWS) > 1, np.array([True, True]), slice(None), -1))
def test_framed_arrays_are_indexed_like_numpy_arrays(index):
    """With every index that NumPy takes; what NumPy refuses is refused."""
    framed, plain = wrapped_twins()
    for name in ("observations", "next_observations"):
        try:
            expected = getattr(plain, name)[index]
        except IndexError:
            with pytest.raises(IndexError):
                getattr(framed, name)[index]
        else:
            found = getattr(framed, name)[index]
            same_bytes(found, np.asarray(expected))
            assert type(found) is type(expected)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_an_index_of_rows_and_environments_reads_no_other_slots(data):
    """Whole arrays may be larger than RAM."""
    framed, plain = twins("channels first", 3, np.uint8, ROWS, ENVS)
    store, n_read = framed.observations.store, []
    read = store.read

    def counted(is_next: int, index: Any) -> Any:
        found = read(is_next, index)
        n_read.append(found.size // int(np.prod(SHAPE)))
        return found

    store.read = counted  # type: ignore[method-assign]
    masks = hnp.arrays(np.bool_, (ROWS, ENVS)).filter(lambda mask: not mask.all())
    basic = st.one_of(st.integers(0, 3), st.slices(4))
    lists = st.lists(st.integers(0, 3), min_size=1, max_size=2)
    of_stacks = st.tuples(basic, st.integers(0, 1), st.slices(3), st.integers(-1, 2))
    index = data.draw(st.one_of(basic, lists, masks, st.tuples(st.one_of(basic, lists), st.integers(0, 1)), of_stacks))
    rows_and_envs = index[:2] if isinstance(index, tuple) else index
    same_bytes(framed.observations[index], np.asarray(plain.observations[index]))
    assert n_read == [np.zeros((ROWS, ENVS))[rows_and_envs].size]


def test_a_whole_framed_array_is_read_by_numpy():
    framed, plain = wrapped_twins()
    same_bytes(np.asarray(framed.observations), plain.observations)
    same_bytes(np.asarray(framed.observations, np.float32), plain.observations.astype(np.float32))
    with pytest.raises(ValueError, match="leave out copy=False"):
        framed.observations.__array__(copy=False)  # as NumPy 2 calls it


@settings(max_examples=300, deadline=None)
@given(index=indices(), seed=st.integers(0, 1000))
@example(index=(0, 0), seed=0)
@example(index=-1, seed=0)
@example(index=([0, 0], [1, 1]), seed=0)
@example(index=(slice(1, 3), 1), seed=0)
@example(index=(slice(None), [0, 1], 2, 2), seed=0)
@example(index=(slice(None), slice(None), ..., 2), seed=0)
def test_framed_arrays_are_written_like_numpy_arrays(index, seed):
    """With every index that NumPy takes, and values that it broadcasts; what it refuses changes nothing."""
    framed, plain = copy.deepcopy(wrapped_twins())
    rng = np.random.default_rng(seed)
    for name in ("observations", "next_observations"):
        stored, expected = getattr(framed, name), getattr(plain, name)
        try:
            shape = np.shape(expected[index])
            value = rng.integers(0, 255, shape[rng.integers(0, len(shape) + 1) :]).astype(np.uint8)
            expected[index] = value
        except IndexError:
            with pytest.raises(IndexError):
                stored[index] = 0
        else:
            stored[index] = value
        same_bytes(stored[:], expected)
    check_references(framed.observations.store)


def test_a_value_of_another_shape_is_refused():
    framed, plain = copy.deepcopy(wrapped_twins())
    for index in (0, slice(0, 2), (0, 1)):
        with pytest.raises(ValueError):
            framed.observations[index] = np.zeros((7, 7), np.uint8)
    with pytest.raises(IndexError):
        framed.observations[ROWS] = plain.observations[0]
    same_bytes(framed.observations[:], plain.observations)


def test_reading_gives_copies():
    framed, _ = twins("channels first", 3, np.uint8, 6, 2)
    stream = Stream("channels first", 3, np.uint8, 2, 0)
    add([framed], stream, 8)
    before = framed.observations[:]
    batch = framed.sample(10)
    batch.observations[:] = 7
    framed.observations[:][:] = 7
    obs, next_obs, dones, infos = stream.step()
    framed.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
    expected = framed.observations[2], framed.next_observations[2]
    obs[:] = next_obs[:] = 9  # the buffer must not keep the caller's arrays
    same_bytes(framed.observations[2], expected[0])
    same_bytes(framed.next_observations[2], expected[1])
    same_bytes(framed.observations[[3, 4, 5]], before[[3, 4, 5]])


@pytest.mark.parametrize("length, padding", [(1, "repeats"), (40, "zeros")])
def test_each_frame_is_stored_once(padding, length):
    """Episodes of L steps take 1 + 1 / L frames per transition, whatever the padding."""
    k, n_envs = 4, 3
    framed, plain = twins("channels first", k, np.uint8, 160, n_envs)
    rng = np.random.default_rng(0)

    def new() -> np.ndarray:
        return rng.integers(1, 255, (1, 3, 5)).astype(np.uint8)

    for _ in range(2 * 160 // length):
        stacks = []
        for _ in range(n_envs):
            first = new()
            stacks.append([first if padding == "repeats" else first * 0] * (k - 1) + [first])
        for step in range(length):
            following = [[*stack[1:], new()] for stack in stacks]
            obs, next_obs = (np.stack([stacked(s, "first") for s in each]) for each in (stacks, following))
            done = np.full(n_envs, step == length - 1)
            for buffer in (framed, plain):
                buffer.add(obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), done, [{}] * n_envs)
            stacks = following
    same_bytes(framed.observations[:], plain.observations)
    # The last summand allows for frames of the steps just before the oldest row.
    assert framed.frames_per_transition <= 1 + 1 / length + 2 * k / 160


def test_ram_is_bounded_and_reused():
    """Many laps take no more RAM than three, and no frame in use is overwritten."""
    framed, plain = twins("channels first", 4, np.uint8, 64, 2)
    stream = Stream("channels first", 4, np.uint8, 2, 0, junk=False)
    add((framed, plain), stream, 3 * 64)
    store = framed.observations.store
    most = store.counters[0]
    for _ in range(20):
        add((framed, plain), stream, 50)
        same_bytes(framed.observations[:], plain.observations)
        same_bytes(framed.next_observations[:], plain.next_observations)
        check_references(store)
    assert store.counters[0] <= most * 1.3  # freed frames are used again
    assert framed.observations.nbytes + framed.next_observations.nbytes == store.nbytes


def test_a_frame_that_never_changes_keeps_no_old_frames():
    """A frame that never changes must not keep the frames beside it in memory."""
    framed, plain = twins("channels first", 4, np.uint8, 32, 2)
    rng = np.random.default_rng(0)
    frozen = np.full((1, 3, 5), 9, np.uint8)
    moving = [rng.integers(1, 255, (1, 3, 5)).astype(np.uint8) for _ in range(4)]
    for _ in range(200):
        following = [*moving[1:], rng.integers(1, 255, (1, 3, 5)).astype(np.uint8)]
        obs, next_obs = (np.stack([stacked([frozen] * 4, "first"), stacked(each, "first")]) for each in (moving, following))
        for buffer in (framed, plain):
            buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2)
        moving = following
    same_bytes(framed.observations[:], plain.observations)
    assert framed.frames_per_transition < 1.3


def test_each_image_takes_few_bytes():
    """Stacks of four images as on Atari, in episodes of 40 steps: everything of a transition counts."""
    rng = np.random.default_rng(0)
    n = 2_000
    buffer = PrioritizedReplayBuffer(n, spaces.Box(0, 255, (4, 84, 84), np.uint8), ACTIONS, "cpu", frames=4)
    stack = np.zeros((1, 4, 84, 84), np.uint8)
    for t in range(3 * n):
        if t % 40 == 0:
            stack = np.repeat(rng.integers(0, 256, (1, 1, 84, 84), dtype=np.uint8), 4, axis=1)
        following = np.concatenate((stack[:, 1:], rng.integers(0, 256, (1, 1, 84, 84), dtype=np.uint8)), axis=1)
        buffer.add(stack, following, np.zeros((1, 1)), np.zeros(1), np.array([t % 40 == 39]), [{}])
        stack = following
    columns = (buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts, buffer.priority_sampler.tree[:])
    n_bytes = buffer.observations.store.nbytes + sum(column.nbytes for column in columns)
    assert n_bytes / n <= 7_400


@pytest.mark.filterwarnings("ignore:This system does not have")
def test_an_empty_buffer_takes_no_ram():
    """As with SB3's arrays, RAM is taken as the buffer fills. Ten million transitions would take 73 GB."""
    process = psutil.Process()
    before = process.memory_info().rss
    box = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = PrioritizedReplayBuffer(10**7, box, ACTIONS, "cpu", frames=4, scheme="uniform")
    obs = np.ones((1, 4, 84, 84), np.uint8)
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert process.memory_info().rss - before < 200e6


def test_stack_axis_is_guessed_from_the_shape():
    for shape in ((12, 64, 64), (4, 84, 84, 3), (4, 7), (12,)):
        assert stack_axis(shape, 4) == 0
    for shape in ((84, 84, 12), (10, 8)):
        assert stack_axis(shape, 4) == len(shape) - 1
    assert stack_axis((1, 84, 84), 1) == stack_axis((6, 10, 10), 3) == 0


IMAGE = spaces.Box(0, 255, (4, 6, 6), np.uint8)


DICT = spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1, 1, (3,)), "number": spaces.Discrete(3)})


GOAL_DICT = spaces.Dict({"observation": IMAGE, "achieved_goal": IMAGE})


MEMORY = dict(optimize_memory_usage=True, handle_timeout_termination=False)


REFUSED: list[tuple[spaces.Space, Any, str]] = [
    (IMAGE, 5, r"frames=5 divides neither .* \(4, 6, 6\)"),
    (IMAGE, 0, "at least 1, not 0"),
    (IMAGE, True, "not True"),
    (IMAGE, "auto", "needs the number of frames"),
    (IMAGE, dict(image=4), "does not fit observations of Box"),
    (DICT, 4, "does not fit observations of Dict: write e.g. "),
    (DICT, dict(picture=4), "'picture', which is not among"),
    (DICT, dict(number=1), "arrays, not Discrete"),
    (spaces.Discrete(3), 1, "arrays, not Discrete"),
    (GOAL_DICT, dict(achieved_goal=4), "goals anew"),
]


def test_values_of_frames_that_do_not_fit_are_refused():
    """The check comes before any allocation."""
    for space, frames, message in REFUSED:
        cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
        with pytest.raises(ValueError, match=message):
            cls(10**12, space, ACTIONS, "cpu", frames=frames)
    with pytest.raises(NotImplementedError, match="optimize_memory_usage"):
        PrioritizedReplayBuffer(10**12, IMAGE, ACTIONS, "cpu", frames=4, **MEMORY)


def test_observations_that_are_no_stacks_warn_once():
    for is_stack in (True, False):
        framed, plain = twins("channels first", 4, np.uint8, 50, 1)
        stream = Stream("channels first", 4, np.uint8, 1, 0, junk=False)
        rng = np.random.default_rng(0)
        with caught_user_warnings() as caught:
            for _ in range(1200):
                obs, next_obs, dones, infos = stream.step()
                if not is_stack:
                    next_obs = rng.integers(0, 255, next_obs.shape).astype(np.uint8)
                for buffer in (framed, plain):
                    buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), dones, infos)
        said = [text for text in caught if "shifted by one frame" in text]
        assert len(said) == (not is_stack)
        same_bytes(framed.next_observations[:], plain.next_observations)


@pytest.mark.parametrize("n_envs", [1, 300])
@pytest.mark.parametrize("k", [1, 4])
def test_stacks_give_no_warning(k, n_envs):
    """Neither with many environments, whose first stacks are all new, nor with whole observations that are shared."""
    framed, _ = twins("channels first", k, np.uint8, 4, n_envs)
    with no_user_warnings():
        add([framed], Stream("channels first", k, np.uint8, n_envs, 0, junk=False), 1_100 if n_envs == 1 else 30)


def test_a_block_of_rows_shares_frames_as_single_steps_do():
    frames = np.random.default_rng(0).integers(1, 256, (104, 1, 8, 8), dtype=np.uint8)
    stacks = np.stack([np.concatenate(frames[i : i + 4]) for i in range(101)])
    store = FrameStore(100, 1, (4, 8, 8), np.uint8, 4)
    for is_next in range(2):
        store.write(is_next, np.arange(100), np.zeros(100, np.int64), stacks[is_next : 100 + is_next])
    assert store.n_held == 105  # all, and the frame of zeros
    check_references(store)
    same_bytes(store.read(1, slice(None)), stacks[1:, None])


def test_packed_rows_come_back():
    """Frames of some rows can be stored elsewhere, and read into another buffer."""
    framed, plain = twins("channels first", 4, np.uint8, 30, 2)
    add([framed, plain], Stream("channels first", 4, np.uint8, 2, 0), 70)
    store, other = framed.observations.store, twins("channels first", 4, np.uint8, 30, 2)[0].observations.store
    for rows in np.array_split(np.arange(30), 4):
        other.unpack(rows, store.pack(rows))
    check_references(other)
    same_bytes(other.read(0, slice(None)), plain.observations)
    same_bytes(other.read(1, slice(None)), plain.next_observations)
    wrong = store.pack(np.arange(4))
    wrong["references"][0] = 1000
    with pytest.raises(ValueError, match="References are in"):
        twins("channels first", 4, np.uint8, 30, 2)[0].observations.store.unpack(np.arange(4), wrong)


def test_a_store_of_one_row_and_one_byte_works():
    """The smallest possible store has one row with one frame of one byte."""
    store = FrameStore(1, 1, (1,), np.uint8, 1)
    zero = np.zeros(1, np.int64)
    for value in (0, 5, 5, 0, 255):
        store.write(0, zero, zero, np.array([[value]], np.uint8))
        store.write(1, zero, zero, np.array([[value ^ 1]], np.uint8))
        assert store.read(0, (zero, zero)).tolist() == [[value]]
        assert store.read(1, (zero, zero)).tolist() == [[value ^ 1]]
