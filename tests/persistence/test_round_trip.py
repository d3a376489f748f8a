"""A loaded buffer equals the saved one and draws the same batches. A save writes only new data."""

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.generations import Manifest, manifests_in
from tests.persistence.saved import KINDS, Player, assert_same, make, snapshot
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")


def assert_round_trip(buffer: Any, empty: Any, path: Path, **kwargs: Any) -> Any:
    """Save and load. Check that saving changes nothing and that the loaded buffer is equal, and return it."""
    before = snapshot(buffer)
    save_buffer(buffer, path, **kwargs)
    assert_same(snapshot(buffer), before)
    loaded = load_buffer(empty, path)
    assert_same(snapshot(loaded), before)
    return loaded


CHANGED: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {},
        dict(scheme="pal", n_envs=1, n_steps=1, beta_anneal_steps=None),
        dict(initial_priority="mean", n_envs=3),
        dict(scheme="lap", max_priority_interval=3, beta_anneal_steps=None),
        dict(unique=True, uniform_fraction=0.3, recency=0.9, recency_min=9),
        dict(scheme="uniform", beta_anneal_steps=None, handle_timeout_termination=False),
    ],
    "frames": [{}, dict(n_rows=64, n_envs=1)],
    "her": [{}, dict(scheme="rank", copy_info_dict=False, n_envs=3)],
    "rank": [{}, dict(alpha=0.5, stratified=False)],
    "memory": [{}, dict(n_steps=2)],
    "actors": [{}, dict(scheme="proportional")],
    "sequences": [{}, dict(scheme="rank", n_steps=2), dict(store_state=False, n_envs=1)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_buffer_equals_the_saved_one(kind, tmp_path):
    """
    Save and load several times, also after the ring has wrapped. The loaded buffer draws the same batches as the saved one.
    """
    for i, changed in enumerate(CHANGED[kind]):
        assert_round_trips(kind, changed, tmp_path / f"{i}.buffer")


def assert_round_trips(kind: str, changed: dict[str, Any], path: Path) -> None:
    buffer = make(kind, **changed)
    for i, n in enumerate([0, 1, 7, 30, 0, 100, 16, 3]):
        player = Player(buffer, seed=i)
        player.play(n)
        loaded = assert_round_trip(buffer, make(kind, **changed), path, num_timesteps=i)
        player = Player(buffer, loaded, seed=50 + i)
        for _ in range(3):
            drawn = player.learn()
            np.testing.assert_array_equal(*(drawn or [0, 0]))
            player.add(2)
        assert_same(snapshot(loaded), snapshot(buffer))
        buffer = loaded


@pytest.mark.parametrize("obs_space", OBSERVATION_SPACES)
def test_buffers_of_all_spaces_can_be_saved_and_loaded(obs_space, tmp_path):
    for action_space in ACTION_SPACES:
        buffer = make_buffer(20, 2, obs_space, action_space)
        for n in (13, 20):
            fill([buffer], n, seed=n)
            assert_round_trip(buffer, make_buffer(20, 2, obs_space, action_space), tmp_path / f"{action_space}.buffer")


def test_a_loaded_buffer_shares_frames_like_the_saved_one(tmp_path):
    """A stored observation shares its frames with the next ones, so a step needs about one frame."""
    buffer = make("frames")
    Player(buffer, seed=1).add(40)
    loaded = assert_round_trip(buffer, make("frames"), tmp_path / "x.buffer")
    Player(buffer, loaded, seed=2).add(20)
    assert loaded.frames_per_transition == buffer.frames_per_transition
    for name, store in buffer.storage.frame_stores.items():
        pool = loaded.storage.frame_stores[name].pool
        assert (pool.first, pool.end) == (store.pool.first, store.pool.end)


STEPS = st.lists(
    st.one_of(st.integers(0, 30), st.sampled_from(["reset", "save", "full", "load", "learn", "fresh", "cut"])), max_size=14
)


@settings(max_examples=40, deadline=None)
@given(script=STEPS, kind=st.sampled_from(sorted(KINDS)), keep=st.integers(1, 3), seed=st.integers(0, 99))
def test_increments_equal_a_full_save(script, kind, keep, seed, tmp_path_factory):
    """A random chain of saves, resets, new steps and loads in two directories equals one full save at the end."""
    folder = tmp_path_factory.mktemp("chain")
    buffer = make(kind)
    for i, action in enumerate(script):
        path, player = folder / f"{'ab'[i % 2]}.buffer", Player(buffer, seed=seed + i)
        if action == "reset":
            buffer.reset()
        elif action == "cut":
            buffer.end_episodes()
        elif action == "learn":
            player.learn()
        elif action in ("save", "full"):
            assert_round_trip(buffer, make(kind), path, full=action == "full", keep=keep)
            assert len(manifests_in(path)) <= keep
        elif action == "load" and path.exists():
            buffer = load_buffer(buffer, path)
        elif action == "fresh":
            # Continue with an unpickled buffer, which does not know the files of earlier saves.
            env, buffer = getattr(buffer, "env", None), pickle.loads(pickle.dumps(buffer))
            buffer.env = env
        elif isinstance(action, int):
            player.add(action)
    for path, full in ((folder / "a.buffer", False), (folder / "c.buffer", True)):
        assert_round_trip(buffer, make(kind), path, full=full)


# ---- size of the files


def n_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path))


