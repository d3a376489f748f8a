"""
What is done with the bytes of frames: compared, stored in a pool, and copied out of it.

The pool is in pieces: ``addresses`` by the last bits of their number, frames of ``2 ** shift`` numbers in each.
"""

import numpy as np

from sb3_per.sampling.kernels import copy_from_address, copy_to_address, kernel

# Reference to the frame whose bytes are all 0, which is never stored; no frame gets this number.
ZERO = 2**32 - 1

# Words that are compared without a branch in between.
_BLOCK = 128


@kernel
def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bytes; a block at a time, without a branch inside."""
    for start in range(0, a.size, _BLOCK):
        part_a, part_b = a[start : start + _BLOCK], b[start : start + _BLOCK]
        difference = a.dtype.type(0)
        for i in range(part_a.size):
            difference |= part_a[i] ^ part_b[i]
        if difference != 0:
            return False
    return True


@kernel
def _is_zero(a: np.ndarray) -> bool:
    for start in range(0, a.size, _BLOCK):
        part = a[start : start + _BLOCK]
        found = a.dtype.type(0)
        for i in range(part.size):
            found |= part[i]
        if found != 0:
            return False
    return True


@kernel
def _store(frame: np.ndarray, addresses: np.ndarray, shift: int, next_number: int) -> tuple[int, int]:
    """Number of the frame, -1 for the zero frame, and the number that comes next."""
    if _is_zero(frame):
        return -1, next_number
    if next_number % (1 << 32) == ZERO:
        next_number += 1
    segment, place = next_number >> shift, next_number & ((1 << shift) - 1)
    n_bytes = frame.size * frame.itemsize
    address = addresses[segment % addresses.size] + np.uint64(place * n_bytes)
    copy_to_address(frame, np.uint64(0), address, np.uint64(n_bytes))
    return next_number, next_number + 1


@kernel
def _store_all(frames: np.ndarray, numbers: np.ndarray, addresses: np.ndarray, shift: int, next_number: int) -> int:
    """Numbers of all frames of a stack; a frame that repeats the one before, as padding does, is that one."""
    for j in range(numbers.size):
        if j > 0 and _are_equal(frames[j], frames[j - 1]):
            numbers[j] = numbers[j - 1]
        else:
            numbers[j], next_number = _store(frames[j], addresses, shift, next_number)
    return next_number


@kernel
def encode(
    observations: np.ndarray,
    next_observations: np.ndarray,
    last_bytes: np.ndarray,
    last_numbers: np.ndarray,
    envs: np.ndarray,
    cursors: np.ndarray,
    references: np.ndarray,
    lowest: np.ndarray,
    addresses: np.ndarray,
    shift: int,
    next_number: int,
) -> tuple[int, int, int]:
    """
    Fill the references of a slot of each of these columns, and the numbers of what is the last one from then on.

    :return: number of the frame that is stored next; least number that a slot of any column refers to; how many have shifted
        by one
    """
    n_frames, n_rows, n_shifted = observations.shape[1], len(lowest), 0
    numbers = np.empty(n_frames, np.int64)
    for e in range(envs.size):
        env, row = envs[e], cursors[envs[e], 0]
        slot, least = references[row * len(cursors) + env], next_number
        if _are_equal(observations[e].reshape(-1), last_bytes[e].reshape(-1)):
            numbers[:] = last_numbers[env]
        else:
            next_number = _store_all(observations[e], numbers, addresses, shift, next_number)
        for j in range(n_frames):
            slot[j] = numbers[j] if numbers[j] >= 0 else ZERO
            if numbers[j] >= 0:
                least = min(least, numbers[j])
        has_shifted = True
        for j in range(n_frames - 1):
            has_shifted = has_shifted and _are_equal(next_observations[e, j], observations[e, j + 1])
        if has_shifted:
            n_shifted += 1
            numbers[: n_frames - 1] = numbers[1:].copy()
            numbers[n_frames - 1], next_number = _store(next_observations[e, n_frames - 1], addresses, shift, next_number)
        else:
            next_number = _store_all(next_observations[e], numbers, addresses, shift, next_number)
        for j in range(n_frames):
            slot[n_frames + j] = numbers[j] if numbers[j] >= 0 else ZERO
            if numbers[j] >= 0:
                least = min(least, numbers[j])
        last_numbers[env], lowest[row, env] = numbers, least
        cursors[env, 0] = (row + 1) % n_rows
        cursors[env, 1] += 1
    oldest_number = next_number
    for env in range(len(cursors)):
        row, n_written = cursors[env]
        if n_written > 0:
            oldest_number = min(oldest_number, lowest[(row - min(n_written, n_rows)) % n_rows, env])
    return next_number, oldest_number, n_shifted


@kernel
def encode_steps(
    observations: np.ndarray,
    next_observations: np.ndarray,
    last_bytes: np.ndarray,
    last_numbers: np.ndarray,
    envs: np.ndarray,
    cursors: np.ndarray,
    references: np.ndarray,
    lowest: np.ndarray,
    addresses: np.ndarray,
    shift: int,
    next_number: int,
) -> tuple[int, int, int]:
    """:func:`encode` of one step after the other, at least one."""
    state = last_numbers, envs, cursors, references, lowest, addresses, shift
    next_number, oldest_number, n_shifted = encode(observations[0], next_observations[0], last_bytes, *state, next_number)
    for t in range(1, len(observations)):
        next_number, oldest_number, n = encode(
            observations[t], next_observations[t], next_observations[t - 1], *state, next_number
        )
        n_shifted += n
    return next_number, oldest_number, n_shifted


@kernel
def decode(
    references: np.ndarray,
    leaves: np.ndarray,
    first: int,
    n_frames: int,
    addresses: np.ndarray,
    shift: int,
    out: np.ndarray,
    frame_bytes: int,
) -> None:
    """Copy the frames of each slot, one after the other."""
    place = 0
    for i in range(leaves.size):
        for j in range(n_frames):
            reference = np.int64(references[leaves[i], first + j])
            if reference == ZERO:
                out[place : place + frame_bytes] = 0
            else:
                segment, offset = reference >> shift, reference & ((1 << shift) - 1)
                address = addresses[segment % addresses.size] + np.uint64(offset * frame_bytes)
                copy_from_address(out, np.uint64(place), address, np.uint64(frame_bytes))
            place += frame_bytes
