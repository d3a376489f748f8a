"""
Every frame stored once: observations that are stacks of frames, kept as references into a pool of frames.

Nothing is inferred from done flags, padding or adjacency. What comes in is compared, byte by byte, with what came before: an
observation that is the next observation of the step before shares its references, a next observation that is the observation
shifted by one brings one frame, and everything else is stored in full. So every transition comes out as it came in.

It knows arrays and bytes, nothing of replay.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.storage.frame_kernels import ZERO, decode, encode, encode_steps
from sb3_per.storage.ring import Ring

# Size of a piece of the pool, at most; pieces are allocated when they are reached, and are smaller where the whole pool is.
_SEGMENT_BYTES = 64 * 2**20

# Observations that hindsight replaces.
GOALS = ("achieved_goal", "desired_goal")

# Steps that are copied from arrays into frames at a time.
_BLOCK = 256

# Rows whose references are looked at together.
_CHECKED_ROWS = 2**14

# Adds over which it is judged whether the data are stacks.
_JUDGED_ADDS = 1000


def stack_axis(shape: tuple[int, ...], n_frames: int) -> int:
    """
    Where the frames are stacked: images of Stable-Baselines3 have channels first, VecFrameStack stacks vectors and images with
    channels last along the last axis, and Gymnasium's FrameStackObservation adds a first one.

    :param shape: of an observation
    :param n_frames: in a stack
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
    What the setting ``frames`` says, checked.

    :param frames: number of frames in a stack; for Dict observations, by key
    :param space: of the observations
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
    :param space: of observations
    :param keys: of those that are stored elsewhere; ``None`` for observations that are no dictionary
    :return: the same with nothing in them, so that SB3 allocates nothing for them
    """
    keys = set(keys)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: without(part, [None]) if key in keys else part for key, part in space.spaces.items()})
    return spaces.Box(0, 1, (0,), space.dtype) if None in keys else space  # type: ignore[arg-type]


class FrameStore:
    """
    Pairs of an observation and its next observation, for each slot of a ring.

    :param n_rows: of the ring
    :param n_envs: slots of a row
    :param shape: of an observation
    :param dtype: of an observation
    :param n_frames: in a stack
    :raises ValueError: if the observations cannot be cut into so many frames
    """

    def __init__(self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_frames: int):
        self.n_rows, self.n_envs, self.shape, self.dtype, self.n_frames = n_rows, n_envs, shape, np.dtype(dtype), n_frames
        self.axis = stack_axis(shape, n_frames)
        self.frame_bytes = int(np.prod(shape)) * self.dtype.itemsize // n_frames
        self._batch_shape = (n_envs, *shape)
        # What is compared at a time.
        self._word: type = np.uint64 if self.frame_bytes % 8 == 0 else np.uint8
        # A power of two, so that numbers of frames may run over the end of their 32 bits.
        wanted = min(max(_SEGMENT_BYTES // max(self.frame_bytes, 1), 1), max(n_rows * n_envs // 64, 8))
        self._shift = int(np.log2(wanted))
        # References of both observations of a slot; and the least number of a frame that one of them refers to.
        self._references = np.full((n_rows * n_envs, 2 * n_frames), ZERO, np.uint32)
        self._lowest = np.zeros((n_rows, n_envs), np.int64)
        # By column: the row that is written next, and how many were written since the ring was empty.
        self._cursors = np.zeros((n_envs, 2), np.int64)
        self._all_envs = np.arange(n_envs)
        # The pool: pieces by number; addresses by the last bits of their number; pieces that nothing refers to any more.
        self._segments: dict[int, np.ndarray] = {}
        self._addresses = np.zeros(4, np.uint64)
        self._free: list[np.ndarray] = []
        self._next_number = 0
        # Least number that is wanted, and the piece that it is in.
        self._oldest_number = 0
        self._oldest_segment = 0
        # The next observation of the step before: bytes, and numbers of its frames, -1 for the zero frame.
        self._last_bytes = np.zeros((n_envs, n_frames, self.frame_bytes // self._word().itemsize), self._word)
        self._last_numbers = np.full((n_envs, n_frames), -1, np.int64)
        # Of the first slots written: how many, and how many of them brought one frame.
        self.n_written = self.n_shifted = 0
        self._is_judged = False

    # ---- in

    def write_row(self, row: int, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store one step of every environment in place of what was in the row.

        :param row: of the ring
        :param observations: one of every environment
        :param next_observations: in the same form
        :raises MemoryError: if there is no memory for another piece of the pool; nothing has changed then
        """
        # The next observations are compared with the next step: the caller may write to its own array until then.
        frames, next_frames = self._as_frames(observations), self._as_frames(np.array(next_observations))
        self.reserve(self.n_envs)
        self._cursors[:, 0] = row
        self._next_number, oldest_number, n_shifted = encode(
            frames,
            next_frames,
            self._last_bytes,
            self._last_numbers,
            self._all_envs,
            self._cursors,
            self._references,
            self._lowest,
            self._addresses,
            self._shift,
            self._next_number,
        )
        self._last_bytes = next_frames
        self._release(oldest_number)
        if not self._is_judged:
            self._count_shifted(self.n_envs, n_shifted)

    def write(self, envs: np.ndarray, rows: np.ndarray, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        T successive steps of k columns, which take the place of what was in their rows.

        :param envs: different columns, int64 of shape (k,)
        :param rows: of the ring, of the first step, shape (k,)
        :param observations: shape (T, k, ...)
        :param next_observations: in the same form; copied
        :raises MemoryError: see :meth:`write_row`
        """
        n_slots = observations.shape[0] * observations.shape[1]
        shape = (*observations.shape[:2], *self._last_bytes.shape[1:])
        frames, next_frames = (
            self._as_frames(each.reshape(n_slots, *self.shape), n_slots).reshape(shape)
            for each in (observations, next_observations)
        )
        self.reserve(n_slots)
        self._cursors[envs, 0] = rows
        self._next_number, oldest_number, n_shifted = encode_steps(
            frames,
            next_frames,
            self._last_bytes[envs],
            self._last_numbers,
            envs,
            self._cursors,
            self._references,
            self._lowest,
            self._addresses,
            self._shift,
            self._next_number,
        )
        last_bytes = self._last_bytes.copy()  # which may be somebody's observations
        last_bytes[envs] = next_frames[-1]
        self._last_bytes = last_bytes
        self._release(oldest_number)
        if not self._is_judged:
            self._count_shifted(n_slots, n_shifted)

    def _count_shifted(self, n_written: int, n_shifted: int) -> None:
        self.n_written += n_written
        self.n_shifted += n_shifted
        if self.n_written >= _JUDGED_ADDS * self.n_envs:
            self._judge()

    def reserve(self, n_slots: int) -> None:
        """
        Memory for whatever comes for so many slots.

        :param n_slots: that are written next
        :raises MemoryError: see :meth:`write_row`
        """
        self._reserve(2 * self.n_frames * n_slots)

    def clear(self) -> None:
        """Forget all rows."""
        self._cursors[:] = 0
        self._references[:] = ZERO
        self._last_bytes = np.zeros_like(self._last_bytes)
        self._last_numbers[:] = -1
        self._release(self._next_number)

    def _release(self, oldest_number: int) -> None:
        """Pieces of the pool with older frames only can be used again, first in, first out."""
        self._oldest_number = oldest_number
        while self._oldest_segment < oldest_number >> self._shift:
            self._free.append(self._segments.pop(self._oldest_segment))
            self._oldest_segment += 1

    def _reserve(self, n_frames: int) -> None:
        """Memory for so many frames more."""
        last = (self._next_number + n_frames) >> self._shift
        if last in self._segments:
            return
        first = self._next_number >> self._shift
        new = {number: self._piece() for number in range(first, last + 1) if number not in self._segments}
        self._segments.update(new)
        n_live = last - self._oldest_segment + 1
        if n_live > len(self._addresses):
            self._addresses = np.zeros(2 ** int(np.ceil(np.log2(n_live))), np.uint64)
            new = self._segments
        for number, piece in new.items():
            self._addresses[number % len(self._addresses)] = piece.ctypes.data

    def _piece(self) -> np.ndarray:
        if self._free:
            return self._free.pop()
        n_bytes = self.frame_bytes << self._shift
        try:
            return np.empty(n_bytes, np.uint8)
        except MemoryError:
            held = f"{self.nbytes / 2**20:.0f} MiB that are held"
            raise MemoryError(f"No memory for {n_bytes / 2**20:.0f} MiB of frames beside the {held}") from None

    def _judge(self) -> None:
        self._is_judged = True
        if self.n_shifted < self.n_written / 2:
            warnings.warn(
                f"frames={self.n_frames}: of the first {self.n_written} transitions, only {self.n_shifted} have a next "
                f"observation that is the observation shifted by one frame along axis {self.axis}. The others are stored in "
                "full, which takes more memory than without frames: is the number of frames in a stack right?"
            )

    def _as_frames(self, observations: np.ndarray, n_slots: int | None = None) -> np.ndarray:
        """
        Words of the frames, the stack axis first: shape (n_slots, n_frames, words of a frame), contiguous. Without a number,
        the observations are those of all environments.
        """
        m, wanted = (self.n_envs, self._batch_shape) if n_slots is None else (n_slots, (n_slots, *self.shape))
        if observations.shape != wanted or observations.dtype != self.dtype:
            observations = np.broadcast_to(np.asarray(observations, self.dtype), wanted)
        shape, n = self.shape, self.n_frames
        if self.axis == 0 and observations.flags.c_contiguous:
            return observations.reshape(m, n, -1).view(self._word)
        if self.axis == 0:
            frames = observations.reshape(m, n, shape[0] // n, *shape[1:])
        else:
            frames = np.moveaxis(observations.reshape(m, *shape[:-1], n, shape[-1] // n), -2, 1)
        return np.ascontiguousarray(frames).reshape(m, n, -1).view(self._word)

    # ---- out

    def gather(self, leaves: np.ndarray, is_next: bool) -> np.ndarray:
        """
        :param leaves: slots, integers of any shape
        :param is_next: next observations, or observations
        :return: a copy of them, shape (*leaves.shape, *shape)
        :raises IndexError: for a slot outside of the ring
        """
        first = self.n_frames if is_next else 0
        flat = np.ascontiguousarray(leaves, dtype=np.int64).reshape(-1)
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self._references)):
            raise IndexError(f"Slots are in [0, {len(self._references)}), not {flat.min()} to {flat.max()}")
        out = np.empty(flat.size * self.n_frames * self.frame_bytes, np.uint8)
        decode(self._references, flat, first, self.n_frames, self._addresses, self._shift, out, self.frame_bytes)
        shape, n = self.shape, self.n_frames
        if self.axis == 0:
            return np.asarray(out.view(self.dtype).reshape(*leaves.shape, *shape))
        frames = out.view(self.dtype).reshape(flat.size, n, *shape[:-1], shape[-1] // n)
        return np.asarray(np.ascontiguousarray(np.moveaxis(frames, 1, -2)).reshape(*leaves.shape, *shape))

    # ---- state

    @property
    def references(self) -> np.ndarray:
        """
        Numbers of the frames of an observation and of the next one, modulo 2^32; 2^32 - 1 is the frame of zeros. A view,
        uint32 of shape (n_rows, n_envs, 2 * n_frames).
        """
        return self._references.reshape(self.n_rows, self.n_envs, -1)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one frame of the pool."""
        shape = list(self.shape)
        shape[self.axis] //= self.n_frames
        return tuple(shape)

    @property
    def numbers(self) -> tuple[int, int]:
        """Of the frames that are held: the first, and the one that comes next."""
        return self._oldest_number, self._next_number

    def emptied(self) -> "FrameStore":
        """A new one of the same kind, with nothing in it."""
        return FrameStore(self.n_rows, self.n_envs, self.shape, self.dtype, self.n_frames)

    def frames(self, first: int, end: int) -> list[np.ndarray]:
        """
        Frames of the pool by number.

        :param first: number of the first
        :param end: number behind the last
        :return: views, one behind the other, of the type of the observations and of shape (n, *frame_shape)
        """
        blocks, size = [], 1 << self._shift
        while first < end:
            number, place = divmod(first, size)
            n = min(size - place, end - first)
            piece = self._segments[number][place * self.frame_bytes : (place + n) * self.frame_bytes]
            blocks.append(piece.view(self.dtype).reshape(n, *self.frame_shape))
            first += n
        return blocks

    def reserve_numbers(self, first: int, end: int) -> None:
        """
        Make an empty store ready for frames that are written into :meth:`frames`.

        :param first: number of the first
        :param end: number behind the last
        :raises MemoryError: see :meth:`write_row`
        """
        self._next_number = self._oldest_number = first
        self._oldest_segment = first >> self._shift
        self._reserve(end - first)
        self._next_number = end

    def adopt(self, first: np.ndarray, end_of_column: np.ndarray) -> None:
        """
        Take note of references that were written into :attr:`references`. Of other slots they are forgotten.

        :param first: the oldest step of each column, which is in row ``step % n_rows``, shape (n_envs,)
        :param end_of_column: the step after the newest one, shape (n_envs,)
        :raises ValueError: if one refers to a frame that is not held; then nothing of this store may be used
        """
        oldest, end = self.numbers

        def numbers_of(references: np.ndarray, of_zero: int) -> np.ndarray:
            # Numbers run on over the end of the 32 bits.
            return np.where(references == ZERO, of_zero, oldest + (references.astype(np.int64) - oldest) % 2**32)

        held_rows = [np.arange(first[e], end_of_column[e]) % self.n_rows for e in range(self.n_envs)]
        for e, held in enumerate(held_rows):
            if len(held) < self.n_rows:
                self.references[np.setdiff1d(np.arange(self.n_rows), held), e] = ZERO
        self.require_sound()
        wanted = []
        for e, held in enumerate(held_rows):
            for start in range(0, len(held), _CHECKED_ROWS):
                part = held[start : start + _CHECKED_ROWS]
                self._lowest[part, e] = numbers_of(self.references[part, e], end).min(axis=1)
            self._cursors[e] = end_of_column[e] % self.n_rows, len(held)
            if len(held):
                # What an older row wants, later ones may want as well.
                self._lowest[held, e] = np.minimum.accumulate(self._lowest[held[::-1], e])[::-1]
                wanted.append(self._lowest.item(held[0], e))
                # What comes next may go on where this ends.
                self._last_numbers[e] = numbers_of(self.references[held[-1], e, self.n_frames :], -1)
        self._is_judged = True
        if wanted:
            self._release(min(wanted))
            last = (end_of_column - 1) % self.n_rows * self.n_envs + self._all_envs
            self._last_bytes = self._as_frames(self.gather(last, True))

    def require_sound(self) -> None:
        """
        :raises ValueError: if a slot refers to a frame that is not held
        """
        oldest, end = self.numbers
        for start in range(0, len(self._references), _CHECKED_ROWS):
            references = self._references[start : start + _CHECKED_ROWS]
            is_outside = (references - np.uint32(oldest % 2**32) >= end - oldest) & (references != ZERO)
            if is_outside.any():
                number = references[is_outside][0]
                raise ValueError(f"A transition refers to frame {number}, which is outside of [{oldest}, {end})")

    @property
    def nbytes(self) -> int:
        """Memory of all of this: pool, references, and the steps under way."""
        arrays: list[np.ndarray] = [self._references, self._lowest, self._addresses, self._last_bytes, self._last_numbers]
        return sum(array.nbytes for array in [*arrays, *self._segments.values(), *self._free])

    @property
    def n_frames_held(self) -> int:
        """Frames in the pool that a row may refer to."""
        return self._next_number - self._oldest_number

    def __getstate__(self) -> dict[str, Any]:
        """Addresses are of this process, and free pieces hold nothing."""
        return {**vars(self), "_addresses": None, "_free": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_cursors" not in state:
            raise ValueError("These frames were pickled before columns had cursors of their own, and cannot be read any more")
        vars(self).update(state)
        self._segments = {number: np.array(piece) for number, piece in self._segments.items()}
        n_live = max(self._segments, default=0) - self._oldest_segment + 1
        self._addresses = np.zeros(max(2 ** int(np.ceil(np.log2(n_live))), 4), np.uint64)
        for number, piece in self._segments.items():
            self._addresses[number % len(self._addresses)] = piece.ctypes.data


class FramedArray:
    """
    Looks like SB3's array of observations, or of next observations; indexing decodes a copy.

    :param store: of both
    :param is_next: which of them
    """

    def __init__(self, store: FrameStore, is_next: bool):
        self.store, self.is_next = store, is_next

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the plain array."""
        return self.store.n_rows, self.store.n_envs, *self.store.shape

    @property
    def dtype(self) -> Any:
        """That of the plain array."""
        return self.store.dtype

    @property
    def ndim(self) -> int:
        """That of the plain array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """True memory: half of that of the store, whose other half belongs to the other array."""
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
        leaves = np.asarray(slots[parts[:2]])
        decoded = self.store.gather(leaves, self.is_next)
        return decoded[(slice(None),) * leaves.ndim + parts[2:]] if parts[2:] else decoded

    def at(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: integers of any shape
        :return: a copy of these slots
        """
        return self.store.gather(leaves, self.is_next)


def framed(n_rows: int, n_envs: int, observations: Any, n_frames: int) -> tuple[FramedArray, FramedArray]:
    """
    :param n_rows: of the ring
    :param n_envs: number of environments
    :param observations: array or frames of shape (any, n_envs, ...), or a space, whose shape and type count
    :param n_frames: in a stack
    :return: empty observations and next observations
    """
    shape = observations.shape if isinstance(observations, spaces.Space) else observations.shape[2:]
    store = FrameStore(n_rows, n_envs, shape or (), observations.dtype, int(n_frames))
    return FramedArray(store, False), FramedArray(store, True)


def converted(observations: Any, next_observations: Any, ring: Ring, n_frames: int | None) -> tuple[Any, Any]:
    """
    Move what is held from arrays to frames, or back.

    :param observations: array or frames, of one key
    :param next_observations: in the same form
    :param ring: says what is held
    :param n_frames: in a stack; ``None``: arrays
    :return: observations and next observations in the wanted form; the given ones if they have it
    """
    now = observations.store.n_frames if isinstance(observations, FramedArray) else None
    if now == n_frames:
        return observations, next_observations
    if n_frames is None:
        return observations[:], next_observations[:]
    pair = framed(ring.n_rows, ring.n_envs, observations, n_frames)
    groups = [np.arange(ring.n_envs)] if ring.is_even else [np.array([env]) for env in range(ring.n_envs)]
    for envs in groups:
        end = int(ring.added[envs[0]])
        for first in range(int(ring.first[envs[0]]), end, _BLOCK):
            rows = np.arange(first, min(first + _BLOCK, end))[:, None] % ring.n_rows
            blocks = (np.asarray(part[rows, envs]) for part in (observations, next_observations))
            pair[0].store.write(envs, np.broadcast_to(rows[0], len(envs)), *blocks)
    return pair
