"""Who may write into a storage folder: forked processes, other processes, several buffers in a row, and copies."""

import contextlib
import copy
import errno
import fcntl
import gc
import operator
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.storage.mapped import Folder, FolderInUseError
from tests.helpers.buffers import assert_same_batches, assert_same_state, contents_of, fill, make_buffer
from tests.helpers.forks import Fork, in_fork, owner_of
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.project import ROOT
from tests.helpers.steps import files_in, make_of_kind, step_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The loaded buffer has other settings"),
    pytest.mark.filterwarnings("ignore:frames="),
    pytest.mark.usefixtures("small_heap"),
]

# ---- forked processes


@pytest.mark.parametrize("kind", ["optimize_memory", "separate, dict, frames", "sequences"])
def test_a_forked_process_reads_and_cannot_write(kind, tmp_path, monkeypatch):
    buffer = make_of_kind(kind, monkeypatch, tmp_path / "folder")
    for i in range(9):
        buffer.add(**step_of(buffer, i))
    buffer.masses  # noqa: B018
    before, state = contents_of(buffer), np.random.get_state()
    in_other = in_fork(lambda: buffer.sample(5))
    np.random.set_state(state)
    assert_same_batches(in_other, buffer.sample(5))

    error = in_fork(lambda: buffer.add(**step_of(buffer, 9)))
    assert isinstance(error, FolderInUseError), error
    assert f"folder' belongs to process {os.getpid()}, and process " in str(error)
    if kind == "optimize_memory":
        steps = {name: part[None] for name, part in step_of(buffer, 9).items() if name in ("obs", "next_obs")}
        zeros = np.zeros((1, 2))
        steps = dict(steps, actions=np.zeros((1, 2, 2)), rewards=zeros, dones=zeros, timeouts=zeros)
        assert isinstance(in_fork(lambda: buffer.add_steps(np.arange(2), **steps)), FolderInUseError)
    assert isinstance(in_fork(lambda: operator.setitem(buffer.actions, ..., 0)), ValueError)  # it is read-only
    assert_same_state(contents_of(buffer), before)
    buffer.add(**step_of(buffer, 9))
    assert buffer.ring.max_next_step == 10


def test_a_forked_process_cannot_write_demonstrations(tmp_path):
    """Neither where there is room, nor into new files."""
    buffer = make_buffer(storage_folder=tmp_path / "folder")
    fill([buffer], 9)
    other = make_buffer()
    fill([other], 3)
    for _ in range(2):
        n_files = len(files_in(tmp_path / "folder"))
        assert isinstance(in_fork(lambda: buffer.add_demonstrations_from(other)), FolderInUseError)
        assert len(files_in(tmp_path / "folder")) == n_files
        buffer.add_demonstrations_from(other)


@pytest.mark.parametrize("how, frames", [("deepcopy", 2), ("pickle", None), ("from_replay_buffer", 2)])
def test_a_copy_in_a_forked_process_is_in_ram(how, frames, tmp_path):
    """It can be written to, and the files of the parent stay as they are."""
    buffer = make_buffer(8, 2, "image", frames=frames, storage_folder=tmp_path / "folder")
    fill([buffer], 11)
    before = contents_of(buffer)
    copied: dict[str, Callable[[], Any]] = {
        "deepcopy": lambda: copy.deepcopy(buffer),
        "pickle": lambda: pickle.loads(pickle.dumps(buffer)),
        "from_replay_buffer": lambda: type(buffer).from_replay_buffer(buffer, n_steps=2),
    }

    def write_to_a_copy() -> Any:
        with caught_user_warnings() as caught:
            twin = copied[how]()
        found = contents_of(twin)
        fill([twin], 3, seed=1)
        return caught, found, repr(twin)

    caught, found, text = in_fork(write_to_a_copy)
    assert len(caught) == 1 and "This copy of a buffer keeps its transitions in RAM" in caught[0]
    assert "storage_folder" not in text
    for name in before.keys() - {"settings", "returns"}:
        assert_same_state(found[name], before[name])
    assert_same_state(contents_of(buffer), before)
    assert buffer.storage.folder is not None


