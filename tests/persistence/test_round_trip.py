"""A loaded buffer equals the saved one and draws the same batches. A save writes only new data."""

import copy
import itertools
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, Proportional
from sb3_per.buffers.state import BufferState
from sb3_per.monitoring.monitor import DrawRecord
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer, save_buffer
from sb3_per.persistence.generations import Manifest, manifest_names_in
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer
from tests.helpers.saved import ACTION, IMAGE, KINDS, VECTOR, Player, assert_same, make, snapshot


def assert_round_trip(buffer: Any, empty: Any, saved: SavedBuffer, **kwargs: Any) -> Any:
    """Save and load. Check that saving changes nothing and that the loaded buffer is equal, and return it."""
    before = snapshot(buffer)
    saved.save(buffer, **kwargs)
    assert_same(snapshot(buffer), before)
    loaded = load_buffer(empty, saved.path)
    assert_same(snapshot(loaded), before)
    return loaded


CHANGED: dict[str, list[dict[str, Any]]] = {
    "plain": [
        dict(scheme="pal", n_envs=1, n_steps=1, beta_anneal_steps=None),
        dict(unique=True, recency=0.9, recency_min=9, n_envs=3),
    ],
    "frames": [{}],
    "her": [dict(scheme="rank", n_envs=3)],
    "rank": [dict(alpha=0.5, stratified=False)],
    "memory": [dict(n_steps=2)],
    "actors": [{}],
    "sequences": [{}, dict(scheme="rank", n_steps=2)],
    "demonstrations": [{}, dict(scheme="rank")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_buffer_equals_the_saved_one(kind, tmp_path):
    """
    Save and load several times, also after the ring has wrapped. The loaded buffer draws the same batches as the saved one.
    """
    for i, changed in enumerate(CHANGED[kind]):
        buffer, saved = make(kind, **changed), SavedBuffer(tmp_path / f"{i}.buffer")
        for seed, n in enumerate([0, 7, 30, 0, 40, 3]):
            Player(buffer, seed=seed).play(n)
            loaded = assert_round_trip(buffer, make(kind, **changed), saved, num_timesteps=seed)
            player = Player(buffer, loaded, seed=50 + seed)
            for _ in range(2):
                drawn = player.learn()
                np.testing.assert_array_equal(*(drawn or [0, 0]))
                player.add(2)
            assert_same(snapshot(loaded), snapshot(buffer))


class Noted(PrioritizedReplayBuffer):
    """A class that saves one more number of each row."""

    row_state: ClassVar[dict[str, type[np.generic]]] = {**PrioritizedReplayBuffer.row_state, "notes": np.float32}

    def make_parts(self, draw_settings: Any = None) -> None:
        super().make_parts(draw_settings)
        self.notes = np.zeros((self.buffer_size, self.n_envs), np.float32)

    def state_to_save(self) -> BufferState:
        state = super().state_to_save()
        return state._replace(by_row={**state.by_row, "notes": self.notes})

    def restore_state(self, state: BufferState, keeps_masses: bool, is_whole: bool) -> None:
        super().restore_state(state, keeps_masses, is_whole)
        self.notes[:] = state.by_row["notes"]


class Undeclared(Noted):
    row_state = PrioritizedReplayBuffer.row_state


def test_what_a_class_saves_of_each_row_stays_with_the_row(tmp_path):
    """Also in a smaller buffer. A name that ``row_state`` does not have is refused before anything is written."""
    arguments: dict[str, Any] = dict(observation_space=VECTOR, action_space=ACTION, device="cpu", n_envs=2)
    buffer, undeclared = Noted(12, **arguments), Undeclared(12, **arguments)
    for each in (buffer, undeclared):
        fill([each], 8)
        each.notes[:] = each.rewards
    save_buffer(buffer, tmp_path / "x.buffer")
    for n_rows in (6, 4, 9):
        loaded = load_buffer(Noted(2 * n_rows, **arguments), tmp_path / "x.buffer")
        rows = np.arange(loaded.pos - loaded.size(), loaded.pos)
        assert loaded.size() == min(n_rows, 6) and loaded.notes.any()
        np.testing.assert_array_equal(loaded.notes[rows], loaded.rewards[rows])
    message = r"^state_to_save\(\) of Undeclared returns 'notes' by row: add 'notes' to row_state, with float32"
    with pytest.warns(UserWarning, match="keeps in notes"), pytest.raises(ValueError, match=message):
        save_buffer(undeclared, tmp_path / "y.buffer")
    assert not list((tmp_path / "y.buffer").glob("*.bin"))


def test_buffers_of_all_spaces_can_be_saved_and_loaded(tmp_path):
    """Each observation space with one of the action spaces."""
    for obs_space, action_space in zip(OBSERVATION_SPACES, itertools.cycle(ACTION_SPACES), strict=False):
        buffer, saved = make_buffer(20, 2, obs_space, action_space), SavedBuffer(tmp_path / f"{obs_space}.buffer")
        for n in (13, 20):
            fill([buffer], n, seed=n)
            assert_round_trip(buffer, make_buffer(20, 2, obs_space, action_space), saved)


def test_a_loaded_buffer_shares_frames_like_the_saved_one(tmp_path):
    """A stored observation shares its frames with the next ones, so a step needs about one frame."""
    buffer = make("frames")
    Player(buffer, seed=1).add(40)
    loaded = assert_round_trip(buffer, make("frames"), SavedBuffer(tmp_path / "x.buffer"))
    Player(buffer, loaded, seed=2).add(20)
    assert loaded.frames_per_transition == buffer.frames_per_transition


def test_black_frames_can_be_loaded(tmp_path):
    """All observations of one key are black, those of the other from some step on."""
    space, n_before = spaces.Dict({"depth": IMAGE, "colour": IMAGE}), 20

    def new() -> Any:
        return PrioritizedDictReplayBuffer(12, space, spaces.Discrete(3), "cpu", 2, frames={"depth": 3, "colour": 3})

    film = np.random.default_rng(0).integers(0, 256, (2, n_before + 16, 4, 4)).astype(np.uint8)
    film[:, n_before:] = 0
    stacks = [{"depth": np.zeros((2, 3, 4, 4), np.uint8), "colour": film[:, i : i + 3]} for i in range(n_before + 14)]
    buffer = new()
    for obs, next_obs in itertools.pairwise(stacks):
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])
    loaded = assert_round_trip(buffer, new(), SavedBuffer(tmp_path / "x.buffer"))
    assert not loaded.sample(5).observations["depth"].any()


