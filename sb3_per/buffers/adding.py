"""
What comes into the ring: a step of all environments, or several steps of some of them. And where it does not go on.

It knows nothing of what is drawn, and of masses that they come with a transition.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th

from sb3_per.buffers.cursors import CursorRing
from sb3_per.storage.frames import FramedArray


class AddingRing(CursorRing):
    """
    A ring that environments add to, together or each on its own.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param kwargs: SB3's keyword arguments
    """

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

        With ``frames``, memory is given back in the order in which frames came: where a column falls behind, those that came
        after its oldest step stay, of all columns. ``frames_per_transition`` tells how many.

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
        # As in SB3's HER: who does not tell timeouts from terminations gets a termination. So it is, too, where there is no
        # next observation of its own.
        if self.handle_timeout_termination:
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
