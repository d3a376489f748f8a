"""Observations in arrays of SB3's form, in RAM or in files."""

import copy
from typing import Any

import numpy as np

from sb3_per.storage.mapped import PAGE, Files, rows_will_be_needed
from sb3_per.storage.nested import flat
from sb3_per.storage.store import ObservationStore


class ArrayStore(ObservationStore):
    """
    Keep observations in arrays.

    :param observations: shape (n_rows, n_envs, ...), contiguous
    :param next_observations: in the same shape; ``None`` with ``optimize_memory_usage``: the next observation of a row is the
        observation of the following row
    :param files: in which the arrays are; ``None``: in RAM
    """

    def __init__(self, observations: np.ndarray, next_observations: np.ndarray | None, files: Files | None = None):
        self.files = files
        self.n_rows, self.n_envs = observations.shape[:2]
        self._slot_bytes = observations[:1, :1].nbytes
        self._use(observations, next_observations)

    def _use(self, observations: np.ndarray, next_observations: np.ndarray | None) -> None:
        """Keep these arrays, with views of them by slot: to make a view takes as long as to read a batch of 32."""
        self.observations = observations
        self.next_observations = next_observations
        self._observations_by_slot = flat(observations)
        self._next_by_slot = None if next_observations is None else flat(next_observations)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        if self.next_observations is None:
            return self.observations.nbytes
        return self.observations.nbytes + self.next_observations.nbytes

    def full_nbytes(self) -> tuple[int, int]:
        """Bytes of both arrays, in RAM or on the disk."""
        if self.files is None:
            return self.nbytes, 0
        return 0, self.nbytes

    @property
    def n_rows_with_room(self) -> int:
        """All rows, or those whose blocks of the disk are allocated."""
        if self.files is None or self.files.n_reserved >= self.n_rows:
            return self.n_rows
        return self.files.n_reserved - 1

    def reserve(self, n_transitions: int, last_row: int) -> None:
        """Allocate blocks of the disk, if the arrays are in files. See :class:`~sb3_per.storage.store.ObservationStore`."""
        if self.files is not None:
            # With `optimize_memory_usage`, the next observation goes into the row after the last one.
            self.files.reserve(last_row + 2)

    def write_row(self, row: int, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """See :class:`~sb3_per.storage.store.ObservationStore`. With one integer as an index, it is twice as fast."""
        self.observations[row] = observations
        if self.next_observations is None:
            self.observations[(row + 1) % self.n_rows] = next_observations
        else:
            self.next_observations[row] = next_observations

    def write(self, rows: np.ndarray, envs: np.ndarray, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """See :class:`~sb3_per.storage.store.ObservationStore`."""
        if len(rows) == 0:
            return
        self.observations[rows, envs] = observations
        if self.next_observations is None:
            self.observations[(rows[-1] + 1) % self.n_rows, envs] = next_observations[-1]
        else:
            self.next_observations[rows, envs] = next_observations

    def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """See :class:`~sb3_per.storage.store.ObservationStore`."""
        array = self._observations_by_slot
        if is_next:
            if self._next_by_slot is None:
                slots = (slots + self.n_envs) % (self.n_rows * self.n_envs)
            else:
                array = self._next_by_slot
        # While they are in RAM, rows below a page take less time to read than to ask for.
        if self.files is not None and self._slot_bytes >= PAGE and self.files.exceed_ram:
            rows_will_be_needed(array.ctypes.data, self._slot_bytes, np.ascontiguousarray(slots).reshape(-1))
        return array.take(slots, axis=0)

    def as_sb3_array(self, shape: tuple[int, ...], dtype: np.dtype, is_next: bool) -> Any:
        """Show the array itself."""
        return self.next_observations if is_next else self.observations

    def with_array(self, array: np.ndarray, is_next: bool) -> "ArrayStore":
        """
        Make a store that shares the array, or copy it into the file.

        :param array: of the shape and type of the present one. The file has room for all of it
        :param is_next: whether it has next observations
        :return: a new store in RAM, or this one in files
        """
        if self.files is not None:
            self.as_sb3_array(array.shape, array.dtype, is_next)[...] = array
            return self
        arrays = self.arrays_by_row()
        arrays["next_observations" if is_next else "observations"] = writable(array)
        other = copy.copy(self)
        other.use_arrays(list(arrays.values()), files=None)
        return other

    def arrays_by_row(self) -> dict[str, np.ndarray]:
        """List the arrays by name."""
        if self.next_observations is None:
            return {"observations": self.observations}
        return {"observations": self.observations, "next_observations": self.next_observations}

    def make_read_only(self) -> None:
        """Make the arrays read-only, see :class:`~sb3_per.storage.store.ObservationStore`."""
        self.observations.flags.writeable = False
        if self.next_observations is not None:
            self.next_observations.flags.writeable = False

    def use_arrays(self, arrays: list[np.ndarray], files: Files | None) -> None:
        """
        Use other arrays of the same shapes.

        :param arrays: in the order of :meth:`arrays_by_row`
        :param files: in which they are; ``None``: in RAM
        """
        self.files = files
        self._use(arrays[0], None if self.next_observations is None else arrays[1])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out views, and rows of files that were never written: on some disks, reading them takes space."""
        state = dict(vars(self))
        del state["_observations_by_slot"]
        del state["_next_by_slot"]
        if self.files is not None:
            state["observations"] = self.observations[: self.files.n_reserved]
            if self.next_observations is not None:
                state["next_observations"] = self.next_observations[: self.files.n_reserved]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._use(self.observations, self.next_observations)


def writable(array: np.ndarray) -> np.ndarray:
    """
    Return an array that kernels can read and steps can be written into.

    :param array: of any order in memory
    :return: the same array, or a copy if it is read-only or not contiguous
    """
    return np.require(array, requirements=["C", "W"])


def empty_array(shape: tuple[int, ...], dtype: Any, files: Files | None) -> np.ndarray:
    """
    Make an array of zeros, of which only rows that are written take memory.

    :param shape: (n_rows, ...)
    :param dtype: type of the numbers
    :param files: in which it is; ``None``: in RAM
    :return: the array
    """
    if files is None:
        return np.zeros(shape, dtype)
    return files.array(shape, dtype)


def moved(written: list[np.ndarray], n_rows: int, files: Files | None) -> list[np.ndarray]:
    """
    Move arrays into files, or out of them.

    :param written: the first rows of each, which were written, shape (n, ...) with n up to ``n_rows``
    :param n_rows: rows of the whole arrays
    :param files: where they are from now on; ``None``: in RAM
    :return: arrays of shape (n_rows, ...); the same ones where they are in RAM and whole
    """
    if files is None and len(written[0]) == n_rows:
        return written
    whole = [empty_array((n_rows, *rows.shape[1:]), rows.dtype, files) for rows in written]
    if files is not None:
        files.reserve(len(written[0]))  # the blocks of all, before any is written
    for array, rows in zip(whole, written, strict=True):
        array[: len(rows)] = rows
    return whole
