"""
Read the transitions of a batch, relabelled. Find the transitions of an update.

Kernels write to arrays that the caller makes: numba takes longer to return one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_per.storage.arrays import ArrayStorage, tree_map
from sb3_per.storage.n_step import NStepReturns
from sb3_per.storage.ring import Ring, lap_of, number_at, place_of
from sb3_per.utils.compiled import kernel, prefetch

#: Changes a batch in place before it is normalized. Arguments: observations, next observations, rewards of shape
#: (batch_size, n_steps), their slots in the same shape, and how many of them count, shape (batch_size,); ``None``: all.
Relabel = Callable[[Any, Any, np.ndarray, np.ndarray, np.ndarray | None], None]

#: Observations, actions, next observations, terminations, rewards of shape (batch_size, n_steps), how many of them count or
#: ``None`` for all, and ids: arrays of a batch, or dictionaries of them.
Transitions = tuple[Any, np.ndarray, Any, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]


def read_transitions(
    storage: ArrayStorage,
    ring: Ring,
    returns: NStepReturns,
    slots: np.ndarray,
    relabel: Relabel | None = None,
) -> Transitions:
    """
    Read the transitions of a batch, relabelled, with the rewards of their n-step windows.

    :param storage: of the transitions
    :param ring: of the same transitions, which gives their ids
    :param returns: finds n-step windows
    :param slots: that hold transitions, int64 of shape (batch_size,)
    :param relabel: changes the batch
    :return: the transitions
    """
    windows, lengths, last = slots[:, None], None, slots
    if returns.n_steps > 1:
        windows, lengths = returns.windows(slots, ring, storage.dones.ravel(), storage.timeouts.ravel())
        last = (slots + (lengths - 1) * ring.n_envs) % ring.capacity
    ids, rewards, ends = read_numbers(storage, ring, windows, last)
    obs, next_obs, actions = storage.read(slots, last)
    if relabel is not None:
        relabel(obs, next_obs, rewards, windows, lengths)
    return obs, actions, next_obs, ends, rewards, lengths, ids


def read_numbers(
    storage: ArrayStorage, ring: Ring, windows: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Read ids, rewards and terminations.

    :param storage: of the transitions
    :param ring: of the same transitions, which gives their ids
    :param windows: slots of the steps of each transition, int64 of shape (batch_size, n_steps)
    :param last: slot of the last step that counts, int64 of shape (batch_size,)
    :return: ids, int64 of shape (batch_size,); rewards, shape (batch_size, n_steps); and terminations of the last steps,
        float32 of shape (batch_size, 1)
    """
    ids, ends = np.empty(len(last), np.int64), np.empty((len(last), 1), np.float32)
    rewards = np.empty(windows.shape, storage.rewards.dtype)
    of_steps = (storage.rewards.ravel(), storage.dones.ravel(), storage.timeouts.ravel())
    read_batch(windows, last, *of_steps, ring.next_id, ids, rewards, ends)
    return (ids if ring.is_even else ring.ids_at(windows[:, 0])), rewards, ends


def joined(first: Any, second: Any) -> Any:
    """
    Concatenate two arrays, or the arrays of two dictionaries.

    :param first: an array, a dictionary of arrays, or ``None``
    :param second: the same for other rows
    :return: the rows of both, in this order
    """
    return tree_map(lambda *parts: np.concatenate(parts), first, second)


