"""Saved buffers survive kills, full disks, loss of power and a second writer."""

import copy
import errno
import fcntl
import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sb3_per.persistence.streams as streams
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer, save_buffer
from sb3_per.persistence.checkpoint_callback import latest_checkpoint
from sb3_per.persistence.generations import manifest_names_in, numbers_in
from tests.helpers.crash_child import exit_code, warm_up
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.saved import KINDS, Player, digest, files_in_manifests, make, names_of, watch_disk


def load(kind: str, path: Path) -> Any:
    """Load a buffer. A warning is an error, because these tests damage no file."""
    with no_user_warnings():
        return load_buffer(make(kind), path)


def newest(path: Path) -> int:
    return numbers_in(manifest_names_in(path)[0])[1]


@pytest.fixture
def small_files(monkeypatch):
    """Split even small buffers into several files, some of which a later save joins."""
    monkeypatch.setattr(streams, "_FILE_BYTES", 500)
    monkeypatch.setattr(streams, "_SMALL_BYTES", 300)


# ---- kills


def assert_survived(kind: str, path: Path, at_least: int = -1) -> int:
    """
    Check that the last finished save or the one under way can be loaded. Return its number, -1 if there is none.

    :param at_least: number of a save that was there before, -1 if there was none
    """
    log = path.parent / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    digests = {int(line[1]): line[2] for line in lines if line[0] == "begin"}
    at_least = max([at_least, *(int(line[1]) for line in lines if line[0] == "done")])
    try:
        loaded = load(kind, path)
    except FileNotFoundError:
        assert at_least == -1
        return -1
    assert newest(path) >= at_least
    assert digest(loaded) == digests[newest(path)]
    return newest(path)


def kill_repeatedly(kind: str, tmp_path: Path, n_kills: int, signal_number: int, seed: int) -> None:
    """
    Kill a process that saves until it is killed, at least ``n_kills`` times, and until a kill has interrupted a save after
    another one was done.
    """
    path, rng, there = tmp_path / "x.buffer", np.random.default_rng(seed), -1
    log = path.parent / "log"
    n_killed = n_begun = n_done = 0
    warm_up(kind)
    while n_killed < n_kills or not n_begun > n_done > 0:
        # The kill comes some time after this save has begun. With 0, it may come before the first save.
        killed_in, delay = int(rng.integers(4)), rng.uniform(0.0, 0.02)
        code = exit_code(kind, path, int(rng.integers(2**31)), None, -1, killed_in, delay, signal_number)
        assert code == -signal_number
        there = assert_survived(kind, path, there)
        n_killed += 1
        n_begun, n_done = (log.read_text().count(word) if log.exists() else 0 for word in ("begin", "done"))
    assert exit_code(kind, path, seed=0, n_saves=1) == 0
    assert names_of(path) == files_in_manifests(path)
    assert assert_survived(kind, path, there) > there


def test_saves_survive_sigterm_at_random_moments(tmp_path):
    kill_repeatedly("plain", tmp_path, 2, signal.SIGTERM, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_saves_survive_kills_at_random_moments(kind, tmp_path):
    """63 kills of each of the eight kinds: 504 in all."""
    kill_repeatedly(kind, tmp_path, 63, signal.SIGKILL, 2)


@pytest.mark.parametrize(
    "kind, every", [("plain", 3), *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("plain", "frames"))]
)
def test_a_save_survives_a_kill_at_every_disk_operation(kind, every, tmp_path, monkeypatch):
    """
    Test the first save of a directory, and a save that adds a generation and removes the oldest one.

    The quick form of the test kills at every third operation.
    """
    warm_up(kind)
    watch_disk(lambda *_: None, monkeypatch)  # skips fsync, which is slow
    (tmp_path / "before").mkdir()
    for n_before in (0, 3):
        if n_before:
            assert exit_code(kind, tmp_path / "before" / "x.buffer", seed=0, n_saves=n_before) == 0
        code, n_operations = -signal.SIGKILL, 0
        while code == -signal.SIGKILL:
            path = tmp_path / f"{n_before}" / f"{n_operations}" / "x.buffer"
            shutil.copytree(tmp_path / "before", path.parent)
            code = exit_code(kind, path, seed=5, n_saves=1, fail_at=n_operations)
            there = assert_survived(kind, path)
            # The next save works, and removes all files of the interrupted one.
            buffer = make(kind) if there < 0 else load(kind, path)
            Player(buffer, seed=6).play(3)
            save_buffer(buffer, path, num_timesteps=100)
            assert names_of(path) == files_in_manifests(path)
            assert digest(load(kind, path)) == digest(buffer)
            shutil.rmtree(path.parent)
            n_operations += every
        assert code == 0 and n_operations > 15


