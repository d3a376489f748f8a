"""
Kernels that read the numbers of a batch, and find the slots of an update.

They write to arrays that the caller makes: numba takes longer to return one.
"""

import numpy as np

from sb3_per.storage.ring import first_id_of_lap, id_in_slot, lap_start, row_of_step
from sb3_per.utils.compiled import kernel, prefetch


@kernel
def read_step_values(
    step_slots: np.ndarray,
    last_slots: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    next_id: int,
    ids: np.ndarray,
    batch_rewards: np.ndarray,
    terminations: np.ndarray,
) -> None:
    """
    Read ids, rewards and terminations.

    :param step_slots: slots of the steps of each transition, shape (batch_size, n_steps)
    :param last_slots: slot of the last step that counts, shape (batch_size,)
    :param rewards: by slot, as the following two, shape (capacity,)
    :param dones: ends of episodes
    :param timeouts: which of them are truncations, where the value of the next observation counts
    :param next_id: number above all ids of the ring
    :param ids: written, int64 of shape (batch_size,): ids if all environments stand at the same step
    :param batch_rewards: written, shape (batch_size, n_steps)
    :param terminations: written, float32 of shape (batch_size, 1)
    """
    batch_size, n_steps = step_slots.shape
    first_id = first_id_of_lap(next_id, rewards.size)
    for i in range(batch_size):
        prefetch(dones, np.uint64(last_slots[i]))
        prefetch(rewards, np.uint64(step_slots[i, 0]))
    for i in range(batch_size):
        ids[i] = id_in_slot(step_slots[i, 0], first_id, next_id, rewards.size)
        done = dones[last_slots[i]]
        # Few are done, and to read no timeout of the others saves a cache miss.
        terminations[i, 0] = done if done == 0 else done * (1 - timeouts[last_slots[i]])
        for j in range(n_steps):
            batch_rewards[i, j] = rewards[step_slots[i, j]]


@kernel
def locate_and_check(
    ids: np.ndarray,
    next_steps: np.ndarray,
    first_step: int,
    n_rows: int,
    shares_next_obs: bool,
    td_errors: np.ndarray,
    slots: np.ndarray,
    abs_td_errors: np.ndarray,
) -> tuple[int, int]:
    """
    Find the transitions of an update, and check the TD errors. Those that are not stale come first in the results.

    :param ids: of transitions, int64 of shape (batch_size,)
    :param next_steps: next step of each environment, shape (n_envs,)
    :param first_step: first step since the ring was last emptied
    :param n_rows: rows of the ring
    :param shares_next_obs: whether the oldest row of a full ring is incomplete
    :param td_errors: shape (batch_size, n_critics)
    :param slots: written, int64 of shape (batch_size,)
    :param abs_td_errors: written, float64 in the shape of ``td_errors``
    :return: how many ids are not stale; and the position of the first bad id or TD error, -1 if there is none
    """
    n_envs = next_steps.size
    # By environment; `Ring.oldest_complete` has the same rule.
    laps = np.empty(n_envs, np.int64)
    oldest = np.empty(n_envs, np.int64)
    for e in range(n_envs):
        laps[e] = lap_start(next_steps[e], n_rows)
        oldest[e] = first_step
        if next_steps[e] - first_step >= n_rows:
            oldest[e] = next_steps[e] - n_rows + shares_next_obs
    n_found = 0
    for i in range(ids.size):
        step = ids[i] if n_envs == 1 else ids[i] // n_envs
        env = ids[i] - step * n_envs
        if not (ids[i] >= 0 and step < next_steps[env]):
            return n_found, i
        for j in range(td_errors.shape[1]):
            abs_td_errors[n_found, j] = abs(td_errors[i, j])
            if not abs_td_errors[n_found, j] < np.inf:
                return n_found, i
        if step >= oldest[env]:
            slots[n_found] = row_of_step(step, laps[env], n_rows) * n_envs + env
            n_found += 1
    return n_found, -1
