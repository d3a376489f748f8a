"""
What comes into the ring: a step of all environments, or several steps of some of them. And where it does not go on.

It knows nothing of what is drawn, and of masses that they come with a transition.
"""

import copy
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_per.buffers.cursors import CursorRing
from sb3_per.buffers.frames import FramedArray

#: kinds of types of arrays whose values become numbers without an error
NUMBERS = "biuf"

# Arguments of `add` after the check, each of the shape of a row of SB3's arrays; and which of the steps are timeouts.
Step: TypeAlias = tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, Any, Any]


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
        :raises ValueError: for what does not fit, or is no number; nothing is changed then
        """
        step = self._checked_step(obs, next_obs, action, reward, done, infos)
        masses = None if td_errors is None else self._masses_of(td_errors, self.n_envs)
        with self._lock:
            if self._apart is not None:
                self._add_apart(*step)
            else:
                if self.pos >= self.buffer_size:
                    self._count_foreign_steps()  # SB3's `add` was interrupted before it had set its cursor back
                self._write_step(*step)
            if masses is not None:
                self._note_masses(self._newest_ids(), masses)

    def _checked_step(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> Step:
        """
        :return: the arguments of :meth:`add` as SB3 would store them, which broadcasts and reshapes; and the timeouts
        :raises ValueError: for what does not fit, or is no number
        """
        timeouts: Any = 0.0
        if self.handle_timeout_termination:
            infos, timeouts = _checked_infos(infos, self.n_envs)
        try:
            action = action.reshape(self.n_envs, self.action_dim)
            form = _form(obs, next_obs, action, reward, done)
        except (AttributeError, ValueError):
            form = None
        if form is None or form != self._lock.form:
            space, stored = self.observation_space, self.observations
            obs = _as_rows("obs", obs, stored, space)
            next_obs = _as_rows("next_obs", next_obs, stored if self.optimize_memory_usage else self.next_observations, space)
            action = _as_row("action", action, self.actions, True)
            reward, done = _as_row("reward", reward, self.rewards), _as_row("done", done, self.dones)
            # What has the form of these fits, and need not be looked at.
            self._lock.form = _form(obs, next_obs, action, reward, done)
        return obs, next_obs, action, reward, done, infos, timeouts

    def _write_step(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Any,
        timeouts: Any,
    ) -> None:
        """What SB3's ``add`` does with a step, without its copies; the step is checked."""
        if self.frames is not None:
            for store in self._frame_stores():
                store.reserve(self.n_envs)  # for all of them, before anything changes
            next_obs = copy.deepcopy(next_obs)  # frames keep it until the next step
        row = self.pos
        end, observations = row + 1, self.observations
        if isinstance(observations, dict):
            for key, array in observations.items():
                array[row] = obs[key]
            for key, array in self.next_observations.items():  # type: ignore[attr-defined]
                array[row] = next_obs[key]
        else:
            observations[row] = obs
            if self.optimize_memory_usage:
                observations[end % self.buffer_size] = next_obs
            else:
                self.next_observations[row] = next_obs
        self.actions[row] = action
        self.rewards[row] = reward
        self.dones[row] = done
        if self.handle_timeout_termination:
            self.timeouts[row] = timeouts
        if end < self.buffer_size:
            self.pos = end
            self._n_added += 1
        else:  # also if it is interrupted, all of it or nothing
            vars(self).update(pos=0, full=True, _n_added=self._n_added + 1)

    def _add_apart(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: Any, timeouts: Any
    ) -> None:
        """One step of every environment, where SB3 would write all of them into the same row."""
        arrays = (array[None] for array in (action, reward, done, np.broadcast_to(timeouts, self.n_envs)))
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
        checked = [_as_steps(name, values, shape, target) for name, target, values in targets]
        if self.optimize_memory_usage:
            last_obs = _as_steps("next_obs", next_obs, shape, self.observations)[-1:]
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
    return {key: part[None] for key, part in obs.items()} if isinstance(obs, dict) else obs[None]