# ---- disk errors


class Failure:
    """
    Raise an error at one of the disk operations.

    :param error: error to raise
    :param is_full: whether later operations that need space fail as well
    """

    def __init__(self, error: BaseException, is_full: bool):
        self.error, self.is_full = error, is_full
        self.at = self.n_operations = -1

    def __call__(self, operation: str, *_: Any) -> None:
        if self.at < 0:
            return
        self.n_operations += 1
        is_full = self.is_full and self.n_operations > self.at
        if self.n_operations == self.at or (is_full and operation in ("create", "write", "fsync")):
            raise copy.copy(self.error)


FAILURES = {
    "ENOSPC": (OSError(errno.ENOSPC, "No space left on device"), True),
    "EIO": (OSError(errno.EIO, "Input/output error"), False),
    "interrupt": (KeyboardInterrupt(), False),
}


@pytest.mark.parametrize(
    "failure, kind, every",
    [
        ("ENOSPC", "memory", 2),
        ("interrupt", "memory", 2),
        *(
            pytest.param(failure, kind, 1, marks=pytest.mark.slow)
            for failure, kind in itertools.product(FAILURES, ("memory", "frames"))
        ),
    ],
)
def test_an_error_at_any_disk_operation_keeps_the_last_save(failure, kind, every, tmp_path, monkeypatch, small_files):
    """
    The buffer in RAM does not change, and the next save works and removes all files of the failed one. The quick form of the
    test fails at every second operation.
    """
    fail = Failure(*FAILURES[failure])
    watch_disk(fail, monkeypatch)
    buffer = make(kind)
    player = Player(buffer, seed=3)
    before_it = SavedBuffer(tmp_path / "before" / "x.buffer")
    for i in range(3):
        player.play(9)
        before_it.save(buffer, num_timesteps=i)
    last, files = digest(buffer), names_of(before_it.path)
    n_failed = 0
    for number in itertools.count(1, every):
        path = tmp_path / f"{number}" / "x.buffer"
        shutil.copytree(tmp_path / "before", path.parent)
        saved = SavedBuffer(path)
        buffer = saved.load(make(kind))
        player = Player(buffer, seed=4)
        player.play(5)
        before = digest(buffer)
        fail.at, fail.n_operations, has_failed = number, 0, False
        with caught_user_warnings() as caught:
            try:
                saved.save(buffer, num_timesteps=10)
            except type(fail.error) as error:
                assert getattr(error, "errno", None) == getattr(fail.error, "errno", None)
                has_failed = True
        fail.at = -1
        assert digest(buffer) == before
        if fail.n_operations < number:
            break
        n_failed += has_failed
        there = digest(load(kind, path))
        if failure == "interrupt" and there == before:
            assert has_failed  # the new generation was complete when the removal of old files was interrupted
        elif has_failed:
            assert there == last and names_of(path) == files
        else:
            assert there == before
        player.play(4)
        saved.save(buffer, num_timesteps=11)
        assert names_of(path) == files_in_manifests(path)
        assert digest(load(kind, path)) == digest(buffer)
        shutil.rmtree(path.parent)
    assert n_failed > 12 / every and not has_failed
    assert caught == []


def test_loading_writes_nothing(tmp_path):
    """Loading and ``latest_checkpoint`` work in a read-only folder: they make no file, not even a lock, and change none."""
    buffer = make("plain")
    Player(buffer, seed=0).play(9)
    path = tmp_path / "rl_model_replay_buffer.buffer"
    save_buffer(buffer, path, num_timesteps=7)
    (path / ".lock").unlink()
    with zipfile.ZipFile(tmp_path / "rl_model_7_steps.zip", "w"):
        pass

    def files() -> dict[str, int]:
        return {str(file): file.stat().st_mtime_ns for file in [tmp_path, *tmp_path.rglob("*")]}

    before = files()
    assert digest(load("plain", path)) == digest(buffer)
    assert latest_checkpoint(tmp_path) == (tmp_path / "rl_model_7_steps.zip", path)
    assert files() == before


