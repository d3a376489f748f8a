"""
Where the columns of a ring stand. A column is what one environment has added, and has a cursor of its own.

As everywhere, leaf = row * n_envs + env and id = step * n_envs + env; steps of a column are counted from the first one that it
ever got. It knows numbers, and nothing of what lies in the ring.
"""

from collections.abc import Callable

import numpy as np

from sb3_per.trees.kernels import kernel


class Columns:
    """
    How many steps each column of a ring was given, and what follows from that. It never changes: another step makes another
    one, which takes its place at once or not at all.

    :param added: steps ever added, int64 of shape (n_envs,)
    :param admitted: how many of them can be drawn, or could until they were overwritten, int64 of shape (n_envs,)
    :param n_before_ring: how many there were when the ring was last empty; the same for all, a multiple of ``n_rows``
    :param n_rows: of the ring
    :param n_spoilt: rows of a full column that are not there as a whole: 1 with ``optimize_memory_usage``
    """

    def __init__(self, added: np.ndarray, admitted: np.ndarray, n_before_ring: int, n_rows: int, n_spoilt: int):
        self.added, self.admitted = added, admitted
        self.n_before_ring, self.n_rows, self.n_spoilt = n_before_ring, n_rows, n_spoilt
        n_held = np.minimum(added - n_before_ring, n_rows)
        #: the oldest step of each column; and the oldest one that is there as a whole
        self.first: np.ndarray = added - n_held
        self.oldest: np.ndarray = self.first + n_spoilt * (n_held == n_rows)
        #: steps of the shortest column, and of the longest one
        self.least, self.most = int(added.min()), int(added.max())
        #: how many transitions are there, and how many as a whole
        self.n_held, self.n_whole = int(n_held.sum()), int((added - self.oldest).sum())

    @property
    def is_even(self) -> bool:
        """Whether one cursor says all of this."""
        return self.least == self.most and bool((self.admitted == self.admitted[0]).all())

    @property
    def n_with_mass(self) -> int:
        """How many leaves the tree has a mass for."""
        n_admitted = np.minimum(self.admitted - self.n_before_ring, self.n_rows - self.n_spoilt)
        return int(n_admitted.sum())

    # ---- other ones

    def advanced(self, envs: np.ndarray, n_steps: int) -> "Columns":
        """
        :param envs: different columns, shape (k,)
        :param n_steps: that each of them was given since
        :return: where they stand then
        """
        added = self.added.copy()
        added[envs] += n_steps
        return Columns(added, self.admitted, self.n_before_ring, self.n_rows, self.n_spoilt)

    def with_admitted(self, admitted: np.ndarray) -> "Columns":
        """The same, when so many steps can be drawn."""
        return Columns(self.added, admitted, self.n_before_ring, self.n_rows, self.n_spoilt)

    # ---- which slot holds which transition

    def ids_at(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: integers of any shape
        :return: ids of the transitions there, -1 where there is none, in the same shape
        """
        flat = np.ascontiguousarray(leaves, np.int64).reshape(-1)
        return _ids_at(flat, self.added, self.n_before_ring, self.n_rows).reshape(np.shape(leaves))

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, int, int]:
        """
        :param ids: int64 of shape (n,)
        :return: leaves, 0 for stale ids; how many are stale; and the position of the first id that was never issued, -1 if
            there is none
        """
        return _locate(ids, self.added, self.oldest, self.n_rows)

    def are_whole(self, ids: np.ndarray) -> np.ndarray:
        """
        :param ids: that were issued, of any shape
        :return: which transitions are there as a whole, bool in the same shape
        """
        steps, envs = np.divmod(ids, len(self.added))
        are_whole: np.ndarray = steps >= self.oldest[envs]
        return are_whole

    def n_behind(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: that hold transitions, of any shape
        :return: how many steps of the column came after each
        """
        rows, envs = np.divmod(leaves, len(self.added))
        return np.asarray((self.added[envs] - 1 - rows) % self.n_rows)

    def leaves_between(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """
        :param first: a step of each column, shape (n_envs,)
        :param end: step of each column up to which they go, no more than a lap
        :return: leaves of the steps in between, in their order, shape (n,)
        """
        leaves = _leaves_between(first, end, self.n_rows)
        leaves.sort()  # neighbours share ancestors in the tree
        return leaves

    # ---- the newest of them

    def newest(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """
        By how many steps of its column came after a transition; of those that are equal, from the last environment on. With
        equal cursors that is the order of the ids.

        :param n: how many of the newest transitions that are there as a whole
        :return: the leaves of those with given numbers, from 0
        """
        counts, n_envs = self._counts_of_newest(n), len(self.added)
        ends = np.cumsum(counts)
        shifts = self.added - ends  # what makes a step of a number

        def leaves_of(numbers: np.ndarray) -> np.ndarray:
            envs = np.searchsorted(ends, numbers, side="right")
            return np.asarray((shifts[envs] + numbers) % self.n_rows * n_envs + envs)

        return leaves_of

    def _counts_of_newest(self, n: int) -> np.ndarray:
        """How many of the newest are of each column, shape (n_envs,)."""
        n_whole: np.ndarray = self.added - self.oldest
        if n == self.n_whole:
            return n_whole
        low, high = 0, int(n_whole.max())
        while low + 1 < high:  # so many steps of each column are less than n
            middle = (low + high) // 2
            low, high = (middle, high) if np.minimum(n_whole, middle).sum() <= n else (low, middle)
        counts: np.ndarray = np.minimum(n_whole, low)
        one_more = np.flatnonzero(n_whole > low)
        counts[one_more[len(one_more) - (n - int(counts.sum())) :]] += 1
        return counts


class Move:
    """
    Columns on their way into a ring of another size: the newest steps of each that fit, where all columns begin in row 0.

    :param columns: where they stand in the ring that they come from
    :param n_rows: of the other ring
    """

    def __init__(self, columns: Columns, n_rows: int):
        n_kept = np.minimum(columns.added - columns.oldest, n_rows - columns.n_spoilt)
        self.columns = columns
        #: of each column, the oldest step that comes along
        self.first: np.ndarray = columns.added - n_kept
        begin = -(-columns.most // n_rows) * n_rows  # ids agree with slots, and none is one that has been
        admitted = begin + np.clip(columns.admitted - self.first, 0, n_kept)
        #: where they stand in the other ring
        self.target = Columns(begin + n_kept, admitted, begin, n_rows, columns.n_spoilt)

    def rows_of(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """
        :param steps: of the longest column: what lies in the row of such a step comes from there
        :param envs: columns, in a shape that fits
        :return: rows in the other ring, negative for what does not come along. Where next observations are the observations
            behind, the row behind the newest step comes along as well
        """
        newest = self.columns.added[envs] - 1 + self.columns.n_spoilt
        return np.asarray(newest - (newest - steps) % self.columns.n_rows - self.first[envs])

    def put(self, array: np.ndarray, first: int, target: np.ndarray) -> None:
        """
        :param array: of the rows from a step of the longest column on, shape (n, n_envs, ...)
        :param first: that step
        :param target: where they go, by row of the other ring
        """
        rows = self.rows_of(first + np.arange(len(array))[:, None], np.arange(len(self.first)))
        is_kept = (rows >= 0) & (rows < len(target))
        target[rows[is_kept], np.nonzero(is_kept)[1]] = array[is_kept]


@kernel
def _ids_at(leaves: np.ndarray, added: np.ndarray, n_before_ring: int, n_rows: int) -> np.ndarray:
    """See :meth:`Columns.ids_at`."""
    ids = np.empty(leaves.size, np.int64)
    for i in range(leaves.size):
        row, env = leaves[i] // added.size, leaves[i] % added.size
        # The newest step that this row has seen.
        step = added[env] - 1 - (added[env] - 1 - row) % n_rows
        ids[i] = step * added.size + env if step >= n_before_ring else -1
    return ids


@kernel
def _locate(ids: np.ndarray, added: np.ndarray, oldest: np.ndarray, n_rows: int) -> tuple[np.ndarray, int, int]:
    """See :meth:`Columns.locate`."""
    leaves, n_stale = np.zeros(ids.size, np.int64), 0
    for i in range(ids.size):
        step, env = ids[i] // added.size, ids[i] % added.size
        if not (ids[i] >= 0 and step < added[env]):
            return leaves, n_stale, i
        if step >= oldest[env]:
            leaves[i] = step % n_rows * added.size + env
        else:
            n_stale += 1
    return leaves, n_stale, -1


@kernel
def _leaves_between(first: np.ndarray, end: np.ndarray, n_rows: int) -> np.ndarray:
    """See :meth:`Columns.leaves_between`."""
    n = 0
    for e in range(first.size):
        n += max(end[e] - first[e], 0)
    leaves, n = np.empty(n, np.int64), 0
    for e in range(first.size):
        for step in range(first[e], end[e]):
            leaves[n] = step % n_rows * first.size + e
            n += 1
    return leaves
