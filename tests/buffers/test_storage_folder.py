"""Buffers whose transitions are in files of a folder: the same batches, nothing left behind, one owner, and full disks."""

import copy
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import PERDQN, PERSAC, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.files import MappedFile
from tests.helpers.buffers import assert_same_batches, assert_same_state, fill, make_buffer
from tests.helpers.forks import in_fork
from tests.helpers.frames import same_bytes
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.project import ROOT
from tests.helpers.steps import KINDS, make_of_kind, step_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The buffer has .* demonstrations"),
    pytest.mark.filterwarnings("ignore:frames="),
    pytest.mark.usefixtures("small_heap"),
]

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
PLACED = ["optimize_memory", "dict, frames", "her, infos"]


def stored(buffer: Any) -> dict[str, Any]:
    """Copy the transitions, their masses and ids."""
    found: dict[str, Any] = {"masses": buffer.masses, "ids": buffer.transition_ids}
    for name in ARRAYS:
        if hasattr(buffer, name):
            array = getattr(buffer, name)
            parts = array if isinstance(array, dict) else {"": array}
            found[name] = {key: np.array(part) for key, part in parts.items()}
    return found


def n_descriptors() -> int:
    gc.collect()
    return psutil.Process().num_fds()


@pytest.mark.parametrize("kind", PLACED)
def test_a_buffer_in_a_folder_gives_the_same_batches(kind, tmp_path, monkeypatch):
    """Compare with a twin in RAM, to the bit, over laps, updates, demonstrations and a reset."""
    buffers = [KINDS[kind](), make_of_kind(kind, monkeypatch, tmp_path)]
    assert "storage_folder=" in repr(buffers[1]) and "storage_folder=" not in repr(buffers[0])
    n_drawn = 0
    for i in range(23):
        batches = []
        for buffer in buffers:
            buffer.add(**step_of(buffer, i))
            if i == 14 and not buffer.optimize_memory_usage:
                buffer.add_demonstrations(**{name: [part] * 2 for name, part in step_of(buffer, 3).items()})
            if i == 16:
                buffer.reset()
            if buffer.masses.any():
                np.random.seed(i)
                batches.append(buffer.sample(5))
                buffer.update_priorities(batches[-1].indices, np.arange(5.0))
        if batches:
            n_drawn += 1
            assert_same_batches(*batches)
    assert n_drawn > 10
    assert_same_state(stored(buffers[1]), stored(buffers[0]))


# ---- nothing is left behind, and nobody else has the files


def test_files_have_no_names_and_end_with_their_arrays(tmp_path):
    """Several buffers may share a folder, which stays. A view that somebody still holds keeps its file."""
    folder, n_before = tmp_path / "new" / "folder", n_descriptors()
    buffers = [make_buffer(storage_folder=folder, obs_space="image", frames=frames) for frames in (None, 2)]
    fill(buffers, 15)
    buffers[0].add_demonstrations_from(copy.deepcopy(buffers[1]))
    assert os.listdir(folder) == []
    same_bytes(buffers[1].observations[:], buffers[0].observations)
    actions, expected = buffers[0].actions[2:5], buffers[0].actions[2:5].copy()
    del buffers
    assert n_descriptors() > n_before
    np.testing.assert_array_equal(actions, expected)
    del actions
    assert n_descriptors() == n_before


