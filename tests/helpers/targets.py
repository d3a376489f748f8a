"""A reference for the targets of an algorithm: returns of n steps, from the rows of its buffer one by one."""

from typing import Any

import numpy as np
import torch as th


def assert_targets_have(model: Any, n_steps: int, gamma: float) -> None:
    """
    Check that the TD errors of a model are those of these numbers: the discounted rewards of the steps, and gamma to the power
    of their number times the next value.

    :param model: algorithm in one environment whose buffer has not been full
    :param n_steps: number of steps that it must have
    :param gamma: discount factor that it must have
    """
    buffer = model.replay_buffer
    batch = buffer.sample(16)
    anchors = batch.indices  # ids are rows here
    is_sequence = hasattr(batch, "mask")
    rows = anchors + np.arange(len(batch.rewards))[:, None] if is_sequence else anchors
    is_learned = batch.mask.numpy() if is_sequence else np.ones(len(anchors), bool)

    returns, discounts = np.zeros(rows.shape), np.zeros(rows.shape)
    for place in zip(*np.nonzero(is_learned), strict=True):
        row, n = int(rows[place]), 0
        while n == 0 or (n < n_steps and row + n < buffer.pos and not buffer.dones[row + n - 1, 0]):
            returns[place] += gamma**n * buffer.rewards[row + n, 0]
            n += 1
        discounts[place] = gamma**n

    def td_errors(**changes: Any) -> np.ndarray:
        th.manual_seed(0)  # of the next actions
        return np.asarray(model.td_errors(batch._replace(**changes)))[is_learned]

    # The TD errors of other batches give estimates and next values, which are 0 after a terminal state.
    zeros, ones = th.zeros_like(batch.rewards), th.ones_like(batch.rewards)
    estimates = -td_errors(rewards=zeros, discounts=zeros)
    next_values = td_errors(rewards=zeros, discounts=ones) + estimates
    expected = returns[is_learned][:, None] + discounts[is_learned][:, None] * next_values - estimates
    np.testing.assert_allclose(td_errors(), expected, rtol=1e-4, atol=1e-4)
    assert np.abs(next_values).max() > 0.01  # so that another gamma gives other TD errors
