"""Buffers whose transitions are in files of a folder: the same batches, one buffer a folder, and a full disk."""

import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import (
    PERDQN,
    PERSAC,
    PERRecurrentDQN,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.storage import mapped
from tests.helpers.buffers import assert_same_batches, assert_same_state, contents_of, fill, make_buffer
from tests.helpers.forks import Fork, owner_of
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.project import ROOT
from tests.helpers.steps import KINDS, files_in, filled, make_of_kind, step_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The buffer has .* demonstrations"),
    pytest.mark.filterwarnings("ignore:frames="),
    pytest.mark.filterwarnings("ignore:The newest episodes"),
    pytest.mark.usefixtures("small_heap"),
]


def in_folder(buffer: Any, folder: Path) -> Any:
    """Move a buffer into a folder."""
    return type(buffer).from_replay_buffer(buffer, storage_folder=str(folder))


@pytest.mark.parametrize("kind", ["optimize_memory", "separate, dict, frames", "her, infos", "sequences, dict"])
def test_a_buffer_in_a_folder_gives_the_same_batches(kind, tmp_path, monkeypatch):
    """Compare with a twin in RAM, to the bit, over laps, updates, copies and saves."""
    framed_or_plain = filled(kind, 0) if "separate" not in kind else KINDS[kind]()
    buffers = [framed_or_plain, make_of_kind(kind, monkeypatch, tmp_path / "folder")]
    assert isinstance(buffers[1].actions.base, np.ndarray) and files_in(tmp_path / "folder")
    for i in range(23):
        batches = []
        for buffer in buffers:
            buffer.add(**step_of(buffer, i))
            if "separate" in kind and i % 4 == 3:
                rows = {name: part for name, part in step_of(buffer).items() if name in ("obs", "next_obs")}
                one = {
                    name: {key: part[None, :1] for key, part in each.items()} if isinstance(each, dict) else each[None, :1]
                    for name, each in rows.items()
                }
                zeros = np.zeros((1, 1))
                buffer.add_steps(np.array([1]), **one, actions=np.zeros((1, 1, 2)), rewards=zeros, dones=zeros, timeouts=zeros)
            if i == 14 and not kind.startswith("seq") and not buffer.optimize_memory_usage:
                buffer.add_demonstrations(**{name: [part] * 2 for name, part in step_of(buffer, 3).items()})
            if i == 16:
                buffer.reset()
            if buffer.masses.any():
                np.random.seed(i)
                batches.append(buffer.sample(5))
                errors = np.ones((2, 5)) if "sequences" in kind else np.arange(5.0)
                buffer.update_priorities(batches[-1].indices, errors)
        if batches:
            assert_same_batches(*batches)
    stored = [contents_of(buffer) for buffer in buffers]
    for content in stored:
        del content["settings"]
    assert_same_state(stored[1], stored[0])


@pytest.mark.filterwarnings("ignore:The disk of storage_folder")  # a full buffer would take 2 GB; this one stays small
def test_files_hold_the_large_arrays_and_grow_with_the_buffer(tmp_path):
    """A new buffer takes no space on the disk, and one that is filled takes its size."""
    box = spaces.Box(0, 255, (100, 100), np.uint8)
    buffer = PrioritizedReplayBuffer(100_000, box, spaces.Discrete(2), "cpu", storage_folder=tmp_path)

    def n_bytes_on_disk() -> int:
        return sum(os.stat(path).st_blocks * 512 for path in files_in(tmp_path))

    assert sum(path.stat().st_size for path in files_in(tmp_path)) > 2e9
    assert n_bytes_on_disk() == 0
    obs = np.ones((1, 100, 100), np.uint8)
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert 20_000 < n_bytes_on_disk() < 80 * 2**20
    for array in (buffer.observations, buffer.next_observations, buffer.actions):
        assert array.flags.writeable and len(array) == 100_000
    np.testing.assert_array_equal(buffer.sample(2).observations, 1)


# ---- one buffer a folder