def test_buffers_in_one_folder_are_on_their_own(tmp_path):
    first, second = make_buffer(storage_folder=tmp_path), make_buffer(storage_folder=tmp_path)
    fill([first], 5)
    second.observations[:] = 7
    second.actions[:] = 7
    twin = make_buffer()
    fill([twin], 5)
    assert_same_state(stored(first), stored(twin))


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, marks=() if end == "kill" else pytest.mark.slow) for end in ("kill", "exit", "fork", "error")],
)
def test_a_process_leaves_nothing_behind(end, tmp_path):
    code = f"""
        import os, signal
        from tests.helpers.buffers import fill, make_buffer
        folder = {str(tmp_path)!r}
        buffers = [make_buffer(500, obs_space="image", frames=frames, storage_folder=folder) for frames in (None, 2)]
        fill(buffers, 600)
        assert os.listdir(folder) == []
        if {end!r} == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if {end!r} == "error":
            raise SystemExit(3)
        if {end!r} == "fork" and os.fork() == 0:
            fill(buffers, 3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == {"kill": -signal.SIGKILL, "error": 3}.get(end, 0), done.stderr
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_nameless_files_has_a_name_for_a_moment_only(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    buffer = make_buffer(storage_folder=tmp_path)
    fill([buffer], 5)
    assert os.listdir(tmp_path) == []


# ---- forked processes


@pytest.mark.parametrize("kind", PLACED)
def test_a_forked_process_never_changes_the_rows(kind, tmp_path, monkeypatch):
    """It reads what was there, and what it writes is its own, and its own children's."""
    buffer = make_of_kind(kind, monkeypatch, tmp_path)
    for i in range(9):
        buffer.add(**step_of(buffer, i))
    if not buffer.optimize_memory_usage:
        buffer.add_demonstrations(**{name: [part] * 2 for name, part in step_of(buffer, 3).items()})
    before = stored(buffer)

    def overwrite() -> Any:
        assert_same_state(stored(buffer), before)
        for i in range(20, 29):
            buffer.add(**step_of(buffer, i))
        buffer.actions[:] = 3
        if not buffer.optimize_memory_usage:
            for _ in range(3):
                buffer.add_demonstrations(**{name: [part] * 9 for name, part in step_of(buffer, 5).items()})
        own = stored(buffer)
        from_grandchild = in_fork(lambda: (stored(buffer), buffer.actions.fill(5))[0])
        assert_same_state(from_grandchild, own)
        assert_same_state(stored(buffer), own)
        return own

    own = in_fork(overwrite)
    assert isinstance(own, dict), own
    assert (own["actions"][""] == 3).all() and not (before["actions"][""] == 3).any()
    assert_same_state(stored(buffer), before)
    buffer.add(**step_of(buffer, 9))
    twin = KINDS[kind]()
    for i in range(10):
        twin.add(**step_of(twin, i))
    assert_same_state(stored(buffer)["actions"], stored(twin)["actions"])


# ---- copies


@pytest.mark.parametrize("how", ["pickle", "old pickle", "deepcopy"])
@pytest.mark.parametrize("frames", [None, 2])
def test_a_copy_has_files_of_its_own(how, frames, tmp_path):
    buffer = make_buffer(8, 2, "image", frames=frames, storage_folder=tmp_path)
    fill([buffer], 11)
    before, n_before = stored(buffer), n_descriptors()
    twin = copy.deepcopy(buffer) if how == "deepcopy" else pickle.loads(pickle.dumps(buffer, 4 if how == "old pickle" else 5))
    assert n_descriptors() > n_before and "storage_folder=" in repr(twin)
    assert_same_state(stored(twin), before)
    fill([twin], 3, seed=1)
    twin.actions[:] = 7
    assert_same_state(stored(buffer), before)
    del twin
    assert n_descriptors() == n_before


@pytest.mark.parametrize("frames", [None, 2])
def test_a_copy_whose_folder_cannot_be_used_is_in_ram(frames, tmp_path, monkeypatch):
    """E.g. because it was pickled on another machine."""
    buffer = make_buffer(8, 2, "image", frames=frames, storage_folder=tmp_path / "folder")
    fill([buffer], 11)
    content, expected = pickle.dumps(buffer), stored(buffer)
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_text("a file")
    with pytest.warns(UserWarning, match="This copy of a buffer keeps its transitions in RAM: storage_folder=.*folder"):
        loaded = pickle.loads(content)
    assert "storage_folder=" not in repr(loaded)
    assert_same_state(stored(loaded), expected)
    with no_user_warnings():  # it was said already
        other = PrioritizedReplayBuffer.from_replay_buffer(loaded, n_steps=2)
    assert "storage_folder=" not in repr(other)
    fill([other], 20)
    other.sample(3)
    fill([buffer], 3)  # the folder is not needed any more


def test_conversion_moves_transitions_into_a_folder_and_out_of_it(tmp_path):
    buffer = make_buffer(8, 2, "image")
    fill([buffer], 11)
    expected = stored(buffer)
    forms = [type(buffer).from_replay_buffer(copy.deepcopy(buffer), storage_folder=str(tmp_path))]
    actions = forms[-1].actions
    for settings in (dict(alpha=0.6, n_steps=3), dict(frames=2), dict(frames=None, storage_folder=None)):
        forms.append(type(buffer).from_replay_buffer(forms[-1], **settings))
    assert forms[1].actions is actions and forms[1].n_steps == 3  # nothing moves
    assert [form.settings.storage_folder for form in forms] == [str(tmp_path)] * 3 + [None]
    assert ["storage_folder=" in repr(form) for form in forms] == [True] * 3 + [False]
    for form in forms:
        assert_same_state(stored(form), expected)


def test_a_stock_buffer_of_a_folder_loads_without_this_package(tmp_path):
    buffer = make_buffer(8, 2, "image", storage_folder=tmp_path)
    fill([buffer], 11)
    content = pickle.dumps(buffer.to_replay_buffer())
    assert b"sb3_per" not in content
    same_bytes(pickle.loads(content).observations, buffer.observations)


