"""n-step returns, computed when a batch is read."""

from typing import NamedTuple

import numpy as np

from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Storage
from sb3_per.utils.compiled import kernel, prefetch


class ReturnWindows(NamedTuple):
    """The consecutive steps that each return of a batch adds up."""

    #: slots of the steps, int64 of shape (batch_size, n_steps)
    slots: np.ndarray
    #: how many of them count, from 1, int64 of shape (batch_size,); ``None`` if every window is a single step
    lengths: np.ndarray | None
    #: slot of the last one that counts, int64 of shape (batch_size,)
    last_slots: np.ndarray


class NStepReturns:
    """
    Windows of up to ``n_steps`` steps, their discounted rewards, and the discount of the value after them (Sutton 1988).

    :param n_steps: number of steps, at least 1
    :param gamma: discount factor, in [0, 1]
    """

    def __init__(self, n_steps: int, gamma: float):
        self.n_steps = n_steps
        #: gamma^0 to gamma^n_steps, float32 of shape (n_steps + 1,)
        self.discounts = float(gamma) ** np.arange(n_steps + 1, dtype=np.float32)

    def windows(self, slots: np.ndarray, ring: Ring, storage: Storage) -> ReturnWindows:
        """
        Find the steps of each return, for ``n_steps`` above 1. A window ends early at a termination, a truncation, and the
        newest step.

        :param slots: first steps, int64 of shape (batch_size,)
        :param ring: says which step is the newest
        :param storage: says which steps end episodes
        :return: the windows
        """
        all_slots = (slots[:, None] + np.arange(self.n_steps) * ring.n_envs) % ring.capacity
        lengths = window_lengths(slots, storage.dones.ravel(), storage.timeouts.ravel(), ring.next_steps, self.n_steps)
        last = (slots + (lengths - 1) * ring.n_envs) % ring.capacity
        return ReturnWindows(all_slots, lengths, last)

    def discounted(self, rewards: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Discount and add up rewards.

        :param rewards: normalized one by one, float32 of shape (batch_size, n_steps)
        :param lengths: how many of them count, see :class:`ReturnWindows`
        :return: discounted sums, and gamma^length, the discount of the value after them; float32 of shape (batch_size, 1).
        """
        is_counted = np.arange(self.n_steps) < lengths[:, None]
        counted = np.where(is_counted, rewards, np.float32(0.0))  # the others may hold anything
        discounted = counted * self.discounts[:-1]
        return discounted.sum(axis=1, keepdims=True), self.discounts[lengths].reshape(-1, 1)


@kernel
def window_lengths(
    slots: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, next_steps: np.ndarray, n_steps: int
) -> np.ndarray:
    """
    Count the steps of windows. A window ends early at the end of its episode and at the newest step of its environment.

    :param slots: slots of the first steps, int64 of shape (batch_size,)
    :param dones: ends of episodes by slot, shape (capacity,)
    :param timeouts: which of these ends are truncations, shape (capacity,)
    :param next_steps: next step of each environment, int64 of shape (n_envs,)
    :param n_steps: largest number of steps
    :return: numbers of steps, at least 1, int64 of shape (batch_size,)
    """
    n_envs = next_steps.size
    lengths = np.empty(slots.size, np.int64)
    newest = np.empty(n_envs, np.int64)
    for env in range(n_envs):
        newest[env] = (next_steps[env] - 1) % (dones.size // n_envs) * n_envs + env
    for i in range(slots.size):
        prefetch(dones, np.uint64(slots[i]))
        prefetch(timeouts, np.uint64(slots[i]))
    for i in range(slots.size):
        slot, end, length = slots[i], newest[slots[i] % n_envs], 1
        while length < n_steps and slot != end and dones[slot] == 0 and timeouts[slot] == 0:
            length += 1
            slot += n_envs
            if slot >= dones.size:
                slot -= dones.size
        lengths[i] = length
    return lengths
