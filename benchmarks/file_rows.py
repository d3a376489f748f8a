"""Rows of the benchmark about saving and loading, against SB3's pickle of a buffer without priorities."""

import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from timing import MILLION, Row, box, compare, filled

from sb3_per import PERSAC, BufferCheckpointCallback, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import load_buffer, save_buffer

_MIB = 2**20
_ROUNDS = 5

# Observations and actions of HalfCheetah; stacks of four images.
_STATES = (box(17), box(6))
_IMAGES = (box(4, 84, 84, dtype=np.uint8), spaces.Discrete(4))


def _size_of(path: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path)) if path.is_dir() else path.stat().st_size


class _Files:
    """A full buffer of ours and one of SB3's, with their files."""

    def __init__(self, size: int, what: Any, share: float = 1.0):
        # Files lie beside the code, because the folder of temporary files may be in RAM.
        self.folder = Path(tempfile.mkdtemp(prefix="benchmark", dir=Path(__file__).parent))
        self.ours_path, self.theirs_path = self.folder / "ours.buffer", self.folder / "theirs.pkl"
        self.make = lambda: PrioritizedReplayBuffer(size, *what, "cpu")
        self.ours, self.theirs = self.make(), ReplayBuffer(size, *what, "cpu")
        if share == 1.0:
            filled(self.ours), filled(self.theirs)
        else:
            self.add(self.ours, int(size * share)), self.add(self.theirs, int(size * share))

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: Any) -> None:
        shutil.rmtree(self.folder)

    def add(self, buffer: Any, n: int) -> None:
        """Add new steps."""
        step = buffer.observations[0], buffer.observations[0], buffer.actions[0], np.ones(1), np.zeros(1), [{}]
        for _ in range(n):
            buffer.add(*step)

    def save(self, full: bool = True) -> None:
        """Save our buffer."""
        save_buffer(self.ours, self.ours_path, full=full)

    def pickle(self, sync: bool = False) -> None:
        """Pickle SB3's buffer."""
        save_to_pkl(self.theirs_path, self.theirs)
        if sync:
            with self.theirs_path.open("rb") as file:
                os.fsync(file.fileno())


def _without_sync() -> AbstractContextManager[Any]:
    return mock.patch("os.fsync", lambda descriptor: None)


def _save(size: int, what: Any, name: str, sync: bool) -> Row:
    target = 1.2 if sync else 1.5
    how = "fsync on both sides" if sync else "no fsync"
    with _Files(size, what) as files, nullcontext() if sync else _without_sync():
        return compare(f"save, {name}, {how}", "pickle", target, files.save, lambda: files.pickle(sync), 1, _ROUNDS)


def _load(size: int, what: Any, name: str) -> Row:
    with _Files(size, what) as files:
        files.save(), files.pickle()
        ours, theirs = lambda: load_buffer(files.make(), files.ours_path), lambda: load_from_pkl(files.theirs_path)
        return compare(f"load, {name}", "pickle", 1.5, ours, theirs, 1, _ROUNDS)


def _share_full(size: int, which: str) -> Row:
    """Measure a buffer that is 1% full. The pickle holds everything that was allocated."""
    with _Files(size, _STATES, 0.01) as files:
        files.save(), files.pickle()
        what = f"{which}, 1% full"
        if which == "size":
            ours, theirs = _size_of(files.ours_path), _size_of(files.theirs_path)
            return Row(what, "pickle", ours / theirs, 0.012)
        if which == "load":
            loads = lambda: load_buffer(files.make(), files.ours_path), lambda: load_from_pkl(files.theirs_path)
            return compare(what, "pickle", 0.1, *loads, 1, _ROUNDS)
        return compare(what, "pickle", 0.05, files.save, lambda: files.pickle(True), 1, _ROUNDS)


def _timed(functions: list[Callable[[], Any]]) -> list[float]:
    times = []
    for function in functions:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times


def _increments(size: int) -> Row:
    """Measure a save with 1% of new rows against the pickle, which writes everything."""
    with _Files(size, _STATES) as files:
        files.save()
        times = []
        for _ in range(_ROUNDS):
            files.add(files.ours, size // 100)
            times.append(_timed([lambda: files.save(full=False), lambda: files.pickle(True)]))
    ours, theirs = np.median(times, axis=0)
    figure = float(np.median([a / b for a, b in times]))
    return Row("save, 1% new, fsync on both sides", "pickle", figure, 0.1, float(ours), float(theirs))


def _stall(size: int) -> Row:
    """Measure how long a checkpoint of model and buffer stops training, with 10,000 new steps."""
    with _Files(size, _STATES) as files:
        model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
        model.replay_buffer = files.ours
        callback = BufferCheckpointCallback(1, str(files.folder))
        callback.init_callback(model)
        callback.save()
        times = []
        for i in range(_ROUNDS):
            callback.num_timesteps = model.num_timesteps = i + 1
            files.add(files.ours, 10_000)
            times += _timed([callback.save])
    return Row(f"checkpoint of model and {size:,} transitions, seconds", "", float(np.median(times)), 0.3)


def _peak() -> int:
    """Return the largest memory of this process since the last reset, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _memory(size: int, which: str) -> Row:
    """Measure the peak memory beyond the buffer in a save, and beyond the filled rows in a load."""
    with _Files(size, _STATES) as files:
        files.save()
        rows = sum(array.nbytes for array in files.ours.storage.arrays().values())
        live = files.make()
        if which == "load":
            files.ours = files.theirs = None
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
        files.save() if which == "save" else load_buffer(live, files.ours_path)
        extra = _peak() - before - (rows if which == "load" else 0)
    beyond, target = ("the buffer", 64.0) if which == "save" else ("its rows", 192.0)
    return Row(f"peak memory of a {which}, MiB beyond {beyond}", "", extra / _MIB, target)


def file_rows(quick: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Measure buffers of a million states and of 50,000 stacks of images."""
    size, n_images = (20_000, 500) if quick else (MILLION, 50_000)
    states, images = (size, _STATES, f"{size:,} states"), (n_images, _IMAGES, f"{n_images:,} stacks of images")
    for key, what in (("files", states), ("files images", images)):
        yield f"{key} save", functools.partial(_save, *what, sync=False)
        yield f"{key} save sync", functools.partial(_save, *what, sync=True)
        yield f"{key} load", functools.partial(_load, *what)
    for which in ("save", "load", "size"):
        yield f"files 1% {which}", functools.partial(_share_full, size, which)
    yield "files new", lambda: _increments(size)
    yield "files stall", lambda: _stall(size)
    for which in ("save", "load"):
        yield f"files memory {which}", functools.partial(_memory, size, which)
