"""What SB3's buffers hold, in the form that prioritized ones use; and the storage of a new buffer."""

import shutil
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
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


def arguments_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the arguments of SB3's constructor, without the size.

    :param buffer: of SB3 or prioritized
    :return: arguments by name
    """
    names = "observation_space action_space device n_envs optimize_memory_usage handle_timeout_termination"
    if isinstance(buffer, HerReplayBuffer):
        names += " env n_sampled_goal goal_selection_strategy copy_info_dict"
    return {name: getattr(buffer, name) for name in names.split()}


def storage_of(buffer: ReplayBuffer) -> ArrayStorage:
    """
    Make a storage of SB3's arrays, which are shared.

    :param buffer: of SB3
    :return: the storage
    """
    next_observations = None if buffer.optimize_memory_usage else buffer.next_observations
    infos = buffer.infos if isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict else None
    rest = (buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts)
    return ArrayStorage(buffer.observations, next_observations, *rest, infos, buffer.handle_timeout_termination)


def episodes_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the episodes that SB3's buffer knows with HER.

    :param buffer: of SB3
    :return: state of the eligibility, without what belongs to masses; empty without HER
    """
    if not isinstance(buffer, HerReplayBuffer):
        return {}
    n = buffer.buffer_size if buffer.full else buffer.pos
    current = buffer._current_ep_start  # noqa: SLF001 - SB3 has no other name for it
    return {"ep_start": buffer.ep_start[:n], "ep_length": buffer.ep_length[:n], "current_ep_start": current}


def stock_class_of(buffer: ReplayBuffer, n_steps: int) -> type[ReplayBuffer]:
    """
    Choose SB3's class for the transitions of a prioritized buffer.

    :param buffer: prioritized
    :param n_steps: number of steps of its n-step returns
    :return: class of SB3; one without n-step returns where SB3 does not have them
    """
    if isinstance(buffer, HerReplayBuffer):
        return HerReplayBuffer
    if isinstance(buffer, DictReplayBuffer):
        return DictReplayBuffer
    return NStepReplayBuffer if n_steps > 1 and not buffer.optimize_memory_usage else ReplayBuffer


def fill_stock(stock: ReplayBuffer, ring: Ring, storage: ArrayStorage) -> None:
    """
    Put transitions into a new buffer of SB3. Arrays are shared if they have SB3's form, and all environments stand at the same
    step. Otherwise SB3's buffer gets copies: of each environment as many of the newest transitions as all of them hold.

    :param stock: buffer of one row
    :param ring: of the transitions
    :param storage: of the same transitions
    """
    n_held = int((ring.added - ring.first).min())
    if not (ring.is_even and storage.has_plain_arrays):
        first_steps = ring.added - n_held
        # Rows stay where all environments have the same ones. SB3 has one cursor for all.
        first_rows = np.zeros(ring.n_envs, np.int64) if not ring.is_even else first_steps % ring.n_rows
        copied = replace(storage, store_class=None).emptied(ring.n_rows, {})
        for envs, steps in ring.blocks(first_steps):
            slots = steps % ring.n_rows * ring.n_envs + envs
            rows = (steps - first_steps[envs] + first_rows[envs]) % ring.n_rows
            copied.write(rows, envs, storage.read_steps(slots))
        storage = copied
    stock.buffer_size = ring.n_rows
    stock.pos = ring.pos if ring.is_even else n_held % ring.n_rows
    stock.full = n_held == ring.n_rows
    for name, array in storage.arrays().items():
        setattr(stock, name, dict(array) if isinstance(array, dict) else array)


def new_storage(one_row: ArrayStorage, n_rows: int, settings: PrioritySettings, space: spaces.Space) -> ArrayStorage:
    """
    Make the storage of a new buffer.

    :param one_row: storage of the same shapes
    :param n_rows: number of rows
    :param settings: settings of the buffer
    :param space: observation space of the buffer
    :return: an empty storage
    :raises ValueError: if the setting ``frames`` does not fit the observations
    :raises OSError: if ``storage_folder`` belongs to another buffer, or cannot be made
    """
    frames, path = frames_by_key(settings.frames, space), settings.storage_folder
    return one_row.emptied(n_rows, frames, folder=None if path is None else Folder(path))


def warn_of_size(storage: ArrayStorage, sampler_nbytes: int) -> None:
    """
    Warn if a full buffer would be larger than the memory or the space that is free.

    :param storage: of the buffer, still empty
    :param sampler_nbytes: bytes of the priorities, which are in RAM
    :warns UserWarning: if it would be
    """
    n_ram, n_disk = storage.full_nbytes()
    n_ram += sampler_nbytes
    if psutil is not None and n_ram > (available := psutil.virtual_memory().available):
        warnings.warn(
            "This system does not have apparently enough memory to store the complete replay buffer "
            f"{n_ram / 1e9:.2f}GB > {available / 1e9:.2f}GB. Set frames=... if observations are stacks, "
            "storage_folder=... to keep transitions on a disk, or a smaller buffer_size"
        )
    if storage.folder is not None and n_disk > (free := shutil.disk_usage(storage.folder.path).free):
        sizes = f"{free / 1e9:.2f}GB of free space, and the complete replay buffer takes {n_disk / 1e9:.2f}GB"
        warnings.warn(f"The disk of storage_folder={str(storage.folder.path)!r} has {sizes}")
