"""From one buffer to another: of SB3 and back, and of other sizes, settings and forms."""

from dataclasses import replace
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.storage.array_store import ArrayStore
from sb3_per.storage.make import make_storage
from sb3_per.storage.nested import keyed
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Form, Storage


def arguments_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the arguments of SB3's constructor, without the size.

    :param buffer: of SB3 or prioritized
    :return: arguments by name
    """
    arguments = {
        "observation_space": buffer.observation_space,
        "action_space": buffer.action_space,
        "device": buffer.device,
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": buffer.optimize_memory_usage,
        "handle_timeout_termination": buffer.handle_timeout_termination,
    }
    if isinstance(buffer, HerReplayBuffer):
        arguments["env"] = buffer.env
        arguments["n_sampled_goal"] = buffer.n_sampled_goal
        arguments["goal_selection_strategy"] = buffer.goal_selection_strategy
        arguments["copy_info_dict"] = buffer.copy_info_dict
    return arguments


# ---- from SB3


def form_of(buffer: ReplayBuffer) -> Form:
    """
    Describe the transitions of a buffer of SB3.

    :param buffer: of SB3
    :return: their shapes and types, stored in arrays
    """
    observations = keyed(buffer.observations)
    return Form(
        shapes={key: array.shape[2:] for key, array in observations.items()},
        dtypes={key: array.dtype for key, array in observations.items()},
        action_shape=buffer.actions.shape[2:],
        action_dtype=buffer.actions.dtype,
        shares_next_obs=buffer.optimize_memory_usage,
        handles_timeouts=buffer.handle_timeout_termination,
        keeps_infos=isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict,
    )


def storage_of(buffer: ReplayBuffer) -> Storage:
    """
    Make a storage of SB3's arrays, which are shared.

    :param buffer: of SB3
    :return: the storage
    """
    form = form_of(buffer)
    observations = keyed(buffer.observations)
    next_observations = dict.fromkeys(observations)
    if not form.shares_next_obs:
        next_observations = keyed(buffer.next_observations)
    return Storage(
        form,
        {key: ArrayStore(array, next_observations[key]) for key, array in observations.items()},
        actions=buffer.actions,
        rewards=buffer.rewards,
        dones=buffer.dones,
        timeouts=buffer.timeouts,
        infos=buffer.infos if isinstance(buffer, HerReplayBuffer) and form.keeps_infos else None,
    )


def ring_of(buffer: ReplayBuffer) -> Ring:
    """
    Make a ring that stands where a buffer of SB3 does.

    :param buffer: of SB3
    :return: the ring
    """
    ring = Ring(buffer.buffer_size, buffer.n_envs, buffer.optimize_memory_usage)
    n_steps = buffer.pos
    if buffer.full:
        n_steps += buffer.buffer_size
    ring.clear(n_steps)
    return ring


def episodes_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the episodes that SB3's buffer knows with HER.

    :param buffer: of SB3
    :return: state of the candidates; empty without HER
    """
    if not isinstance(buffer, HerReplayBuffer):
        return {}
    n = buffer.buffer_size if buffer.full else buffer.pos
    return {
        "ep_start": buffer.ep_start[:n],
        "ep_length": buffer.ep_length[:n],
        "current_ep_start": buffer._current_ep_start,  # noqa: SLF001 - SB3 has no other name for it
    }


# ---- to SB3


def sb3_class_of(buffer: ReplayBuffer, n_steps: int) -> type[ReplayBuffer]:
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
    if n_steps > 1 and not buffer.optimize_memory_usage:
        return NStepReplayBuffer
    return ReplayBuffer


def fill_sb3(target: ReplayBuffer, ring: Ring, storage: Storage) -> None:
    """
    Put transitions into a new buffer of SB3. Arrays are shared if they have SB3's form, and all environments stand at the same
    step. Otherwise SB3's buffer gets copies: of each environment as many of the newest transitions as all of them hold.

    :param target: buffer of one row
    :param ring: of the transitions
    :param storage: of the same transitions
    """
    n_held = int((ring.n_added - ring.oldest_held).min())
    if not (ring.all_at_same_step and storage.has_plain_arrays):
        storage = _with_one_cursor(ring, storage, n_held)
    target.buffer_size = ring.n_rows
    target.pos = ring.pos if ring.all_at_same_step else n_held % ring.n_rows
    target.full = n_held == ring.n_rows
    for name, array in storage.arrays().items():
        setattr(target, name, dict(array) if isinstance(array, dict) else array)


def _with_one_cursor(ring: Ring, storage: Storage, n_held: int) -> Storage:
    """Copy the newest steps of each environment into arrays, in the same rows for all: SB3 has one cursor for all."""
    plain = make_storage(replace(storage.form, frames={}, store_class=None), ring.n_rows, ring.n_envs, None)
    first_steps = ring.n_added - n_held
    first_rows = np.zeros(ring.n_envs, np.int64)
    if ring.all_at_same_step:
        first_rows = first_steps % ring.n_rows
    for envs, steps in ring.in_order(first_steps):
        rows = (steps - first_steps[envs] + first_rows[envs]) % ring.n_rows
        plain.write(rows, envs, storage.read_steps(ring.slots_of_steps(steps, envs)))
    return plain
