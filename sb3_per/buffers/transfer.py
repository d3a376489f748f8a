"""
Move transitions from one buffer to another, with other settings, another size or another form of the observations.

Buffers are typed ``Any``: the module of their class imports this one.
"""

import dataclasses
import shutil
import warnings
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.settings import PrioritySettings
from sb3_per.storage.arrays import ArrayStorage
from sb3_per.storage.frame_setting import frames_by_key
from sb3_per.storage.mapped import Folder
from sb3_per.storage.ring import Ring

try:
    import psutil
except ImportError:  # as in SB3
    psutil = None

_Buffer = TypeVar("_Buffer", bound=ReplayBuffer)

# Settings that make another scheme if they change.
SCHEME_SETTINGS = ("scheme", "alpha", "epsilon", "kappa", "td_error_reduction")


def frames_of(settings: PrioritySettings, space: spaces.Space) -> dict[str | None, int]:
    """
    Say which observations are stored in frames.

    :param settings: of a buffer
    :param space: of its observations
    :return: number of frames in a stack by key, for the observations that are stored in frames
    :raises ValueError: if the setting ``frames`` does not fit the observations
    """
    return {} if settings.frames is None else frames_by_key(settings.frames, space)


def converted(cls: type[_Buffer], buffer: Any, settings: dict[str, Any]) -> _Buffer:
    """
    Make a prioritized buffer of another buffer.

    :param cls: prioritized class with the same kind of storage
    :param buffer: of SB3 or prioritized, whose arrays are shared; not to be used any more
    :param settings: that are wanted; of a prioritized buffer, the others stay
    :return: a prioritized buffer with the transitions of the other one
    :raises ValueError: for a buffer of another kind
    """
    if any(issubclass(cls, kind) != isinstance(buffer, kind) for kind in (DictReplayBuffer, HerReplayBuffer)):
        raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
    is_stock = not hasattr(buffer, "sampler")
    kept = {} if is_stock else settings_without(buffer, settings, cls)
    wanted = {**kept, **settings, **_stock_arguments(buffer)}
    path = wanted.pop("storage_folder", None)
    made: Any = cls(buffer.n_envs, **wanted)
    made.settings = dataclasses.replace(made.settings, storage_folder=path)
    ring, storage = parts_of(buffer)
    frames, folder = frames_of(made.settings, made.observation_space), None if path is None else Folder.shared(path)
    made.make_parts(storage.converted(ring, frames, folder))
    if is_stock:
        made.ring.load(ring.state())
        made.sampler.eligible.load(_stock_episodes(buffer), False)
    else:
        # Masses are valid only with the same scheme, and where they belong to the same thing.
        keeps_masses = repr(made.scheme) == repr(buffer.scheme) and made.sampler.eligible.unit == buffer.sampler.eligible.unit
        made.demonstrations.take(buffer.demonstrations, made.storage, keeps_masses)
        load_parts(made, state_of_parts(buffer), keeps_masses)
    result: _Buffer = made
    return result


def _stock_arguments(buffer: Any) -> dict[str, Any]:
    """Arguments of SB3's constructor, without the size."""
    names = "observation_space action_space device n_envs optimize_memory_usage handle_timeout_termination"
    if isinstance(buffer, HerReplayBuffer):
        names += " env n_sampled_goal goal_selection_strategy copy_info_dict"
    return {name: getattr(buffer, name) for name in names.split()}


def storage_of(buffer: Any) -> ArrayStorage:
    """
    Make a storage of SB3's arrays, which are shared.

    :param buffer: of SB3
    :return: the storage
    """
    next_observations = None if buffer.optimize_memory_usage else buffer.next_observations
    infos = buffer.infos if isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict else None
    rest = (buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts)
    return ArrayStorage(buffer.observations, next_observations, *rest, infos, buffer.handle_timeout_termination)


def made_storage(buffer: Any, n_rows: int) -> ArrayStorage:
    """
    Make the storage of a new buffer.

    :param buffer: prioritized, with SB3's arrays of a single row
    :param n_rows: number of rows
    :return: an empty storage of the form that the settings ask for
    :raises OSError: if ``storage_folder`` belongs to another buffer, or cannot be made
    :warns UserWarning: if the full storage would be larger than the memory or the space that is free
    """
    path, one_row = buffer.settings.storage_folder, storage_of(buffer)
    one_row.store_class = buffer.store_class
    folder = None if path is None else Folder(path)
    storage = one_row.emptied(n_rows, frames_of(buffer.settings, buffer.observation_space), folder=folder)
    warn_if_too_large(*storage.full_nbytes(), folder)
    return storage


def warn_if_too_large(n_ram: int, n_disk: int, folder: Folder | None) -> None:
    """
    Warn, as SB3 does, if a buffer will not find enough memory.

    :param n_ram: bytes of RAM that the full buffer takes
    :param n_disk: bytes of the disk
    :param folder: folder on the disk
    """
    has_psutil = psutil is not None
    if has_psutil and n_ram > psutil.virtual_memory().available:
        available = psutil.virtual_memory().available
        warnings.warn(
            "This system does not have apparently enough memory to store the complete replay buffer "
            f"{n_ram / 1e9:.2f}GB > {available / 1e9:.2f}GB. Set frames=... if observations are stacks, "
            "storage_folder=... to keep transitions on a disk, or a smaller buffer_size"
        )
    if folder is not None and n_disk > (free := shutil.disk_usage(folder.path).free):
        warnings.warn(
            f"The disk of storage_folder={str(folder.path)!r} has {free / 1e9:.2f}GB of free space, and the complete replay "
            f"buffer takes {n_disk / 1e9:.2f}GB"
        )


