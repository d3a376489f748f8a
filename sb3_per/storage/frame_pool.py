"""
The pool of frames: memory that grows in pieces, where every frame has a number.

This is the only place with raw addresses. A kernel takes a growing number of arrays only as a ``numba.typed.List``. With one,
reading 32 stacks of four 84 x 84 frames took 300 us instead of 31 us, and every new process compiled the list for 0.5 s.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from sb3_per.storage.mapped import Files
from sb3_per.utils.compiled import kernel

# Largest size of a piece. Pieces are allocated when they are reached, and are smaller if the whole pool is.
_PIECE_BYTES = 64 * 2**20

#: Addresses of the pieces, each at its number modulo the size of the table, a power of two; and the logarithm of the number of
#: frames in a piece. With powers of two, frames may be given by their number modulo 2^32.
Memory = tuple[np.ndarray, int]


@cast(Callable[..., Callable[..., Any]], intrinsic)
def _pointer_to(typing_context: Any, address: Any) -> Any:
    """Turn an address into a pointer. Nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@kernel
def frame_at(number: int, memory: Memory, like: np.ndarray) -> np.ndarray:
    """
    View a frame of the pool.

    :param number: number of a frame that is held or reserved; it may be given modulo 2^32
    :param memory: of the pool
    :param like: contiguous 1-D array of the size of a frame
    :return: view of the same size and type
    """
    addresses, shift = memory
    place = number & ((1 << shift) - 1)
    address = addresses[(number >> shift) % addresses.size] + np.uint64(place * like.size * like.itemsize)
    return carray(_pointer_to(address), like.shape, like.dtype)


class FramePool:
    """
    Frames that are numbered in the order in which they come, and released in the same order.

    :param frame_bytes: size of a frame
    :param n_slots: slots of the buffer, for the size of a piece
    :param files: that hold the pieces; ``None``: they are in RAM
    """

    def __init__(self, frame_bytes: int, n_slots: int, files: Files | None = None):
        self.frame_bytes, self.files = frame_bytes, files
        n_frames = max(n_slots // 64, 8)
        if files is None:  # a folder has few files, however large the pool is
            n_frames = min(max(_PIECE_BYTES // max(frame_bytes, 1), 1), n_frames)
        self.shift = int(np.log2(n_frames))
        #: number of the first frame that is held
        self.first = 0
        #: number of the frame that comes next, int64 of shape (1,): an array, because a kernel counts the frames
        self.counter = np.zeros(1, np.int64)
        # Pieces in the order of their numbers, of which the last ones may hold nothing yet, and the number of the first.
        self._pieces: deque[np.ndarray] = deque()
        self._first_piece = 0
        #: what the kernels need
        self.memory: Memory = (np.zeros(4, np.uint64), self.shift)

    @property
    def end(self) -> int:
        """Number of the frame that comes next."""
        return int(self.counter[0])

    def reserve(self, n_frames: int) -> None:
        """
        Make room for frames.

        :param n_frames: number of frames that come next
        :raises MemoryError: if there is no memory for another piece; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """
        n_missing = (self.end + n_frames >> self.shift) + 1 - self._first_piece - len(self._pieces)
        if n_missing > 0:
            pieces = deque(self._pieces)
            pieces.extend([self._piece() for _ in range(n_missing)])
            self._note_addresses(pieces, self._first_piece)

    def _piece(self) -> np.ndarray:
        n_bytes = self.frame_bytes << self.shift
        return np.empty(n_bytes, np.uint8) if self.files is None else self.files.block(n_bytes)

    def release(self, number: int) -> None:
        """
        Release all frames before a number; their memory is used again.

        :param number: number of the first frame that is still needed
        """
        self.first = number
        n_unused = (number >> self.shift) - self._first_piece
        if n_unused > 0:
            pieces = deque(self._pieces)
            pieces.rotate(-n_unused)  # they are used again after the newest one
            self._note_addresses(pieces, self._first_piece + n_unused)

    def reserve_numbers(self, first: int, end: int) -> None:
        """
        Make room in an empty pool for frames that are written into :meth:`frames`.

        :param first: number of the first
        :param end: number after the last
        :raises MemoryError: see :meth:`reserve`
        """
        self.first = first
        self.counter[0] = first
        self._note_addresses(self._pieces, first >> self.shift)
        self.reserve(end - first)
        self.counter[0] = end

    def frames(self, first: int, end: int) -> list[np.ndarray]:
        """
        View frames.

        :param first: number of the first frame
        :param end: number after the last one
        :return: views of successive frames, uint8 of shape (n, frame_bytes)
        """
        blocks, size = [], 1 << self.shift
        while first < end:
            number, place = divmod(first, size)
            n = min(size - place, end - first)
            blocks.append(self._pieces[number - self._first_piece].reshape(size, -1)[place : place + n])
            first += n
        return blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces, and of the table of their addresses."""
        return self.memory[0].nbytes + len(self._pieces) * (self.frame_bytes << self.shift)

    def _note_addresses(self, pieces: deque[np.ndarray], first_piece: int) -> None:
        """
        Use other pieces, and note where they are, in a larger table if there is no room for all.

        :param pieces: in the order of their numbers
        :param first_piece: number of the first
        """
        addresses, n = self.memory[0], len(pieces)
        if n > len(addresses):
            addresses = np.zeros(1 << (n - 1).bit_length(), np.uint64)
        else:
            addresses = addresses.copy()
        for number, piece in enumerate(pieces, first_piece):
            addresses[number % len(addresses)] = piece.ctypes.data
        # Plain assignments only: see Invariants in the developer guide.
        self.memory = addresses, self.shift
        self._pieces = pieces
        self._first_piece = first_piece

    def __getstate__(self) -> dict[str, Any]:
        """Leave out addresses, which are of this process, and pieces that hold nothing."""
        n_used = (self.end >> self.shift) + 1 - self._first_piece
        own = {"memory": (np.zeros(4, np.uint64), self.shift), "counter": self.counter.copy()}
        return {**vars(self), **own, "_pieces": list(self._pieces)[:n_used]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        copies = deque(self._piece() for _ in self._pieces)  # also if they came from `copy.copy`
        for piece, original in zip(copies, self._pieces, strict=True):
            piece[:] = original
        self._note_addresses(copies, self._first_piece)
