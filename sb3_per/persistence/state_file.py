"""The state of a buffer: values that may change after a step is stored. Each save writes all of them."""

from typing import Any

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.arrays import ARRAYS, FLAGS, HER_ARRAYS
from sb3_per.buffers.state import BufferState
from sb3_per.persistence.generations import Blocks, Manifest
from sb3_per.persistence.streams import DEMONSTRATIONS, Stream, buffers_in, steps_of


def pack_state(buffer: PrioritizedReplayBuffer) -> tuple[dict[str, Any], Blocks]:
    """
    Collect the state of a buffer and of its demonstrations, as a file holds it.

    :param buffer: prioritized buffer
    :return: numbers, as JSON can hold them; and arrays in blocks, of which some are views, those by row from old to new
    """
    numbers: dict[str, Any] = {}
    blocks: Blocks = {}
    for prefix, part in buffers_in(buffer).items():
        state = part.state_to_save()
        steps = steps_of(part)
        numbers.update({prefix + name: value for name, value in state.numbers.items()})
        for name in FLAGS:
            flags = steps.blocks(getattr(part, name), steps.first, steps.end)
            blocks[prefix + name] = [block.astype(np.uint8) for block in flags]
        for name, array in state.by_row.items():
            if name not in part.row_state or array.dtype != part.row_state[name]:
                raise ValueError(
                    f"state_to_save() of {type(part).__name__} returns {name!r} by row: add {name!r} to row_state, with "
                    f"{array.dtype}"
                )
            blocks[prefix + name] = steps.blocks(array, steps.first, steps.end)
        for name, array in state.arrays.items():
            blocks[prefix + name] = [array]
    return numbers, blocks


def arrays_left_out(buffer: PrioritizedReplayBuffer) -> list[str]:
    """
    Name the arrays that a user's class keeps beside SB3's, and that ``row_state`` does not name: files do not hold them.

    :param buffer: to be saved
    :return: names of attributes with a value for each slot
    """
    shape = (buffer.buffer_size, buffer.n_envs)
    known = {*ARRAYS, *HER_ARRAYS, *buffer.part_names, *buffer.row_state}
    arrays = {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray)}
    return sorted(name for name, array in arrays.items() if array.shape[:2] == shape and name not in known)


def unpack_state(
    buffer: PrioritizedReplayBuffer,
    manifest: Manifest,
    arrays: dict[str, np.ndarray],
    streams: dict[str, Stream],
    keeps_masses: bool,
) -> None:
    """
    Restore the state of a buffer and of its demonstrations from a file.

    :param buffer: whose rows were read. Discard it after an error
    :param manifest: of the generation
    :param arrays: of the state
    :param streams: what was read
    :param keeps_masses: whether the buffer has the scheme that was saved
    :raises ValueError: if the state contradicts itself
    :raises LookupError: if something is missing
    """
    for prefix, part in buffers_in(buffer).items():
        steps = streams[f"{prefix}rows"].steps
        n_saved = steps.end - manifest.ranges[f"{prefix}rows"][0]
        n_held = steps.end - steps.first
        saved = _named(arrays, prefix)
        numbers = _named(manifest.numbers, prefix)
        names = [name for name in part.row_state if name in saved]
        for name in (*FLAGS, *names):
            if len(saved[name]) != n_saved:
                raise ValueError(f"{prefix + name} has {len(saved[name])} rows, not {n_saved}")
            saved[name] = saved[name][n_saved - n_held :]
        for name in FLAGS:
            array = getattr(part, name)
            steps.put(array, steps.first, steps.end, saved.pop(name).astype(array.dtype))
        part.row_tracker.stand_at(part, *steps.numbers(numbers["first_step"]))
        by_row = {}
        for name in names:
            by_row[name] = np.zeros((part.buffer_size, part.n_envs), part.row_state[name])
            steps.put(by_row[name], steps.first, steps.end, saved.pop(name))
        part.restore_state(BufferState(numbers, by_row, saved), keeps_masses, is_whole=n_held == n_saved)


def _named(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Choose the values of a buffer, or with a prefix of its demonstrations, by the names that they have there."""
    if prefix:
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return {name: value for name, value in values.items() if not name.startswith(DEMONSTRATIONS)}