STEPS = st.lists(
    st.one_of(st.integers(0, 30), st.sampled_from(["reset", "save", "full", "load", "learn", "fresh", "cut"])), max_size=14
)


@settings(max_examples=15, deadline=None)
@given(script=STEPS, kind=st.sampled_from(sorted(KINDS)), keep=st.integers(1, 3), seed=st.integers(0, 99))
def test_increments_equal_a_full_save(script, kind, keep, seed, tmp_path_factory):
    """A random chain of saves, resets, new steps and loads in two directories equals one full save at the end."""
    folder = tmp_path_factory.mktemp("chain")
    directories = [SavedBuffer(folder / f"{name}.buffer") for name in "ab"]
    buffer = make(kind)
    for i, action in enumerate(script):
        saved, player = directories[i % 2], Player(buffer, seed=seed + i)
        if action == "reset":
            buffer.reset()
        elif action == "cut":
            buffer.end_episodes()
        elif action == "learn":
            player.learn()
        elif action in ("save", "full"):
            assert_round_trip(buffer, make(kind), saved, full=action == "full", keep=keep)
            assert len(manifest_names_in(saved.path)) <= keep
        elif action == "load" and saved.path.exists():
            buffer = saved.load(buffer)
        elif action == "fresh":
            # Continue with an unpickled buffer, which is not in the files of earlier saves.
            env, buffer = getattr(buffer, "env", None), pickle.loads(pickle.dumps(buffer))
            buffer.env = env
        elif isinstance(action, int):
            player.add(action)
    for saved in (directories[0], SavedBuffer(folder / "c.buffer")):
        assert_round_trip(buffer, make(kind), saved)