def test_a_forked_process_does_not_keep_the_folder_of_a_killed_one(tmp_path):
    """The fork lives on, and a new buffer takes the folder."""

    kept: list[Any] = []

    def make_and_fork() -> int:
        kept.append(make_buffer(storage_folder=tmp_path / "folder"))
        fill(kept, 5)
        return Fork(lambda: None).pid

    owner = Fork(make_and_fork)
    fork = owner.result()
    try:
        with pytest.raises(FolderInUseError, match=rf"\(process {owner.pid}\)"):
            make_buffer(storage_folder=tmp_path / "folder")
        owner.kill()
        assert psutil.Process(fork).status() != psutil.STATUS_ZOMBIE
        fill([make_buffer(storage_folder=tmp_path / "folder")], 5)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_forked_process_that_ends_removes_nothing(tmp_path):
    """Nor does it when it drops the buffer, and makes one of its own."""
    holder = [make_buffer(storage_folder=tmp_path / "folder")]
    fill(holder, 5)
    before = sorted((tmp_path / "folder").iterdir())

    def drop() -> Any:
        holder.clear()
        gc.collect()
        fill([make_buffer(storage_folder=tmp_path / "other")], 5)
        with pytest.raises(FolderInUseError):
            make_buffer(storage_folder=tmp_path / "folder")

    assert in_fork(drop) is None
    assert sorted((tmp_path / "folder").iterdir()) == before and not (tmp_path / "other").exists()
    with pytest.raises(FolderInUseError):
        make_buffer(storage_folder=tmp_path / "folder")


# ---- one buffer after another


def test_models_in_a_row_may_have_the_same_folder(tmp_path):
    """After ``learn``, SB3's callbacks keep a deleted model alive until the garbage is collected."""
    kwargs = dict(storage_folder=tmp_path / "folder")
    gc.disable()
    try:
        for _ in range(3):
            model = PERDQN("MlpPolicy", make_vec_env("CartPole-v1"), learning_starts=5, replay_buffer_kwargs=kwargs)
            model.learn(10)
            model.save(tmp_path / "model")
            del model
        with no_user_warnings():
            model = PERDQN.load(tmp_path / "model")
        assert model.replay_buffer.storage.folder.path == tmp_path / "folder"
    finally:
        gc.enable()


def test_processes_that_race_for_a_folder_take_it_or_are_refused(tmp_path):
    """Each takes the folder and releases it, which removes it, many times. There is no other error than a refusal."""

    def race() -> int:
        n_taken = 0
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            with contextlib.suppress(FolderInUseError):
                folder = Folder(tmp_path / "folder")
                assert os.listdir(folder.path) == ["sb3_per.lock"]
                del folder
                n_taken += 1
        return n_taken

    forks = [Fork(race) for _ in range(2)]
    try:
        found = [race(), *(fork.result() for fork in forks)]
    finally:
        for fork in forks:
            fork.kill()
    assert all(isinstance(n_taken, int) and n_taken > 0 for n_taken in found), found
    assert not (tmp_path / "folder").exists()


def test_a_folder_that_another_process_removes_in_between_is_made_again(tmp_path, monkeypatch):
    for module, step in ((os, "makedirs"), (os, "open"), (fcntl, "flock")):
        path = tmp_path / step
        original, n_calls = getattr(module, step), 0

        def and_remove(*args: Any, original: Any = original, path: Any = path, **kwargs: Any) -> Any:
            nonlocal n_calls
            result = original(*args, **kwargs)
            n_calls += 1
            if n_calls == 1:
                shutil.rmtree(path)
            return result

        with monkeypatch.context() as patch:
            patch.setattr(module, step, and_remove)
            folder = Folder(path)
        assert n_calls > 1 and os.listdir(folder.path) == ["sb3_per.lock"]
        with pytest.raises(FolderInUseError):
            Folder(path)


# ---- copies of a busy folder


def test_copies_are_in_ram_while_another_process_has_the_folder(tmp_path):
    """A load, a load with other settings, and a conversion have one rule; ``repr`` names no folder then."""
    kwargs = dict(storage_folder=tmp_path / "folder")

    def save() -> None:
        model = PERDQN(
            "MlpPolicy", make_vec_env("CartPole-v1"), learning_starts=5, buffer_size=50, replay_buffer_kwargs=kwargs
        )
        model.learn(20)
        assert f"storage_folder={tmp_path}/folder" in repr(model.replay_buffer)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer.pkl")

    save()
    gc.collect()
    with owner_of(tmp_path / "folder"):
        with pytest.warns(UserWarning, match="The loaded model keeps its transitions in RAM"):
            model = PERDQN.load(tmp_path / "model", n_steps=3)
        with pytest.warns(
            UserWarning, match="This copy of a buffer keeps its transitions in RAM: .* belongs to another buffer"
        ):
            model.load_replay_buffer(tmp_path / "buffer.pkl")
        buffers = [model.replay_buffer]
        assert buffers[0].n_steps == 3 and buffers[0].size() == 20
        with no_user_warnings():  # it was said already
            buffers.append(PrioritizedReplayBuffer.from_replay_buffer(buffers[0], alpha=0.3))
            buffers.append(copy.deepcopy(buffers[1]))
        for buffer in buffers:
            assert buffer.storage.folder is None and "storage_folder" not in repr(buffer)
            buffer.sample(3)
    assert os.listdir(tmp_path / "folder")  # of the killed process
    model = PERDQN.load(tmp_path / "model", n_steps=3)
    with pytest.warns(UserWarning, match="n_steps=1"):
        model.load_replay_buffer(tmp_path / "buffer.pkl")
    assert model.replay_buffer.storage.folder.path == tmp_path / "folder"


