"""
Store every frame once: an observation that is a stack of frames becomes numbers of frames.

SB3 writes ``buffer.observations[pos] = obs`` and ``buffer.next_observations[pos] = next_obs``. With a :class:`FrameArray` in
their place, each frame is compared, byte by byte, with the stored frames that it is expected to equal. An equal frame is
shared, any other is stored. So every observation comes out as it came in, whatever its padding, its resets or its done flags.
"""

import copy
import mmap
import warnings
from typing import Any

import numpy as np

from sb3_per.buffers.files import MAP_NORESERVE, MappedFile, warn_of_ram
from sb3_per.buffers.frame_setting import stack_axis
from sb3_per.utils.compiled import kernel

# Words that are compared without a branch in between.
_BLOCK = 128

# Blocks of the disk are allocated in pieces of so many bytes.
_AHEAD_BYTES = 64 * 2**20

# Positions in the array of counters: frames that were ever used, and free ones.
_N_USED, _N_FREE = 0, 1

# Number of `add` after which a warning says that the observations are no stacks.
_JUDGED_ADDS = 1000


# ---- kernels


@kernel
def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two frames have the same words."""
    for start in range(0, a.size, _BLOCK):
        # Views: with an index into the whole frame, the loop is not compiled to vector instructions.
        part_a = a[start : start + _BLOCK]
        part_b = b[start : start + _BLOCK]
        difference = a.dtype.type(0)
        for i in range(part_a.size):
            difference |= part_a[i] ^ part_b[i]
        if difference != 0:
            return False
    return True


@kernel
def _expected(
    references: np.ndarray, is_next: int, row: int, env: int, stack: np.ndarray, j: int
) -> tuple[int, int, int, int]:
    """
    List the stored frames that frame ``j`` of a stack may equal, the likeliest first. 0 is the frame of zeros.

    :param references: numbers of frames, see :class:`FrameStore`
    :param stack: numbers of the frames of this stack before ``j``
    """
    n_rows, n_frames = references.shape[1], references.shape[3]
    row_before = (row - 1) % n_rows
    row_after = (row + 1) % n_rows
    shifted = 0
    if is_next:
        if j + 1 < n_frames:
            shifted = references[0, row, env, j + 1]
        # Rows that are written as a block have their observations written first.
        same = references[0, row_after, env, j]
        return shifted, same, stack[max(j - 1, 0)], 0
    if j + 1 < n_frames:
        shifted = references[0, row_before, env, j + 1]
    same = references[1, row_before, env, j]
    return same, shifted, stack[max(j - 1, 0)], 0


@kernel
def write_stacks(
    stacks: np.ndarray,
    rows: np.ndarray,
    envs: np.ndarray,
    is_next: int,
    references: np.ndarray,
    frames: np.ndarray,
    n_references: np.ndarray,
    free: np.ndarray,
    counters: np.ndarray,
) -> None:
    """
    Store stacks. See :class:`FrameStore` for the last five arguments, which are changed.

    :param stacks: words of the frames, shape (n, n_frames, words of a frame)
    :param rows: row of each stack, int64 of shape (n,)
    :param envs: environment of each stack, int64 of shape (n,)
    :param is_next: 1 for next observations, 0 for observations
    """
    n_frames = stacks.shape[1]
    stack = np.zeros(n_frames, np.int64)
    for i in range(rows.size):
        slot = references[is_next, rows[i], envs[i]]
        stack[:] = 0
        for j in range(n_frames):
            frame = stacks[i, j]
            number = -1
            for expected in _expected(references, is_next, rows[i], envs[i], stack, j):
                if number < 0 and _are_equal(frame, frames[expected]):
                    number = expected
            if number < 0:
                if counters[_N_FREE] > 0:
                    counters[_N_FREE] -= 1
                    number = free[counters[_N_FREE]]
                else:
                    number = counters[_N_USED]
                    counters[_N_USED] += 1
                stored = frames[number]
                for word in range(frame.size):
                    stored[word] = frame[word]
            n_references[number] += 1
            stack[j] = number
        # After the new frames, which may be among the old ones.
        for j in range(n_frames):
            old = slot[j]
            n_references[old] -= 1
            if n_references[old] == 0 and old != 0:
                free[counters[_N_FREE]] = old
                counters[_N_FREE] += 1
            slot[j] = stack[j]


# ---- storage


class FrameStore:
    """
    Frames, and which of them make up the observation and the next observation of each step.

    A frame that no step needs any more is free and is used again, so memory grows only with the frames that are held.

    :param n_rows: number of rows of the buffer
    :param n_envs: number of environments
    :param obs_shape: shape of an observation
    :param dtype: type of an observation
    :param n_frames: number of frames in a stack
    :param folder: folder of a file that holds the frames; ``None``: RAM
    :param together: the stores of the other keys of a buffer, which this one joins; ``None``: there are no others
    :raises ValueError: if the observations cannot be cut into so many frames
    :raises OSError: if the disk has no room for one frame of each step
    """

    def __init__(
        self,
        n_rows: int,
        n_envs: int,
        obs_shape: tuple[int, ...],
        dtype: Any,
        n_frames: int,
        folder: str | None = None,
        together: "list[FrameStore] | None" = None,
    ):
        self.obs_shape = tuple(obs_shape)
        self.dtype = np.dtype(dtype)
        self.n_frames = int(n_frames)
        self.axis = stack_axis(self.obs_shape, self.n_frames)
        self.folder = folder
        #: size of a frame
        self.frame_bytes = int(np.prod(obs_shape)) * self.dtype.itemsize // self.n_frames
        # Frames are compared in words of this type.
        self._word = np.dtype(np.uint64 if self.frame_bytes % 8 == 0 else np.uint8)
        n_references = 2 * n_rows * n_envs * self.n_frames
        number = np.int32 if n_references < 2**30 else np.int64
        #: numbers of the frames of each observation [0] and next observation [1], shape (2, n_rows, n_envs, n_frames)
        self.references = np.zeros((2, n_rows, n_envs, self.n_frames), number)
        #: the stores of all keys of a buffer, which allocate blocks of the disk together, before any of them is written
        self.together = [] if together is None else together
        self.together.append(self)
        # Number of steps, until it is known whether their observations are stacks.
        self._n_judged = 0
        self._make_memory(n_used=1)

    def _make_memory(self, n_used: int) -> None:
        """Make memory for the frames of all steps if none were shared; only what is written takes RAM."""
        # Beside those of all steps: the frame of zeros, and the frames of one stack while it replaces another.
        n_most = self.references.size + self.n_frames + 1
        n_bytes = n_most * self.frame_bytes
        #: file that holds the frames; ``None``: they are in RAM
        self.file = None if self.folder is None else MappedFile(self.folder, n_bytes)
        content = _reserved_memory(n_bytes) if self.file is None else self.file.content
        #: words of the frames by number, shape (most frames, words of a frame); number 0 is the frame of zeros
        self.frames = content.view(self._word).reshape(n_most, -1)
        #: how many places refer to each frame
        self.n_references = np.zeros(n_most, self.references.dtype)
        #: numbers of free frames, of which the first ``counters[_N_FREE]`` count
        self.free = np.zeros(n_most, self.references.dtype)
        #: number of frames that were ever used, and number of free ones, int64 of shape (2,)
        self.counters = np.array([n_used, 0])
        self.n_references[0] = self.references.size
        # Most often, a step has one new frame.
        self.reserve(self.references[0, ..., 0].size)

    # ---- size

    @property
    def n_held(self) -> int:
        """Number of frames that are held, the frame of zeros among them."""
        return int(self.counters[_N_USED] - self.counters[_N_FREE])

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that were ever used, and of their bookkeeping."""
        return int(self.counters[_N_USED]) * (self.frame_bytes + 2 * self.free.itemsize) + self.references.nbytes

    @property
    def expected_ram_bytes(self) -> int:
        """Bytes of RAM when all steps are held, with one frame for each."""
        n_steps = self.references[0, ..., 0].size
        in_ram = 0 if self.file is not None else self.frame_bytes
        return n_steps * (in_ram + 2 * self.free.itemsize) + self.references.nbytes

    # ---- write and read

    def write(self, is_next: int, rows: np.ndarray, envs: np.ndarray, stacks: np.ndarray) -> None:
        """
        Store observations.

        :param is_next: 1 for next observations, 0 for observations
        :param rows: row of each, int64 of shape (n,)
        :param envs: environment of each, int64 of shape (n,)
        :param stacks: observations of shape (n, *obs_shape)
        :raises ValueError: for observations of another shape; nothing is stored then
        :raises OSError: if the disk has no room; nothing is stored then
        """
        n = len(rows)
        if stacks.shape != (n, *self.obs_shape):
            raise ValueError(f"Observations of shape {stacks.shape} do not fit {(n, *self.obs_shape)}")
        words = self._to_words(stacks)
        if self.file is not None:
            # SB3 writes all observations first: there must be room for the next observations, too.
            for store in self.together:
                store.reserve((1 if is_next else 2) * n * store.n_frames)
        write_stacks(words, rows, envs, is_next, self.references, self.frames, self.n_references, self.free, self.counters)
        if is_next and self._n_judged < _JUDGED_ADDS * self.references.shape[2]:
            self._judge(n)

    def read(self, is_next: int, index: Any) -> np.ndarray:
        """
        Read observations.

        :param is_next: 1 for next observations, 0 for observations
        :param index: of rows and environments
        :return: a copy, shape (*shape of the index, *obs_shape)
        """
        numbers = self.references[is_next][index]
        if MappedFile.exceed_ram and self.file is not None:
            self.file.will_need(np.unique(numbers).astype(np.int64) * self.frame_bytes, self.frame_bytes)
        stacks = self.frames.take(numbers, axis=0).view(self.dtype)
        lead = numbers.shape[:-1]
        if self.axis == 0:
            return stacks.reshape(*lead, *self.obs_shape)
        *others, last = self.obs_shape
        by_frame = stacks.reshape(*lead, self.n_frames, *others, last // self.n_frames)
        return np.moveaxis(by_frame, len(lead), -2).reshape(*lead, *self.obs_shape)

    def _to_words(self, stacks: np.ndarray) -> np.ndarray:
        """Return the words of the frames, contiguous, shape (n, n_frames, words of a frame)."""
        n = len(stacks)
        if self.axis != 0:
            *others, last = self.obs_shape
            stacks = np.moveaxis(stacks.reshape(n, *others, self.n_frames, last // self.n_frames), -2, 1)
        if not stacks.flags.carray:  # the kernel takes contiguous, writable arrays alone
            stacks = np.array(stacks, order="C")
        return stacks.reshape(n, self.n_frames, self.frame_bytes // self.dtype.itemsize).view(self._word)

    def reserve(self, n_new: int) -> None:
        """
        Allocate blocks of the disk for frames that come next.

        :param n_new: largest number of new frames
        :raises OSError: if the disk has no room; nothing has changed then
        """
        if self.file is not None:
            n_frames = int(self.counters[_N_USED]) + max(n_new - int(self.counters[_N_FREE]), 0)
            # Whole pieces, so that most calls have nothing to do.
            n_bytes = -(-n_frames * self.frame_bytes // _AHEAD_BYTES) * _AHEAD_BYTES
            self.file.allocate(min(n_bytes, self.frames.nbytes))

    def _judge(self, n_written: int) -> None:
        """Warn once if the observations are no stacks: each step then stores at least ``n_frames`` frames instead of one."""
        n_rows, n_envs = self.references.shape[1:3]
        self._n_judged += n_written
        n_steps = min(self._n_judged, n_rows * n_envs)
        # A step that shares nothing with its observation but all with the step before takes so many.
        n_unshared = max(self.n_frames, 2)
        if self._n_judged >= _JUDGED_ADDS * n_envs and self.n_held > n_steps * (1 + n_unshared) / 2:
            warnings.warn(
                f"frames={self.n_frames}: the newest {n_steps:,} transitions take {self.n_held:,} frames. Each takes one "
                f"where the next observation is the observation shifted by one frame along axis {self.axis}. The others are "
                "stored in full, which takes more memory than without frames. Check the number of frames in a stack"
            )

    # ---- saving and copies

    def pack(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """
        Collect the frames of rows, so that they can be stored in a file of their own.

        :param rows: int64 of shape (n,)
        :return: ``frames``, uint8 of shape (n frames, bytes of a frame), and ``references``, int64 of shape
            (n, 2, n_envs, n_frames), which number these frames
        """
        used, local = np.unique(self.references[:, rows], return_inverse=True)
        local = local.reshape(2, len(rows), *self.references.shape[2:]).swapaxes(0, 1)
        return {"frames": self.frames[used].view(np.uint8), "references": local.astype(np.int64)}

    def unpack(self, rows: np.ndarray, packed: dict[str, np.ndarray]) -> None:
        """
        Store packed rows. Rows that hold observations already cannot be given.

        :param rows: rows of the last packed steps, int64 of shape (n,)
        :param packed: from :meth:`pack`, of at least n steps
        :raises ValueError: if the references do not fit the frames
        :raises OSError: if the disk has no room
        """
        frames = packed["frames"]
        given = packed["references"][len(packed["references"]) - len(rows) :]
        if given.size and not 0 <= given.min() <= given.max() < len(frames):
            raise ValueError(f"References are in [{given.min()}, {given.max()}], and there are {len(frames)} frames")
        local = given
        if len(given) < len(packed["references"]):
            used, local = np.unique(given, return_inverse=True)
            frames = frames[used]
        self.reserve(len(frames))
        first = int(self.counters[_N_USED])
        end = first + len(frames)
        self.frames[first:end] = np.ascontiguousarray(frames).view(self._word)
        self.n_references[first:end] = np.bincount(local.reshape(-1), minlength=len(frames))
        self.n_references[0] -= given.size
        self.references[:, rows] = first + local.reshape(given.shape).swapaxes(0, 1)
        self.counters[_N_USED] = end
        self._n_judged = _JUDGED_ADDS * self.references.shape[2]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out memory that holds nothing. A copy gets memory of its own."""
        n_used = int(self.counters[_N_USED])
        state = dict(vars(self), file=None)
        state["frames"] = self.frames[:n_used]
        state["n_references"] = self.n_references[:n_used]
        state["free"] = self.free[: self.counters[_N_FREE]]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.references = state["references"].copy()  # `copy.copy` brings the array itself
        n_used = len(state["frames"])
        try:
            self._make_memory(n_used)
        except OSError as error:
            warn_of_ram(error)
            self.folder = None
            self._make_memory(n_used)
        self.counters[_N_FREE] = len(state["free"])
        self.frames[:n_used] = state["frames"]
        self.n_references[:n_used] = state["n_references"]
        self.free[: len(state["free"])] = state["free"]

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrameStore":
        """Copy the frames once; the usual deep copy has a copy of its own in between, perhaps larger than RAM."""
        copied = memo[id(self)] = FrameStore.__new__(FrameStore)
        copied.__setstate__(self.__getstate__())
        copied.together = copy.deepcopy(self.together, memo)
        return copied


class FrameArray:
    """
    SB3's array of observations, or of next observations, as a view of a :class:`FrameStore`. What is read is a copy.

    :param store: frames of both arrays
    :param is_next: 1 for next observations, 0 for observations
    """

    def __init__(self, store: FrameStore, is_next: int):
        self.store = store
        self.is_next = is_next
        #: (n_rows, n_envs, *obs_shape)
        self.shape: tuple[int, ...] = (*store.references.shape[1:3], *store.obs_shape)
        self.dtype = store.dtype
        self._envs = np.arange(self.shape[1])
        self._rows = np.empty(self.shape[1], np.int64)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Half of the bytes of the store; the other array has the other half."""
        half = self.store.nbytes // 2
        return half if self.is_next else self.store.nbytes - half

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("Frames are put together when they are read, which makes a copy: leave out copy=False")
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        """
        Read observations as NumPy does.

        :param index: of rows, or of rows and environments, and then perhaps integers and slices of the axes of an observation.
            Any other index reads everything first
        :return: a copy
        """
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) == 2 and all(type(part) is np.ndarray and part.dtype.kind == "i" for part in parts):
            return self.store.read(self.is_next, parts)  # the draw of a batch
        slots, of_stacks = self._located(index)
        return self.store.read(self.is_next, slots)[of_stacks]

    def __setitem__(self, index: Any, observations: Any) -> None:
        """
        Store observations as NumPy does.

        :param index: see :meth:`__getitem__`
        :param observations: in a shape that NumPy broadcasts
        :raises IndexError: for a row or an environment outside of the buffer
        :raises ValueError: for observations of another shape; nothing is stored then
        :raises OSError: if the disk has no room; nothing is stored then
        """
        if type(index) is int and 0 <= index < self.shape[0] and getattr(observations, "shape", None) == self.shape[1:]:
            # SB3's `add`: it is called at every step, so it is spared all that an index of another kind needs.
            self._rows.fill(index)
            self.store.write(self.is_next, self._rows, self._envs, np.asarray(observations, self.dtype))
            return
        slots, of_stacks = self._located(index)
        rows, envs = np.broadcast_arrays(*slots)
        if of_stacks is ...:  # whole observations
            stacks = np.empty((*rows.shape, *self.store.obs_shape), self.dtype)
        else:
            stacks = self.store.read(self.is_next, slots)
        stacks[of_stacks] = observations
        self.store.write(self.is_next, rows.flatten(), envs.flatten(), stacks.reshape(rows.size, *self.store.obs_shape))

    def _located(self, index: Any) -> tuple[tuple[np.ndarray, np.ndarray], Any]:
        """
        Divide an index into the slots that it needs, and the rest.

        :param index: any index of NumPy
        :return: rows and environments, integers that broadcast; and an index of the observations there, ``...`` if all of each
            is meant
        :raises IndexError: for a row or an environment outside of the buffer
        """
        if getattr(index, "dtype", None) == np.bool_ and index.shape == self.shape[:2]:
            rows, envs = np.nonzero(index)
            return (rows, envs), ...
        parts = index if isinstance(index, tuple) else (index,)
        are_basic = all(isinstance(part, (int, np.integer, slice)) and not isinstance(part, bool) for part in parts)
        if not are_basic and not (len(parts) <= 2 and all(_is_slice_or_integers(part) for part in parts)):
            return (np.arange(self.shape[0])[:, None], self._envs), index
        chosen = (*parts, slice(None), slice(None))[:2]
        rows, envs = (
            np.arange(*part.indices(n)) if isinstance(part, slice) else np.arange(n)[part]
            for part, n in zip(chosen, self.shape, strict=False)
        )
        if any(isinstance(part, slice) for part in chosen):
            rows = rows.reshape(rows.shape + (1,) * envs.ndim)
        n_axes = np.broadcast_to(0, self.shape[:2])[rows, envs].ndim
        return (rows, envs), (slice(None),) * n_axes + parts[2:] if parts[2:] else ...


def _is_slice_or_integers(part: Any) -> bool:
    """Tell whether a part of an index is a slice, an integer, or an array of integers."""
    return isinstance(part, slice) or np.asarray(part).dtype.kind in "iu"


def _reserved_memory(n_bytes: int) -> np.ndarray:
    """
    Reserve memory that takes RAM only where it is written, also if the whole is larger than RAM.

    :param n_bytes: size, above 0
    :return: zeros, uint8 of shape (n_bytes,)
    :raises MemoryError: if the operating system refuses
    """
    try:
        # Private: with Python's default, a forked process would write into the same memory.
        memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"No addresses for {n_bytes:,} bytes of frames ({error}). Use a smaller buffer_size") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # as NumPy does
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
