"""
Windows of consecutive steps within an episode: where they begin, what is in them, and the n-step targets of their steps.

Arrays are SB3's, by slot = row * n_envs + env; steps are counted from the first one that was ever added.
"""

import numpy as np

from sb3_per.sampling.kernels import kernel, prefetch

# What :func:`number_next` found.
LEAVES_OPEN, IS_UNROLLED_FROM = 1, 2


@kernel
def number_next(
    episode_steps: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    row: int,
    is_first: bool,
    starts: np.ndarray,
    period: int,
    burn_in: int,
) -> int:
    """
    Number a step within its episode, 0 for the first.

    :param episode_steps: to fill, numbers of the steps, shape (n_rows, n_envs)
    :param dones: ends of episodes, in the same shape
    :param timeouts: which of them are truncations, in the same shape
    :param row: of the step
    :param is_first: whether there is none before
    :param starts: whether an episode starts, beside where one has ended, shape (n_envs,)
    :param period: windows begin at every so many steps of an episode
    :param burn_in: steps before that which a window is unrolled from
    :return: the sum of ``LEAVES_OPEN``, if an episode before had no end, and ``IS_UNROLLED_FROM``, if a window will be
        unrolled from this step, and this is not the start of its episode
    """
    found = 0
    before = (row - 1) % len(dones)
    for e in range(starts.size):
        number = 0
        if not (is_first or dones[before, e] != 0 or timeouts[before, e] != 0):
            if starts[e]:
                found |= LEAVES_OPEN
            else:
                number = episode_steps[before, e] + 1
                if (number + burn_in) % period == 0:
                    found |= IS_UNROLLED_FROM
        episode_steps[row, e] = number
    return found


@kernel
def number_by_dones(
    episode_steps: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, first: int, end: int, oldest: int
) -> None:
    """
    Number the steps from one to another within their episodes, which start where one has ended.

    :param episode_steps: to fill, shape (n_rows, n_envs)
    :param dones: ends of episodes, in the same shape
    :param timeouts: which of them are truncations, in the same shape
    :param first: the first of the steps
    :param end: the step after the last of them
    :param oldest: step that there is nothing before
    """
    n_rows, n_envs = episode_steps.shape
    nowhere = np.zeros(n_envs, np.bool_)
    for step in range(first, end):
        number_next(episode_steps, dones, timeouts, step % n_rows, step == oldest, nowhere, 1, 0)


@kernel
def end_of_complete(
    episode_steps: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, end: int, n_steps: int, env: int
) -> int:
    """
    :param episode_steps: see :func:`number_next`, as the next two
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :param end: step that is added next
    :param n_steps: in a complete window
    :param env: environment
    :return: step after the last one whose window is complete: so many steps from it on are recorded, or its episode is over
    """
    newest = (end - 1) % len(dones)
    if dones[newest, env] != 0 or timeouts[newest, env] != 0:
        return end
    bound: int = max(end - 1 - episode_steps[newest, env], end - n_steps + 1)
    return bound


@kernel
def admit_windows(
    is_ready: np.ndarray,
    n_looked_at: np.ndarray,
    episode_steps: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    retired: int,
    oldest: int,
    end: int,
    period: int,
    n_steps: int,
) -> tuple[np.ndarray, int]:
    """
    Note which windows can be drawn, after steps were added.

    :param is_ready: to change, bool of shape (n_rows, n_envs)
    :param n_looked_at: step after the last one that this was decided for, to change, shape (n_envs,)
    :param episode_steps: see :func:`number_next`, as the next two
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :param retired: the oldest step whose window could be drawn before
    :param oldest: the oldest step whose window may be drawn now
    :param end: step that is added next
    :param period: windows begin at every so many steps of an episode
    :param n_steps: in a complete window
    :return: slots of the windows that can be drawn from now on, from old to new; and how many cannot be drawn any more
    """
    n_rows, n_envs = is_ready.shape
    n_gone = 0
    for step in range(max(retired, oldest - n_rows), oldest):
        for e in range(n_envs):
            n_gone += is_ready[step % n_rows, e]
            is_ready[step % n_rows, e] = False
    first, last = np.empty(n_envs, np.int64), oldest
    for e in range(n_envs):
        first[e] = max(n_looked_at[e], oldest)
        n_looked_at[e] = max(end_of_complete(episode_steps, dones, timeouts, end, n_steps, e), first[e])
        last = max(last, n_looked_at[e])
    slots = np.empty((last - first.min()) * n_envs, np.int64)
    n = 0
    for step in range(first.min(), last):
        row = step % n_rows
        for e in range(n_envs):
            if first[e] <= step < n_looked_at[e] and episode_steps[row, e] % period == 0:
                is_ready[row, e] = True
                slots[n] = row * n_envs + e
                n += 1
    return slots[:n], n_gone


