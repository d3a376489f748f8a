"""
The ring that transitions are kept in: where windows end, what a batch looks like, and all of it for files.

Which slot holds which transition is said in :mod:`~sb3_per.buffers.cursors`. Storage is Stable-Baselines3's. Nothing is known
here of priorities.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.adding import AddingRing
from sb3_per.buffers.columns import Columns, Move
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.frames import FramedArray
from sb3_per.buffers.runtime import Runtime
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import is_count
from sb3_per.trees.kernels import kernel, prefetch

RingT = TypeVar("RingT", bound="TransitionRing")


class TransitionRing(AddingRing):
    """
    SB3's replay buffer with ids, n-step windows and batches of given transitions.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param n_steps: number of steps of the n-step return, computed when sampling; 1 is the ordinary TD target
    :param gamma: discount factor of the n-step return
    :param frames: number of frames in a stack, each of which is stored once, or a dictionary of them; ``None``: plain arrays
    :param kwargs: SB3's keyword arguments
    :raises ValueError: for a setting outside of its range, before any memory is allocated
    :raises NotImplementedError: for ``frames`` with ``optimize_memory_usage``
    """

    def __init__(
        self,
        *args: Any,
        n_steps: int = 1,
        gamma: float = 0.99,
        frames: int | str | dict[str, int] | None = None,
        **kwargs: Any,
    ):
        if not is_count(n_steps):
            raise ValueError(f"n_steps must be an integer of at least 1, not {n_steps!r}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {gamma}")
        super().__init__(*args, frames=frames, **kwargs)
        self.n_steps = n_steps
        self.gamma = gamma

    # ---- all of it, for files

    def _row_slices(self, first: int, end: int) -> list[slice]:
        """
        :param first: step that is held, the first one of all is 0
        :param end: step behind the last
        :return: their rows, in their order
        """
        row = first % self.buffer_size
        n_before_end = min(end - first, self.buffer_size - row)
        parts = slice(row, row + n_before_end), slice(0, end - first - n_before_end)
        return [part for part in parts if part.stop > part.start]

    def _in_order(self, array: np.ndarray, first: int, end: int) -> list[np.ndarray]:
        """Rows of an array, of the steps from one to another: views, at least one."""
        return [array[part] for part in self._row_slices(first, end)] or [array[:0]]

    def _extract(self) -> Contents:
        """What is held, apart from rows and frames. It reads and changes nothing; some of it are views."""
        self._count_foreign_steps()
        end = self._end
        contents = Contents(end - self._n_rows_held, end, self.buffer_size, {"n_before_ring": self._n_before_ring})
        contents.columns = {name: self._in_order(column, contents.first, end) for name, column in self._columns().items()}
        if self.optimize_memory_usage:
            contents.arrays["newest_next_observations"] = self.observations[end % self.buffer_size]
        if self._apart is not None:
            contents.arrays.update(column_steps=self._apart.added, column_steps_admitted=self._apart.admitted)
        return contents

    def _facts(self) -> dict[str, Any]:
        """What else has to be the same for files to fit: by name, anything that JSON knows."""
        return {}

    def _emptied(self: "RingT") -> "RingT":
        """A new buffer with the same settings and nothing in it."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        twin._allocate()
        return twin

    def _allocate(self) -> None:
        super()._allocate()
        self._n_added = self._n_before_ring = self._n_admitted = 0
        self._apart = None
        self._lock = Runtime()

    def take_over(self, other: "TransitionRing") -> None:
        """
        Become what another buffer is; this one keeps its lock, which others may wait for.

        :param other: of the same class and settings; not to be used any more
        """
        with self._lock:
            state = {"_apart": None, **vars(other), "_lock": self._lock}
            self._lock.saved, self._lock.form = other._lock.saved, None
            vars(self).update(state)

    def _place(self, first: int, end: int, n_before_ring: int | None) -> None:
        """
        Say which steps an empty buffer is about to be given.

        :param first: the oldest step
        :param end: the step behind the newest
        :param n_before_ring: what was before the ring began, of a buffer of the same size; ``None``: of another size
        """
        if n_before_ring is None:
            # Ids agree with slots, and none is one that has been.
            self._n_before_ring = -(-end // self.buffer_size) * self.buffer_size
            self._n_added = self._n_before_ring + end - first
        else:
            self._n_before_ring, self._n_added = n_before_ring, end
        self.pos = self._n_added % self.buffer_size
        self.full = self._n_added - self._n_before_ring >= self.buffer_size

    def _restore(self, contents: Contents) -> None:
        """
        Take what :meth:`_extract` gave, after :meth:`_place`, when rows, frames and columns are filled.

        :param contents: of a buffer of any size
        :raises ValueError: if it contradicts itself; this buffer is of no use then
        """
        columns = self._columns_now()
        if "column_steps" in contents.arrays:
            columns = self._columns_in(contents)
        for store in self._frame_stores():
            store.adopt(columns.first, columns.added)
        if self.optimize_memory_usage:
            newest = self.observations[self.pos]
            is_newest = columns.added == self._n_added  # below the other ones lies what they have added
            saved = contents.array("newest_next_observations", newest.dtype.kind, *newest.shape)
            newest[is_newest] = saved[is_newest]
        self._stand(columns)

    def _moved(self, contents: Contents, move: Move) -> None:
        """
        Make contents of another size those of a buffer of this one, after :meth:`_place`, when rows are filled.

        :param contents: of a buffer whose columns stood apart
        :param move: where they go
        :raises ValueError: if it contradicts itself; this buffer is of no use then
        """
        target = move.target
        if self.optimize_memory_usage:
            shape, dtype = self.observations.shape[1:], self.observations.dtype
            newest = contents.array("newest_next_observations", dtype.kind, *shape)
            envs = np.flatnonzero(move.columns.added == move.columns.most)  # below the other ones lies what they have added
            self.observations[target.added[envs] % self.buffer_size, envs] = newest[envs]
            contents.arrays["newest_next_observations"] = self.observations[self.pos].copy()
        contents.first, contents.end, contents.buffer_size = target.n_before_ring, target.most, self.buffer_size
        contents.numbers = {**contents.numbers, "n_before_ring": target.n_before_ring}
        contents.arrays.update(column_steps=target.added, column_steps_admitted=target.admitted)

    def _columns_in(self, contents: Contents) -> Columns:
        """
        :param contents: of a buffer whose columns stood apart
        :return: where they stand
        :raises ValueError: for columns that are not those of such a buffer
        """
        added, admitted = (
            contents.array(f"column_steps{name}", "i", self.n_envs).astype(np.int64) for name in ("", "_admitted")
        )
        if type(self)._require_columns is not TransitionRing._require_columns:
            raise ValueError(f"Columns of a {type(self).__name__} stand apart")
        if added.min() < contents.numbers["n_before_ring"] or added.max() != contents.end:
            raise ValueError(f"columns at {added} in a ring up to step {contents.end}")
        begin = int(contents.numbers["n_before_ring"])
        return Columns(added, np.clip(admitted, begin, added), begin, contents.buffer_size, int(self.optimize_memory_usage))

    # ---- what goes out

    def _observations_at(self, leaves: np.ndarray) -> Any:
        """
        :param leaves: integers of shape (batch_size,)
        :return: a copy of these observations, shape (batch_size, ...); a dictionary for Dict observation spaces
        """
        return self._map_obs(rows, self.observations, leaves)

    def _next_observations_at(self, leaves: np.ndarray) -> Any:
        """
        :param leaves: integers of shape (batch_size,)
        :return: a copy of the observations behind them, in the form of :meth:`_observations_at`
        """
        if self.optimize_memory_usage:
            return self._map_obs(rows, self.observations, (leaves + self.n_envs) % self._capacity)
        return self._map_obs(rows, self.next_observations, leaves)

    def _map_obs(self, function: Callable[..., Any], obs: Any, *args: Any) -> Any:
        """Apply a function to each array of observations."""
        return function(obs, *args)

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        SB3's hook: the rows are given, the environment of each is drawn here; nothing is prioritized, the weights are 1.

        :param batch_inds: rows, integers of shape (batch_size,); negative ones count from the end, as in NumPy
        :param env: associated VecNormalize
        :return: the transitions
        :raises IndexError: for a row outside of the buffer
        """
        batch_inds = np.asarray(batch_inds)
        outside = (batch_inds < -self.buffer_size) | (batch_inds >= self.buffer_size)
        if outside.any():
            raise IndexError(f"Row {batch_inds[outside][0]} is outside of a buffer of {self.buffer_size} rows")
        with self._lock:
            self._count_foreign_steps()
            env_indices = np.random.randint(0, high=self.n_envs, size=len(batch_inds))
            leaves = batch_inds % self.buffer_size * self.n_envs + env_indices
            return self._gather(leaves.astype(np.int64), np.ones((len(batch_inds), 1), np.float32), env)

    def _gather(self, leaves: np.ndarray, weights: np.ndarray, env: VecNormalize | None) -> PrioritizedReplayBufferSamples:
        """
        :param leaves: int64 of shape (batch_size,)
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the transitions in these leaves
        """
        if self.n_steps == 1:
            windows, lengths, last = leaves[:, None], None, leaves
        else:
            windows, lengths = self._windows(leaves)
            last = (leaves + (lengths - 1) * self.n_envs) % self._capacity
        ids, rewards, dones = self._read(windows, last)
        if self._apart is not None:
            ids = self._apart.ids_at(leaves)

        obs, next_obs = self._observations_at(leaves), self._next_observations_at(last)
        self._relabel(obs, next_obs, rewards, windows, lengths)
        if env is not None:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
            rewards = self._normalize_reward(rewards, env)
        discounts = None
        if lengths is not None:
            rewards, discounts = self._n_step_returns(rewards, lengths)

        to_torch = self._to_torch()
        return PrioritizedReplayBufferSamples(
            self._map_obs(to_torch, obs),
            to_torch(rows(self.actions, leaves)),
            self._map_obs(to_torch, next_obs),
            to_torch(dones),
            to_torch(rewards),
            None if discounts is None else to_torch(discounts),
            to_torch(weights),
            ids,
        )

    def _read(self, windows: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        :param windows: leaves of the steps of each transition, shape (batch_size, n_steps)
        :param last: leaf of the last step that counts, shape (batch_size,)
        :return: ids, shape (batch_size,); rewards, shape (batch_size, n_steps); terminations, shape (batch_size, 1)
        """
        cursor, columns = self.pos * self.n_envs, (self.rewards.ravel(), self.dones.ravel(), self.timeouts.ravel())
        return _read_batch(windows, last, *columns, cursor, self._lap_start)

    def _to_torch(self) -> Callable[[np.ndarray], th.Tensor]:
        """Nothing is copied: all arrays are the batch's own. On the CPU the shortest way, a third of what SB3's takes."""
        if type(self).to_torch is not BaseBuffer.to_torch:
            return self.to_torch  # a user's own
        return th.from_numpy if self.device.type == "cpu" else functools.partial(self.to_torch, copy=False)

    def _relabel(self, obs: Any, next_obs: Any, rewards: np.ndarray, windows: np.ndarray, lengths: np.ndarray | None) -> None:
        """
        Change a batch before it is normalized; here, as it was stored.

        :param obs: gathered observations
        :param next_obs: gathered observations at the ends of the windows
        :param rewards: float32 of shape (batch_size, n_steps)
        :param windows: leaves of the transitions behind the rewards, shape (batch_size, n_steps)
        :param lengths: how many steps of each window count, shape (batch_size,); ``None``: all
        """

    def _windows(self, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Windows of the n-step returns; each ends early at a termination, a truncation and the newest transition.

        :param leaves: first transitions of the windows, shape (batch_size,)
        :return: leaves of all steps, shape (batch_size, n_steps), and how many of them count, from 1, shape (batch_size,)
        """
        windows = (leaves[:, None] + np.arange(self.n_steps) * self.n_envs) % self._capacity
        ended = (rows(self.dones, windows) != 0) | (rows(self.timeouts, windows) != 0)
        ended[:, -1] = True
        return windows, np.minimum(ended.argmax(axis=1), self._n_behind(leaves)) + 1

    def _n_step_returns(self, rewards: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        :param rewards: normalized one by one, float32 of shape (batch_size, n_steps)
        :param lengths: how many of them count, shape (batch_size,)
        :return: discounted sums, and the discount of the value behind them, gamma^length; float32 of shape (batch_size, 1)
        """
        steps = np.arange(self.n_steps)
        discounted = rewards * self.gamma ** steps.astype(np.float32) * (steps < lengths[:, None])
        discounts = self.gamma ** lengths.astype(np.float32)
        return discounted.sum(axis=1, keepdims=True), discounts.reshape(-1, 1)


def flat(stored: np.ndarray) -> np.ndarray:
    """
    :param stored: one of SB3's arrays, shape (buffer_size, n_envs, ...)
    :return: the same by leaf, shape (capacity, ...); a copy only if the array is not contiguous, as no array of SB3's is
    """
    return stored.reshape(-1, *stored.shape[2:])


def rows(stored: np.ndarray | FramedArray, leaves: np.ndarray) -> np.ndarray:
    """
    :param stored: one of SB3's arrays, shape (buffer_size, n_envs, ...), or what stands in for it
    :param leaves: integers of any shape
    :return: a copy of these slots. ``take`` from the flat view is several times faster than ``stored[rows, envs]``
    """
    if isinstance(stored, FramedArray):
        return stored.at(leaves)
    if not stored.flags.c_contiguous:
        return np.ascontiguousarray(stored[np.divmod(leaves, stored.shape[1])])
    return stored.reshape(-1, *stored.shape[2:]).take(leaves, axis=0)


@kernel
def _read_batch(
    windows: np.ndarray,
    last: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    cursor: int,
    lap_start: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param windows: leaves of the steps of each transition, shape (batch_size, n_steps)
    :param last: leaf of the last step that counts, shape (batch_size,)
    :param rewards: SB3's array by leaf, as the following two, shape (capacity,)
    :param dones: ends of episodes
    :param timeouts: those of them that are no terminations: the value of the next observation counts
    :param cursor: leaf that is written next
    :param lap_start: id of leaf 0 in this lap
    :return: ids, shape (batch_size,); rewards, shape (batch_size, n_steps); terminations, shape (batch_size, 1)
    """
    batch_size, n_steps = windows.shape
    ids = np.empty(batch_size, np.int64)
    batch_rewards = np.empty((batch_size, n_steps), rewards.dtype)
    batch_dones = np.empty((batch_size, 1), np.float32)
    for i in range(batch_size):
        prefetch(dones, np.uint64(last[i]))
        prefetch(rewards, np.uint64(windows[i, 0]))
    for i in range(batch_size):
        # From the cursor on, the transitions are of the previous lap.
        ids[i] = windows[i, 0] + lap_start - (rewards.size if windows[i, 0] >= cursor else 0)
        done = dones[last[i]]
        batch_dones[i, 0] = done if done == 0 else done * (1 - timeouts[last[i]])  # few are done: a cache miss saved
        for j in range(n_steps):
            batch_rewards[i, j] = rewards[windows[i, j]]
    return ids, batch_rewards, batch_dones
