"""Every store of observations keeps the contract."""

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer
from sb3_per.storage.array_store import ArrayStore
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.mapped import Files, Folder
from tests.helpers.buffers import PickledObservations, fill
from tests.helpers.store_contract import MakeStore, check_store


def make_stores(tmp_path: Any) -> dict[str, MakeStore]:
    def arrays(n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any) -> ArrayStore:
        full = (n_rows, n_envs, *shape)
        return ArrayStore(np.zeros(full, dtype), np.zeros(full, dtype))

    def mapped(n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any) -> ArrayStore:
        files, full = Files(Folder.shared(tmp_path / "mapped")), (n_rows, n_envs, *shape)
        return ArrayStore(files.array(full, dtype), files.array(full, dtype), files)

    def mapped_frames(*form: Any) -> FrameStore:
        return FrameStore(*form, 2, Files(Folder.shared(tmp_path / "frames")))

    return {
        "arrays": arrays,
        "frames": lambda *form: FrameStore(*form, 2),
        "mapped": mapped,
        "mapped frames": mapped_frames,
        "write and read alone": PickledObservations,
    }


@pytest.mark.parametrize("name", ["arrays", "frames", "mapped", "mapped frames", "write and read alone"])
def test_a_store_keeps_the_contract(name, tmp_path):
    check_store(make_stores(tmp_path)[name])


def as_half(array: np.ndarray) -> np.ndarray:
    """Round floats to 16 bits."""
    with np.errstate(over="ignore"):  # random bytes are large numbers, too
        return array.astype(np.float16).astype(array.dtype) if array.dtype.kind == "f" else array


class Halves(PickledObservations):
    """Keeps floats in 16 bits."""

    def write(self, rows: np.ndarray, envs: np.ndarray, observations: np.ndarray, next_observations: np.ndarray) -> None:
        super().write(rows, envs, as_half(observations), as_half(next_observations))


def test_a_store_that_rounds_keeps_the_contract_with_what_it_gives_back():
    check_store(Halves, as_half)
    with pytest.raises(AssertionError, match="not what was written"):
        check_store(Halves)


def test_the_contract_notices_a_store_that_breaks_it():
    """A store that gives views, forgets steps, or mixes up the two observations is found."""

    class Broken(ArrayStore):
        def __init__(self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any):
            super().__init__(np.zeros((n_rows, n_envs, *shape), dtype), np.zeros((n_rows, n_envs, *shape), dtype))

    class Views(Broken):
        def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
            array = self.next_observations if is_next else self.observations
            assert array is not None
            if len(slots) == array.shape[0] * array.shape[1]:
                return array.reshape(-1, *array.shape[2:])
            return super().read(slots, is_next)

    class Mixed(Broken):
        def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
            return super().read(slots, not is_next)

    class Forgetful(Broken):
        def write(self, rows: np.ndarray, envs: np.ndarray, *observations: np.ndarray) -> None:
            super().write(rows[:1], envs, *(each[:1] for each in observations))

    check_store(Broken)
    for cls in (Views, Mixed, Forgetful):
        with pytest.raises(AssertionError):
            check_store(cls)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot drop pages of a file from RAM")
@pytest.mark.parametrize("frames", [False, True])
def test_rows_of_several_pages_are_read_from_the_disk(frames, tmp_path, monkeypatch):
    """The system is asked for rows before they are read; nothing of them is in RAM here."""
    monkeypatch.setattr("sb3_per.storage.mapped.RAM_BYTES", 0)
    files, shape = Files(Folder.shared(tmp_path / "folder")), (20, 2, 3, 70, 90)
    assert not files.exceed_ram
    rng = np.random.default_rng(0)
    if frames:
        store: Any = FrameStore(20, 2, shape[2:], np.uint8, 3, files)
    else:
        store = ArrayStore(files.array(shape, np.uint8), files.array(shape, np.uint8), files)
    frame = rng.integers(0, 255, (23, 2, 70, 90), np.uint8)
    frame[5] = 0
    for row in range(20):
        stacks = [np.stack([frame[row + j + i] for j in range(3)], axis=1) for i in range(2)]
        store.reserve(2, row)
        store.write_row(row, *stacks)
    arrays = store.pool._pieces if frames else [store.observations, store.next_observations]
    madvise = ctypes.CDLL(None).madvise
    for array in arrays:  # each begins with its file
        madvise(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), mmap.MADV_DONTNEED)
    for path in (tmp_path / "folder").glob("*.mapped"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert files.exceed_ram
    slots = rng.permutation(40)
    for is_next in (False, True):
        found = store.read(slots, is_next)
        for slot, stack in zip(slots.tolist(), found, strict=True):
            first = slot // 2 + is_next
            np.testing.assert_array_equal(stack, frame[first : first + 3, slot % 2])


def test_an_assigned_array_keeps_the_store_of_a_user():
    class Half(ArrayStore):
        def __init__(self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any):
            super().__init__(*(np.zeros((n_rows, n_envs, *shape), np.float16) for _ in range(2)))

        def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
            return super().read(slots, is_next).astype(np.float32)

    class HalfArrays(PrioritizedReplayBuffer):
        store_class = Half

    box = spaces.Box(-1, 1, (3,))
    buffer = HalfArrays(10, box, box, device="cpu")
    fill([buffer], 5)
    before = buffer.sample(4).observations.dtype
    buffer.observations = np.zeros((10, 1, 3), np.float32)
    batch = buffer.sample(4)
    assert batch.observations.dtype == before and not batch.observations.any()
    assert buffer.to_replay_buffer().observations.dtype == np.float32
