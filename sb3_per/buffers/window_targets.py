"""n-step targets of the steps of windows, and one TD error for each window (R2D2: Kapturowski et al. 2019)."""

import numpy as np

from sb3_per.utils.compiled import kernel


@kernel
def n_step_targets(
    rewards: np.ndarray, lengths: np.ndarray, ends: np.ndarray, discounts: np.ndarray, sequence_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    Compute the parts of the target of each step: the discounted sum of the next n rewards, and the discount of the value after
    them. The sum ends early at the end of the window.

    :param rewards: of the steps, time first, float32 of shape (n_recorded, B)
    :param lengths: numbers of steps, int64 of shape (B,)
    :param ends: whether the last step is a termination, float32 of shape (B, 1)
    :param discounts: gamma^0 to gamma^n, float32 of shape (n + 1,)
    :param sequence_length: number of steps that get a target
    :return: arrays of shape (sequence_length, B), 0 where a window has no step: sums of rewards, discounts of the values after
        them, whether the episode has terminated by then (all float32); position in the window of the observation whose value
        is meant, 0 for the first observation (int64); whether there is a step (bool)
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

    :param errors: ``|td|``, float64 of shape (sequence_length, B)
    :param is_step: whether there is a step, bool of shape (sequence_length, B)
    :param eta: share of the maximum, in [0, 1]
    :return: one error per window, float64 of shape (B,); 0 for a window without a step
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
