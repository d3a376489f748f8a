"""
Store every frame once: observations that are stacks of frames become references into a pool of frames.

Each observation is compared, byte by byte, with what came before. One that equals the last next observation shares its
references. A next observation that is the observation shifted by one brings one frame. Everything else is stored in full.
So every transition comes out as it came in, whatever its padding or done flags.
"""

import warnings
from typing import Any

import numpy as np

from sb3_per.buffers.frame_setting import stack_axis
from sb3_per.storage.frame_kernels import ZERO, Table, decode, encode, frames_will_be_needed, least_needed
from sb3_per.storage.frame_pool import FramePool
from sb3_per.storage.mapped import Files
from sb3_per.storage.store import ObservationStore

# Rows whose references are checked at a time.
_CHECKED_ROWS = 2**14

# Rows that are copied at a time.
_COPIED_ROWS = 256

# Number of adds after which a warning says that the observations are no stacks.
_JUDGED_ADDS = 1000


class FrameStore(ObservationStore):
    """
    An observation and a next observation for every slot of a ring, kept as references into a pool of frames.

    :param n_rows: number of rows of the ring
    :param n_envs: number of environments
    :param shape: shape of an observation
    :param dtype: type of an observation
    :param n_frames: number of frames in a stack
    :param files: that hold the frames; ``None``: they are in RAM
    :raises ValueError: if the observations cannot be cut into so many frames
    """

    def __init__(
        self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_frames: int, files: Files | None = None
    ):
        self.n_rows = n_rows
        self.n_envs = n_envs
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.n_frames = int(n_frames)
        self.axis = stack_axis(shape, self.n_frames)
        self.frame_bytes = int(np.prod(shape)) * self.dtype.itemsize // n_frames
        # Frames are compared in words of this type.
        self._word: type = np.uint64 if self.frame_bytes % 8 == 0 else np.uint8
        #: frames, each with its number
        self.pool = FramePool(self.frame_bytes, n_rows * n_envs, files)
        self._table = Table(
            references=np.full((n_rows * n_envs, 2 * n_frames), ZERO, np.uint32),
            lowest=np.zeros((n_rows, n_envs), np.int64),
            cursors=np.zeros((n_envs, 2), np.int64),
            last_numbers=np.full((n_envs, n_frames), -1, np.int64),
        )
        self._all_envs = np.arange(n_envs)
        # Number of the first steps, until it is known whether their observations are stacks.
        self._n_written = 0
        self._is_judged = False

    # ---- writing

    def reserve(self, n_transitions: int, last_row: int) -> None:
        """
        Make room for steps, even if every frame is new, see :class:`~sb3_per.storage.store.ObservationStore`.

        :param n_transitions: number of steps of all environments together
        :param last_row: without influence
        :raises MemoryError: if there is no memory for another piece of the pool; nothing has changed then
        :raises OSError: if there is no space on the disk for it; nothing has changed then
        """
        self.pool.reserve(2 * self.n_frames * n_transitions)

    def write(self, rows: np.ndarray, envs: np.ndarray, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store successive steps, see :class:`~sb3_per.storage.store.ObservationStore`.

        :param rows: int64 of shape (T, k)
        :param envs: environments of the steps, int64 of shape (k,)
        :param observations: shape (T, k, ...)
        :param next_observations: in the same shape
        """
        if rows.size:
            self._write_from(rows[0], envs, observations, next_observations)

    def write_row(self, row: int, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """See :class:`~sb3_per.storage.store.ObservationStore`."""
        self._write_from(row, self._all_envs, observations[None], next_observations[None])

    def _write_from(
        self, row: int | np.ndarray, envs: np.ndarray, observations: np.ndarray, next_observations: np.ndarray
    ) -> None:
        """Store successive steps, the first of them in this row, or in a row for each environment. See :meth:`write`."""
        # The kernel writes to addresses, which nothing checks: make room for what is written, whatever was reserved.
        n_transitions = len(observations) * len(envs)
        self.pool.reserve(2 * self.n_frames * n_transitions)
        frames = self._as_frames(observations)
        next_frames = self._as_frames(next_observations)
        self._table.cursors[envs, 0] = row
        first = encode(frames, next_frames, envs, tuple(self._table), self.pool.memory, self.pool.counter)
        self.pool.release(first)
        if not self._is_judged:
            self._judge(n_transitions)

    def clear(self) -> None:
        """Forget all rows."""
        self._table.cursors[:] = 0
        self._table.references[:] = ZERO
        self._table.last_numbers[:] = -1
        self.pool.release(self.pool.end)

    def _judge(self, n_transitions: int) -> None:
        """Warn once if the observations are no stacks: each step then stores at least ``n_frames`` frames instead of one."""
        self._n_written += n_transitions
        self._is_judged = self._n_written >= _JUDGED_ADDS * self.n_envs
        if self._is_judged and self.pool.end > self._n_written * (1 + self.n_frames) / 2:
            warnings.warn(
                f"frames={self.n_frames}: the first {self._n_written} transitions took {self.pool.end} frames. Each takes "
                f"one where the next observation is the observation shifted by one frame along axis {self.axis}. The others "
                "are stored in full, which takes more memory than without frames. Check the number of frames in a stack"
            )

    def _as_frames(self, observations: np.ndarray) -> np.ndarray:
        """Return the words of the frames, contiguous, shape (T, k, n_frames, words of a frame)."""
        n, shape = self.n_frames, self.shape
        observations = np.asarray(observations, self.dtype)
        lead = observations.shape[:2]
        if self.axis != 0:
            observations = np.moveaxis(observations.reshape(*lead, *shape[:-1], n, shape[-1] // n), -2, 2)
        if not observations.flags.carray:  # the kernels take writable arrays alone
            observations = np.array(observations, order="C")
        return observations.reshape(*lead, n, -1).view(self._word)

    # ---- reading

    def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """
        Read stacks.

        :param slots: integers of any shape
        :param is_next: whether to read next observations
        :return: a copy of the observations, shape (*slots.shape, *shape)
        :raises IndexError: for a slot outside of the ring
        """
        shape, n = self.shape, self.n_frames
        flat = np.ascontiguousarray(slots, dtype=np.int64).reshape(-1)
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self._table.references)):
            raise IndexError(f"Slots are in [0, {len(self._table.references)}), not {flat.min()} to {flat.max()}")
        found = np.empty((flat.size, n, self.frame_bytes), np.uint8)
        references = self._table.references[:, n:] if is_next else self._table.references[:, :n]
        if self.pool.files is not None and self.pool.files.exceed_ram:
            frames_will_be_needed(references, flat, self.pool.memory, self.frame_bytes)
        decode(references, flat, self.pool.memory, found)
        frames = found.reshape(-1).view(self.dtype)
        if self.axis != 0:
            frames = np.moveaxis(frames.reshape(flat.size, n, *shape[:-1], shape[-1] // n), 1, -2)
        return np.ascontiguousarray(frames).reshape(*slots.shape, *shape)

    # ---- rows that were not added one after the other

    def with_array(self, array: np.ndarray, is_next: bool) -> "FrameStore":
        """
        Copy this store, with other observations.

        :param array: observations of all rows, shape (n_rows, n_envs, *shape)
        :param is_next: whether they take the place of the next observations
        :return: a new store in the same files
        :raises MemoryError: see :meth:`reserve`
        :raises OSError: see :meth:`reserve`
        """
        new = FrameStore(self.n_rows, self.n_envs, self.shape, self.dtype, self.n_frames, self.pool.files)
        new._is_judged = True
        oldest, envs = self._table.cursors[:, 0], self._all_envs
        for first in range(0, self.n_rows, _COPIED_ROWS):
            rows = (np.arange(first, min(first + _COPIED_ROWS, self.n_rows))[:, None] + oldest) % self.n_rows
            given = array[rows, envs]
            kept = self.read(rows * self.n_envs + envs, not is_next)
            if is_next:
                new.write(rows, envs, kept, given)
            else:
                new.write(rows, envs, given, kept)
        return new

    def set_next_row(self, pos: int) -> None:
        """
        Let the next step of every environment follow another row.

        :param pos: row that is written next. All rows stay, and count as the steps before it
        """
        end = np.full(self.n_envs, self.n_rows + pos)
        self.use_references(end - self.n_rows, end)

    # ---- saving

    @property
    def references(self) -> np.ndarray:
        """
        Numbers of the frames of an observation and of the next one, modulo 2^32; 2^32 - 1 is the frame of zeros. A view,
        uint32 of shape (n_rows, n_envs, 2 * n_frames).
        """
        return self._table.references.reshape(self.n_rows, self.n_envs, -1)

    def arrays_by_row(self) -> dict[str, np.ndarray]:
        """List the references, which name the frames of each row; the frames themselves are saved by number."""
        return {"references": self.references}

    def frames(self, first: int, end: int) -> list[np.ndarray]:
        """
        View frames.

        :param first: number of the first frame
        :param end: number after the last one
        :return: views of successive frames, of the type of the observations, shape (n, *shape of a frame)
        """
        shape = list(self.shape)
        shape[self.axis] //= self.n_frames
        return [block.reshape(-1).view(self.dtype).reshape(-1, *shape) for block in self.pool.frames(first, end)]

    def use_references(self, first: np.ndarray, end_of_env: np.ndarray) -> None:
        """
        Use the references that were written into :attr:`references`, and clear those of rows that hold no step.

        :param first: oldest step of each environment, which is in row ``step % n_rows``, shape (n_envs,)
        :param end_of_env: step after the newest one, shape (n_envs,)
        :raises ValueError: if a slot refers to a frame that is not held. Discard the store after this error
        """
        oldest, end = self.pool.first, self.pool.end
        for e in range(self.n_envs):
            held = np.arange(first[e], end_of_env[e]) % self.n_rows
            self._table.cursors[e] = end_of_env[e] % self.n_rows, len(held)
            self.references[np.delete(np.arange(self.n_rows), held), e] = ZERO
            for start in range(0, len(held), _CHECKED_ROWS):
                rows = held[start : start + _CHECKED_ROWS]
                numbers = _numbers_of(self.references[rows, e], oldest)
                if numbers.max() >= end:
                    raise ValueError(f"A transition refers to frame {numbers.max()}, which is outside of [{oldest}, {end})")
                self._table.lowest[rows, e] = np.where(numbers < 0, end, numbers).min(axis=1)
            if len(held):
                # Later rows may need the frames of an older one.
                self._table.lowest[held, e] = np.minimum.accumulate(self._table.lowest[held[::-1], e])[::-1]
                # The next step may continue where this one ends.
                self._table.last_numbers[e] = _numbers_of(self.references[held[-1], e, self.n_frames :], oldest)
        self._is_judged = True
        if self._table.cursors[:, 1].any():
            self.pool.release(least_needed(self._table.lowest, self._table.cursors, end))

    @property
    def nbytes(self) -> int:
        """Memory of the pool and the references."""
        return self.pool.nbytes + self._references_nbytes

    def full_nbytes(self) -> tuple[int, int]:
        """Bytes with one frame for each transition. The references stay in RAM."""
        n_bytes_of_frames = self.frame_bytes * self.n_rows * self.n_envs
        if self.pool.files is None:
            return self._references_nbytes + n_bytes_of_frames, 0
        return self._references_nbytes, n_bytes_of_frames

    @property
    def _references_nbytes(self) -> int:
        return self._table.references.nbytes + self._table.lowest.nbytes


def _numbers_of(references: np.ndarray, oldest: int) -> np.ndarray:
    """Turn references, which are modulo 2^32, into numbers from the oldest on; the zero frame gets -1."""
    return np.where(references == ZERO, -1, oldest + (references.astype(np.int64) - oldest) % 2**32)