# ---- several processes


def test_a_second_writer_is_refused(tmp_path, monkeypatch):
    """A second save that begins during the first one raises an error. After the first one has ended, it works."""
    path, refusals = tmp_path / "x.buffer", []
    first, second = make("plain"), make("plain")
    for seed, buffer in enumerate([first, second]):
        Player(buffer, seed=seed).play(9)

    def intrude(operation: str, target: Path, *_: Any) -> None:
        if operation != "write" and path.exists() and target != tmp_path:
            with pytest.raises(BlockingIOError, match="Another process or thread is saving to"):
                save_buffer(second, path)
            refusals.append(operation)

    with monkeypatch.context() as patch:
        watch_disk(intrude, patch)
        save_buffer(first, path)
    assert {"create", "fsync", "replace"} <= set(refusals)
    assert digest(load("plain", path)) == digest(first)
    save_buffer(second, path)
    assert digest(load("plain", path)) == digest(second)


def test_a_lock_ends_with_its_process(tmp_path):
    """A save is refused while another process has the lock, and works after that process was killed."""
    buffer = make("plain")
    save_buffer(buffer, tmp_path / "x.buffer")
    code = f"import fcntl, sys; lock = open({str(tmp_path / 'x.buffer' / '.lock')!r}, 'ab')\n"
    code += "fcntl.flock(lock, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError):
            save_buffer(buffer, tmp_path / "x.buffer")
        process.kill()
        process.wait()
    save_buffer(buffer, tmp_path / "x.buffer")


def test_saving_works_on_a_file_system_without_locks(tmp_path, monkeypatch):
    """Some network file systems support neither locks nor fsync of directories. The save works, with a warning."""

    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: unsupported() if stat.S_ISDIR(os.fstat(fd).st_mode) else fsync(fd))
    buffer = make("plain")
    with pytest.warns(UserWarning, match="cannot be locked"):
        save_buffer(buffer, tmp_path / "x.buffer")
    assert digest(load("plain", tmp_path / "x.buffer")) == digest(buffer)


@pytest.mark.parametrize("kind, keep", [("plain", 3), ("frames", 1)])
def test_two_buffers_share_a_directory(keep, kind, tmp_path, small_files, monkeypatch):
    """Each generation is a complete save of one of the two buffers, which both continue from the same first save."""
    watch_disk(lambda *_: None, monkeypatch)
    path = tmp_path / "x.buffer"
    directories = SavedBuffer(path), SavedBuffer(path)
    first = make(kind)
    Player(first, seed=0).play(20)
    directories[0].save(first)
    second = directories[1].load(make(kind))  # it is in the same files as the first buffer
    players = [Player(first, seed=1), Player(second, seed=2)]
    saved: dict[int, str] = {}
    for i in range(1, 9):
        player = players[i % 2]
        player.play(4)
        with caught_user_warnings() as caught:
            directories[i % 2].save(player.buffer, num_timesteps=i, keep=keep)
        # With keep=1, each save removes the files of the other buffer, which then warns that they are missing.
        assert [warning for warning in caught if keep > 1 or "is missing" not in warning] == []
        saved[i] = digest(player.buffer)
        names = manifest_names_in(path)
        assert len(names) == min(keep, i + 1) and names_of(path) == files_in_manifests(path)
        for name in names:
            steps = numbers_in(name)[1]
            assert steps == 0 or digest(load(kind, path / name)) == saved[steps]


