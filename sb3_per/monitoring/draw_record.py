"""Count how often each transition is drawn."""

from collections import deque

import numpy as np
from numpy.typing import ArrayLike

from sb3_per.utils.compiled import kernel


class DrawRecord:
    """
    Count draws, and keep the newest batches. This takes a few microseconds per batch and 12 bytes per slot.

    :param capacity: number of slots, over all environments
    :param n_batches: number of batches to keep; ``None``: all
    """

    def __init__(self, capacity: int, n_batches: int | None = 100):
        #: ids and weights of the newest batches, and how many steps each environment had added
        self.batches: deque[tuple[np.ndarray, np.ndarray, np.ndarray]] = deque(maxlen=n_batches)
        self._counts = np.zeros(capacity, dtype=np.int32)
        # Id of the transition that each count belongs to: a new transition in the slot starts at 0.
        self._counted_ids = np.full(capacity, -1)

    def emptied(self, capacity: int) -> "DrawRecord":
        """
        Make an empty record that keeps as many batches.

        :param capacity: number of slots
        :return: the new record
        """
        return DrawRecord(capacity, self.batches.maxlen)

    def add(self, ids: np.ndarray, weights: ArrayLike, added: np.ndarray) -> None:
        """
        Count a batch.

        :param ids: ids of the drawn transitions, int64 array of shape (batch_size,)
        :param weights: importance-sampling weights, shape (batch_size, 1); copied
        :param added: number of steps that each environment has added, shape (n_envs,); not copied
        """
        _count(ids, self._counts, self._counted_ids)
        self.batches.append((ids.copy(), np.asarray(weights).copy(), added))

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """
        Count the draws of transitions.

        :param ids: ids of stored transitions, of any shape
        :return: number of draws of each, in the same shape
        """
        slots = ids % len(self._counts)
        return np.where(self._counted_ids[slots] == ids, self._counts[slots], 0)


@kernel
def _count(ids: np.ndarray, counts: np.ndarray, counted_ids: np.ndarray) -> None:
    """Count a batch. NumPy takes eight times as long."""
    for i in range(ids.size):
        slot = ids[i] % counts.size
        if counted_ids[slot] != ids[i]:
            counted_ids[slot] = ids[i]
            counts[slot] = 0
        counts[slot] += 1