def test_two_buffers_cannot_have_one_folder(tmp_path):
    first = make_buffer(storage_folder=tmp_path / "folder")
    with pytest.raises(OSError, match=rf"'{tmp_path}/folder' belongs to another buffer \(process {os.getpid()}\)"):
        make_buffer(storage_folder=str(tmp_path / "folder"))
    fill([first], 5)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder")
    with pytest.raises(mapped.FolderInUseError):
        make_buffer(storage_folder=link)
    assert first.size() == 5
    del first
    gc.collect()
    fill([make_buffer(storage_folder=tmp_path / "folder")], 5)


def test_the_folder_is_removed_with_the_buffer(tmp_path):
    """A view that somebody still holds keeps its file; files of others stay."""
    folder = tmp_path / "new" / "folder"
    buffer = make_buffer(storage_folder=folder, obs_space="image", frames=2)
    fill([buffer], 15)
    buffer.add_demonstrations_from(copy.deepcopy(buffer))
    assert len(files_in(folder)) > 3
    actions, expected = buffer.actions, buffer.actions.copy()
    del buffer
    gc.collect()
    assert len(files_in(folder)) == 1
    np.testing.assert_array_equal(actions, expected)
    del actions
    gc.collect()
    assert not folder.exists() and folder.parent.exists()
    folder.mkdir()
    (folder / "mine").write_text("mine")
    buffer = make_buffer(storage_folder=folder)
    del buffer
    gc.collect()
    assert [path.name for path in folder.iterdir()] == ["mine"]


CHILD = """
import os, sys
from tests.helpers.buffers import fill, make_buffer
buffer = make_buffer(2_000, storage_folder=sys.argv[1])
fill([buffer], 100)
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.exit()
"""


def test_what_a_killed_process_left_is_removed(tmp_path):
    """While it lives, the folder is its own; a kill leaves files; the next buffer removes them."""
    process = Fork(lambda: make_buffer(storage_folder=tmp_path / "folder"))
    assert process.result() is None
    with pytest.raises(OSError, match=rf"belongs to another buffer \(process {process.pid}\)"):
        make_buffer(storage_folder=tmp_path / "folder")
    left = files_in(tmp_path / "folder")
    process.kill()
    assert len(left) == 3 and all(path.exists() for path in left)
    buffer = make_buffer(storage_folder=tmp_path / "folder")
    assert len(files_in(tmp_path / "folder")) == 3 and not any(path.exists() for path in left)
    fill([buffer], 5)
    buffer.sample(3)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["end", "fork"])
def test_a_process_that_ends_leaves_nothing(what, tmp_path):
    """A forked process that ends first removes nothing."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "folder"), what], cwd=ROOT)
    assert done.returncode == 0
    assert not (tmp_path / "folder").exists()


# ---- a full disk


@pytest.mark.parametrize("kind", ["optimize_memory", "dict, frames", "her", "sequences"])
def test_a_full_disk_is_an_error_before_the_step_is_stored(kind, tmp_path, monkeypatch):
    buffer, twin = make_of_kind(kind, monkeypatch, tmp_path / "folder"), KINDS[kind]()

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"folder' has no room for the next transitions, of which none is stored \(No space"):
            buffer.add(**step_of(buffer, 0))
    for i in range(9):
        assert buffer.ring.max_next_step == i
        assert_same_state(buffer.state(), twin.state())
        for each in (buffer, twin):
            each.add(**step_of(buffer, i))
    assert_same_state(contents_of(buffer)["observations"], contents_of(twin)["observations"])


LIMITED = """
import resource, sys
import numpy as np
from gymnasium import spaces
from sb3_per import PrioritizedReplayBuffer

resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
frames = int(sys.argv[2]) or None
box = spaces.Box(0, 255, (2, 64, 64), np.uint8)
buffer = PrioritizedReplayBuffer(40 if frames is None else 100_000, box, spaces.Discrete(2), "cpu", frames=frames,
                                 storage_folder=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("frames", [0, 2])
def test_a_limit_of_the_system_is_an_error_and_no_signal(frames, tmp_path):
    """Files may have 1 MiB here. Arrays have their whole size when they are made, and a pool of frames grows."""
    add = "obs = np.ones((1, 2, 64, 64), np.uint8)\nbuffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])\n"
    larger = "PrioritizedReplayBuffer(400, box, spaces.Discrete(2), storage_folder=sys.argv[1] + '2')"
    program = LIMITED + (add if frames else larger)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "folder"), str(frames)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "OSError" in done.stderr and "has no room for the next transitions" in done.stderr, done.stderr


