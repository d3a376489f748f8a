"""Copy transitions to a buffer of another size or form, and replace one buffer by another."""

import dataclasses
from typing import Any, TypeVar

import numpy as np

from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.storage.arrays import ArrayStorage
from sb3_per.storage.frame_setting import frames_by_key
from sb3_per.storage.mapped import folder_of_copy

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)


def emptied(buffer: BufferT, n_rows: int | None = None, frames: Any = None, storage: ArrayStorage | None = None) -> BufferT:
    """
    Make an empty buffer with the same settings.

    :param buffer: prioritized
    :param n_rows: number of rows of the new buffer; ``None``: as many
    :param frames: with ``n_rows``, the setting ``frames`` of the new buffer
    :param storage: of the new buffer; ``None``: an empty one
    :return: a new buffer of the same kind with the same settings, and nothing in it
    """
    twin: BufferT = object.__new__(type(buffer))
    vars(twin).update(vars(buffer))
    if n_rows is not None:
        twin.settings = dataclasses.replace(buffer.settings, frames=frames)
    if storage is None:
        by_key = frames_by_key(twin.settings.frames, twin.observation_space)
        folder = folder_of_copy(buffer.storage.folder)
        storage = buffer.storage.emptied(n_rows or buffer.buffer_size, by_key, folder=folder)
    twin.make_parts(storage)
    if buffer.draw_record is not None:
        twin.draw_record = buffer.draw_record.emptied(twin.ring.capacity)
    return twin


def copy_newest(target: BufferT, source: BufferT, keeps_masses: bool = True) -> None:
    """
    Fill an empty buffer with the newest steps of another one that fit, for each environment, and with beta and the largest
    priority. The transitions get new ids.

    :param target: empty
    :param source: of the same kind, of any size and with any ``frames``
    :param keeps_masses: whether it has the same scheme; otherwise every transition has the mass of a new one
    """
    source.sampler.settle()
    ring, given = source.ring, source.sampler.given_masses() if keeps_masses else None
    target.ring.begin_after(ring.most)
    for envs, steps in ring.blocks(np.maximum(ring.oldest, ring.added - target.buffer_size)):
        slots = steps % ring.n_rows * ring.n_envs + envs
        rows = target.ring.rows_of_next(envs, len(steps))
        target.storage.write(rows, envs, source.storage.read_steps(slots))
        target.ring.advance(envs, len(steps))
        if given is not None:
            target.sampler.give((rows * ring.n_envs + envs).reshape(-1), given[slots].reshape(-1))
    n_copied = int((target.ring.added - target.ring.begin).min())
    rows, old_rows = ((r.most - n_copied + np.arange(n_copied)) % r.n_rows for r in (target.ring, ring))
    target.sampler.eligible.copy_rows(source.sampler.eligible, rows, old_rows)
    target.demonstrations.copy(source.demonstrations, target.storage, keeps_masses)
    target.weights.load(source.weights.state())
    target.sampler.load_numbers(source.sampler.state(0))


def replace_by(buffer: BufferT, other: BufferT) -> None:
    """
    Give a buffer the contents of another one. It keeps its lock, because other threads may wait for it.

    :param buffer: that changes
    :param other: of the same class and settings; not to be used any more
    """
    with buffer.lock:
        vars(buffer).update({**vars(other), "lock": buffer.lock})