# ---- paths


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    """Copies, and frames beyond those that were stored, need new files."""
    folder = tmp_path / "folder"
    buffer = make_buffer(20, 2, "image", frames=2, storage_folder=folder)
    fill([buffer], 3)
    content, before = pickle.dumps(buffer), contents_of(buffer)
    shutil.rmtree(folder)
    twins = [pickle.loads(content), copy.deepcopy(buffer)]
    for twin in twins:
        assert twin.storage.folder is buffer.storage.folder
        assert_same_state(contents_of(twin), before)
    with pytest.raises(FolderInUseError):
        make_buffer(storage_folder=folder)
    shutil.rmtree(folder)
    fill([buffer, *twins], 30)
    for twin in twins:
        assert_same_state(contents_of(twin), contents_of(buffer))
    del buffer, twins, twin
    gc.collect()
    assert not folder.exists()


def test_a_copy_is_in_ram_if_another_process_has_taken_the_removed_folder(tmp_path):
    buffer = make_buffer(storage_folder=tmp_path / "folder")
    fill([buffer], 5)
    shutil.rmtree(tmp_path / "folder")
    with owner_of(tmp_path / "folder"):
        with pytest.warns(UserWarning, match="This copy of a buffer keeps its transitions in RAM"):
            twin = copy.deepcopy(buffer)
        assert twin.storage.folder is None
        assert_same_state(contents_of(twin), contents_of(buffer))