def test_a_reader_loads_the_newest_generation_if_its_own_is_removed(tmp_path, monkeypatch):
    """A writer removes the generation that is being read. The reader then loads the newest one, without a warning."""
    buffer, saved, left = make("plain"), SavedBuffer(tmp_path / "x.buffer"), [2]
    player = Player(buffer, seed=0)
    player.play(9)
    for i in range(3):
        saved.save(buffer, num_timesteps=i, keep=3)

    class InterruptedReader(SavedBuffer):
        """A writer replaces all files right after the name of the newest generation was read."""

        def _read(self, buffer: Any, name: str) -> Any:
            if left[0]:
                left[0] -= 1
                player.play(9)
                saved.save(player.buffer, num_timesteps=10 - left[0], full=True, keep=1)
            return super()._read(buffer, name)

    with no_user_warnings():
        loaded = InterruptedReader(saved.path).load(make("plain"))
    assert digest(loaded) == digest(buffer)
    assert left == [0]


# ---- loss of power


Event = tuple[Any, ...]


class UnreliableDisk:
    """
    Track what is on a disk for certain, and what a power failure may lose. POSIX guarantees nothing about unsynced data.

    :param path: directory to track
    """

    def __init__(self, path: Path):
        self.path, self.has_directory = path, path.exists()
        #: content of each file by its number, as the running system sees it, and as it was synced
        self.written: dict[int, bytes] = {}
        self.synced: dict[int, bytes] = {}
        #: number of each file by its path, as the running system sees it
        self.files: dict[Path, int] = {}
        #: number of each file by its name, where the name is on disk for certain
        self.durable: dict[str, int] = {}
        #: changes of names that are not synced yet; ``None``: the name was removed
        self.pending: list[tuple[str, int | None]] = []

    def mkdir(self, path: Path) -> None:
        assert not self.has_directory

    def create(self, path: Path) -> None:
        self.files[path] = len(self.written)
        self.written[self.files[path]] = b""
        self.pending.append((path.name, self.files[path]))

    def write(self, path: Path, position: int, data: bytes) -> None:
        before = self.written[self.files[path]]
        self.written[self.files[path]] = before[:position] + data + before[position + len(data) :]

    def fsync(self, path: Path) -> None:
        if path == self.path.parent:
            self.has_directory = True
        elif path == self.path:
            self.durable = changed(self.durable, self.pending)
            self.pending.clear()
        elif path in self.files:
            self.synced[self.files[path]] = self.written[self.files[path]]

    def replace(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)
        self.pending += [(source.name, None), (target.name, self.files[target])]

    def unlink(self, path: Path) -> None:
        del self.files[path]
        self.pending.append((path.name, None))

    def states(self) -> Iterator[dict[str, bytes] | None]:
        """Yield all contents that a power failure may leave: files by name, or ``None`` if there is no directory."""
        if not self.has_directory:
            yield None
        # Readers ignore temporary names.
        pending = [change for change in self.pending if not change[0].endswith(".tmp")]
        for is_done in itertools.product([False, True], repeat=len(pending)):
            for damage in DAMAGES:
                names = changed(self.durable, itertools.compress(pending, is_done))
                yield {
                    name: self.written[file]
                    if self.synced.get(file) == self.written[file]
                    else damage(self.synced.get(file, b""), self.written[file])
                    for name, file in names.items()
                    if not name.endswith(".tmp")
                }