# ---- full disks


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_before_anything_is_made(tmp_path, monkeypatch):
    """Of arrays, every block is allocated when they are made."""
    n_before = n_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for frames in (None, 2):
            with pytest.raises(OSError, match=rf"'{tmp_path}' has no room for [1-9][0-9,]* bytes more \(No space") as caught:
                make_buffer(1000, obs_space="image", frames=frames, storage_folder=tmp_path)
            assert caught.value.errno == errno.ENOSPC
            del caught
        plain = make_buffer(8, obs_space="image")
        fill([plain], 5)
        expected = stored(plain)
        with pytest.raises(OSError, match="has no room"):
            type(plain).from_replay_buffer(plain, storage_folder=tmp_path)
        assert_same_state(stored(plain), expected)
    assert n_descriptors() == n_before


@pytest.mark.parametrize("failing", ["image", "other"])
def test_a_disk_that_is_full_later_is_an_error_before_the_step_is_stored(failing, tmp_path, monkeypatch):
    """Frames need more room than for one a step where observations are no stacks. No key is written then."""
    monkeypatch.setattr("sb3_per.buffers.frames._AHEAD_BYTES", 4096)
    shapes = {"image": 64, "other": 48} if failing == "image" else {"image": 48, "other": 64}
    space = spaces.Dict({key: spaces.Box(0, 255, (2, size, size), np.uint8) for key, size in shapes.items()})
    arguments = (20, space, spaces.Discrete(2), "cpu")
    framed = PrioritizedDictReplayBuffer(*arguments, frames=dict(image=2, other=2), storage_folder=tmp_path)
    plain = PrioritizedDictReplayBuffer(*arguments)
    space.seed(0)
    steps = [({key: part[None] for key, part in space.sample().items()}, np.zeros((1, 1)), np.zeros(1)) for _ in range(100)]
    n_failed = 0
    allocate = MappedFile.allocate
    largest = framed.observations[failing].store.frames.nbytes

    def refused(file: MappedFile, n_bytes: int) -> None:
        if file.content.nbytes == largest and n_bytes > file._mapping.n_allocated and n_failed == 0:
            full()
        allocate(file, n_bytes)

    monkeypatch.setattr(MappedFile, "allocate", refused)
    for i in range(60):
        step = (steps[i][0], steps[i + 1][0], *steps[i][1:], np.zeros(1), [{}])
        before = stored(framed)
        try:
            framed.add(*step)
        except OSError:
            n_failed += 1
            assert_same_state(stored(framed), before)
            framed.add(*step)
        plain.add(*step)
    assert n_failed == 1
    assert_same_state(stored(framed), stored(plain))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_really_full_disk_is_an_error(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this system mounts nothing")
    try:
        buffer = make_buffer(1_000, obs_space="image", storage_folder=tmp_path)
        with pytest.raises(OSError, match=r"has no room for [0-9,]* bytes more"):
            make_buffer(100_000, obs_space="image", storage_folder=tmp_path)
        fill([buffer], 1_100)
        del buffer
    finally:
        gc.collect()
        subprocess.run(["umount", str(tmp_path)])


@pytest.mark.parametrize("frames", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_limit_of_the_system_is_an_error_and_no_signal(frames, tmp_path):
    """Files may have 1 MiB here."""
    code = f"""
        import resource
        from tests.helpers.buffers import make_buffer
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            make_buffer(100_000, obs_space="image", frames={frames}, storage_folder={str(tmp_path)!r})
        except OSError as error:
            assert "has no room" in str(error), error
            raise SystemExit(3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3, done.stderr


def test_a_buffer_of_impossible_size_is_refused(tmp_path):
    for buffer_size in (10**18, 10**16):
        with pytest.raises(OSError, match=r"folder' has no room .* choose a smaller buffer_size"):
            make_buffer(buffer_size, storage_folder=tmp_path / "folder")
    assert os.listdir(tmp_path / "folder") == []


# ---- larger than RAM


@pytest.mark.parametrize("frames", [None, 3])
def test_batches_that_are_not_in_ram_are_read_from_the_disk(frames, tmp_path, monkeypatch):
    """The system is asked for all of a batch before it is read."""
    box = spaces.Box(0, 255, (3, 70, 90), np.uint8)
    buffer = PrioritizedReplayBuffer(40, box, spaces.Discrete(2), "cpu", 2, frames=frames, storage_folder=tmp_path)
    plain = PrioritizedReplayBuffer(40, box, spaces.Discrete(2), "cpu", 2)
    fill([buffer, plain], 25)
    asked: list[int] = []
    will_need = MappedFile.will_need
    monkeypatch.setattr(MappedFile, "will_need", lambda *args: (asked.append(len(args[1])), will_need(*args)))
    for exceed_ram in (False, True):
        monkeypatch.setattr(MappedFile, "exceed_ram", exceed_ram)
        batches = []
        for each in (buffer, plain):
            np.random.seed(0)
            batches.append(each.sample(16))
        assert_same_batches(*batches)
        assert bool(asked) == exceed_ram


def test_files_that_exceed_ram_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_per.buffers.files.RAM_BYTES", 10**6)
    gc.collect()
    small = make_buffer(10, storage_folder=tmp_path)
    assert not MappedFile.exceed_ram
    large = make_buffer(100_000, storage_folder=tmp_path)
    assert MappedFile.exceed_ram and small.size() == large.size()
    del large
    gc.collect()
    assert not MappedFile.exceed_ram


def test_a_buffer_takes_few_descriptors(tmp_path):
    """Six cameras: a process may have 1,024 descriptors on most machines."""
    camera = spaces.Box(0, 255, (2, 4, 4), np.uint8)
    space = spaces.Dict({f"camera {i}": camera for i in range(6)})
    n_before = n_descriptors()
    for frames in (dict.fromkeys(space, 2), None):
        buffer = PrioritizedDictReplayBuffer(130, space, spaces.Discrete(2), "cpu", frames=frames, storage_folder=tmp_path)
        fill([buffer], 140)
        assert n_descriptors() - n_before < (20 if frames else 5)
        del buffer
    assert n_descriptors() == n_before


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
    assert f"storage_folder={tmp_path / 'folder'}" in repr(found[1].replay_buffer)
    for key, value in found[0].policy.state_dict().items():
        assert th.equal(value, found[1].policy.state_dict()[key]), key


def test_a_model_and_its_buffer_can_be_saved_and_loaded(tmp_path):
    """Several models may have the folder at the same time."""
    kwargs: dict[str, Any] = dict(storage_folder=str(tmp_path / "folder"))
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=10, replay_buffer_kwargs=kwargs, seed=0)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "pickle")
    expected = stored(model.replay_buffer)
    with no_user_warnings():
        second = PERDQN.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
        second.load_replay_buffer(tmp_path / "pickle")
    assert_same_state(stored(second.replay_buffer), expected)
    second.learn(20, reset_num_timesteps=False)
    assert "storage_folder=" in repr(second.replay_buffer)
    assert_same_state(stored(model.replay_buffer), expected)


def test_a_zip_loads_where_its_folder_cannot_be_used(tmp_path):
    """E.g. on another machine, for an evaluation."""
    kwargs = dict(storage_folder=tmp_path / "folder")
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_kwargs=kwargs).save(tmp_path / "model")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_text("a file")
    with pytest.warns(UserWarning, match="The loaded model keeps its transitions in RAM: .*folder"):
        model = PERDQN.load(tmp_path / "model")
    assert "storage_folder=" not in repr(model.replay_buffer)
    with pytest.raises(OSError, match="folder"):
        PERDQN.load(tmp_path / "model", replay_buffer_kwargs=kwargs)


# ---- paths and warnings


def test_a_relative_path_is_that_of_the_directory_where_the_buffer_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs = dict(storage_folder="folder")
    model = PERDQN("MlpPolicy", make_vec_env("CartPole-v1"), learning_starts=5, replay_buffer_kwargs=kwargs)
    assert kwargs == dict(storage_folder="folder")
    model.save(tmp_path / "model")
    content = pickle.dumps(model.replay_buffer)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    buffer = PERDQN.load(tmp_path / "model").replay_buffer
    for each in (buffer, pickle.loads(content), type(buffer).from_replay_buffer(buffer, n_steps=2)):
        assert f"storage_folder={tmp_path / 'folder'}" in repr(each)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert f"storage_folder={tmp_path / 'home' / 'folder'}" in repr(make_buffer(storage_folder="~/folder"))
    assert not (tmp_path / "~").exists()


def test_a_folder_that_is_no_path_or_cannot_be_made_is_an_error(tmp_path):
    for value in (3, ""):
        with pytest.raises(ValueError, match="storage_folder must be None or a path"):
            make_buffer(storage_folder=value)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/no")):
        with pytest.raises(OSError, match=f"storage_folder='{folder}' cannot hold [0-9,]* bytes"):
            make_buffer(storage_folder=folder)


@pytest.mark.parametrize("frames", [None, 2])
def test_a_buffer_larger_than_the_free_memory_warns(frames, monkeypatch, tmp_path):
    """As SB3's do."""
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
