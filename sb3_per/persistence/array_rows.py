"""Collect the rows of an array or of a store for a file, and write them back."""

from typing import Any

import numpy as np

from sb3_per.buffers.frames import FrameArray
from sb3_per.persistence.generations import Blocks
from sb3_per.persistence.ring import RingSteps, require_same_form


class ArrayRows:
    """
    Rows of one of SB3's arrays.

    :param name: name of the array in files
    :param array: shape (n_rows, n_envs, ...), from NumPy, or a user's that is indexed by rows, and rows and environments
    """

    def __init__(self, name: str, array: Any):
        self.name = name
        #: what holds the rows: the array
        self.holder = array
        #: whether NumPy can view its rows
        self.is_plain = isinstance(array, np.ndarray)

    def row_bytes(self, steps: RingSteps) -> int:
        """Return the bytes of a row."""
        return int(np.prod(self.holder.shape[1:])) * self.holder.dtype.itemsize

    def pack(self, steps: RingSteps, first: int, end: int) -> Blocks:
        """Collect the rows of steps; views if possible."""
        if self.is_plain:
            return {self.name: steps.blocks(self.holder, first, end)}
        rows = steps.rows(first, end)
        columns = [np.asarray(self.holder[rows, np.full_like(rows, env)]) for env in range(self.holder.shape[1])]
        return {self.name: [np.stack(columns, 1)]}

    def unpack(self, steps: RingSteps, first: int, end: int, n_left_out: int, packed: dict[str, np.ndarray]) -> None:
        """Write the rows of steps, but for the oldest ``n_left_out``. ``packed`` has all of them."""
        values = packed[self.name]
        if len(values) != end - first:
            raise ValueError(f"{self.name} has {len(values)} rows, not {end - first}")
        first += n_left_out
        values = values[n_left_out:]
        if self.is_plain:
            steps.put(self.holder, first, end, values)
            return
        require_same_form(self.holder, first, end, values)
        for row, value in zip(steps.rows(first, end), values, strict=True):
            self.holder[row] = value


class FrameRows:
    """
    Rows that a store packs in its own way, e.g. observations and next observations as frames.

    :param name: name of the observations in files
    :param store: has ``pack``, ``unpack`` and ``nbytes``, see :class:`~sb3_per.buffers.frames.FrameStore`
    """

    def __init__(self, name: str, store: Any):
        self.name = name
        #: what holds the rows: the store
        self.holder = store

    def row_bytes(self, steps: RingSteps) -> int:
        """Return the bytes of a row, about."""
        return int(self.holder.nbytes) // max(steps.end - steps.first, 1)

    def pack(self, steps: RingSteps, first: int, end: int) -> Blocks:
        """Collect the rows of steps."""
        packed = self.holder.pack(steps.rows(first, end))
        return {f"{self.name}:{part}": [content] for part, content in packed.items()}

    def unpack(self, steps: RingSteps, first: int, end: int, n_left_out: int, packed: dict[str, np.ndarray]) -> None:
        """Write the rows of steps, but for the oldest ``n_left_out``. ``packed`` has all of them."""
        own = f"{self.name}:"
        parts = {key.removeprefix(own): part for key, part in packed.items() if key.startswith(own)}
        self.holder.unpack(steps.rows(first + n_left_out, end), parts)


def rows_of(name: str, array: Any) -> ArrayRows | FrameRows:
    """
    Say how the rows of an array are read and written.

    :param name: name of the array in files
    :param array: one of SB3's arrays, or what stands in its place. Frames share their store with the other observations
    :return: its rows
    """
    if isinstance(array, FrameArray):
        return FrameRows(name.removeprefix("next_"), array.store)
    return ArrayRows(name, array)