def test_a_relative_path_is_that_of_the_directory_where_the_buffer_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs = dict(storage_folder="folder")
    model = PERDQN("MlpPolicy", make_vec_env("CartPole-v1"), learning_starts=5, replay_buffer_kwargs=kwargs)
    assert kwargs == dict(storage_folder="folder")
    model.learn(10)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.save(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with no_user_warnings():
        model.load_replay_buffer(tmp_path / "buffer.pkl")
    buffer = type(model.replay_buffer).from_replay_buffer(model.replay_buffer, n_steps=2)
    assert buffer.storage.folder.path == tmp_path / "folder"
    assert f"storage_folder={tmp_path / 'folder'}" in repr(buffer)
    del model, buffer
    gc.collect()
    model = PERDQN.load(tmp_path / "model")
    assert model.replay_buffer.storage.folder.path == tmp_path / "folder"
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    buffer = make_buffer(storage_folder="~/folder")
    assert buffer.storage.folder.path == tmp_path / "home" / "folder"
    assert not (tmp_path / "~").exists()


# ---- sizes


def test_a_buffer_of_impossible_size_is_refused_and_leaves_nothing(tmp_path):
    for buffer_size in (10**18, 10**16):
        with pytest.raises(OSError, match=r"folder' has no room .* choose a smaller buffer_size"):
            make_buffer(buffer_size, storage_folder=tmp_path / "folder")
        gc.collect()
        assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("scheme, folder", [("proportional", "folder"), ("rank", None)])
def test_the_warning_on_memory_counts_the_tree(scheme, folder, tmp_path, monkeypatch):
    """Rewards and ends of episodes take 12 bytes a transition, and the tree at least 9.1."""
    n, memory = 10_000, psutil.virtual_memory()
    path = None if folder is None else tmp_path / folder
    in_ram = 12 + (0 if folder else 3 * 4 * 2 + 2 * 4)
    for factor, is_too_small in ((in_ram + 9, True), (in_ram + 60, False)):
        available = n * factor
        monkeypatch.setattr(psutil, "virtual_memory", lambda available=available: memory._replace(available=available))
        with caught_user_warnings() as caught:
            make_buffer(n, scheme=scheme, storage_folder=path)
        assert [each for each in caught if "enough memory" in each] == caught and len(caught) == is_too_small


def test_a_buffer_takes_few_descriptors(tmp_path):
    """Six cameras: a process may have 1,024 descriptors on most machines."""
    camera = spaces.Box(0, 255, (2, 4, 4), np.uint8)
    space = spaces.Dict({f"camera {i}": camera for i in range(6)})
    frames = {key: 2 for key in space}
    n_before = psutil.Process().num_fds()
    made = [
        PrioritizedDictReplayBuffer(130, space, spaces.Discrete(2), "cpu", frames=some, storage_folder=tmp_path / name)
        for some, name in ((frames, "frames"), (None, "plain"))
    ]
    fill(made, 140)
    made.append(copy.deepcopy(made[0]))
    assert len(files_in(tmp_path / "frames")) > 300
    assert psutil.Process().num_fds() - n_before < 30
    del made
    gc.collect()
    assert psutil.Process().num_fds() == n_before


# ---- a copy on a disk that is nearly full


def test_a_copy_takes_no_more_of_the_disk_than_the_rows_that_were_written(tmp_path, monkeypatch):
    """Neither does a pickle. On some disks, e.g. a tmpfs, reading a row that was never written takes space too."""
    monkeypatch.setattr("sb3_per.storage.mapped._AHEAD_BYTES", 0)
    box = spaces.Box(0, 255, (64, 64), np.uint8)
    buffer = PrioritizedReplayBuffer(1_000, box, spaces.Discrete(2), "cpu", storage_folder=tmp_path / "folder")
    fill([buffer], 20)

    def n_bytes_on_disk() -> int:
        return sum(os.stat(path).st_blocks * 512 for path in files_in(tmp_path / "folder"))

    n_before, content = n_bytes_on_disk(), pickle.dumps(buffer)
    assert len(content) < 2**20
    twins = [copy.deepcopy(buffer), pickle.loads(content)]
    assert n_bytes_on_disk() < 4 * n_before < 2**20
    shutil.rmtree(tmp_path / "folder")
    with owner_of(tmp_path / "folder"), pytest.warns(UserWarning, match="in RAM"):
        twins.append(pickle.loads(content))
    for twin in twins:
        assert len(twin.observations) == 1_000 and twin.observations.flags.writeable
        assert_same_state(contents_of(twin), contents_of(buffer))
        fill([twin], 3)


def test_a_copy_on_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    buffer = make_buffer(10, 1, "image", storage_folder=folder)
    fill([buffer], 15)
    before, files = contents_of(buffer), files_in(folder)
    copies: tuple[Callable[[], Any], ...] = (
        lambda: copy.deepcopy(buffer),
        lambda: type(buffer).from_replay_buffer(buffer, frames=2),
        lambda: buffer.add_demonstrations_from(buffer),
    )

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for make in copies:
            with pytest.raises(OSError, match="folder' has no room for the next transitions"):
                make()
            gc.collect()
            assert files_in(folder) == files
            assert_same_state(contents_of(buffer), before)


def test_blocks_are_allocated_where_a_write_stops_early(tmp_path, monkeypatch):
    """Without ``posix_fallocate``, as on macOS: a write may end before its last byte, e.g. at the end of a disk."""
    monkeypatch.delattr(os, "posix_fallocate")
    written: list[tuple[int, int]] = []

    def short(descriptor: int, content: bytes, start: int) -> int:
        written.append((start, min(len(content), 1000)))
        return min(len(content), 1000)

    folder = Folder(tmp_path / "folder")
    monkeypatch.setattr(os, "pwrite", short)
    folder.allocate(0, 500, 3_200)
    assert written == [(500, 1000), (1500, 1000), (2500, 1000), (3500, 200)]


ON_SMALL_DISK = """
import copy, pickle, sys
import numpy as np
from gymnasium import spaces
from sb3_per import PrioritizedReplayBuffer

box = spaces.Box(0, 255, (2, 64, 64), np.uint8)
buffer = PrioritizedReplayBuffer(2_000, box, spaces.Discrete(2), "cpu", storage_folder=sys.argv[1] + "/folder")
obs = np.ones((1, 2, 64, 64), np.uint8)
for _ in range(300):
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
for make in (copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))):
    twin = make(buffer)
    assert (twin.observations[:300] == 1).all()
    try:
        make(buffer)
    except OSError as error:
        print(error)
    del twin
"""


@pytest.mark.slow
def test_a_copy_to_a_nearly_full_disk_is_an_error_and_no_signal(tmp_path):
    """A disk of 12 MiB has room for two copies of 300 rows, not for three, and not for one of all rows."""
    in_namespace = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
    mount = f"mount -t tmpfs -o size=12m tmpfs {tmp_path}; "
    if shutil.which("unshare") is None or subprocess.run([*in_namespace, mount], capture_output=True).returncode:
        pytest.skip("this system lets no user mount a disk of a given size")
    command = [*in_namespace, mount + 'exec "$@"', "sh", sys.executable, "-W", "ignore", "-c", ON_SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("has no room for the next transitions") == 2, done.stdout
