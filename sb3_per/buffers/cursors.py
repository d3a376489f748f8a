"""
Which slot of the ring holds which transition, and what comes in.

One ring of rows covers all parallel environments. Three numbers name a transition, each derived from the others:

- row, env: its place in SB3's arrays of shape (buffer_size, n_envs, ...)
- leaf = row * n_envs + env: its place in the tree, and in the arrays flattened to (capacity, ...)
- id = step * n_envs + env: its insertion number, never reset by wrap-around; leaf = id modulo capacity

As long as all environments add together, one cursor is that of all columns, as in SB3, and one number says where they stand.
Where some of them add on their own, :class:`~sb3_per.buffers.columns.Columns` says it, until they have caught up.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th

from sb3_per.buffers.columns import Columns
from sb3_per.buffers.frame_storage import FrameStorage
from sb3_per.buffers.frames import FramedArray, FrameStore
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

    # Cursors of the columns, while they differ.
    _apart: Columns | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Steps added, which gives the id of every slot; how many there were when the ring was last empty; and how many of them
        # can be drawn.
        self._n_added = 0
        self._n_before_ring = 0
        self._n_admitted = 0
        self._lock = Runtime()

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

    # ---- what comes in

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        td_errors: np.ndarray | th.Tensor | None = None,
    ) -> None:
        """
        Store one step of every environment, see SB3.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: end of an episode, shape (n_envs,)
        :param infos: one dictionary per environment
        :param td_errors: of these transitions, if they are known, shape (n_envs,) or (n_envs, n_critics); the priorities they
            are drawn by from the start. Needs ``initial_priority="td_error"``
        """
        masses = None if td_errors is None else self._masses_of(td_errors, self.n_envs)
        with self._lock:
            if self._apart is not None:
                self._add_apart(obs, next_obs, action, reward, done, infos)
            else:
                try:
                    super().add(obs, next_obs, action, reward, done, infos)
                except IndexError:
                    if self.pos < self.buffer_size:
                        raise
                    self._count_foreign_steps()  # SB3's `add` was interrupted before it had set its cursor back
                    super().add(obs, next_obs, action, reward, done, infos)
                self._n_added += 1  # only now: a failed `add` has changed nothing
            if masses is not None:
                self._note_masses(self._newest_ids(), masses)

    def _add_apart(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """One step of every environment, where SB3 would write all of them into the same row."""
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
        arrays = (np.asarray(array)[None] for array in (action, reward, done, timeouts))
        self._store_steps(np.arange(self.n_envs), _one_step(obs), _one_step(next_obs), *arrays)

    def add_steps(
        self,
        envs: np.ndarray,
        obs: Any,
        next_obs: Any,
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: np.ndarray,
        td_errors: np.ndarray | th.Tensor | None = None,
    ) -> None:
        """
        Store T successive steps of k environments, e.g. what an actor has collected, behind what these have added so far. The
        others stay where they are. All is copied.

        :param envs: columns of these environments, different integers of shape (k,)
        :param obs: observations, shape (T, k, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param actions: actions, as the buffer stores them, shape (T, k, action_dim)
        :param rewards: rewards, shape (T, k)
        :param dones: ends of episodes, truncations too, shape (T, k)
        :param timeouts: which of them are truncations, SB3's ``TimeLimit.truncated``, shape (T, k)
        :param td_errors: of these transitions, if they are known, shape (T, k) or (T, k, n_critics); the priorities they are
            drawn by from the start. They do not raise ``max_priority``. Needs ``initial_priority="td_error"``
        :raises ValueError: for an array of another shape, columns that are not there or not different, more steps than
            the ring has rows, or TD errors that are NaN or infinite. Nothing is changed then
        :raises NotImplementedError: with hindsight, and for buffers of sequences
        """
        self._require_columns()
        envs, rewards = self._as_columns(envs), np.asarray(rewards)
        if rewards.ndim != 2 or rewards.shape[1] != len(envs):
            raise ValueError(f"rewards of shape {rewards.shape} do not fit steps of {len(envs)} environments")
        if len(rewards) > self.buffer_size:
            raise ValueError(f"{len(rewards)} steps at once do not fit a buffer of {self.buffer_size} rows")
        masses = None
        if td_errors is not None:
            if tuple(td_errors.shape[:2]) != rewards.shape or td_errors.ndim > 3 or 0 in td_errors.shape[2:]:
                raise ValueError(f"td_errors of shape {tuple(td_errors.shape)} do not fit rewards of shape {rewards.shape}")
            if rewards.size:
                masses = self._masses_of(td_errors.reshape(rewards.size, -1), rewards.size)
        with self._lock:
            self._count_foreign_steps()
            steps = self._store_steps(envs, obs, next_obs, actions, rewards, dones, timeouts)
            if masses is not None:
                self._note_masses((steps * self.n_envs + envs).reshape(-1), masses)

    def _store_steps(self, envs: np.ndarray, obs: Any, next_obs: Any, *arrays: Any) -> np.ndarray:
        """
        :param envs: different columns, int64 of shape (k,)
        :param obs: see :meth:`add_steps`
        :param next_obs: see :meth:`add_steps`
        :param arrays: actions, rewards, dones, timeouts
        :return: the steps, shape (T, k)
        """
        targets: list[tuple[str, Any, Any]] = list(_parts("obs", self.observations, obs))
        n_observations = len(targets)
        if not self.optimize_memory_usage:
            targets += _parts("next_obs", self.next_observations, next_obs)
        names = zip(("actions", "rewards", "dones", "timeouts"), arrays, strict=True)
        targets += [(name, getattr(self, name), array) for name, array in names]
        shape = np.shape(arrays[1])
        checked = [_as_steps(name, values, shape, target.shape[2:]) for name, target, values in targets]
        if self.optimize_memory_usage:
            last_obs = _as_steps("next_obs", next_obs, shape, self.observations.shape[2:])[-1:]
        if not self.handle_timeout_termination:
            checked[-1] = np.zeros(shape)  # as SB3, whose `timeouts` are zeros then

        columns, n_steps = self._columns_now(), shape[0]
        steps: np.ndarray = columns.added[envs] + np.arange(n_steps)[:, None]
        if n_steps == 0:
            return steps
        rows = steps % self.buffer_size
        for store in self._frame_stores():
            store.reserve(rows.size)  # for all of them, before one of them changes
        for i, (_, target, _) in enumerate(targets):
            if not isinstance(target, FramedArray):
                target[rows, envs] = checked[i]
            elif not target.is_next:
                target.store.write(envs, rows[0], checked[i], checked[i + n_observations])
        if self.optimize_memory_usage:
            self.observations[(rows[-1] + 1) % self.buffer_size, envs] = last_obs[0]
        self._stand(columns.advanced(envs, n_steps))
        return steps

    def _require_columns(self) -> None:
        """
        :raises NotImplementedError: if environments cannot add on their own
        """

    def _as_columns(self, envs: Any) -> np.ndarray:
        array = np.asarray(envs)
        is_fine = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
        if not is_fine or not 0 <= array.min() <= array.max() < self.n_envs or len(set(array.tolist())) < len(array):
            raise ValueError(f"Columns are different integers in [0, {self.n_envs}), not {envs}")
        return array.astype(np.int64)

    def _newest_ids(self) -> np.ndarray:
        """Of the newest step of every environment, shape (n_envs,)."""
        newest = (self._n_added if self._apart is None else self._apart.added) - 1
        return np.asarray(newest * self.n_envs + np.arange(self.n_envs))

    def _masses_of(self, td_errors: np.ndarray | th.Tensor, n: int) -> np.ndarray:
        """Sampling masses of n transitions, shape (n,)."""
        raise NotImplementedError

    def _note_masses(self, ids: np.ndarray, masses: np.ndarray) -> None:
        """Sampling masses of transitions that were just added, shape (n,)."""
        raise NotImplementedError

    def _write_frames(self, store: FrameStore, obs: Any, next_obs: Any) -> None:
        if self._apart is None:
            super()._write_frames(store, obs, next_obs)
            return
        for env, (first, end) in enumerate(zip(self._apart.first, self._apart.added, strict=True)):
            for begin in range(first, end, _BLOCK):
                rows = np.arange(begin, min(begin + _BLOCK, end)) % self.buffer_size
                store.write(np.array([env]), rows[:1], obs[rows, env][:, None], next_obs[rows, env][:, None])

    # ---- where it does not go on

    def end_episodes(self) -> None:
        """
        Say that what is added next does not follow what was added last, as after a reset of the environments in mid-episode:
        the newest steps become truncations, as SB3's HER does it, and no n-step window goes beyond. Their values still count.
        """
        with self._lock:
            self._cut(np.arange(self.n_envs))

    def cut_columns(self, envs: np.ndarray) -> None:
        """
        :meth:`end_episodes` of some environments, e.g. because steps of an actor were lost.

        :param envs: columns of these environments, different integers of shape (k,)
        :raises ValueError: for columns that are not there or not different
        :raises NotImplementedError: with hindsight, and for buffers of sequences
        """
        self._require_columns()
        envs = self._as_columns(envs)
        with self._lock:
            self._cut(envs)

    def _cut(self, envs: np.ndarray) -> None:
        self._count_foreign_steps()
        columns = self._columns_now()
        envs = envs[columns.added[envs] > self._n_before_ring]
        rows = (columns.added[envs] - 1) % self.buffer_size
        is_open = self.dones[rows, envs] == 0
        self._truncate(rows[is_open], envs[is_open])

    def _truncate(self, rows: Any, envs: np.ndarray) -> None:
        """
        :param rows: of steps that nothing follows
        :param envs: of which environments; both index SB3's arrays
        """
        self.dones[rows, envs] = 1
        # Without a next observation of their own, SB3 too makes them terminations.
        if not self.optimize_memory_usage:
            self.timeouts[rows, envs] = 1


def _parts(name: str, stored: Any, given: Any) -> Iterable[tuple[str, Any, Any]]:
    """Name, SB3's array and what goes into it, of observations."""
    if not isinstance(stored, dict):
        return [(name, stored, given)]
    if not isinstance(given, dict) or given.keys() != stored.keys():
        raise ValueError(f"{name} must be a dictionary with the keys {sorted(stored)}")
    return [(f"{name}[{key!r}]", array, given[key]) for key, array in stored.items()]


def _one_step(obs: Any) -> Any:
    """Observations as those of one step: shape (1, n_envs, ...)."""
    return {key: _one_step(part) for key, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs)[None]


def _as_steps(name: str, values: Any, shape: tuple[int, ...], shape_of_one: tuple[int, ...]) -> np.ndarray:
    """
    :param name: in the error
    :param values: of steps
    :param shape: (T, k)
    :param shape_of_one: as SB3 stores it
    :return: the same of shape (T, k, ...)
    :raises ValueError: for another number of steps, environments or values
    """
    array, wanted = np.asarray(values), (*shape, *shape_of_one)
    if array.shape == wanted:
        return array
    if array.shape[:2] != shape or array.size != np.prod(wanted):
        raise ValueError(f"{name} of shape {array.shape} do not fit {shape[0]} steps of {shape[1]} environments: not {wanted}")
    return array.reshape(wanted)