def changed(names: dict[str, int], changes: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    names = dict(names)
    for name, file in changes:
        names.pop(name, None)
        if file is not None:
            names[name] = file
    return names


# Possible contents of a file that was not synced completely.
DAMAGES: list[Callable[[bytes, bytes], bytes]] = [
    lambda synced, written: written,
    lambda synced, written: synced,
    lambda synced, written: written[: len(written) // 2],
    lambda synced, written: bytes(len(written)),
]


def record_saves(kind: str, path: Path, n_saves: int = 5) -> tuple[list[Event], dict[int, str]]:
    """Save a few times. Return the disk operations, and the digest of each save."""
    events: list[Event] = []
    digests = {}
    with pytest.MonkeyPatch.context() as patch:
        watch_disk(lambda *event: events.append(event), patch)
        buffer, saved = make(kind), SavedBuffer(path)
        player = Player(buffer, seed=8)
        for i in range(n_saves):
            player.play([5, 4, 20, 3, 1][i])
            digests[i] = digest(buffer)
            saved.save(buffer, num_timesteps=i)
            events.append(("done", i))
    shutil.rmtree(path)
    return events, digests


def assert_nothing_is_lost(kind: str, events: list[Event], digests: dict[int, str], path: Path) -> int:
    """
    Check that after a power failure at any moment, the last finished save or the one under way can be loaded.

    :return: number of different disk contents that were tried
    """
    disk, done = UnreliableDisk(path), -1
    found: dict[Any, int] = {}
    for operation, *arguments in events:
        if operation == "done":
            done = arguments[0]
        else:
            getattr(disk, operation)(*arguments)
        for files in disk.states():
            key = None if files is None else frozenset((name, zlib.crc32(data)) for name, data in files.items())
            if key not in found:
                found[key] = load_after_power_loss(kind, files, digests, path.parent / f"{len(found)}")
            assert found[key] >= done
    return len(found)


def load_after_power_loss(kind: str, files: dict[str, bytes] | None, digests: dict[int, str], path: Path) -> int:
    """Write the files and load the buffer. Return the number of its save, -1 if there is none."""
    if files is not None:
        path.mkdir()
        for name, data in files.items():
            (path / name).write_bytes(data)
    try:
        loaded = load(kind, path)
    except FileNotFoundError:
        return -1
    assert digest(loaded) == digests[newest(path)]
    return newest(path)


@pytest.mark.parametrize("kind", ["plain", pytest.param("frames", marks=pytest.mark.slow)])
def test_a_power_failure_keeps_the_last_save(kind, tmp_path, small_files):
    path = tmp_path / "x.buffer"
    events, digests = record_saves(kind, path)
    assert assert_nothing_is_lost(kind, events, digests, path) > 40


class Killed(BaseException):
    """Raised in place of a kill: the process does nothing more."""


@pytest.mark.slow
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_power_failure_after_a_kill_keeps_the_last_save(n_before, tmp_path):
    """A process is killed at each operation in turn, another process continues to save, and then the power fails."""
    for number in itertools.count():
        path = tmp_path / f"{number}" / "x.buffer"
        path.parent.mkdir()
        events: list[Event] = []
        digests: dict[int, str] = {}
        killed_at = -1

        def announce(*event: Any, events: list[Event] = events) -> None:
            if len(events) == killed_at:  # noqa: B023
                raise Killed
            events.append(event)

        with pytest.MonkeyPatch.context() as patch:
            watch_disk(announce, patch)
            buffer, saved = make("plain"), SavedBuffer(path)
            for i in range(n_before + 3):
                Player(buffer, seed=i).play(5)
                digests[i] = digest(buffer)
                killed_at = len(events) + number if i == n_before else -1
                try:
                    saved.save(buffer, num_timesteps=i)
                    killed_at = -1
                    events.append(("done", i))
                except Killed:
                    killed_at = -1
                    saved = SavedBuffer(path)
                    buffer = saved.load(make("plain")) if manifest_names_in(path) else make("plain")
        shutil.rmtree(path)
        assert_nothing_is_lost("plain", events, digests, path)
        if ("done", n_before) in events:
            break
    assert number > 20


FORGOTTEN: dict[str, Callable[[Path], bool]] = {
    "files": lambda target: target.suffix == ".tmp",
    "manifests": lambda target: target.name.startswith("gen-"),
    "directory": lambda target: target.suffix == ".buffer",
    "parent folder": lambda target: target.suffix == "",
}


def test_a_missing_sync_loses_data(tmp_path):
    """
    If one kind of sync is left out of the operations, ``assert_nothing_is_lost`` fails. This shows that the check is strict.
    The first save syncs the directory before and after it writes the manifest, and needs both.
    """
    path = tmp_path / "recorded" / "x.buffer"
    path.parent.mkdir()
    events, digests = record_saves("plain", path, n_saves=3)
    syncs = [i for i, event in enumerate(events) if event[0] == "fsync"]
    left_out = [[i for i in syncs if is_forgotten(events[i][1])] for is_forgotten in FORGOTTEN.values()]
    left_out += [[i] for i in syncs if events[i][1] == path][:2]
    for indices in left_out:
        assert indices
        for folder in path.parent.iterdir():
            shutil.rmtree(folder)
        remaining = [event for i, event in enumerate(events) if i not in indices]
        with pytest.raises((AssertionError, ValueError, UserWarning)):
            assert_nothing_is_lost("plain", remaining, digests, path)
