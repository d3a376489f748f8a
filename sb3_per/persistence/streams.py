"""
Streams: rows of a buffer that do not change any more, e.g. observations and actions. They go into files that are never written
again.
"""

import dataclasses
from typing import Any

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.arrays import WRITTEN_ONCE
from sb3_per.persistence.array_rows import ArrayRows, FrameRows, rows_of
from sb3_per.persistence.generations import Blocks, DataFile
from sb3_per.persistence.ring import RingSteps

# Prefix of the streams and of the state of demonstrations.
DEMONSTRATIONS = "demonstrations/"

# Largest size of a file. Files become larger if there would be more than this number, because the manifest names them all.
_FILE_BYTES, _MANY_FILES = 16 * 2**20, 128

# Files below this size, or this share of the stream, are joined with newer rows. This keeps the number at a few dozen.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64


@dataclasses.dataclass
class Stream:
    """
    Rows that do not change after they were written.

    :param rows: those of each array
    :param steps: which steps they hold
    """

    rows: list[ArrayRows | FrameRows]
    steps: RingSteps

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about."""
        return max(sum(rows.row_bytes(self.steps) for rows in self.rows), 1)

    def pack(self, first: int, end: int) -> Blocks:
        """
        Collect rows.

        :param first: first step
        :param end: step after the last
        :return: arrays of these steps; views if possible
        """
        packed: Blocks = {}
        for rows in self.rows:
            packed.update(rows.pack(self.steps, first, end))
        return packed

    def unpack(self, first: int, end: int, packed: dict[str, np.ndarray]) -> None:
        """
        Write rows back, as far as the stream has room for them.

        :param first: first step of the arrays
        :param end: step after the last one of the arrays
        :param packed: arrays from a file
        :raises LookupError: if an array is missing
        :raises ValueError: if an array has another shape or type
        """
        n_left_out = max(self.steps.first - first, 0)
        for rows in self.rows:
            rows.unpack(self.steps, first, end, n_left_out, packed)


def stream_of(buffer: PrioritizedReplayBuffer) -> Stream:
    """Collect the rows that a buffer holds."""
    rows = {}
    for name in WRITTEN_ONCE:
        for key, array in _by_key(name, getattr(buffer, name, {})).items():
            found = rows_of(key, array)
            rows[found.name] = found  # a store is found twice
    return Stream(list(rows.values()), steps_of(buffer))


def steps_of(buffer: PrioritizedReplayBuffer) -> RingSteps:
    """Say which steps a buffer holds."""
    end = buffer.numbering.next_step
    return RingSteps(buffer.buffer_size, end - buffer.size(), end)


def _by_key(name: str, array: Any) -> dict[str, Any]:
    """Name an array, or the arrays of a dictionary."""
    if isinstance(array, dict):
        return {f"{name}/{key}": part for key, part in array.items()}
    return {name: array}


def buffers_in(buffer: PrioritizedReplayBuffer) -> dict[str, PrioritizedReplayBuffer]:
    """Return a buffer, and the one with its demonstrations, by the prefix of their names."""
    demonstrations = buffer.demonstrations.buffer
    return {"": buffer} if demonstrations is None else {"": buffer, DEMONSTRATIONS: demonstrations}


def ranges_to_write(stream: Stream, kept: list[DataFile]) -> list[tuple[int, int]]:
    """List first step and end of each new file."""
    steps = stream.steps
    begin = max(kept[-1].end, steps.first) if kept else steps.first
    n_bytes = max(_FILE_BYTES, (steps.end - steps.first) * stream.row_bytes // _MANY_FILES)
    n_steps = max(n_bytes // stream.row_bytes, 1)
    return [(first, min(first + n_steps, steps.end)) for first in range(begin, steps.end, n_steps)]


def without_small(files: list[DataFile], stream: Stream) -> list[DataFile]:
    """
    Leave out the last files, which are written anew, together with what is new, while the joined file stays small and no more
    is old in it than new. So every step is written a few times at most.
    """
    kept = list(files)
    first, end = stream.steps.first, stream.steps.end
    n_small = max(_SMALL_BYTES // stream.row_bytes, (end - first) * _SMALL_SHARE)
    begin = kept[-1].end if kept else end
    while kept and begin < end:
        n_old = begin - kept[-1].first
        if end - kept[-1].first > n_small or n_old > end - begin:
            break
        begin = kept.pop().first
    return kept