def segments(path: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.name.startswith("seg")}


def test_a_save_writes_only_new_steps(tmp_path):
    """
    Each step is written a few times at most. The directory has few files, and is little larger than the buffer's contents.
    """
    buffer = make_buffer(2_000, 1, "box64")
    path, written = tmp_path / "x.buffer", 0
    fill([buffer], 1_000)
    save_buffer(buffer, path)
    for i in range(100):
        fill([buffer], 20, seed=i)
        before = segments(path)
        save_buffer(buffer, path, keep=1)
        written += sum(size for name, size in segments(path).items() if name not in before)
    step = 2 * 4 * 8 + 2 * 4 + 4  # observations, action, reward
    assert len(segments(path)) <= 12
    # Saves join small files, so a step is written about log2(100) times.
    assert written < 100 * 20 * step * 8 + 100 * 100 * 10
    assert n_bytes(path) < 1.5 * 2_000 * (step + 24)
    before = segments(path)
    save_buffer(buffer, path)
    assert segments(path) == before


def test_only_incomplete_rows_are_written_again(tmp_path):
    """A row is incomplete until all environments have written their step of it."""
    buffer, path = make("actors", 200), tmp_path / "x.buffer"
    player = Player(buffer)
    player.add(100)
    save_buffer(buffer, path)
    first, ring = segments(path), buffer.ring
    assert ring.least < ring.most
    (whole,) = [name for name in first if int(name.split("-")[3].split(".")[0]) < ring.least]
    player.add(1)
    save_buffer(buffer, path, keep=1)
    assert whole in segments(path) and not (set(first) - {whole}) & segments(path).keys()
    assert_same(snapshot(load_buffer(make("actors", 200), path)), snapshot(buffer))


def test_a_buffer_that_is_1_percent_full_takes_1_percent_on_disk(tmp_path):
    buffer = make_buffer(200_000, 1)
    fill([buffer], 2_000)
    save_buffer(buffer, tmp_path / "x.buffer")
    assert n_bytes(tmp_path / "x.buffer") < 0.012 * len(pickle.dumps(buffer))


def test_a_copy_writes_its_own_files(tmp_path):
    """A deep copy and an unpickled buffer do not refer to the files of the original."""
    buffer, path = make("plain"), tmp_path / "x.buffer"
    Player(buffer).play(9)
    save_buffer(buffer, path)
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        before = segments(path)
        Player(twin, seed=1).play(3)
        save_buffer(twin, path, keep=1)
        assert not before.keys() & segments(path).keys()
        assert_same(snapshot(load_buffer(make("plain"), path)), snapshot(twin))


