"""Rows of the benchmark about saving and loading, against SB3's pickle of a buffer without priorities."""

import functools
import os
import shutil
import tempfile
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from timing import MILLION, Row, Rows, box, compare, filled, seconds

from sb3_per import PERSAC, BufferCheckpointCallback, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer

_ROUNDS = 5
# Observations and actions of HalfCheetah; stacks of four images.
_STATES = (box(17), box(6))
_IMAGES = (box(4, 84, 84, dtype=np.uint8), spaces.Discrete(4))


class _Env(gym.Env[Any, Any]):
    """An environment with these spaces, which nothing steps through."""

    observation_space, action_space = _STATES


class _Files:
    """A full buffer of ours and one of SB3's, with their files."""

    def __init__(self, size: int, what: Any = _STATES, share: float = 1.0):
        # Files lie beside the code, because the folder of temporary files may be in RAM.
        self.folder = Path(tempfile.mkdtemp(prefix="benchmark", dir=Path(__file__).parent))
        self.ours_path, self.theirs_path = self.folder / "ours.buffer", self.folder / "theirs.pkl"
        self.make = lambda: PrioritizedReplayBuffer(size, *what, "cpu")
        self.saved = SavedBuffer(self.ours_path)
        self.ours, self.theirs = self.make(), ReplayBuffer(size, *what, "cpu")
        for buffer in (self.ours, self.theirs):
            filled(buffer) if share == 1.0 else self.add(buffer, int(size * share))
        self.save(), self.pickle()

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def add(self, buffer: Any, n: int) -> None:
        step = buffer.observations[0], buffer.observations[0], buffer.actions[0], np.ones(1), np.zeros(1), [{}]
        for _ in range(n):
            buffer.add(*step)

    def save(self, full: bool = True) -> None:
        self.saved.save(self.ours, full=full)

    def load(self) -> None:
        load_buffer(self.make(), self.ours_path)

    def pickle(self) -> None:
        save_to_pkl(self.theirs_path, self.theirs)

    def pickle_safely(self) -> None:
        """Pickle SB3's buffer, and wait until the disk has it."""
        self.pickle()
        with self.theirs_path.open("rb") as file:
            os.fsync(file.fileno())

    def unpickle(self) -> None:
        load_from_pkl(self.theirs_path)


def _against_pickle(what: str, ours: str, theirs: str, *buffer: Any, has_sync: bool = True) -> Row:
    """Compare two methods of :class:`_Files`."""
    with closing(_Files(*buffer)) as files, nullcontext() if has_sync else mock.patch("os.fsync", lambda descriptor: None):
        return compare(what, "pickle", getattr(files, ours), getattr(files, theirs), 1, _ROUNDS)


def _size(size: int) -> Row:
    """Measure the files of a buffer that is 1% full. The pickle holds everything that was allocated."""
    with closing(_Files(size, _STATES, 0.01)) as files:
        ours = sum(entry.stat().st_size for entry in os.scandir(files.ours_path))
        return Row("size, 1% full", "pickle", ours / files.theirs_path.stat().st_size)


def _increments(size: int) -> Row:
    """Measure a save with 1% of new rows against the pickle, which writes everything."""
    with closing(_Files(size)) as files:
        times = []
        for _ in range(_ROUNDS):
            files.add(files.ours, size // 100)
            times.append((seconds(lambda: files.save(full=False)), seconds(files.pickle_safely)))
    ours, theirs = np.array(times).T
    both = float(np.median(ours)), float(np.median(theirs))
    return Row("save, 1% new, fsync on both sides", "pickle", float(np.median(ours / theirs)), *both)


def _stall(size: int) -> Row:
    """Measure how long a checkpoint of model and buffer stops training, with 10,000 new steps."""
    with closing(_Files(size)) as files:
        model = PERSAC("MlpPolicy", _Env(), buffer_size=10, device="cpu")
        model.replay_buffer = files.ours
        callback = BufferCheckpointCallback(1, str(files.folder))
        callback.init_callback(model)
        callback.save()
        times = []
        for i in range(_ROUNDS):
            callback.num_timesteps = model.num_timesteps = i + 1
            files.add(files.ours, 10_000)
            times.append(seconds(callback.save))
    return Row(f"checkpoint of model and {size:,} transitions, seconds", "", float(np.median(times)))


def file_rows(quick: bool) -> Rows:
    """Measure buffers of a million states and of 50,000 stacks of images."""
    size, n_images = (20_000, 500) if quick else (MILLION, 50_000)
    against = functools.partial(functools.partial, _against_pickle)
    for key, n, what, name in (("files", size, _STATES, "states"), ("files images", n_images, _IMAGES, "stacks of images")):
        name = f"{n:,} {name}"
        yield f"{key} save", against(f"save, {name}, no fsync", "save", "pickle", n, what, has_sync=False)
        yield f"{key} save sync", against(f"save, {name}, fsync on both sides", "save", "pickle_safely", n, what)
        yield f"{key} load", against(f"load, {name}", "load", "unpickle", n, what)
    yield "files 1% save", against("save, 1% full", "save", "pickle_safely", size, _STATES, 0.01)
    yield "files 1% load", against("load, 1% full", "load", "unpickle", size, _STATES, 0.01)
    yield "files 1% size", lambda: _size(size)
    yield "files new", lambda: _increments(size)
    yield "files stall", lambda: _stall(size)