def test_own_masses_are_saved_before_the_first_draw(tmp_path):
    buffer = make("actors", scheme="proportional")
    errors = np.arange(1.0, 31.0).reshape(15, 2)
    for error in errors:
        obs = np.zeros((2, 3), np.float32)
        buffer.add(obs, obs, obs[:, :2], np.zeros(2), np.zeros(2), [{}, {}], td_errors=error)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("actors", scheme="proportional"), tmp_path / "x.buffer")
    np.testing.assert_array_equal(loaded.masses, buffer.masses)
    assert len(np.unique(loaded.masses)) == 31


def test_the_draw_record_of_a_loaded_buffer_is_empty(tmp_path):
    """The draw record of the buffer that loads does not change."""
    buffer, current = make_buffer(10), make_buffer(10)
    fill([buffer], 25)
    save_buffer(buffer, tmp_path / "x.buffer")
    fill([current], 30)
    current.draw_record = DrawRecord(10, n_batches=3)
    current.sample(8)
    loaded = load_buffer(current, tmp_path / "x.buffer")
    loaded.sample(8)
    for each in (loaded, current):
        assert each.draw_record.counts(each.transition_ids[each.transition_ids >= 0]).sum() == 8


@pytest.mark.parametrize("scheme", ["proportional", "uniform"])
def test_masses_with_age_decay_come_back_up_to_rounding(scheme, tmp_path):
    """The files hold masses without the age. Without masses by priority, the numbers are the same."""
    buffer = make_buffer(10, 2, scheme=scheme, age_decay=3.0)
    fill([buffer], 25)
    for seed in range(5):
        ids = buffer.sample(8).indices
        buffer.update_priorities(ids, np.random.default_rng(seed).normal(size=8))
        fill([buffer], 2, seed=seed)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make_buffer(10, 2, scheme=scheme, age_decay=3.0), tmp_path / "x.buffer")
    tolerance = 1e-13 if scheme == "proportional" else 0.0
    np.testing.assert_allclose(loaded.masses, buffer.masses, rtol=tolerance, atol=0.0)


# ---- which files are written


def n_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path))


def segments(path: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.name.startswith("rows")}


def test_a_save_writes_only_new_steps(tmp_path):
    """
    Each step is written a few times at most. The directory has few files, and is little larger than the buffer's contents.
    """
    n_rows, n_saves, n_each = 1_000, 50, 20
    buffer, path, written = make_buffer(n_rows, 1, "box64"), tmp_path / "x.buffer", 0
    saved = SavedBuffer(path)
    fill([buffer], 500)
    saved.save(buffer)
    for i in range(n_saves):
        fill([buffer], n_each, seed=i)
        before = segments(path)
        saved.save(buffer, keep=1)
        written += sum(size for name, size in segments(path).items() if name not in before)
    step = 2 * 4 * 8 + 2 * 4 + 4  # observations, action, reward
    assert len(segments(path)) <= 12
    # Saves join small files, so a step is written about log2(50) times.
    assert written < n_saves * n_each * step * 7 + n_saves * 1_000
    assert n_bytes(path) < 1.6 * n_rows * (step + 24)
    before = segments(path)
    saved.save(buffer)
    assert segments(path) == before
    saved.save(buffer, full=True, keep=1)
    assert not before.keys() & segments(path).keys()


def test_a_buffer_that_is_1_percent_full_takes_1_percent_on_disk(tmp_path):
    buffer = make_buffer(200_000, 1)
    fill([buffer], 2_000)
    save_buffer(buffer, tmp_path / "x.buffer")
    assert n_bytes(tmp_path / "x.buffer") < 0.012 * len(pickle.dumps(buffer))