def located(ring: Ring, ids: np.ndarray, td_errors: np.ndarray, first_id: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """
    Find the slots of transitions, and check their new TD errors.

    :param ring: of the transitions
    :param ids: int64 of shape (n,)
    :param td_errors: shape (n, n_critics)
    :param first_id: first id of this ring
    :return: slots and ``|td|`` of the transitions that are still there
    :raises IndexError: for an id that was never issued
    :raises ValueError: for a TD error that is NaN or infinite
    """
    slots, abs_td_errors = np.empty_like(ids), np.empty(td_errors.shape)
    own = ids - first_id if first_id else ids
    n, bad = read_update(own, ring.added, ring.begin, ring.n_rows, ring.n_spoilt, td_errors, slots, abs_td_errors)
    if bad >= 0 and not ring.was_issued(own[bad]):
        start = f"counted from {first_id} on, " if first_id else ""
        raise IndexError(f"Transition id {ids[bad]} was never issued: {start}{ring.issued_ids(own[bad])}")
    if bad >= 0:
        errors = td_errors[bad]
        raise ValueError(f"td_errors must be finite, not {errors[~np.isfinite(errors)][0]} (transition id {ids[bad]})")
    return (slots, abs_td_errors) if n == len(ids) else (slots[:n], abs_td_errors[:n])


@kernel
def read_batch(
    windows: np.ndarray,
    last: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    next_id: int,
    ids: np.ndarray,
    batch_rewards: np.ndarray,
    ends: np.ndarray,
) -> None:
    """
    See :func:`read_numbers`.

    :param windows: slots of the steps of each transition, shape (batch_size, n_steps)
    :param last: slot of the last step that counts, shape (batch_size,)
    :param rewards: by slot, as the following two, shape (capacity,)
    :param dones: ends of episodes
    :param timeouts: which of them are truncations, where the value of the next observation counts
    :param next_id: number above all ids of the ring
    :param ids: written, int64 of shape (batch_size,): ids if all environments stand at the same step
    :param batch_rewards: written, shape (batch_size, n_steps)
    :param ends: written, float32 of shape (batch_size, 1): terminations
    """
    batch_size, n_steps = windows.shape
    lap = lap_of(next_id, rewards.size)
    for i in range(batch_size):
        prefetch(dones, np.uint64(last[i]))
        prefetch(rewards, np.uint64(windows[i, 0]))
    for i in range(batch_size):
        ids[i] = number_at(windows[i, 0], lap, next_id, rewards.size)
        done = dones[last[i]]
        ends[i, 0] = done if done == 0 else done * (1 - timeouts[last[i]])  # few are done: this saves a cache miss
        for j in range(n_steps):
            batch_rewards[i, j] = rewards[windows[i, j]]


@kernel
def read_update(
    ids: np.ndarray,
    added: np.ndarray,
    begin: int,
    n_rows: int,
    n_spoilt: int,
    td_errors: np.ndarray,
    slots: np.ndarray,
    abs_td_errors: np.ndarray,
) -> tuple[int, int]:
    """
    Find the transitions of an update, and check the TD errors. Those that are not stale come first in the results.

    :param ids: of transitions, int64 of shape (batch_size,)
    :param added: steps added by each environment, shape (n_envs,)
    :param begin: steps before the ring was last emptied
    :param n_rows: rows of the ring
    :param n_spoilt: rows of a full ring that are incomplete
    :param td_errors: shape (batch_size, n_critics)
    :param slots: written, int64 of shape (batch_size,)
    :param abs_td_errors: written, float64 in the shape of ``td_errors``
    :return: how many ids are not stale; and the position of the first bad id or TD error, -1 if there is none
    """
    n_envs = added.size
    laps, oldest = np.empty(n_envs, np.int64), np.empty(n_envs, np.int64)
    for e in range(n_envs):
        laps[e] = lap_of(added[e], n_rows)
        oldest[e] = begin if added[e] - begin < n_rows else added[e] - n_rows + n_spoilt
    n_held = 0
    for i in range(ids.size):
        step = ids[i] if n_envs == 1 else ids[i] // n_envs
        env = ids[i] - step * n_envs
        if not (ids[i] >= 0 and step < added[env]):
            return n_held, i
        for j in range(td_errors.shape[1]):
            abs_td_errors[n_held, j] = abs(td_errors[i, j])
            if not abs_td_errors[n_held, j] < np.inf:
                return n_held, i
        if step >= oldest[env]:
            slots[n_held] = place_of(step, laps[env], n_rows) * n_envs + env
            n_held += 1
    return n_held, -1
