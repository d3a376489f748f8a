"""
The ring: map between slots and transition ids.

A transition has three numbers, and each follows from the others:

- row and env: its place in SB3's arrays of shape (n_rows, n_envs, ...)
- slot = row * n_envs + env: its place in the tree, and in the same arrays flattened to (capacity, ...)
- id = step * n_envs + env: its insertion number. Ids are never reset; row = step modulo n_rows
"""

import bisect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sb3_per.utils.compiled import kernel

# Steps that are copied at a time.
_BLOCK = 256


class Ring:
    """
    Position in the ring, separately for every environment.

    :param n_rows: number of rows
    :param n_envs: number of environments
    :param n_spoilt: number of rows of a full ring whose transition is incomplete: 1 with ``optimize_memory_usage``, where the
        newest next observation overwrites the oldest observation
    """

    def __init__(self, n_rows: int, n_envs: int, n_spoilt: int = 0):
        self.n_rows, self.n_envs, self.n_spoilt = n_rows, n_envs, n_spoilt
        self.capacity = n_rows * n_envs
        # Steps added by each environment, without the newest ones, which all of them added: so `add` changes no array.
        self._added = np.zeros(n_envs, np.int64)
        self._n_newest = 0
        #: number of steps before the ring was last emptied, the same for all environments, a multiple of ``n_rows``
        self.begin = 0
        #: least and largest number of steps that an environment added
        self.least = self.most = 0

    # ---- position

    @property
    def added(self) -> np.ndarray:
        """Number of steps ever added by each environment, int64 of shape (n_envs,); replaced, and never written to."""
        if self._n_newest:
            self._added, self._n_newest = self._added + self._n_newest, 0
        return self._added

    @property
    def pos(self) -> int:
        """Row that is written next, as in SB3; of the environment that added the fewest steps."""
        return self.least % self.n_rows

    @property
    def full(self) -> bool:
        """Whether every slot holds a transition, as in SB3."""
        return self.least - self.begin >= self.n_rows

    @property
    def is_even(self) -> bool:
        """Whether all environments have added the same number of steps."""
        return self.least == self.most

    @property
    def next_id(self) -> int:
        """Number above all ids."""
        return self.most * self.n_envs

    @property
    def n_rows_used(self) -> int:
        """Number of rows, from row 0 on, that hold anything."""
        return min(self.most - self.begin, self.n_rows)

    @property
    def first(self) -> np.ndarray:
        """Oldest step that each environment holds, shape (n_envs,)."""
        return np.maximum(self.added - self.n_rows, self.begin)

    @property
    def oldest(self) -> np.ndarray:
        """Oldest complete step of each environment, shape (n_envs,)."""
        first = self.first
        return np.asarray(first + self.n_spoilt * (self.added - first == self.n_rows))

    @property
    def n_whole(self) -> int:
        """Number of complete transitions."""
        if self.least == self.most:
            n_steps = min(self.least - self.begin, self.n_rows)
            return (n_steps - self.n_spoilt * (n_steps == self.n_rows)) * self.n_envs
        return int((self.added - self.oldest).sum())

    # ---- writing

    def rows_of_next(self, envs: np.ndarray | None, n_steps: int) -> Any:
        """
        Find the rows of the next steps.

        :param envs: environments that add, different integers of shape (k,); ``None``: one step of all of them, which stand at
            the same step
        :param n_steps: number of steps T
        :return: rows of the next steps: an int for ``None``, otherwise int64 of shape (T, k)
        """
        if envs is None:
            return self.least % self.n_rows
        return (self.added[envs] + np.arange(n_steps)[:, None]) % self.n_rows

    def advance(self, envs: np.ndarray | None, n_steps: int) -> None:
        """
        Count steps that were written.

        :param envs: environments that added, different integers of shape (k,); ``None``: all of them
        :param n_steps: number of steps
        """
        if envs is None:
            self._n_newest += n_steps
            self.least += n_steps
            self.most += n_steps
        else:
            added = self.added.copy()
            added[envs] += n_steps
            self._stand(added, self.begin)

    def _stand(self, added: np.ndarray, begin: int) -> None:
        least = int(added.min())
        most = int(added.max())
        # Plain assignments only, so that an interrupt comes before all of them or after.
        self.begin = begin
        self._added = added
        self._n_newest = 0
        self.least = least
        self.most = most

    def clear(self, n_steps: int = 0) -> None:
        """
        Forget all transitions. Ids continue at the next multiple of ``n_rows``, so that older ids are stale.

        :param n_steps: number of steps of every environment that are there already, from row 0 on
        """
        begin = -(-self.most // self.n_rows) * self.n_rows
        self._stand(np.full(self.n_envs, begin + n_steps), begin)

    def begin_after(self, step: int) -> None:
        """
        Let an empty ring begin at the first multiple of ``n_rows`` from ``step`` on, so that its ids are new.

        :param step: number of steps of another ring
        """
        self.most = step
        self.clear()

    def require_even(self) -> None:
        """
        Check that all environments stand at the same step.

        :raises ValueError: if environments have added different numbers of steps
        """
        if not self.is_even:
            raise ValueError(f"environments have added different numbers of steps: {self.added}")

    # ---- which slot holds which transition

    def ids_at(self, slots: np.ndarray) -> np.ndarray:
        """
        Find the transitions in slots.

        :param slots: integers of any shape
        :return: ids of the transitions there, -1 for an empty slot, in the same shape
        """
        flat = np.ascontiguousarray(slots, np.int64).reshape(-1)
        return ids_at(flat, self.added, self.begin, self.n_rows).reshape(np.shape(slots))

    def was_issued(self, transition_id: int) -> bool:
        """Whether a transition ever had this id."""
        return bool(0 <= transition_id < self.added[transition_id % self.n_envs] * self.n_envs)

    def issued_ids(self, transition_id: int) -> str:
        """Say which ids the environment of this id has issued, for a message."""
        env = transition_id % self.n_envs
        if self.n_envs == 1:
            return f"ids are in [0, {self.added[0]})"
        return f"ids of environment {env} are {env} + {self.n_envs} i, where i is in [0, {self.added[env]})"

    def slots_between(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """
        List the slots of a range of steps of each environment.

        :param first: first step of each environment, shape (n_envs,)
        :param end: step after the last one, at most ``n_rows`` later, shape (n_envs,)
        :return: slots of these steps, in the order of their ids, int64 of shape (n,)
        """
        return slots_between(first, end, self.n_rows)

    def blocks(self, first: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """
        List the steps of every environment in order, some at a time: all environments together if all have added the same
        number of steps, otherwise one environment after the other.

        :param first: first step of each environment, shape (n_envs,)
        :return: environments, shape (k,), and their steps, shape (T, k)
        """
        groups = [np.arange(self.n_envs)] if self.is_even else [np.array([env]) for env in range(self.n_envs)]
        for envs in groups:
            end = int(self.added[envs[0]])
            for begin in range(int(first[envs[0]]), end, _BLOCK):
                steps = np.arange(begin, min(begin + _BLOCK, end))
                yield envs, np.repeat(steps[:, None], len(envs), axis=1)

    # ---- the newest transitions

    def newest(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """
        Number the newest complete transitions. A transition is newer than another if fewer steps of its environment follow it,
        or as many and its environment has the higher number. If all environments have added the same number of steps, this is
        the order of ids.

        :param n: number of transitions
        :return: function from numbers in [0, n) to slots
        """
        if self.is_even:
            first_id = self.next_id - n
            return lambda numbers: (first_id + numbers) % self.capacity
        ends = np.cumsum(self._counts_of_newest(n))
        shifts = self.added - ends

        def slots_of(numbers: np.ndarray) -> np.ndarray:
            envs = np.searchsorted(ends, numbers, side="right")
            return (shifts[envs] + numbers) % self.n_rows * self.n_envs + envs

        return slots_of

    def _counts_of_newest(self, n: int) -> np.ndarray:
        """Count how many of the newest n belong to each environment, shape (n_envs,)."""
        n_whole: np.ndarray = self.added - self.oldest
        # Largest k for which the newest k steps of each environment are at most n in total.
        levels = range(int(n_whole.max()) + 1)
        level = bisect.bisect_right(levels, n, key=lambda level: np.minimum(n_whole, level).sum()) - 1
        counts: np.ndarray = np.minimum(n_whole, level)
        one_more = np.flatnonzero(n_whole > level)
        counts[one_more[len(one_more) - (n - int(counts.sum())) :]] += 1
        return counts

    # ---- saving

    def state(self) -> dict[str, Any]:
        """Return the position, see :meth:`load`."""
        return {"added": self.added, "begin": self.begin}

    def load(self, state: dict[str, Any]) -> None:
        """
        Restore a position.

        :param state: from :meth:`state` of a ring of the same shape
        :raises ValueError: if it is not a position in such a ring
        """
        added, begin = np.array(state["added"]), state["begin"]
        is_position = added.shape == (self.n_envs,) and added.dtype == np.int64 and isinstance(begin, int)
        if not is_position or not 0 <= begin <= added.min() <= added.max() < 2**60 // self.n_envs or begin % self.n_rows:
            raise ValueError(f"no position in a ring of {self.n_rows} rows: steps {added} since step {begin}")
        self._stand(added, begin)


@kernel
def lap_of(end: int, size: int) -> int:
    """
    Find the lap that is under way in a circle of places, where entry n is in place n modulo size.

    :param end: number of the next entry
    :param size: number of places
    :return: number of the entry of this lap in place 0
    """
    return end - end % size


@kernel
def number_at(place: int, lap: int, end: int, size: int) -> int:
    """
    Find the entry in a place, without a division for each.

    :param place: in [0, size)
    :param lap: from :func:`lap_of`
    :param end: number of the next entry
    :param size: number of places
    :return: number of the newest entry there
    """
    return place + lap - (size if place + lap >= end else 0)  # from the end on, entries are of the lap before


@kernel
def place_of(number: int, lap: int, size: int) -> int:
    """
    Find the place of an entry, the inverse of :func:`number_at`.

    :param number: of an entry that is still in its place
    :param lap: from :func:`lap_of`
    :param size: number of places
    :return: its place, in [0, size)
    """
    return number - lap + (0 if number >= lap else size)


@kernel
def ids_at(slots: np.ndarray, added: np.ndarray, begin: int, n_rows: int) -> np.ndarray:
    """See :meth:`Ring.ids_at`."""
    ids = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        row, env = slots[i] // added.size, slots[i] % added.size
        step = number_at(row, lap_of(added[env], n_rows), added[env], n_rows)
        ids[i] = step * added.size + env if step >= begin else -1
    return ids


@kernel
def slots_between(first: np.ndarray, end: np.ndarray, n_rows: int) -> np.ndarray:
    """See :meth:`Ring.slots_between`."""
    n, begin = 0, end.max()
    for e in range(first.size):
        if first[e] < end[e]:  # an environment that has stayed behind costs nothing
            n, begin = n + end[e] - first[e], min(begin, first[e])
    slots, n = np.empty(n, np.int64), 0
    for step in range(begin, end.max()):
        row = step % n_rows
        for e in range(first.size):
            if first[e] <= step < end[e]:
                slots[n] = row * first.size + e
                n += 1
    return slots