def _as_steps(name: str, values: Any, shape: tuple[int, ...], stored: Any) -> np.ndarray:
    """
    :param name: in the error
    :param values: of steps
    :param shape: (T, k)
    :param stored: SB3's array that they are for
    :return: the same numbers, of shape (T, k, ...)
    :raises ValueError: for another number of steps, environments or values, and for what is no number
    """
    array, wanted = np.asarray(values), (*shape, *stored.shape[2:])
    if array.shape[:2] != shape or array.size != np.prod(wanted):
        raise ValueError(f"{name} of shape {array.shape} do not fit {shape[0]} steps of {shape[1]} environments: not {wanted}")
    if array.dtype.kind not in NUMBERS:
        try:
            array = array.astype(stored.dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name} must be numbers, not {array.dtype}: {error}") from error
    return array if array.shape == wanted else array.reshape(wanted)


def _form(obs: Any, next_obs: Any, action: Any, reward: Any, done: Any) -> Any:
    """Shapes and types of a step, and keys of its observations; an action has the shape of a row already."""
    if not isinstance(obs, dict):
        shapes: Any = (obs.shape, obs.dtype, next_obs.shape, next_obs.dtype)
    else:
        shapes = [(key, part.shape, part.dtype) for each in (obs, next_obs) for key, part in each.items()]
    return shapes, action.dtype, reward.shape, reward.dtype, done.shape, done.dtype


def _as_rows(name: str, given: Any, stored: Any, space: spaces.Space) -> Any:
    """
    :param name: in the error
    :param given: observations of one step, or a dictionary of them
    :param stored: where they will be
    :param space: of them
    :return: see :func:`_as_row`
    """
    if not isinstance(stored, dict):
        return _as_row(name, given, stored, isinstance(space, spaces.Discrete))
    if not isinstance(given, Mapping) or not given.keys() >= stored.keys():
        has = f"one with {sorted(map(str, given))}" if isinstance(given, Mapping) else _described(given)
        raise ValueError(f"{name} must be a dictionary with the keys {sorted(stored)}, not {has}")
    parts = space.spaces  # type: ignore[attr-defined]
    return {
        key: _as_row(name, given[key], array, isinstance(parts[key], spaces.Discrete), key) for key, array in stored.items()
    }


def _as_row(name: str, value: Any, stored: Any, is_reshaped: bool = False, key: Any = None) -> np.ndarray:
    """
    :param name: in the error
    :param value: of every environment
    :param stored: SB3's array that it will be a row of
    :param is_reshaped: whether SB3 reshapes it; it broadcasts everything else
    :param key: of a part of the observations, in the error
    :return: numbers of the shape of a row
    :raises ValueError: for what does not fit in there
    """
    shape = stored.shape[1:]
    if type(value) is np.ndarray and value.dtype.kind in NUMBERS:
        if value.shape == shape:
            return value
        if is_reshaped and value.size == math.prod(shape):
            return value.reshape(shape)
    try:
        array = np.asarray(value)
        row = np.empty((1, *shape), stored.dtype)
        row[0] = array.reshape(shape) if is_reshaped else array
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        what = name if key is None else f"{name}[{key!r}]"
        raise ValueError(f"{what} must be numbers of shape {shape}, not {_described(value)}: {error}") from error
    return np.asarray(row[0])


def _checked_infos(infos: Any, n_envs: int) -> tuple[Any, Any]:
    """
    :param infos: of every environment
    :param n_envs: how many there are
    :return: a list of as many; and which of these steps are timeouts, 0 if none is
    :raises ValueError: for another number, or what is no dictionary
    """
    try:
        infos = infos if isinstance(infos, list) else list(infos)
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
        if timeouts.count(False) == n_envs == len(timeouts):
            return infos, 0.0
        row = np.empty((1, n_envs), np.float32)
        row[0] = timeouts
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"infos must be a list of {n_envs} dictionaries, whose 'TimeLimit.truncated' is True or False, not "
            f"{_described(infos)}: {error}"
        ) from error
    return infos if len(infos) == n_envs else infos * n_envs, row[0]


def _described(value: Any) -> str:
    """In errors."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else reprlib.repr(value)
