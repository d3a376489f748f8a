"""
From one buffer to another: with other settings, of another size, with observations in another form.

All of it goes through the parts of the buffers and their public methods.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.settings import PrioritySettings
from sb3_per.storage.arrays import ArrayStorage, keyed
from sb3_per.storage.frames import framed, frames_by_key

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")

# Steps that are copied at a time.
_BLOCK = 256


def frames_of(settings: PrioritySettings, space: spaces.Space) -> dict[str | None, int]:
    """
    :param settings: of a buffer
    :param space: of its observations
    :return: number of frames in a stack by key, for the observations that are stored in frames
    :raises ValueError: if the setting ``frames`` does not fit the observations
    """
    return {} if settings.frames is None else frames_by_key(settings.frames, space)


def with_frames(
    observations: Any, next_observations: Any, space: spaces.Space, frames: dict[str | None, int]
) -> tuple[Any, Any]:
    """
    :param observations: SB3's arrays
    :param next_observations: in the same form; ``None`` with ``optimize_memory_usage``
    :param space: of the observations
    :param frames: number of frames in a stack by key
    :return: the same, with empty frames in place of the arrays that are named
    """
    for key, n_frames in frames.items():
        part = space if key is None else space.spaces[key]  # type: ignore[attr-defined]
        n_rows, n_envs = keyed(observations)[key].shape[:2]
        pair = framed(n_rows, n_envs, part, n_frames)
        if key is None:
            return pair
        observations, next_observations = {**observations, key: pair[0]}, {**next_observations, key: pair[1]}
    return observations, next_observations


def from_stock(buffer: BufferT, stock: ReplayBuffer, state: dict[str, Any]) -> BufferT:
    """
    :param buffer: new, of any size
    :param stock: SB3's buffer, whose arrays are shared; not to be used any more
    :param state: what it knows beside its arrays
    :return: ``buffer`` with the transitions of the other one, all of them with the largest priority
    """
    next_observations = None if stock.optimize_memory_usage else stock.next_observations
    infos = stock.infos if getattr(stock, "copy_info_dict", False) else None
    rest = (stock.actions, stock.rewards, stock.dones, stock.timeouts, infos, stock.handle_timeout_termination)
    buffer.make_parts(ArrayStorage(stock.observations, next_observations, *rest))
    buffer.ring.load(state["ring"])
    buffer.sampler.eligible.load(state["eligible"], False)
    buffer.use_storage(buffer.storage.converted(buffer.ring, frames_of(buffer.settings, buffer.observation_space)))
    return buffer


def from_prioritized(buffer: BufferT, other: "PrioritizedReplayBuffer") -> BufferT:
    """
    :param buffer: new, of any size
    :param other: whose storage is shared; not to be used any more
    :return: ``buffer`` with the transitions of the other one
    """
    buffer.make_parts(other.storage)
    buffer.load(other.state(), buffer.shares_masses_with(other))
    buffer.use_storage(other.storage.converted(buffer.ring, frames_of(buffer.settings, buffer.observation_space)))
    return buffer


def emptied(buffer: BufferT, n_rows: int | None = None, frames: Any = None) -> BufferT:
    """
    :param buffer: any
    :param n_rows: number of rows, if another one is wanted
    :param frames: with ``n_rows``, the setting ``frames`` that is wanted
    :return: a new buffer of the same kind with the same settings, and nothing in it
    """
    twin: BufferT = object.__new__(type(buffer))
    vars(twin).update(vars(buffer))
    if n_rows is not None:
        twin.settings = dataclasses.replace(buffer.settings, frames=frames)
    frames_by_name = frames_of(twin.settings, twin.observation_space)
    twin.make_parts(buffer.storage.emptied(n_rows or buffer.buffer_size, frames_by_name))
    if buffer.draw_record is not None:
        twin.draw_record = buffer.draw_record.emptied(twin.ring.capacity)
    return twin


def take_steps(target: "PrioritizedReplayBuffer", source: "PrioritizedReplayBuffer", keeps_masses: bool = True) -> None:
    """
    Fill an empty buffer with the newest steps of another one that fit, for each environment, and take over beta and the
    maximum. The transitions get new ids.

    :param target: empty
    :param source: of the same kind, of any size and with any ``frames``
    :param keeps_masses: whether it has the same scheme; otherwise every transition has the mass of a new one
    """
    source.sampler.settle()
    ring, given = source.ring, source.sampler.given_masses() if keeps_masses else None
    n_envs, n_rows = source.n_envs, target.buffer_size
    target.ring.begin_after(ring.most)
    groups = [np.arange(n_envs)] if ring.is_even else [np.array([env]) for env in range(n_envs)]
    for envs in groups:
        end = int(ring.added[envs[0]])
        for first in range(max(int(ring.oldest[envs[0]]), end - n_rows), end, _BLOCK):
            steps = np.arange(first, min(first + _BLOCK, end))[:, None]
            slots = steps % ring.n_rows * n_envs + envs
            masses = None if given is None else given[slots].reshape(-1)
            target.write(envs, len(steps), source.storage.read_steps(slots), masses)
    n_taken = int((target.ring.added - target.ring.begin).min())
    rows, old_rows = ((r.most - n_taken + np.arange(n_taken)) % r.n_rows for r in (target.ring, ring))
    target.sampler.eligible.take(source.sampler.eligible, rows, old_rows)
    target.weights.load(source.weights.state())
    target.sampler.load_numbers(source.sampler.state(0), keeps_masses)


def take_over(buffer: "PrioritizedReplayBuffer", other: "PrioritizedReplayBuffer") -> None:
    """
    Let a buffer become what another one is; it keeps its lock, which others may wait for.

    :param buffer: that changes
    :param other: of the same class and settings; not to be used any more
    """
    with buffer.lock:
        vars(buffer).update({**vars(other), "lock": buffer.lock})
