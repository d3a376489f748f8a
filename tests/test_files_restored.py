"""What is saved can be restored: black frames, frames that were stored anew, and columns of different lengths."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_per.files.buffer_files as buffer_files
from gymnasium import spaces
from sb3_per.buffers.draw_record import DrawRecord
from sb3_per.files.buffer_files import load_buffer, save_buffer
from sb3_per.files.generations import Directory

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from tests.saved import names_of, resign
from tests.test_columns import KINDS, N_ENVS, N_ROWS, Twins, make
from tests.utils import add_one, fill, make_buffer

IMAGE = spaces.Box(0, 255, (4, 3, 3), np.uint8)
TWO_IMAGES = spaces.Dict({"depth": IMAGE, "colour": IMAGE})
ACTION = spaces.Discrete(3)


def framed(space: spaces.Space, n_rows: int = 6, frames: int | None = 4) -> PrioritizedReplayBuffer:
    """A buffer of two environments with all observations in frames."""
    is_dict = isinstance(space, spaces.Dict)
    cls = PrioritizedDictReplayBuffer if is_dict else PrioritizedReplayBuffer
    by_key = dict.fromkeys(TWO_IMAGES, frames) if is_dict and frames else frames
    return cls(2 * n_rows, space, ACTION, "cpu", 2, frames=by_key)


def add_stacks(buffer: PrioritizedReplayBuffer, stacks: Any) -> None:
    """Steps of all environments; each observation is the next observation of the step before."""
    for obs, next_obs in itertools.pairwise(stacks):
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])


def stacks_of(n: int, seed: int = 0) -> list[np.ndarray]:
    """Stacks of 4 frames, of two environments, that move on by a frame."""
    film = np.random.default_rng(seed).integers(0, 256, (2, n + 4, 3, 3)).astype(np.uint8)
    return [film[:, i : i + 4] for i in range(n + 1)]


def column(buffer: PrioritizedReplayBuffer, env: int) -> dict[str, Any]:
    """What can be drawn of one environment, the oldest transition first."""
    rows = np.argsort(buffer.transition_ids[:, env])
    rows = rows[buffer.priorities[rows, env] > 0]
    arrays = dict(actions=buffer.actions, rewards=buffer.rewards, dones=buffer.dones, timeouts=buffer.timeouts)
    arrays["priorities"] = buffer.priorities
    held = {name: array[rows, env] for name, array in arrays.items()}
    if buffer.optimize_memory_usage:
        both = (("obs", buffer.observations, rows), ("next_obs", buffer.observations, (rows + 1) % buffer.buffer_size))
    else:
        both = (("obs", buffer.observations, rows), ("next_obs", buffer.next_observations, rows))
    for name, obs, rows_of_obs in both:
        for key, array in obs.items() if isinstance(obs, dict) else [("", obs)]:
            held[name + key] = array[rows_of_obs, env]
    return held


def same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name, strict=True)


def assert_holds_the_same(actual: PrioritizedReplayBuffer, expected: PrioritizedReplayBuffer) -> None:
    for env in range(expected.n_envs):
        same(column(actual, env), column(expected, env))


# ---- a generation counts if it can be restored


@pytest.mark.parametrize("n_before", [0, 3, 20])
def test_black_frames_can_be_loaded(n_before, tmp_path):
    """All that is held is black; with and without frames that were there before."""
    buffer, black = framed(IMAGE), np.zeros((2, *IMAGE.shape), np.uint8)
    add_stacks(buffer, stacks_of(n_before))
    add_stacks(buffer, [black] * 13)
    for _ in range(2):
        save_buffer(buffer, tmp_path / "x.buffer")
        loaded = load_buffer(framed(IMAGE), tmp_path / "x.buffer")
        assert_holds_the_same(loaded, buffer)
        assert not loaded.sample(5).observations.any()
        for each in (loaded, buffer):
            add_stacks(each, stacks_of(2))
        assert_holds_the_same(loaded, buffer)
        save_buffer(loaded, tmp_path / "x.buffer")
        assert_holds_the_same(load_buffer(framed(IMAGE), tmp_path / "x.buffer"), buffer)
        add_stacks(buffer, [black] * 13)


def test_a_key_that_is_always_black_can_be_loaded(tmp_path):
    buffer = framed(TWO_IMAGES)
    add_stacks(buffer, [{"depth": np.zeros_like(stack), "colour": stack} for stack in stacks_of(9)])
    save_buffer(buffer, tmp_path / "x.buffer")
    assert_holds_the_same(load_buffer(framed(TWO_IMAGES), tmp_path / "x.buffer"), buffer)


@pytest.mark.parametrize("name, value", [("beta", 1.5), ("max_priority", -1.0), ("max_priority", 0.0)])
def test_what_could_not_be_loaded_is_not_saved(name, value, tmp_path):
    """Values that were set by hand; what was saved before stays, however often that is tried."""
    buffer, path = framed(IMAGE), tmp_path / "x.buffer"
    add_stacks(buffer, stacks_of(9))
    save_buffer(buffer, path)
    before, good = names_of(path), getattr(buffer, name)
    setattr(buffer, name, value)
    for _ in range(3):
        add_stacks(buffer, stacks_of(2))
        with pytest.raises(ValueError, match=rf"could not be loaded again: .*{name} must be .* not {value}"):
            save_buffer(buffer, path)
    assert names_of(path) == before
    setattr(buffer, name, good)
    save_buffer(buffer, path)
    assert_holds_the_same(load_buffer(framed(IMAGE), path), buffer)


def test_a_generation_that_could_not_be_loaded_does_not_count(tmp_path):
    """All its checksums are right; it is the one before that stays."""
    buffer, path = make_buffer(), tmp_path / "x.buffer"
    for i in range(2):
        fill([buffer], 3)
        save_buffer(buffer, path, i)
    newest, older = Directory(path).manifests()
    resign(path / newest, lambda content: content["numbers"].update(beta=7.0))
    with pytest.warns(UserWarning, match="beta must be in .* In its place, the generation before was loaded"):
        loaded = load_buffer(buffer, path)
    save_buffer(loaded, path, 2)
    assert Directory(path).manifests()[1:] == [older]


# ---- frames that are stored anew


@pytest.mark.parametrize("n_before, n_between, n_after", [*itertools.product([2, 9], [0, 3], [0, 1, 8])])
@pytest.mark.parametrize("others", [[None], [2], [2, None]], ids=str)
def test_frames_that_were_stored_anew_are_saved_anew(n_before, n_between, n_after, others, tmp_path):
    """With other settings for a while, and then with those that an earlier save was made with."""
    buffer, path, stacks = framed(IMAGE), tmp_path / "x.buffer", stacks_of(20, 1)
    add_stacks(buffer, stacks[: n_before + 1])
    save_buffer(buffer, path)
    for frames in others:
        buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=frames)
        add_stacks(buffer, stacks[n_before : n_before + n_between + 1])
    buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=4)
    add_stacks(buffer, stacks[n_before + n_between : n_before + n_between + n_after + 1])
    save_buffer(buffer, path)
    assert_holds_the_same(load_buffer(framed(IMAGE), path), buffer)


# ---- columns of different lengths, and a buffer of another size

#: Steps that are added to environments: up to the first lap, a short column, an empty one, all over several laps.
STORIES = {
    "not full": [([0, 1, 2], 2), ([1], 4)],
    "one full": [([0, 1, 2], 6), ([1], 1)],
    "one far ahead": [([0, 1], 2), ([2], 7), ([2], 7), ([0], 1), ([2], 3)],
    "one empty": [([0], 5), ([1], 7), ([1], 6)],
    "overwritten": [([0, 1, 2], 6), ([0, 1, 2], 6), ([1], 3)],
    "laps": [([0, 1, 2], 6), ([1, 2], 5), ([1], 2), ([0], 5), ([2], 1), ([0, 1, 2], 7)],
}


def story(kind: str, name: str, path: Path) -> Twins:
    """A buffer that was saved after each of the steps."""
    twins = Twins(kind, 3)
    for envs, n in STORIES[name]:
        twins.add_steps(envs, n)
        twins.update()
        save_buffer(twins.buffer, path)
    return twins


def newest(held: dict[str, Any], n: int) -> dict[str, Any]:
    return {name: array[len(array) - n :] for name, array in held.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("n_rows", [3, 11])
def test_of_columns_of_different_lengths_the_newest_steps_that_fit_come_along(kind, name, n_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(buffer_files, "_SMALL_BYTES", 0)  # many files, of which the first begins before what is held
    monkeypatch.setattr(buffer_files, "_SMALL_SHARE", 0)
    twins = story(kind, name, tmp_path / "x.buffer")
    with monkeypatch.context() as patch:  # the files may be read in any order
        patch.setattr(buffer_files, "in_parallel", lambda functions: [function() for function in reversed(functions)])
        loaded = load_buffer(make(kind, n_rows=n_rows), tmp_path / "x.buffer")
    # With optimize_memory_usage, a column that is full has one row without an observation of its own.
    n_spoilt = int(loaded.optimize_memory_usage)
    n_steps = [min(sum(n for envs, n in STORIES[name] if env in envs), N_ROWS - n_spoilt) for env in range(N_ENVS)]
    ranked: list[Any] = [[], []]
    for env in range(N_ENVS):
        n = min(n_steps[env], n_rows - n_spoilt)
        held, expected = column(loaded, env), newest(column(twins.buffer, env), n)
        if kind == "rank":  # masses are those of ranks, in a smaller buffer of other ones
            ranked[0].append(held.pop("priorities"))
            ranked[1].append(expected.pop("priorities"))
        same(held, expected)
        assert np.count_nonzero(loaded.priorities[:, env]) == n
    if kind == "rank":
        np.testing.assert_array_equal(*(np.argsort(np.concatenate(masses)) for masses in ranked))
    # It goes on as any other buffer, and comes back from files of its own size.
    assert loaded.sample(8).indices.min() > twins.buffer.transition_ids.max()
    twins.buffer = loaded
    twins.add_steps([0, 2], 2)
    twins.add_steps([1], 1)
    for env, n_more in enumerate((2, 1, 2)):
        held, alone = column(loaded, env), column(twins.alone[env], 0)
        n = len(held["rewards"])
        assert n == min(min(n_steps[env], n_rows - n_spoilt) + n_more, n_rows - n_spoilt)
        n = min(n, len(alone["rewards"]))
        same({**newest(held, n), "priorities": np.ones(n)}, {**newest(alone, n), "priorities": np.ones(n)})
    save_buffer(loaded, tmp_path / "y.buffer")
    assert_holds_the_same(load_buffer(make(kind, n_rows=n_rows), tmp_path / "y.buffer"), loaded)


@pytest.mark.parametrize("frames", [None, 1, 2])
@pytest.mark.parametrize("n_rows", [3, 11])
def test_columns_move_with_other_frames_and_another_scheme(frames, n_rows, tmp_path):
    """All that can be different at once."""
    buffer = story("frames", "one far ahead", tmp_path / "x.buffer").buffer
    with pytest.warns(UserWarning, match="all priorities are the largest now"):
        loaded = load_buffer(make("frames", n_rows=n_rows, frames=frames, scheme="rank"), tmp_path / "x.buffer")
    for env in range(N_ENVS):
        held, expected = column(loaded, env), column(buffer, env)
        assert (held.pop("priorities") > 0).all()
        del expected["priorities"]
        same(held, newest(expected, min(n_rows, len(expected["rewards"]))))


@pytest.mark.parametrize("n_rows", [4, 9])
def test_masses_that_came_with_steps_move_with_them(n_rows, tmp_path):
    """Saved before anything was drawn, when they are not in the tree yet."""
    buffer = make("td_error")
    for envs, n in (([0, 1, 2], 3), ([1], 7), ([1], 5)):
        rewards, errors = np.zeros((n, len(envs))), np.arange(1.0, n * len(envs) + 1).reshape(n, len(envs))
        obs = np.zeros((n, len(envs), 2), np.float32)
        buffer.add_steps(np.array(envs), obs, obs, obs, rewards, rewards, rewards, errors)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("td_error", n_rows=n_rows), tmp_path / "x.buffer")
    for env in range(N_ENVS):
        expected = column(buffer, env)["priorities"]
        np.testing.assert_array_equal(column(loaded, env)["priorities"], expected[-n_rows:])


# ---- beside the contents


@pytest.mark.parametrize("n_rows", [5, 10, 20])
def test_draws_of_a_loaded_buffer_are_counted_anew(n_rows, tmp_path):
    buffer, live = make_buffer(10), make_buffer(n_rows)
    fill([buffer], 25)
    save_buffer(buffer, tmp_path / "x.buffer")
    fill([live], 30)
    live.draw_record = DrawRecord(n_rows, n_batches=3)
    live.sample(8)
    loaded = load_buffer(live, tmp_path / "x.buffer")
    assert loaded.draw_record is not None and not loaded.draw_record.batches
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 0
    for _ in range(5):
        loaded.sample(8)
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 40
    assert len(loaded.draw_record.batches) == 3
    assert live.draw_record.counts(live.transition_ids[live.transition_ids >= 0]).sum() == 8


def test_a_lock_that_is_no_file_is_named(tmp_path):
    buffer, path = make_buffer(), tmp_path / "x.buffer"
    add_one(buffer)
    save_buffer(buffer, path)
    Path(path, ".lock").unlink()
    Path(path, ".lock").mkdir()
    with pytest.raises(OSError, match=r"\.lock is a directory, and .* Remove it"):
        save_buffer(buffer, path)
    Path(path, ".lock").rmdir()
    save_buffer(buffer, path)