@kernel
def window_lengths(
    slots: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, n_envs: int, n_after: np.ndarray, n_steps: int
) -> np.ndarray:
    """
    :param slots: first steps of the windows, shape (batch_size,)
    :param dones: ends of episodes by slot, shape (capacity,)
    :param timeouts: which of them are truncations, in the same shape
    :param n_envs: number of environments
    :param n_after: steps from the first one to the newest, shape (batch_size,)
    :param n_steps: the longest that a window is
    :return: how many steps each has, from 1, shape (batch_size,)
    """
    lengths = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        slot, length = slots[i], 1
        while length < min(n_steps, n_after[i]) and dones[slot] == 0 and timeouts[slot] == 0:
            length += 1
            slot += n_envs
            if slot >= dones.size:
                slot -= dones.size
        lengths[i] = length
    return lengths


@kernel
def lay_out(slots: np.ndarray, lengths: np.ndarray, n_rows: int, n_envs: int, capacity: int) -> np.ndarray:
    """
    :param slots: first steps, shape (batch_size,)
    :param lengths: how many steps, shape (batch_size,)
    :param n_rows: of the result
    :param n_envs: number of environments
    :param capacity: number of slots
    :return: slots of all steps, time first, int64 of shape (n_rows, batch_size); after the last one, the first again
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
def read_columns(
    places: np.ndarray, lengths: np.ndarray, rewards: np.ndarray, dones: np.ndarray, timeouts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """
    :param places: slots of the steps, shape (n_steps, batch_size)
    :param lengths: how many of them count, shape (batch_size,)
    :param rewards: by slot, as the next two, shape (capacity,)
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :return: rewards, 0 after the last step that counts, float32 of shape (n_steps, batch_size); and whether that step was a
        termination, float32 of shape (batch_size,)
    """
    n_steps, batch_size = places.shape
    found, ends = np.zeros((n_steps, batch_size), rewards.dtype), np.empty(batch_size, np.float32)
    for i in range(batch_size):
        prefetch(rewards, np.uint64(places[0, i]))
    for i in range(batch_size):
        for j in range(lengths[i]):
            found[j, i] = rewards[places[j, i]]
        last = places[lengths[i] - 1, i]
        ends[i] = dones[last] * (1 - timeouts[last])
    return found, ends


@kernel
def n_step_targets(
    rewards: np.ndarray, lengths: np.ndarray, ends: np.ndarray, discounts: np.ndarray, sequence_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    What the value of each step is regressed on: the discounted sum of the next n rewards, and the value after them. The sum
    ends early where the window ends.

    :param rewards: one by one, float32 of shape (n, batch_size)
    :param lengths: how many of them count, shape (batch_size,)
    :param ends: whether nothing follows the last one, float32 of shape (batch_size,)
    :param discounts: gamma^0 to gamma^n, float32 of shape (n_steps + 1,)
    :param sequence_length: number of steps that have a target
    :return: of shape (sequence_length, batch_size), 0 where there is no step: sums, discounts of the values after, whether
        nothing is after, all float32; position of what is after, with 0 for what was observed before the first
        step, int64; whether there is a step, bool
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
                terminal[k, i] = ends[i]
            after[k, i], is_step[k, i] = end, True
    return sums, factors, terminal, after, is_step


@kernel
def mix_over_time(errors: np.ndarray, is_step: np.ndarray, eta: float) -> np.ndarray:
    """
    ``eta max|td| + (1 - eta) mean|td|`` over the steps of each window (Kapturowski et al. 2019, section 2.3), to the bit
    ``|td|`` for a window of one step.

    :param errors: ``|td|``, float64 of shape (sequence_length, batch_size)
    :param is_step: which of them count, bool in the same shape
    :param eta: share of the maximum, in [0, 1]
    :return: one error per window, shape (batch_size,); 0 for a window without a step
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
