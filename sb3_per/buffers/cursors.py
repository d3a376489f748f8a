"""
Which slot of the ring holds which transition.

One ring of rows covers all parallel environments. Three numbers name a transition, each derived from the others:

- row, env: its place in SB3's arrays of shape (buffer_size, n_envs, ...)
- leaf = row * n_envs + env: its place in the tree, and in the arrays flattened to (capacity, ...)
- id = step * n_envs + env: its insertion number, never reset by wrap-around; leaf = id modulo capacity

As long as all environments add together, one cursor is that of all columns, as in SB3, and one number says where they stand.
Where some of them add on their own, :class:`~sb3_per.buffers.columns.Columns` says it, until they have caught up.
"""

from typing import Any

import numpy as np

from sb3_per.buffers.columns import Columns
from sb3_per.buffers.frame_storage import FrameStorage
from sb3_per.buffers.frames import FrameStore
from sb3_per.buffers.runtime import Runtime

# Steps that are copied from arrays into frames at a time.
_BLOCK = 256


class CursorRing(FrameStorage):
    """
    SB3's storage with ids, for environments that add together or each on its own.

    While columns stand apart, SB3's ``pos``, ``full`` and :meth:`size` are those of the shortest column: the first ``size()``
    rows hold a transition of every environment, as SB3's code and users' expect.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param kwargs: SB3's keyword arguments
    """

    # Cursors of the columns, while they differ; pickles from before have none.
    _apart: Columns | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        self._lock = Runtime()
        super().__init__(*args, **kwargs)
        # Steps added, which gives the id of every slot; how many there were when the ring was last empty; and how many of them
        # can be drawn.
        self._n_added = 0
        self._n_before_ring = 0
        self._n_admitted = 0
        self._apart = None

    # ---- which slot holds which transition

    @property
    def transition_ids(self) -> np.ndarray:
        """Id of the transition in every slot, -1 where there is none. int64 of shape (buffer_size, n_envs)."""
        with self._lock:
            self._count_foreign_steps()
            return self._ids_at(np.arange(self._capacity)).reshape(self.buffer_size, self.n_envs)

    @property
    def column_steps(self) -> np.ndarray:
        """
        Number of steps ever added by each environment: the next one of environment ``e`` gets the id
        ``column_steps[e] * n_envs + e``. After :meth:`reset` it goes on at the next multiple of ``buffer_size``.
        int64 of shape (n_envs,).
        """
        with self._lock:
            self._count_foreign_steps()
            return self._columns_now().added.copy()

    def _ids_at(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: of any shape
        :return: ids of the transitions there, -1 where there is none, in the same shape
        """
        if self._apart is not None:
            return self._apart.ids_at(leaves)
        behind_cursor = leaves >= self.pos * self.n_envs
        return np.where(
            behind_cursor, leaves + self._lap_start - self._capacity if self.full else -1, leaves + self._lap_start
        )

    @property
    def _capacity(self) -> int:
        """Number of slots, over all environments."""
        return self.buffer_size * self.n_envs

    @property
    def _end(self) -> int:
        """Step behind the newest one of all columns."""
        return self._n_added if self._apart is None else self._apart.most

    @property
    def _n_rows_held(self) -> int:
        """Rows that hold anything: those of the newest steps up to :attr:`_end`."""
        return self.size() if self._apart is None else min(self._apart.most - self._n_before_ring, self.buffer_size)

    @property
    def _n_slots_held(self) -> int:
        return super()._n_slots_held if self._apart is None else self._apart.n_held

    @property
    def _next_id(self) -> int:
        """All ids are below."""
        return self._end * self.n_envs

    def _next_ids(self, ids: np.ndarray) -> int | np.ndarray:
        """
        :param ids: of transitions
        :return: what all ids of the same environment are below, a multiple of ``n_envs``; one number if it is the same for all
        """
        return self._next_id if self._apart is None else self._apart.added[ids % self.n_envs] * self.n_envs

    @property
    def _lap_start(self) -> int:
        """Id that belongs to leaf 0 in this lap of the ring. Where columns stand together."""
        return (self._n_added - self.pos) * self.n_envs

    @property
    def _oldest_id(self) -> int:
        """Id of the oldest transition that is there as a whole. Where columns stand together."""
        n_steps_held = self.size()
        if self.optimize_memory_usage and self.full:
            n_steps_held -= 1  # the newest next observation lies over the oldest observation
        return self._next_id - n_steps_held * self.n_envs

    def _n_behind(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: that hold transitions, of any shape
        :return: how many steps of the same environment came after each
        """
        if self._apart is not None:
            return self._apart.n_behind(leaves)
        return np.asarray((self.pos - 1 - leaves // self.n_envs) % self.buffer_size)

    def _columns_now(self) -> Columns:
        """Where each column stands."""
        if self._apart is not None:
            return self._apart
        added, admitted = (np.full(self.n_envs, n) for n in (self._n_added, self._n_admitted))
        return Columns(added, admitted, self._n_before_ring, self.buffer_size, int(self.optimize_memory_usage))

    def _stand(self, columns: Columns) -> None:
        """
        :param columns: where the columns stand from now on
        """
        n_added, is_even = columns.least, columns.is_even
        is_admitted = is_even or bool((columns.admitted == columns.added).all())
        # Also if it is interrupted, all of it or nothing. -1: there is something to be admitted beside what all have added.
        vars(self).update(
            _apart=None if is_even else columns,
            _n_added=n_added,
            _n_admitted=int(columns.admitted[0]) if is_even else n_added if is_admitted else -1,
            pos=n_added % self.buffer_size,
            full=n_added - self._n_before_ring >= self.buffer_size,
        )

    def _count_foreign_steps(self) -> bool:
        """
        Take note of what came into the arrays past :meth:`add`: by hand, or through code that knows SB3's ``pos`` and ``full``
        only; and of an interrupt between SB3's ``add`` and the count. Fewer steps than a lap, or they look like none.

        :return: whether there was anything
        :raises RuntimeError: where columns stand apart, and there is no telling whose steps these were
        """
        n_held = self._n_added - self._n_before_ring
        if n_held % self.buffer_size == self.pos and (n_held >= self.buffer_size) == self.full:
            return False
        if self._apart is not None and (self.full or self.pos):
            raise RuntimeError(
                f"The cursor was set to row {self.pos} by hand, and columns stand apart, at the steps {self._apart.added}: "
                "there is no telling which of them was added to. Use add() or add_steps()"
            )
        if self.pos == self.buffer_size:  # interrupted in the middle of SB3's `add`
            self.full, self.pos = True, 0
        if not self.full and self.pos < n_held:
            self._begin_ring()  # emptied by hand
        self._n_added += (self.pos - self._n_added) % self.buffer_size
        if self.full and self._n_added - self._n_before_ring < self.buffer_size:
            self._n_added += self.buffer_size
        return True

    def _begin_ring(self) -> None:
        """The ring is empty; ids go on, at the next multiple, where they and the slots agree again."""
        self._n_added = -(-self._end // self.buffer_size) * self.buffer_size
        self._n_before_ring, self._apart = self._n_added, None
        for store in self._frame_stores():
            store.clear()

    def reset(self) -> None:
        """Forget all transitions; ids go on, so that ids from before are stale."""
        with self._lock:
            super().reset()
            self._begin_ring()

    def _write_frames(self, store: FrameStore, obs: Any, next_obs: Any) -> None:
        self._lock.saved.clear()  # its frames have other numbers than those that are on disk
        if self._apart is None:
            super()._write_frames(store, obs, next_obs)
            return
        for env, (first, end) in enumerate(zip(self._apart.first, self._apart.added, strict=True)):
            for begin in range(first, end, _BLOCK):
                rows = np.arange(begin, min(begin + _BLOCK, end)) % self.buffer_size
                store.write(np.array([env]), rows[:1], obs[rows, env][:, None], next_obs[rows, env][:, None])