def parts_of(buffer: Any) -> tuple[Ring, ArrayStorage]:
    """
    Return the ring and the storage of a buffer.

    :param buffer: of SB3 or prioritized
    :return: its ring and its storage; of an SB3 buffer, they are made, and the arrays are shared
    """
    if hasattr(buffer, "sampler"):
        return buffer.ring, buffer.storage
    ring = Ring(buffer.buffer_size, buffer.n_envs, int(buffer.optimize_memory_usage))
    ring.load({"added": np.full(buffer.n_envs, buffer.buffer_size * buffer.full + buffer.pos), "begin": 0})
    return ring, storage_of(buffer)


def _stock_episodes(buffer: Any) -> dict[str, Any]:
    """Episodes of an SB3 buffer, which it has with HER."""
    if not isinstance(buffer, HerReplayBuffer):
        return {}
    n = buffer.size()
    episodes = {"ep_start": buffer.ep_start[:n], "ep_length": buffer.ep_length[:n]}
    return {**episodes, "current_ep_start": buffer._current_ep_start}


def state_of_parts(buffer: Any) -> dict[str, Any]:
    """
    Collect all that is not in the storage.

    :param buffer: prioritized
    :return: numbers, arrays, and dictionaries of these. Arrays by row end at the last row that holds anything
    """
    state = {
        "ring": buffer.ring.state(),
        "eligible": buffer.sampler.eligible.state(),
        "weights": buffer.weights.state(),
        "sampler": buffer.sampler.state(buffer.ring.n_rows_used * buffer.n_envs),
    }
    return {**state, "demonstrations": buffer.demonstrations.state()} if len(buffer.demonstrations) else state


def load_parts(buffer: Any, state: dict[str, Any], keeps_masses: bool = True) -> None:
    """
    Restore the state of a buffer.

    :param buffer: prioritized, whose storage is there already
    :param state: from :func:`state_of_parts` of a buffer of the same kind and size
    :param keeps_masses: whether it is of the same scheme; otherwise all transitions get the largest priority
    :raises ValueError: if it contradicts itself. Discard the buffer after this error
    """
    buffer.ring.load(state["ring"])
    buffer.sampler.eligible.load(state["eligible"], keeps_masses)
    buffer.weights.load(state["weights"])
    buffer.sampler.load(state["sampler"], keeps_masses)
    if "demonstrations" in state:
        buffer.demonstrations.load(state["demonstrations"], keeps_masses)


def settings_without(buffer: Any, changed: Collection[str], cls: type | None = None) -> dict[str, Any]:
    """
    List the settings of a buffer that a change leaves as they are.

    :param buffer: prioritized
    :param changed: names of settings that will be replaced
    :param cls: class that takes them, if it is another one: a buffer of transitions has no sequence length
    :return: its settings by name. Of the scheme all, or none if one of its settings is replaced
    """
    settings = buffer.settings
    found = {name: getattr(settings, name) for name in settings.names() if name not in SCHEME_SETTINGS}
    if set(changed).isdisjoint(SCHEME_SETTINGS):
        found["scheme"] = buffer.scheme
    owner: Any = cls or type(buffer)
    arguments = set(owner.own_arguments) & set(buffer.own_arguments)
    return {**found, **{name: getattr(buffer, name) for name in arguments}}


def emptied(buffer: Any, n_rows: int | None = None, frames: Any = None, storage: ArrayStorage | None = None) -> Any:
    """
    Make an empty buffer with the same settings.

    :param buffer: any
    :param n_rows: number of rows, if another one is wanted
    :param frames: with ``n_rows``, the setting ``frames`` that is wanted
    :param storage: of the new buffer; ``None``: an empty one
    :return: a new buffer of the same kind with the same settings, and nothing in it
    """
    twin = object.__new__(type(buffer))
    vars(twin).update(vars(buffer))
    if n_rows is not None:
        twin.settings = dataclasses.replace(buffer.settings, frames=frames)
    if storage is None:
        by_key = frames_of(twin.settings, twin.observation_space)
        storage = buffer.storage.emptied(n_rows or buffer.buffer_size, by_key, folder=buffer.storage)
    twin.make_parts(storage)
    if buffer.draw_record is not None:
        twin.draw_record = buffer.draw_record.emptied(twin.ring.capacity)
    return twin


def take_steps(target: Any, source: Any, keeps_masses: bool = True) -> None:
    """
    Fill an empty buffer with the newest steps of another one that fit, for each environment, and take over beta and the
    maximum. The transitions get new ids.

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
    n_taken = int((target.ring.added - target.ring.begin).min())
    rows, old_rows = ((r.most - n_taken + np.arange(n_taken)) % r.n_rows for r in (target.ring, ring))
    target.sampler.eligible.take(source.sampler.eligible, rows, old_rows)
    target.demonstrations.take(source.demonstrations, target.storage, keeps_masses)
    target.weights.load(source.weights.state())
    target.sampler.load_numbers(source.sampler.state(0))


def take_over(buffer: Any, other: Any) -> None:
    """
    Let a buffer become what another one is; it keeps its lock, which others may wait for.

    :param buffer: that changes
    :param other: of the same class and settings; not to be used any more
    """
    with buffer.lock:
        vars(buffer).update({**vars(other), "lock": buffer.lock})
