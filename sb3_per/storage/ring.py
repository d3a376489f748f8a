"""
The ring: map between slots and transition ids.

A transition has three numbers, and each follows from the others:

- row and env: its place in SB3's arrays of shape (n_rows, n_envs, ...)
- slot = row * n_envs + env: its place in the tree, and in the same arrays flattened to (capacity, ...)
- id = step * n_envs + env: its insertion number. Ids are never reset; row = step modulo n_rows

For instance, a ring of 4 rows and one environment after 6 steps. ``pos`` is 2, ``oldest_held`` 2, ``next_steps`` 6::

    row    0  1  2  3
    step   4  5  2  3

After ``clear()`` it is empty. Steps go on at 8, the next multiple of 4, so that ids 0 to 7 are stale for ever and row 0 is
the next one: ``first_step`` and ``next_steps`` are 8.
"""

import bisect
from collections.abc import Iterator
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
    :param shares_next_obs: whether the oldest transition of a full ring is incomplete: with ``optimize_memory_usage``, the
        newest next observation overwrites its observation
    """

    def __init__(self, n_rows: int, n_envs: int, shares_next_obs: bool = False):
        self.n_rows = n_rows
        self.n_envs = n_envs
        self.capacity = n_rows * n_envs
        self.shares_next_obs = bool(shares_next_obs)
        #: all environments, int64 of shape (n_envs,)
        self.all_envs = np.arange(n_envs)
        #: first step since the ring was last emptied, the same for all environments, a multiple of ``n_rows``
        self.first_step = 0
        #: least next step of an environment
        self.min_next_step = 0
        #: largest next step of an environment
        self.max_next_step = 0
        #: whether all environments have added the same number of steps
        self.all_at_same_step = True
        #: counts the changes of the position, so that others can tell whether there was one
        self.version = 0
        #: how far each environment is ahead of the last one: `add`, a step of all environments, does not change it
        self.leads = np.zeros(n_envs, np.int64)

    # ---- position

    @property
    def next_steps(self) -> np.ndarray:
        """
        Next step of each environment: the number of steps that it has added, and of those that :meth:`clear` has passed over.
        A new array, int64 of shape (n_envs,).
        """
        return self.min_next_step + self.leads

    @property
    def pos(self) -> int:
        """Row that is written next, as in SB3; of the environment that added the fewest steps."""
        return self.min_next_step % self.n_rows

    @property
    def full(self) -> bool:
        """Whether every slot holds a transition, as in SB3."""
        return self.min_next_step - self.first_step >= self.n_rows

    @property
    def next_id(self) -> int:
        """Number above all ids."""
        return self.max_next_step * self.n_envs

    @property
    def n_rows_used(self) -> int:
        """Number of rows, from row 0 on, that hold anything."""
        return min(self.max_next_step - self.first_step, self.n_rows)

    @property
    def oldest_held(self) -> np.ndarray:
        """Oldest step that each environment holds, shape (n_envs,)."""
        return np.maximum(self.next_steps - self.n_rows, self.first_step)

    @property
    def oldest_complete(self) -> np.ndarray:
        """Oldest step of each environment whose observation and next observation are there, shape (n_envs,)."""
        oldest = self.oldest_held
        if not self.shares_next_obs:
            return oldest
        is_full = self.next_steps - oldest == self.n_rows
        return np.asarray(oldest + is_full)

    @property
    def n_complete(self) -> int:
        """Number of complete transitions."""
        if not self.all_at_same_step:
            return int((self.next_steps - self.oldest_complete).sum())
        n_steps = min(self.min_next_step - self.first_step, self.n_rows)
        if self.shares_next_obs and n_steps == self.n_rows:
            n_steps -= 1
        return n_steps * self.n_envs

    # ---- writing

    def rows_of_next(self, envs: np.ndarray, n_new: int) -> np.ndarray:
        """
        Find the rows of the next steps of some environments. :attr:`pos` is the row of the next step of all of them.

        :param envs: environments that add, different integers of shape (k,)
        :param n_new: number of steps T
        :return: rows, int64 of shape (T, k)
        """
        return np.asarray((self.next_steps[envs] + np.arange(n_new)[:, None]) % self.n_rows)

    def advance_all(self) -> None:
        """Count one step of every environment that was written."""
        self.min_next_step += 1
        self.max_next_step += 1
        self.version += 1

    def advance(self, envs: np.ndarray, n_new: int) -> None:
        """
        Count steps of some environments that were written.

        :param envs: environments that added, different integers of shape (k,)
        :param n_new: number of steps
        """
        next_steps = self.next_steps
        next_steps[envs] += n_new
        self._set_position(next_steps, self.first_step)

    def _set_position(self, next_steps: np.ndarray, first_step: int) -> None:
        least = int(next_steps.min())
        largest = int(next_steps.max())
        leads = next_steps - least
        # Plain assignments only: see Invariants in the developer guide.
        self.first_step = first_step
        self.leads = leads
        self.min_next_step = least
        self.max_next_step = largest
        self.all_at_same_step = least == largest
        self.version += 1

    def clear(self, n_present: int = 0) -> None:
        """
        Forget all transitions. Ids continue at the next multiple of ``n_rows``, so that older ids are stale.

        :param n_present: number of steps of every environment that are there already, from row 0 on
        """
        self._begin_at_lap_after(self.max_next_step, n_present)

    def begin_after(self, step: int) -> None:
        """
        Let an empty ring begin at the first multiple of ``n_rows`` from ``step`` on, so that its ids are new.

        :param step: number of steps of another ring
        """
        self._begin_at_lap_after(step)

    def _begin_at_lap_after(self, step: int, n_present: int = 0) -> None:
        first_step = -(-step // self.n_rows) * self.n_rows
        self._set_position(np.full(self.n_envs, first_step + n_present), first_step)

    def require_same_step(self) -> None:
        """
        Check that all environments stand at the same step.

        :raises ValueError: if environments have added different numbers of steps
        """
        if not self.all_at_same_step:
            raise ValueError(f"environments have added different numbers of steps: {self.next_steps}")

    # ---- which slot holds which transition

    def ids_at(self, slots: np.ndarray) -> np.ndarray:
        """
        Find the transitions in slots.

        :param slots: integers of any shape
        :return: ids of the transitions there, -1 for an empty slot, in the same shape
        """
        flat = np.ascontiguousarray(slots, np.int64).reshape(-1)
        return newest_ids_in(flat, self.next_steps, self.first_step, self.n_rows).reshape(np.shape(slots))

    def was_issued(self, transition_id: int) -> bool:
        """Whether the ring has come past this id: a transition had it, or :meth:`clear` has passed it over."""
        return bool(0 <= transition_id < self.next_steps[transition_id % self.n_envs] * self.n_envs)

    def issued_ids(self, transition_id: int) -> str:
        """Say how far the environment of this id has come, for a message."""
        env = transition_id % self.n_envs
        next_id = int(self.next_steps[env]) * self.n_envs + env
        return f"ids are at least 0, and the next one of environment {env} is {next_id}"

    def slots_of_row(self, row: int) -> np.ndarray:
        """Slots of a row, int64 of shape (n_envs,)."""
        return row * self.n_envs + self.all_envs

    def slots_of_newest_rows(self, n: int) -> np.ndarray:
        """
        List the slots of the newest steps of all environments, which stand at the same step.

        :param n: number of steps; more than are held are as good as all
        :return: slots from old to new, int64 of shape (min(n, held) * n_envs,)
        """
        n = min(n, self.n_rows, self.max_next_step - self.first_step)
        rows = np.arange(self.max_next_step - n, self.max_next_step) % self.n_rows
        return (rows[:, None] * self.n_envs + self.all_envs).reshape(-1)

    def complete_slots(self) -> np.ndarray:
        """List the slots of all complete transitions in the order of their ids, int64 of shape (n_complete,)."""
        return slots_between(self.oldest_complete, self.next_steps, self.n_rows)

    def incomplete_slots(self) -> np.ndarray:
        """List the slots of transitions whose observation was overwritten, see ``shares_next_obs``: int64 of shape (n,)."""
        envs = np.flatnonzero(self.oldest_held < self.oldest_complete)
        return np.asarray(self.next_steps[envs] % self.n_rows * self.n_envs + envs)

    def in_order(self, first: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """
        List the steps of every environment in order, some at a time: all environments together if all have added the same
        number of steps, otherwise one environment after the other. ``for envs, steps in ring.in_order(ring.oldest_held)``
        passes everything that is held.

        :param first: first step of each environment, shape (n_envs,)
        :return: environments, shape (k,), and their steps, shape (T, k)
        """
        groups = [self.all_envs]
        if not self.all_at_same_step:
            groups = [np.array([env]) for env in range(self.n_envs)]
        for envs in groups:
            end = int(self.next_steps[envs[0]])
            for start in range(int(first[envs[0]]), end, _BLOCK):
                steps = np.arange(start, min(start + _BLOCK, end))
                yield envs, np.repeat(steps[:, None], len(envs), axis=1)

    def slots_of_steps(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """
        Find the slots of steps that are held.

        :param steps: steps, shape (T, k)
        :param envs: their environments, shape (k,)
        :return: slots, int64 of shape (T, k)
        """
        return np.asarray(steps % self.n_rows * self.n_envs + envs)

    # ---- the newest transitions

    def newest(self, positions: np.ndarray, n: int) -> np.ndarray:
        """
        Find some of the newest n complete transitions by their position. A transition is newer than another if fewer steps of
        its environment follow it, or as many and its environment has the higher number. If all environments have added the
        same number of steps, this is the order of ids.

        :param positions: among the newest n from old to new, integers in [0, n), shape (batch_size,)
        :param n: number of the newest transitions
        :return: slots, int64 in the same shape
        """
        if self.all_at_same_step:
            return np.asarray((self.next_id - n + positions) % self.capacity)
        ends = np.cumsum(self._counts_of_newest(n))
        envs = np.searchsorted(ends, positions, side="right")
        steps = (self.next_steps - ends)[envs] + positions
        return np.asarray(steps % self.n_rows * self.n_envs + envs)

    def _counts_of_newest(self, n: int) -> np.ndarray:
        """Count how many of the newest n belong to each environment, shape (n_envs,)."""
        n_complete: np.ndarray = self.next_steps - self.oldest_complete
        # Largest k for which the newest k steps of each environment are at most n in total.
        levels = range(int(n_complete.max()) + 1)
        level = bisect.bisect_right(levels, n, key=lambda level: np.minimum(n_complete, level).sum()) - 1
        counts: np.ndarray = np.minimum(n_complete, level)
        one_more = np.flatnonzero(n_complete > level)
        counts[one_more[len(one_more) - (n - int(counts.sum())) :]] += 1
        return counts

    # ---- saving

    def state(self) -> dict[str, Any]:
        """Return the position, see :meth:`load`."""
        return {"added": self.next_steps, "begin": self.first_step}

    def load(self, state: dict[str, Any]) -> None:
        """
        Restore a position.

        :param state: from :meth:`state` of a ring of the same shape
        :raises ValueError: if it is not a position in such a ring
        """
        next_steps = np.array(state["added"])
        first_step = state["begin"]
        is_position = next_steps.shape == (self.n_envs,) and next_steps.dtype == np.int64 and isinstance(first_step, int)
        most = 2**60 // self.n_envs
        if not is_position or not 0 <= first_step <= next_steps.min() <= next_steps.max() < most or first_step % self.n_rows:
            raise ValueError(f"no position in a ring of {self.n_rows} rows: steps {next_steps} since step {first_step}")
        self._set_position(next_steps, first_step)


# Of one environment, step s is in row s % n_rows.


@kernel
def lap_start(next_step: int, n_rows: int) -> int:
    """
    Find the first step of the lap that is under way.

    :param next_step: step that is written next
    :param n_rows: number of rows
    :return: step of this lap in row 0
    """
    return next_step - next_step % n_rows


@kernel
def step_in_row(row: int, start: int, next_step: int, n_rows: int) -> int:
    """
    Find the step in a row, without a division for each.

    :param row: in [0, n_rows)
    :param start: from :func:`lap_start`
    :param next_step: step that is written next
    :param n_rows: number of rows
    :return: newest step there
    """
    return row + start - (n_rows if row + start >= next_step else 0)  # later rows hold steps of the lap before


@kernel
def first_id_of_lap(next_id: int, capacity: int) -> int:
    """
    Find the id in slot 0 of the lap that is under way, where all environments stand at the same step: ids follow slots there
    as steps follow rows.

    :param next_id: id of the next transition
    :param capacity: number of slots
    :return: the id
    """
    return lap_start(next_id, capacity)


@kernel
def id_in_slot(slot: int, first_id: int, next_id: int, capacity: int) -> int:
    """
    Find the id in a slot, where all environments stand at the same step.

    :param slot: in [0, capacity)
    :param first_id: from :func:`first_id_of_lap`
    :param next_id: id of the next transition
    :param capacity: number of slots
    :return: newest id there
    """
    return step_in_row(slot, first_id, next_id, capacity)


@kernel
def row_of_step(step: int, start: int, n_rows: int) -> int:
    """
    Find the row of a step, the inverse of :func:`step_in_row`.

    :param step: step that is still in its row
    :param start: from :func:`lap_start`
    :param n_rows: number of rows
    :return: its row, in [0, n_rows)
    """
    return step - start + (0 if step >= start else n_rows)


@kernel
def newest_ids_in(slots: np.ndarray, next_steps: np.ndarray, first_step: int, n_rows: int) -> np.ndarray:
    """See :meth:`Ring.ids_at`."""
    ids = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        row, env = slots[i] // next_steps.size, slots[i] % next_steps.size
        step = step_in_row(row, lap_start(next_steps[env], n_rows), next_steps[env], n_rows)
        ids[i] = step * next_steps.size + env if step >= first_step else -1
    return ids


@kernel
def slots_between(first: np.ndarray, end: np.ndarray, n_rows: int) -> np.ndarray:
    """
    List the slots of a range of steps of each environment.

    :param first: first step of each environment, int64 of shape (n_envs,)
    :param end: step after the last one, at most ``n_rows`` later, int64 of shape (n_envs,)
    :param n_rows: number of rows
    :return: slots of these steps, in the order of their ids, int64 of shape (n,)
    """
    n = 0
    start = end.max()
    for e in range(first.size):
        if first[e] < end[e]:  # an environment that has stayed behind costs nothing
            n += end[e] - first[e]
            start = min(start, first[e])
    slots = np.empty(n, np.int64)
    n = 0
    for step in range(start, end.max()):
        row = step % n_rows
        for e in range(first.size):
            if first[e] <= step < end[e]:
                slots[n] = row * first.size + e
                n += 1
    return slots
