"""
Store every frame once: observations that are stacks of frames become references into a pool of frames.

Each observation is compared, byte by byte, with what came before. One that equals the last next observation shares its
references. A next observation that is the observation shifted by one brings one frame. Everything else is stored in full.
So every transition comes out as it came in, whatever its padding or done flags.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.storage.frame_kernels import ZERO, decode, encode
from sb3_per.storage.frame_pool import FramePool

# Observations that hindsight replaces.
GOALS = ("achieved_goal", "desired_goal")

# Rows whose references are checked at a time.
_CHECKED_ROWS = 2**14

# Number of adds after which a warning says that the observations are no stacks.
_JUDGED_ADDS = 1000


def stack_axis(shape: tuple[int, ...], n_frames: int) -> int:
    """
    Find the axis that frames are stacked along. Images of Stable-Baselines3 have channels first. VecFrameStack stacks vectors
    and images with channels last along the last axis. Gymnasium's FrameStackObservation adds a first axis.

    :param shape: shape of an observation
    :param n_frames: number of frames in a stack
    :return: 0 or the last axis
    :raises ValueError: if neither can be cut into so many frames
    """
    first, last = 0, len(shape) - 1
    fitting = [axis for axis in (first, last) if shape and shape[axis] % n_frames == 0]
    if not fitting:
        raise ValueError(f"frames={n_frames} divides neither the first nor the last axis of observations of shape {shape}")
    if shape[first] == n_frames or len(fitting) == 1:
        return fitting[0]
    # Channels are fewer than rows and columns.
    return first if len(shape) == 3 and shape[first] <= shape[last] else last


def frames_by_key(frames: Any, space: spaces.Space) -> dict[str | None, int]:
    """
    Check the setting ``frames``.

    :param frames: number of frames in a stack; for Dict observations, by key
    :param space: space of the observations
    :return: number of frames by key, with the key ``None`` for observations that are no dictionary
    :raises ValueError: if it does not fit the observations
    """
    if frames == "auto":
        raise ValueError("frames='auto' asks the environment of an algorithm; a buffer on its own needs the number of frames")
    if isinstance(space, spaces.Dict) != isinstance(frames, dict):
        example = "frames=dict(image=4)" if isinstance(space, spaces.Dict) else "frames=4"
        raise ValueError(f"frames={frames!r} does not fit observations of {type(space).__name__}: write e.g. {example}")
    by_key: dict[str | None, int] = dict(frames) if isinstance(frames, dict) else {None: frames}
    for key, n_frames in by_key.items():
        if isinstance(n_frames, bool) or not isinstance(n_frames, (int, np.integer)) or n_frames < 1:
            raise ValueError(f"frames must be an integer of at least 1, not {n_frames!r}")
        if key in GOALS:
            raise ValueError(f"frames cannot be named for {key!r}: hindsight writes goals anew")
        part = space
        if isinstance(space, spaces.Dict):
            if key not in space.spaces:
                raise ValueError(f"frames names {key!r}, which is not among the observations: {sorted(space.spaces)}")
            part = space.spaces[key]
        if not isinstance(part, (spaces.Box, spaces.MultiBinary)):
            raise ValueError(f"frames={n_frames} needs observations that are arrays, not {part}")
        stack_axis(part.shape or (), int(n_frames))
    return by_key


def without(space: spaces.Space, keys: Iterable[str | None]) -> spaces.Space:
    """
    Remove what is stored in frames from a space.

    :param space: space of the observations
    :param keys: keys of those that are stored elsewhere; ``None`` for observations that are no dictionary
    :return: the same space with these empty, so that SB3 allocates nothing for them
    """
    keys = set(keys)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: without(part, [None]) if key in keys else part for key, part in space.spaces.items()})
    return spaces.Box(0, 1, (0,), space.dtype) if None in keys else space  # type: ignore[arg-type]


class FrameStore:
    """
    An observation and a next observation for every slot of a ring, kept as references into a pool of frames.

    :param n_rows: number of rows of the ring
    :param n_envs: number of environments
    :param shape: shape of an observation
    :param dtype: type of an observation
    :param n_frames: number of frames in a stack
    :raises ValueError: if the observations cannot be cut into so many frames
    """

    def __init__(self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_frames: int):
        self.n_rows, self.n_envs, self.shape, self.dtype, self.n_frames = n_rows, n_envs, shape, np.dtype(dtype), n_frames
        self.axis = stack_axis(shape, n_frames)
        self.frame_bytes = int(np.prod(shape)) * self.dtype.itemsize // n_frames
        # Frames are compared in words of this type.
        self._word: type = np.uint64 if self.frame_bytes % 8 == 0 else np.uint8
        #: frames, each with its number
        self.pool = FramePool(self.frame_bytes, n_rows * n_envs)
        # References of both observations of a slot, and the least number of a frame that one of them refers to.
        self._references = np.full((n_rows * n_envs, 2 * n_frames), ZERO, np.uint32)
        self._lowest = np.zeros((n_rows, n_envs), np.int64)
        # By environment: the row that is written next, and the number of steps written since the ring was empty.
        self._cursors = np.zeros((n_envs, 2), np.int64)
        # By environment, the numbers of the frames of the newest next observation, -1 for the zero frame.
        self._last_numbers = np.full((n_envs, n_frames), -1, np.int64)
        # Number of the first steps, until it is known whether their observations are stacks.
        self._n_written = 0
        self._is_judged = False

    # ---- writing

    def write(self, envs: np.ndarray, rows: Any, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store T successive steps of k environments in place of what was in their rows.

        :param envs: different environments, int64 of shape (k,)
        :param rows: row of the first step of each, shape (k,), or one for all
        :param observations: shape (T, k, ...)
        :param next_observations: in the same shape
        :raises MemoryError: if there is no memory for another piece of the pool; nothing has changed then
        """
        frames, next_frames = self._as_frames(observations), self._as_frames(next_observations)
        n_steps = len(frames) * len(envs)
        self.reserve(n_steps)
        self._cursors[envs, 0] = rows
        pool = self.pool
        pool.end, first = encode(
            frames,
            next_frames,
            self._last_numbers,
            envs,
            self._cursors,
            self._references,
            self._lowest,
            pool.memory,
            pool.end,
        )
        pool.release(first)
        if not self._is_judged:
            self._judge(n_steps)

    def reserve(self, n_steps: int) -> None:
        """
        Make room for whatever comes.

        :param n_steps: number of steps that are written next
        :raises MemoryError: see :meth:`write`
        """
        self.pool.reserve(2 * self.n_frames * n_steps)

    def clear(self) -> None:
        """Forget all rows."""
        self._cursors[:] = 0
        self._references[:] = ZERO
        self._last_numbers[:] = -1
        self.pool.release(self.pool.end)

    def _judge(self, n_steps: int) -> None:
        """Warn once if the observations are no stacks: then at least ``n_frames`` are stored at every step, instead of one."""
        self._n_written += n_steps
        self._is_judged = self._n_written >= _JUDGED_ADDS * self.n_envs
        if self._is_judged and self.pool.end > self._n_written * (1 + self.n_frames) / 2:
            warnings.warn(
                f"frames={self.n_frames}: the first {self._n_written} transitions took {self.pool.end} frames. Each takes "
                f"one where the next observation is the observation shifted by one frame along axis {self.axis}. The others "
                "are stored in full, which takes more memory than without frames. Check the number of frames in a stack"
            )

    def _as_frames(self, observations: np.ndarray) -> np.ndarray:
        """Words of the frames, shape (T, k, n_frames, words of a frame), contiguous."""
        n, shape = self.n_frames, self.shape
        observations = np.asarray(observations, self.dtype)
        lead = observations.shape[:2]
        if self.axis != 0:
            observations = np.moveaxis(observations.reshape(*lead, *shape[:-1], n, shape[-1] // n), -2, 2)
        if not observations.flags.carray:  # the kernels take writable arrays alone
            observations = np.array(observations, order="C")
        return observations.reshape(*lead, n, -1).view(self._word)

    # ---- reading

    def gather(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """
        Read stacks.

        :param slots: integers of any shape
        :param is_next: whether to read next observations
        :return: a copy of the observations, shape (*slots.shape, *shape)
        :raises IndexError: for a slot outside of the ring
        """
        shape, n = self.shape, self.n_frames
        flat = np.ascontiguousarray(slots, dtype=np.int64).reshape(-1)
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self._references)):
            raise IndexError(f"Slots are in [0, {len(self._references)}), not {flat.min()} to {flat.max()}")
        found = np.empty((flat.size, n, self.frame_bytes), np.uint8)
        references = self._references[:, n:] if is_next else self._references[:, :n]
        decode(references, flat, self.pool.memory, found)
        frames = found.reshape(-1).view(self.dtype)
        if self.axis != 0:
            frames = np.moveaxis(frames.reshape(flat.size, n, *shape[:-1], shape[-1] // n), 1, -2)
        return np.ascontiguousarray(frames).reshape(*slots.shape, *shape)

    # ---- saving

    @property
    def references(self) -> np.ndarray:
        """
        Numbers of the frames of an observation and of the next one, modulo 2^32; 2^32 - 1 is the frame of zeros. A view,
        uint32 of shape (n_rows, n_envs, 2 * n_frames).
        """
        return self._references.reshape(self.n_rows, self.n_envs, -1)

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

    def adopt(self, first: np.ndarray, end_of_env: np.ndarray) -> None:
        """
        Take over references that were written into :attr:`references`. Those of other slots are forgotten.

        :param first: oldest step of each environment, which is in row ``step % n_rows``, shape (n_envs,)
        :param end_of_env: step after the newest one, shape (n_envs,)
        :raises ValueError: if a slot refers to a frame that is not held; this store is of no use then
        """
        oldest, end = self.pool.first, self.pool.end
        least = end
        for e in range(self.n_envs):
            held = np.arange(first[e], end_of_env[e]) % self.n_rows
            self._cursors[e] = end_of_env[e] % self.n_rows, len(held)
            self.references[np.delete(np.arange(self.n_rows), held), e] = ZERO
            for start in range(0, len(held), _CHECKED_ROWS):
                rows = held[start : start + _CHECKED_ROWS]
                numbers = _numbers_of(self.references[rows, e], oldest)
                if numbers.max() >= end:
                    raise ValueError(f"A transition refers to frame {numbers.max()}, which is outside of [{oldest}, {end})")
                self._lowest[rows, e] = np.where(numbers < 0, end, numbers).min(axis=1)
            if len(held):
                # Later rows may need the frames of an older one.
                self._lowest[held, e] = np.minimum.accumulate(self._lowest[held[::-1], e])[::-1]
                least = min(least, self._lowest.item(held[0], e))
                # The next step may go on where this one ends.
                self._last_numbers[e] = _numbers_of(self.references[held[-1], e, self.n_frames :], oldest)
        self._is_judged = True
        if self._cursors[:, 1].any():
            self.pool.release(least)

    @property
    def nbytes(self) -> int:
        """Memory of the pool and the references."""
        return self.pool.nbytes + self._references.nbytes + self._lowest.nbytes


def _numbers_of(references: np.ndarray, oldest: int) -> np.ndarray:
    """Turn references, which are modulo 2^32, into numbers from the oldest on; the zero frame gets -1."""
    return np.where(references == ZERO, -1, oldest + (references.astype(np.int64) - oldest) % 2**32)


class FramedArray:
    """
    Looks like SB3's array of observations, or of next observations; indexing reads a copy.

    :param store: store of both
    :param is_next: whether it shows next observations
    """

    def __init__(self, store: FrameStore, is_next: bool):
        self.store, self.is_next = store, is_next

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the plain array."""
        return self.store.n_rows, self.store.n_envs, *self.store.shape

    @property
    def dtype(self) -> Any:
        """As of the plain array."""
        return self.store.dtype

    @property
    def ndim(self) -> int:
        """As of the plain array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Half of the memory of the store; the other half is counted for the other array."""
        return self.store.nbytes // 2 if self.is_next else self.store.nbytes - self.store.nbytes // 2

    def __len__(self) -> int:
        return self.store.n_rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        decoded: np.ndarray = self[:]
        return decoded if dtype is None else decoded.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """As of the plain array; a copy."""
        slots = np.arange(self.store.n_rows * self.store.n_envs).reshape(self.store.n_rows, self.store.n_envs)
        if index is Ellipsis or (isinstance(index, tuple) and any(part is Ellipsis for part in index)):
            return self[:][index]
        parts = index if isinstance(index, tuple) else (index,)
        slots = np.asarray(slots[parts[:2]])
        decoded = self.at(slots)
        return decoded[(slice(None),) * slots.ndim + parts[2:]]

    def at(self, slots: np.ndarray) -> np.ndarray:
        """
        Read stacks.

        :param slots: integers of any shape
        :return: a copy of these slots
        """
        return self.store.gather(slots, self.is_next)


def framed(n_rows: int, n_envs: int, observations: Any, n_frames: int) -> tuple[FramedArray, FramedArray]:
    """
    Make empty frames.

    :param n_rows: number of rows of the ring
    :param n_envs: number of environments
    :param observations: array or frames of shape (any, n_envs, ...), or a space; only the shape and type count
    :param n_frames: number of frames in a stack
    :return: empty observations and next observations
    """
    shape = observations.shape if isinstance(observations, spaces.Space) else observations.shape[2:]
    store = FrameStore(n_rows, n_envs, shape or (), observations.dtype, int(n_frames))
    return FramedArray(store, False), FramedArray(store, True)