def test_a_loaded_buffer_adds_to_the_files_it_was_loaded_from(tmp_path):
    buffer, path = make("plain", 2000), tmp_path / "x.buffer"
    Player(buffer).play(1000)
    save_buffer(buffer, path)
    ((first, size),) = segments(path).items()
    loaded = load_buffer(make("plain", 2000), path)
    Player(loaded, seed=1).play(10)
    save_buffer(loaded, path)
    assert segments(path).pop(first) == size and sum(segments(path).values()) < 1.05 * size
    assert_same(snapshot(load_buffer(make("plain", 2000), path)), snapshot(loaded))


def test_numpy_alone_can_read_the_files(tmp_path):
    """Files are npz, and step ``s`` is in row ``s % n_rows``."""
    buffer, path = make_buffer(50, 2, "dict"), tmp_path / "x.buffer"
    for n, num_timesteps in ((79, 140), (5, 150)):
        fill([buffer], n)
        save_buffer(buffer, path, num_timesteps)
    manifest = json.loads(sorted(path.glob("gen-*.json"))[-1].read_text())
    vectors = np.zeros((50, 2, 3), np.float32)
    for part in manifest["parts"]:
        with np.load(path / part["name"], allow_pickle=False) as arrays:
            if part["stream"] == "rows":
                vectors[np.arange(part["first"], part["end"]) % 50] = arrays["observations.vec"]
            else:
                np.testing.assert_array_equal(
                    arrays["sampler/masses"].reshape(50, 2), snapshot(buffer)["sampler/masses"].reshape(50, 2)
                )
                np.testing.assert_array_equal(arrays["dones"], buffer.dones)
    np.testing.assert_array_equal(vectors, buffer.observations["vec"])
    assert manifest["numbers"]["sampler/max_priority"] == 1.0


def test_an_older_generation_loads_by_its_manifest(tmp_path):
    buffer, path, states = make("plain"), tmp_path / "x.buffer", []
    for i in range(3):
        Player(buffer, seed=i).play(8)
        save_buffer(buffer, path, i, keep=3)
        states.append(snapshot(buffer))
    for i, (manifest, state) in enumerate(zip(sorted(path.glob("gen-*")), states, strict=True)):
        assert Manifest.read(manifest).num_timesteps == i
        assert_same(snapshot(load_buffer(make("plain"), manifest)), state)


# ---- what is refused


def test_a_bad_keep_is_refused(tmp_path):
    for value in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"keep must be an integer of at least 1, not {value!r}"):
            save_buffer(make_buffer(), tmp_path / "x.buffer", keep=value)
    assert not (tmp_path / "x.buffer").exists()


@pytest.mark.parametrize("value, name", [([{"x": object()}], "object"), ({"__array__": 5}, "dict")])
def test_infos_that_need_a_pickle_are_refused(value, name, tmp_path):
    """No file is written."""
    buffer, path = make("her"), tmp_path / "x.buffer"
    Player(buffer).play(6)
    save_buffer(buffer, path)
    buffer.infos[0, 0] = {"deep": value}
    before = sorted(os.listdir(path))
    with pytest.raises(ValueError, match=rf"info\['deep'\].*{name}.* can only be saved as a pickle"):
        save_buffer(buffer, path, full=True)
    assert sorted(os.listdir(path)) == before


@pytest.mark.parametrize("scheme", ["proportional", "lap", "pal", "uniform"])
def test_masses_with_age_decay_come_back_up_to_rounding(scheme, tmp_path):
    """The files hold masses without the age. Without masses by priority, and in a pickle, the numbers are the same."""
    buffer = make_buffer(10, 2, scheme=scheme, age_decay=3.0)
    fill([buffer], 25)
    for seed in range(5):
        ids = buffer.sample(8).indices
        buffer.update_priorities(ids, np.random.default_rng(seed).normal(size=8))
        fill([buffer], 2, seed=seed)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make_buffer(10, 2, scheme=scheme, age_decay=3.0), tmp_path / "x.buffer")
    tolerance = 1e-13 if scheme in ("proportional", "lap") else 0.0
    np.testing.assert_allclose(loaded.priorities, buffer.priorities, rtol=tolerance, atol=0.0)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(buffer)).priorities, buffer.priorities)