@pytest.mark.parametrize("copied", ["buffer", "directory", "frames", "rewards"])
def test_a_copy_writes_its_own_files(copied, tmp_path):
    """
    A copied buffer is not in the files, nor one whose frames were stored again or that was given another array. A copied
    ``SavedBuffer`` knows of no files.
    """
    kind = "frames" if copied == "frames" else "plain"
    buffer, saved = make(kind), SavedBuffer(tmp_path / "x.buffer")
    Player(buffer).play(9)
    saved.save(buffer)
    before = segments(saved.path)
    if copied == "buffer":
        buffer = copy.deepcopy(buffer)
    elif copied == "directory":
        saved = pickle.loads(pickle.dumps(saved))
    elif copied == "rewards":
        buffer.rewards = buffer.rewards + 1.0
    else:
        buffer = type(buffer).from_replay_buffer(buffer, frames={"image": 1})
        buffer = type(buffer).from_replay_buffer(buffer, frames=KINDS[kind][2]["frames"])
    Player(buffer, seed=1).play(3)
    saved.save(buffer, keep=1)
    assert not before.keys() & segments(saved.path).keys()
    loaded = load_buffer(make(kind), saved.path)
    n = buffer.size()
    np.testing.assert_array_equal(loaded.rewards[:n], buffer.rewards[:n])
    np.testing.assert_array_equal(loaded.masses, buffer.masses)


def test_a_loaded_buffer_adds_to_the_files_it_was_loaded_from(tmp_path):
    buffer, saved = make("plain", 2000), SavedBuffer(tmp_path / "x.buffer")
    Player(buffer).play(1000)
    save_buffer(buffer, saved.path)
    ((first, size),) = segments(saved.path).items()
    loaded = saved.load(make("plain", 2000))
    Player(loaded, seed=1).play(10)
    saved.save(loaded)
    assert segments(saved.path).pop(first) == size and sum(segments(saved.path).values()) < 1.05 * size
    assert_same(snapshot(load_buffer(make("plain", 2000), saved.path)), snapshot(loaded))


def test_numpy_alone_can_read_the_files(tmp_path):
    """A file has one array after the other, step ``s`` is in row ``s % n_rows``, and the manifest names no class of Python."""
    buffer, saved = make_buffer(50, 2, "dict"), SavedBuffer(tmp_path / "x.buffer")
    for n, num_timesteps in ((79, 140), (5, 150)):
        fill([buffer], n)
        saved.save(buffer, num_timesteps)
    text = sorted(saved.path.glob("gen-*.json"))[-1].read_text()
    manifest = json.loads(text)
    first, end = manifest["ranges"]["rows"]
    order = np.arange(first, end) % 50
    vectors = np.zeros((50, 2, 3), np.float32)
    for file in manifest["files"]:
        content, arrays, start = (saved.path / file["name"]).read_bytes(), {}, 0
        for name, dtype, shape in file["arrays"]:
            arrays[name] = np.frombuffer(content, dtype, int(np.prod(shape)), start).reshape(shape)
            start += arrays[name].nbytes
        assert start == len(content) == file["size"]
        if file["stream"] == "rows":
            vectors[np.arange(file["first"], file["end"]) % 50] = arrays["observations/vec"]
        else:
            np.testing.assert_array_equal(arrays["values"], buffer.masses[order])
            np.testing.assert_array_equal(arrays["dones"], buffer.dones[order])
    np.testing.assert_array_equal(vectors, buffer.observations["vec"])
    assert manifest["numbers"]["max_priority"] == 1.0
    settings = {"alpha": 0.6, "epsilon": 1e-6, "td_error_reduction": "mean"}
    assert manifest["format"] == 2 and manifest["about"]["kind"] == "dict transitions"
    assert manifest["about"]["scheme"] == {"name": "proportional", "settings": settings, "unit": "transition"}
    assert not any(name in text for name in ("Prioritized", "Proportional", "Box", "Dict", "gymnasium", "sb3_per"))


