"""Kernels that compare frames byte by byte, store them in the pool, and read them."""

from typing import NamedTuple

import numpy as np

from sb3_per.storage.frame_pool import Memory, frame_at
from sb3_per.storage.mapped import will_need
from sb3_per.utils.compiled import kernel

# Reference to the frame whose bytes are all 0. It is never stored, and no frame gets this number.
ZERO = 2**32 - 1

# Words that are compared without a branch in between.
_BLOCK = 128


class Table(NamedTuple):
    """
    Where the observations of all slots are in the pool. The zero frame has the number -1, and the reference ``ZERO``.

    Give kernels a plain ``tuple`` of it, which they read in a tenth of the time.
    """

    #: of both observations of a slot, uint32 of shape (n_rows * n_envs, 2 * n_frames): numbers of frames modulo 2^32
    references: np.ndarray
    #: least number that a slot refers to, int64 of shape (n_rows, n_envs)
    lowest: np.ndarray
    #: of each environment, the row that is written next, and the number of steps since the ring was empty: int64, (n_envs, 2)
    cursors: np.ndarray
    #: of each environment, the numbers of the frames of the newest next observation, int64 of shape (n_envs, n_frames)
    last_numbers: np.ndarray


@kernel
def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether the words are equal."""
    for start in range(0, a.size, _BLOCK):
        part_a, part_b = a[start : start + _BLOCK], b[start : start + _BLOCK]
        difference = a.dtype.type(0)
        for i in range(part_a.size):
            difference |= part_a[i] ^ part_b[i]
        if difference != 0:
            return False
    return True


@kernel
def _is_zero(frame: np.ndarray) -> bool:
    return not frame[:1].any() and _are_equal(frame[1:], frame[:-1])  # the first word is 0, and each equals the one before


@kernel
def _are_stored(frames: np.ndarray, numbers: np.ndarray, memory: Memory) -> bool:
    """Tell whether the frames of a stack are the stored ones with these numbers, where -1 is the zero frame."""
    for j in range(numbers.size):
        frame, number = frames[j], numbers[j]
        if not (_is_zero(frame) if number < 0 else _are_equal(frame, frame_at(number, memory, frame))):
            return False
    return True


@kernel
def _store(frame: np.ndarray, memory: Memory, end: int) -> tuple[int, int]:
    """Store a frame under the number ``end``. Return its number, -1 for the zero frame, and the next ``end``."""
    if _is_zero(frame):
        return -1, end
    if end % (1 << 32) == ZERO:
        end += 1
    frame_at(end, memory, frame)[:] = frame
    return end, end + 1


@kernel
def _store_all(frames: np.ndarray, numbers: np.ndarray, memory: Memory, end: int) -> int:
    """Store all frames of a stack, write their numbers, and return the next ``end``. Padding may repeat a frame."""
    for j in range(numbers.size):
        if j > 0 and _are_equal(frames[j], frames[j - 1]):
            numbers[j] = numbers[j - 1]
        else:
            numbers[j], end = _store(frames[j], memory, end)
    return end


@kernel
def _refer(slot: np.ndarray, numbers: np.ndarray, least: int) -> int:
    """Write the references to frames, and return the least of their numbers and ``least``."""
    for j in range(numbers.size):
        slot[j] = numbers[j] if numbers[j] >= 0 else ZERO
        if numbers[j] >= 0:
            least = min(least, numbers[j])
    return least


@kernel
def least_needed(lowest: np.ndarray, cursors: np.ndarray, end: int) -> int:
    """Find the least number that the oldest row of any environment refers to; ``end`` if there is none."""
    least, n_rows = end, len(lowest)
    for env in range(len(cursors)):
        row, n_written = cursors[env]
        if n_written > 0:
            least = min(least, lowest[(row - min(n_written, n_rows)) % n_rows, env])
    return least


@kernel
def encode(
    observations: np.ndarray,
    next_observations: np.ndarray,
    envs: np.ndarray,
    table: tuple[np.ndarray, ...],
    memory: Memory,
    counter: np.ndarray,
) -> int:
    """
    Store T successive steps of k environments. A frame that is there already is not stored again. All of it is done in this
    kernel, which no interrupt divides.

    :param observations: words of the frames, shape (T, k, n_frames, words of a frame)
    :param next_observations: words of the next observations, in the same shape
    :param envs: environments of the steps, int64 of shape (k,)
    :param table: fields of :class:`Table`, changed
    :param memory: of the pool
    :param counter: number of the frame that is stored next, int64 of shape (1,); changed
    :return: the least number that any slot refers to
    """
    references, lowest, cursors, last_numbers = table
    n_frames, end = last_numbers.shape[1], counter[0]
    for t in range(len(observations)):
        for e in range(envs.size):
            env, obs, next_obs = envs[e], observations[t, e], next_observations[t, e]
            row = cursors[env, 0]
            slot = references[row * len(cursors) + env]
            numbers, first = last_numbers[env], end
            if not _are_stored(obs, numbers, memory):
                end = _store_all(obs, numbers, memory, end)
            first = _refer(slot[:n_frames], numbers, first)
            if _are_equal(next_obs[:-1].reshape(-1), obs[1:].reshape(-1)):
                numbers[:-1] = numbers[1:].copy()
                numbers[-1], end = _store(next_obs[-1], memory, end)
            else:
                end = _store_all(next_obs, numbers, memory, end)
            lowest[row, env] = _refer(slot[n_frames:], numbers, first)
            cursors[env, 0] = (row + 1) % len(lowest)
            cursors[env, 1] += 1
    counter[0] = end
    return least_needed(lowest, cursors, end)


@kernel
def _copy(target: np.ndarray, source: np.ndarray) -> None:
    # A loop: ``target[:] = source`` takes several times as long for single bytes.
    for i in range(target.size):
        target[i] = source[i]


@kernel
def frames_will_be_needed(references: np.ndarray, slots: np.ndarray, memory: Memory, frame_bytes: int) -> None:
    """
    Ask for the frames of stacks that are in files, see :func:`~sb3_per.storage.mapped.will_need`.

    :param references: references of every slot, uint32 of shape (capacity, n_frames)
    :param slots: slots that are read next, int64 of shape (n,)
    :param memory: of the pool
    :param frame_bytes: size of a frame
    """
    addresses, shift = memory
    for i in range(slots.size):
        first, n = 0, 0  # neighbours, which are asked for at once
        for j in range(references.shape[1] + 1):
            number = int(np.int64(references[slots[i], j])) if j < references.shape[1] else ZERO
            if n > 0 and (number != first + n or number >> shift != first >> shift):
                piece = int(np.int64(addresses[(first >> shift) % addresses.size]))
                will_need(piece + (first & ((1 << shift) - 1)) * frame_bytes, n * frame_bytes)
                n = 0
            if number != ZERO:
                first = number if n == 0 else first
                n += 1


@kernel
def decode(references: np.ndarray, slots: np.ndarray, memory: Memory, out: np.ndarray) -> None:
    """
    Read stacks.

    :param references: references of every slot, uint32 of shape (capacity, n_frames)
    :param slots: slots to read, int64 of shape (n,)
    :param memory: of the pool
    :param out: bytes of the stacks, uint8 of shape (n, n_frames, bytes of a frame); written
    """
    for i in range(slots.size):
        for j in range(references.shape[1]):
            number = int(np.int64(references[slots[i], j]))
            if number == ZERO:
                out[i, j] = 0
            else:
                _copy(out[i, j], frame_at(number, memory, out[i, j]))
