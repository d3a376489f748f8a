"""
Find windows of consecutive steps within an episode, list their slots, and compute the n-step targets of their steps.

A step is numbered from the first one ever added to the buffer. Its slot is row * n_envs + env, where row = step % n_rows.
"""

import numpy as np

from sb3_per.storage.ring import slots_between
from sb3_per.utils.compiled import kernel


@kernel
def number_next(
    numbers: np.ndarray,
    numbers_before: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    is_first: bool,
    starts: np.ndarray,
    period: int,
    burn_in: int,
) -> tuple[bool, bool]:
    """
    Number a step of all environments within its episode, from 0.

    :param numbers: written: number of the step, int32 of shape (n_envs,)
    :param numbers_before: numbers of the step before, in the same shape
    :param dones: where an episode ended with the step before, shape (n_envs,)
    :param timeouts: which of these ends are truncations, shape (n_envs,)
    :param is_first: whether no step comes before it
    :param starts: whether the caller starts a new episode here, bool of shape (n_envs,); an episode also starts after an end
    :param period: number of steps from the beginning of a window to the beginning of the next
    :param burn_in: number of steps before a window from which it is unrolled
    :return: whether an episode starts here and the one before was not ended; and whether a window is unrolled from this step
        and its episode started earlier
    """
    leaves_open = False
    is_unrolled_from = False
    for e in range(starts.size):
        number = 0
        if not (is_first or dones[e] != 0 or timeouts[e] != 0):
            if starts[e]:
                leaves_open = True
            else:
                number = numbers_before[e] + 1
                if (number + burn_in) % period == 0:
                    is_unrolled_from = True
        numbers[e] = number
    return leaves_open, is_unrolled_from


def number_by_dones(episode_steps: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, first: int, end: int) -> None:
    """
    Number a range of steps within their episodes. An episode starts with the range, and after each end.

    :param episode_steps: numbers of the steps, int32 of shape (n_rows, n_envs); the rows of the range are written
    :param dones: ends of episodes, shape (n_rows, n_envs)
    :param timeouts: which of these ends are truncations, shape (n_rows, n_envs)
    :param first: first step of the range
    :param end: step after the last of the range
    """
    steps = np.arange(first, end)
    rows = steps % len(episode_steps)
    starts = np.full((len(rows), dones.shape[1]), first)
    starts[1:] = np.where((dones[rows[:-1]] != 0) | (timeouts[rows[:-1]] != 0), steps[1:, None], first)
    episode_steps[rows] = steps[:, None] - np.maximum.accumulate(starts, axis=0)


@kernel
def find_complete(
    n_looked_at: np.ndarray,
    episode_steps: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    oldest: int,
    end: int,
    period: int,
    n_steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Find the windows that have become complete, after steps were added. A window is complete if ``n_steps`` steps from its
    first one on are in the buffer, or if its episode has ended.

    :param n_looked_at: step of each environment up to which this is decided, int64 of shape (n_envs,)
    :param episode_steps: numbers of the steps within their episodes, int32 of shape (n_rows, n_envs)
    :param dones: ends of episodes, shape (n_rows, n_envs)
    :param timeouts: which of these ends are truncations, shape (n_rows, n_envs)
    :param oldest: oldest step whose window may be drawn
    :param end: step that is added next
    :param period: number of steps from the beginning of a window to the beginning of the next
    :param n_steps: number of steps of a complete window
    :return: slots of the first steps of these windows, from old to new, int64 of shape (n,); and the step of each environment
        up to which is decided now, int64 of shape (n_envs,)
    """
    n_rows, n_envs = episode_steps.shape
    first = np.empty(n_envs, np.int64)
    looked_at = np.empty(n_envs, np.int64)
    newest = (end - 1) % n_rows
    for e in range(n_envs):
        first[e] = max(n_looked_at[e], oldest)
        end_of_complete = end
        if dones[newest, e] == 0 and timeouts[newest, e] == 0:  # the newest episode continues
            end_of_complete = max(end - 1 - episode_steps[newest, e], end - n_steps + 1)
        looked_at[e] = max(end_of_complete, first[e])
    slots = slots_between(first, looked_at, n_rows)
    return slots[episode_steps.reshape(-1)[slots] % period == 0], looked_at


@kernel
def lay_out(slots: np.ndarray, lengths: np.ndarray, n_rows: int, n_envs: int, capacity: int) -> np.ndarray:
    """
    List the slots of all steps of windows.

    :param slots: slots of the first steps, int64 of shape (batch_size,)
    :param lengths: numbers of steps, int64 of shape (batch_size,)
    :param n_rows: number of rows of the result
    :param n_envs: number of environments
    :param capacity: number of slots of the buffer
    :return: slots with time first, int64 of shape (n_rows, batch_size); after the end of a window, its first slot again
    """
    places = np.empty((n_rows, slots.size), np.int64)
    for i in range(slots.size):
        slot = slots[i]
        for j in range(n_rows):
            places[j, i] = slot if j < lengths[i] else slots[i]
            slot += n_envs
            if slot >= capacity:
                slot -= capacity
    return places


@kernel
def n_step_targets(
    rewards: np.ndarray, lengths: np.ndarray, ends: np.ndarray, discounts: np.ndarray, sequence_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    Compute the parts of the target of each step: the discounted sum of the next n rewards, and the discount of the value after
    them. The sum ends early at the end of the window.

    :param rewards: rewards of the steps, float32 of shape (n_rows, batch_size)
    :param lengths: numbers of steps, int64 of shape (batch_size,)
    :param ends: whether the last step is a termination, float32 of shape (batch_size, 1)
    :param discounts: gamma^0 to gamma^n, float32 of shape (n + 1,)
    :param sequence_length: number of steps that get a target
    :return: arrays of shape (sequence_length, batch_size), 0 where a window has no step: sums of rewards, discounts of the
        values after them, whether the episode has terminated by then (all float32); position in the window of the observation
        whose value is meant, 0 for the first observation (int64); whether there is a step (bool)
    """
    shape = (sequence_length, lengths.size)
    sums, factors, terminal = np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    after, is_step = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for k in range(sequence_length):
        for i in range(lengths.size):
            if k >= lengths[i]:
                continue
            end = min(k + discounts.size - 1, lengths[i])
            total = np.float32(0)
            for j in range(k, end):
                total += rewards[j, i] * discounts[j - k]
            sums[k, i], factors[k, i] = total, discounts[end - k]
            if end == lengths[i]:
                terminal[k, i] = ends[i, 0]
            after[k, i], is_step[k, i] = end, True
    return sums, factors, terminal, after, is_step


@kernel
def mix_over_time(errors: np.ndarray, is_step: np.ndarray, eta: float) -> np.ndarray:
    """
    Reduce the TD errors of each window to ``eta max|td| + (1 - eta) mean|td|`` (Kapturowski et al. 2019, section 2.3). For a
    window of one step, this is exactly ``|td|``.

    :param errors: ``|td|``, float64 of shape (sequence_length, batch_size)
    :param is_step: whether there is a step, bool of shape (sequence_length, batch_size)
    :param eta: share of the maximum, in [0, 1]
    :return: one error per window, float64 of shape (batch_size,); 0 for a window without a step
    """
    n_steps, batch_size = errors.shape
    mixed = np.empty(batch_size)
    for i in range(batch_size):
        total, largest, n = 0.0, 0.0, 0
        for k in range(n_steps):
            if is_step[k, i]:
                largest = max(largest, errors[k, i])
                total += errors[k, i]
                n += 1
        mean = total / max(n, 1)
        mixed[i] = mean + eta * (largest - mean)
    return mixed
