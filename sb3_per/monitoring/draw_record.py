"""Counts what is drawn, for those who want to look at it. Knows ids and numbers, no buffer."""

from collections import deque

import numpy as np
from numpy.typing import ArrayLike

from sb3_per.sampling.kernels import kernel


class DrawRecord:
    """
    How often each transition was drawn, and the newest batches. A few microseconds per batch; 12 bytes per slot.

    :param capacity: number of slots, over all environments
    :param n_batches: how many batches are kept
    """

    def __init__(self, capacity: int, n_batches: int | None = 100):
        #: ids, weights, and the end of the ids that were there, of the newest batches
        self.batches: deque[tuple[np.ndarray, np.ndarray, int | np.ndarray]] = deque(maxlen=n_batches)
        self._counts = np.zeros(capacity, dtype=np.int32)
        # The transition that a count is of: what takes its slot starts anew, without anything to do when it is added.
        self._counted_ids = np.full(capacity, -1)

    def emptied(self, capacity: int) -> "DrawRecord":
        """
        :param capacity: number of slots
        :return: a new one that keeps as many batches, and has counted nothing
        """
        return DrawRecord(capacity, self.batches.maxlen)

    def add(self, ids: np.ndarray, weights: ArrayLike, next_id: int | np.ndarray) -> None:
        """
        :param ids: of the drawn transitions, int64 of shape (batch_size,)
        :param weights: importance-sampling weights, shape (batch_size, 1); copied
        :param next_id: all ids are below; where each environment adds on its own, those of the same environment, for every
            drawn transition, shape (batch_size,)
        """
        _count(ids, self._counts, self._counted_ids)
        self.batches.append((ids.copy(), np.asarray(weights).copy(), next_id))

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """
        :param ids: of transitions that are in the buffer, of any shape
        :return: how often each was drawn, in the same shape
        """
        leaves = ids % len(self._counts)
        return np.where(self._counted_ids[leaves] == ids, self._counts[leaves], 0)


@kernel
def _count(ids: np.ndarray, counts: np.ndarray, counted_ids: np.ndarray) -> None:
    for i in range(ids.size):
        leaf = ids[i] % counts.size
        if counted_ids[leaf] != ids[i]:
            counted_ids[leaf] = ids[i]
            counts[leaf] = 0
        counts[leaf] += 1