# ---- copies and saves


@pytest.mark.parametrize("how, frames", [("pickle", None), ("deepcopy", 2)])
def test_a_copy_has_files_of_its_own_in_the_same_folder(how, frames, tmp_path):
    buffer = make_buffer(8, 2, "image", frames=frames, storage_folder=tmp_path / "folder")
    fill([buffer], 11)
    n_files = len(files_in(tmp_path / "folder"))
    twin = copy.deepcopy(buffer) if how == "deepcopy" else pickle.loads(pickle.dumps(buffer))
    assert len(files_in(tmp_path / "folder")) >= 2 * n_files - 1  # frames that hold nothing yet are not copied
    assert_same_state(contents_of(twin), contents_of(buffer))
    fill([twin], 3, seed=1)
    assert twin.ring.max_next_step == 14 and buffer.ring.max_next_step == 11
    assert not np.array_equal(np.asarray(twin.observations), np.asarray(buffer.observations))
    for each in (twin, buffer):
        assert each.observations is each.storage.observations
        each.sample(3)
    del twin
    gc.collect()
    assert len(files_in(tmp_path / "folder")) == n_files


def test_a_pickle_whose_folder_is_taken_loads_into_ram(tmp_path):
    buffer = make_buffer(8, storage_folder=tmp_path / "folder")
    fill([buffer], 5)
    content = pickle.dumps(buffer)
    expected = contents_of(buffer)
    del buffer
    gc.collect()
    with owner_of(tmp_path / "folder"):
        with pytest.warns(UserWarning, match="This copy of a buffer keeps its transitions in RAM: .* belongs to another"):
            loaded = pickle.loads(content)
        assert loaded.storage.folder is None
        assert_same_state(contents_of(loaded), expected)
        fill([loaded], 5)
    loaded = pickle.loads(content)
    assert loaded.storage.folder.path == tmp_path / "folder"
    assert_same_state(contents_of(loaded), expected)


@pytest.mark.parametrize(
    "kind, n_steps",
    [("plain", 0), ("optimize_memory", 15), ("dict, frames", 15), ("sequences", 4)],
)
def test_directories_are_the_same_with_and_without_a_folder(kind, n_steps, tmp_path, monkeypatch):
    """What one saves, the other loads, and saves again."""
    plain, other = KINDS[kind](), make_of_kind(kind, monkeypatch, tmp_path / "folder")
    for i in range(n_steps):
        for buffer in (plain, other):
            buffer.add(**step_of(buffer, i))
    save_buffer(plain, tmp_path / "plain.buffer")
    save_buffer(other, tmp_path / "other.buffer")
    loaded = [load_buffer(other, tmp_path / "plain.buffer"), load_buffer(plain, tmp_path / "other.buffer")]
    assert [buffer.storage.folder is None for buffer in loaded] == [False, True]
    for buffer in (plain, other, *loaded):
        for i in (20, 21):
            buffer.add(**step_of(buffer, i))
    expected = contents_of(plain)
    for buffer in (other, *loaded):
        found = contents_of(buffer)
        for name in expected.keys() - {"settings"}:
            assert_same_state(found[name], expected[name])


def test_conversion_moves_transitions_into_a_folder_and_out_of_it(tmp_path):
    buffer = make_buffer(8, 2, "image")
    fill([buffer], 11)
    expected = contents_of(buffer)
    moved = in_folder(copy.deepcopy(buffer), tmp_path / "folder")
    other = type(moved).from_replay_buffer(moved, alpha=0.6, n_steps=3)
    assert other.storage is moved.storage and other.n_steps == 3
    framed = type(moved).from_replay_buffer(other, frames=2)
    assert framed.storage.folder is moved.storage.folder
    back = type(moved).from_replay_buffer(framed, frames=None, n_steps=1, storage_folder=None)
    assert back.storage.folder is None and back.settings.storage_folder is None
    found = contents_of(back)
    for name in expected.keys() - {"settings"}:
        assert_same_state(found[name], expected[name])


# ---- whole runs