def test_an_older_generation_loads_by_its_manifest(tmp_path):
    buffer, saved, states = make("plain"), SavedBuffer(tmp_path / "x.buffer"), []
    for i in range(3):
        Player(buffer, seed=i).play(8)
        saved.save(buffer, i, keep=3)
        states.append(snapshot(buffer))
    for i, (manifest, state) in enumerate(zip(sorted(saved.path.glob("gen-*")), states, strict=True)):
        assert Manifest.read(manifest).num_timesteps == i
        assert_same(snapshot(load_buffer(make("plain"), manifest)), state)


# ---- what is refused


class WithFunction(Proportional):
    """A user's scheme, with a setting that is neither a number nor a text."""

    def __init__(self) -> None:
        super().__init__()
        self.function = np.tanh


def test_what_a_directory_cannot_hold_is_refused(tmp_path):
    """No file is written, and the directory is not made."""
    for buffer, arguments, message in (
        (make("plain"), dict(keep=0), "keep must be an integer of at least 1, not 0"),
        (make("plain"), dict(keep=1.5), "keep must be an integer of at least 1, not 1.5"),
        (make("her", copy_info_dict=True), {}, "Infos .*only be saved as a pickle.*leave out copy_info_dict"),
        (make("plain", scheme=WithFunction()), {}, "WithFunction.function is <ufunc 'tanh'>, which a directory cannot hold"),
    ):
        with pytest.raises(ValueError, match=message):
            SavedBuffer(tmp_path / "x.buffer").save(buffer, **arguments)
    assert not (tmp_path / "x.buffer").exists()


def test_arrays_of_a_users_class_that_are_left_out_are_named(tmp_path):
    for kind in KINDS:
        buffer = make(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            save_buffer(buffer, tmp_path / f"{kind}.buffer")
        buffer.costs = np.zeros((buffer.buffer_size, buffer.n_envs))
        with pytest.warns(UserWarning, match=f"does not hold what {type(buffer).__name__} keeps in costs: save"):
            save_buffer(buffer, tmp_path / f"{kind}.buffer")


def test_a_beta_that_could_not_be_loaded_is_refused_when_it_is_set():
    buffer = make("plain")
    for beta in (-0.1, 1.5, float("nan"), "1"):
        with pytest.raises(ValueError, match=r"beta must be a number in \[0, 1\]"):
            buffer.beta = beta
    assert buffer.beta == 0.4


@pytest.mark.parametrize("handle_timeout_termination", [True, False])
def test_an_episode_that_was_ended_is_not_continued_after_a_load(handle_timeout_termination, tmp_path):
    """Without ``handle_timeout_termination``, no flag marks its end."""

    def add(to: Any, is_last: bool) -> None:
        obs = Player(to).observation()
        to.add(obs, obs, np.zeros((1, 2)), np.zeros(1), np.array([is_last]), [{}])

    buffers = [make("her", n_envs=1, handle_timeout_termination=handle_timeout_termination) for _ in range(2)]
    for _ in range(3):
        add(buffers[0], False)
    buffers[0].end_episodes()
    save_buffer(buffers[0], tmp_path / "x.buffer")
    loaded = load_buffer(buffers[1], tmp_path / "x.buffer")
    for buffer in (buffers[0], loaded):
        for is_last in (False, False, False, True):
            add(buffer, is_last)
        np.testing.assert_array_equal(buffer.ep_length[:7, 0], [3, 3, 3, 4, 4, 4, 4])
        np.testing.assert_array_equal(buffer.ep_start[:7, 0], [0, 0, 0, 3, 3, 3, 3])


def test_settings_may_be_numbers_of_numpy(tmp_path):
    numbers = dict(n_envs=np.int64(2), alpha=np.float32(0.5), n_steps=np.int64(2), beta_anneal_steps=np.int32(50))
    made = [PrioritizedReplayBuffer(np.int64(20), VECTOR, ACTION, "cpu", **numbers) for _ in range(2)]
    Player(made[0]).play(6)
    made[0].sample(4)
    save_buffer(made[0], tmp_path / "x.buffer")
    loaded = load_buffer(made[1], tmp_path / "x.buffer")
    np.testing.assert_array_equal(loaded.masses, made[0].masses)
    assert loaded.beta == made[0].beta > 0.4