RUNS: dict[str, Any] = {
    "sac": (PERSAC, "MlpPolicy", lambda: make_vec_env("Pendulum-v1", 2), {}),
    "dqn": (PERDQN, "MlpPolicy", lambda: make_vec_env("CartPole-v1", 1), dict(n_steps=3)),
    "her": (
        PERDQN,
        "MultiInputPolicy",
        lambda: make_vec_env(lambda: BitFlippingEnv(4, max_steps=5), 2),
        dict(replay_buffer_class=PrioritizedHerReplayBuffer),
    ),
    "recurrent": (
        PERRecurrentDQN,
        "MlpLstmPolicy",
        lambda: make_vec_env("CartPole-v1", 2),
        dict(sequence_length=4, burn_in=2),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("dqn", "sac") else ()) for name in RUNS]
)
def test_a_run_with_a_folder_gives_the_same_parameters(name, tmp_path):
    cls, policy, make_env, kwargs = RUNS[name]
    found = []
    for folder in (None, tmp_path / "folder"):
        model = cls(
            policy,
            make_env(),
            buffer_size=80,
            learning_starts=30,
            batch_size=8,
            replay_buffer_kwargs=dict(storage_folder=folder),
            seed=0,
            **kwargs,
        ).learn(120)
        found.append(model)
    assert found[1].replay_buffer.storage.folder.path == tmp_path / "folder"
    for key, value in found[0].policy.state_dict().items():
        assert th.equal(value, found[1].policy.state_dict()[key]), key


def test_a_model_and_its_buffer_can_be_saved_and_loaded(tmp_path):
    """A second model of the same zip leaves the folder to the first one, and can be evaluated."""
    kwargs: dict[str, Any] = dict(storage_folder=str(tmp_path / "folder"))
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=10, replay_buffer_kwargs=kwargs, seed=0)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "pickle")
    model.save_replay_buffer(tmp_path / "saved.buffer")
    expected = contents_of(model.replay_buffer)
    with pytest.warns(UserWarning, match="The loaded model keeps its transitions in RAM: .* belongs to another buffer"):
        second = PERDQN.load(tmp_path / "model")
    second.predict(np.zeros(4))
    second.load_replay_buffer(tmp_path / "saved.buffer")
    assert second.replay_buffer.storage.folder is None
    del model, second
    gc.collect()
    assert not (tmp_path / "folder").exists()
    with no_user_warnings():
        model = PERDQN.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
        for name in ("saved.buffer", "pickle"):
            model.load_replay_buffer(tmp_path / name)
            assert model.replay_buffer.storage.folder.path == tmp_path / "folder"
            assert_same_state(contents_of(model.replay_buffer), expected)
        model.learn(20, reset_num_timesteps=False)
    with pytest.raises(OSError, match="belongs to another"):
        PERDQN.load(tmp_path / "model", replay_buffer_kwargs=kwargs)


# ---- warnings


@pytest.mark.parametrize("frames", [None, 2])
def test_a_buffer_larger_than_the_free_memory_warns(frames, monkeypatch, tmp_path):
    """As SB3's do; with a folder, the space on its disk counts."""
    box = spaces.Box(0, 255, (2, 64, 64), np.uint8)
    n_bytes = 10_000 * 4096 * (1 if frames else 4)
    memory = psutil.virtual_memory()
    make = lambda **kwargs: PrioritizedReplayBuffer(10_000, box, spaces.Discrete(2), "cpu", frames=frames, **kwargs)  # noqa: E731
    for available, is_too_small in ((n_bytes, True), (int(n_bytes * 1.1), False)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda available=available: memory._replace(available=available))
        with caught_user_warnings() as caught:
            make()
        assert len(caught) == is_too_small, caught
        assert all("not have apparently enough memory" in each for each in caught)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=n_bytes // 8))
    with no_user_warnings():
        make(storage_folder=tmp_path / "folder")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": n_bytes // 2})())
    with pytest.warns(UserWarning, match="has 0.0[0-9]GB of free space, and the complete replay buffer takes 0.[01][0-9]GB"):
        make(storage_folder=tmp_path / "other")


def test_a_folder_that_is_no_path_or_cannot_be_made_is_an_error(tmp_path):
    for value in (3, ""):
        with pytest.raises(ValueError, match="storage_folder must be None or a path"):
            make_buffer(storage_folder=value)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_buffer(storage_folder=tmp_path / "file")
