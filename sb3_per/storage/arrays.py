"""
Storage of transitions in SB3's arrays, or with frames in place of the observations, see :mod:`sb3_per.storage.frames`.

A buffer needs two methods of a storage: :meth:`ArrayStorage.write` and :meth:`ArrayStorage.read`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_per.storage.frames import FramedArray, FrameStore, framed
from sb3_per.storage.ring import Ring

#: Observations, next observations, actions, rewards, dones, timeouts, infos: arrays of shape (n_envs, ...) for one step of all
#: environments, (T, k, ...) for T steps of k environments. Observations are dictionaries for Dict observation spaces; timeouts
#: and infos may be ``None``. A plain tuple: a class with names takes a tenth of the time of ``add``.
Steps = tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, Any]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """
    Apply a function to an array, or to every array of a dictionary.

    :param function: of one array from each tree
    :param tree: array, or dictionary of arrays
    :param others: in the same form
    :return: the results in the same form
    """
    if isinstance(tree, dict):
        return {key: function(part, *(other[key] for other in others)) for key, part in tree.items()}
    return function(tree, *others)


def take(stored: Any, slots: np.ndarray) -> Any:
    """
    Read slots. ``take`` from the flat view is several times faster than ``stored[rows, envs]``.

    :param stored: array of shape (n_rows, n_envs, ...), frames, or a dictionary of these
    :param slots: integers of any shape
    :return: a copy, shape (*slots.shape, ...), or a dictionary of copies
    """
    if isinstance(stored, np.ndarray):
        return stored.reshape(-1, *stored.shape[2:]).take(slots, axis=0)
    return {key: take(part, slots) for key, part in stored.items()} if isinstance(stored, dict) else stored.at(slots)


def flat(stored: np.ndarray) -> np.ndarray:
    """
    View an array by slot.

    :param stored: one of SB3's arrays, shape (n_rows, n_envs, ...), contiguous
    :return: a view of shape (capacity, ...); a copy if the array is not contiguous
    """
    return stored.reshape(-1, *stored.shape[2:])


class ArrayStorage:
    """
    Keep transitions in SB3's arrays of shape (n_rows, n_envs, ...).

    :param observations: array, frames, or a dictionary of these
    :param next_observations: in the same form; ``None`` with ``optimize_memory_usage``, where the next observation of a row is
        the observation of the following row
    :param actions: as SB3 stores them
    :param rewards: shape (n_rows, n_envs), as the next two
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :param infos: info dictionaries, an array of objects; ``None``: not kept
    :param handles_timeouts: SB3's ``handle_timeout_termination``; otherwise ``timeouts`` stay 0
    """

    def __init__(
        self,
        observations: Any,
        next_observations: Any,
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: np.ndarray,
        infos: np.ndarray | None = None,
        handles_timeouts: bool = True,
    ):
        self.observations, self.next_observations = observations, next_observations
        self.actions, self.rewards, self.dones, self.timeouts, self.infos = actions, rewards, dones, timeouts, infos
        self.handles_timeouts = handles_timeouts
        self.n_rows, self.n_envs = rewards.shape
        self._all_envs = np.arange(self.n_envs)
        #: shape of one observation, or a dictionary of shapes; and shape of one action
        self.obs_shape: Any = tree_map(lambda part: part.shape[2:], observations)
        self.action_shape: tuple[int, ...] = actions.shape[2:]
        #: stores of frames by key; ``None`` is the key of observations that are no dictionary
        self.frame_stores: dict[str | None, FrameStore] = {
            key: part.store for key, part in keyed(observations).items() if isinstance(part, FramedArray)
        }

    @property
    def frames(self) -> dict[str | None, int]:
        """Number of frames in a stack, by key of the observations that are stored in frames."""
        return {key: store.n_frames for key, store in self.frame_stores.items()}

    def frames_per(self, n_transitions: int) -> float:
        """
        Count frames.

        :param n_transitions: number of transitions that are stored
        :return: frames per transition, the largest for Dict observations; 0 if there are no transitions
        :raises AttributeError: without frames
        """
        if not self.frame_stores:
            raise AttributeError("This buffer does not store frames: give it the setting frames")
        return max(store.pool.end - store.pool.first for store in self.frame_stores.values()) / max(n_transitions, 1)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that SB3's buffers have as attributes, by name."""
        names = "observations next_observations actions rewards dones timeouts infos"
        found = {name: getattr(self, name) for name in names.split()}
        return {name: array for name, array in found.items() if array is not None}

    def emptied(
        self, n_rows: int, frames: dict[str | None, int], n_envs: int | None = None, with_infos: bool = True
    ) -> "ArrayStorage":
        """
        Make an empty storage of the same shapes.

        :param n_rows: number of rows
        :param frames: number of frames in a stack, by key; all other observations are kept in arrays
        :param n_envs: number of environments; ``None``: as many as here
        :param with_infos: whether infos are kept if they are kept here
        :return: the new storage
        """

        n_envs = self.n_envs if n_envs is None else n_envs

        def empty(array: Any) -> Any:
            # `zeros_like` would write to all memory; this way only rows that are written take any.
            return None if array is None else np.zeros((n_rows, n_envs, *array.shape[2:]), array.dtype)

        pairs: dict[str | None, Any] = {}
        for key, obs in keyed(self.observations).items():
            if key in frames:
                pairs[key] = framed(n_rows, n_envs, obs, frames[key])
            else:
                pairs[key] = empty(obs), None if self.next_observations is None else empty(obs)
        obs, next_obs = pairs[None] if None in pairs else ({key: pair[i] for key, pair in pairs.items()} for i in (0, 1))
        rest: dict[str, Any] = {name: empty(getattr(self, name)) for name in ("actions", "rewards", "dones", "timeouts")}
        # One dictionary for all: infos are replaced, and never written to.
        rest["infos"] = np.full((n_rows, n_envs), {}) if with_infos and self.infos is not None else None
        return type(self)(obs, next_obs, **rest, handles_timeouts=self.handles_timeouts)

    def converted(self, ring: Ring, frames: dict[str | None, int]) -> "ArrayStorage":
        """
        Move observations from arrays to frames, or back.

        :param ring: ring, which says what is held
        :param frames: number of frames in a stack, by key
        :return: a new storage in this form; this one if it has the form already
        """
        if frames == self.frames:
            return self
        storage = self.emptied(self.n_rows, frames)
        for envs, steps in ring.blocks(ring.first):
            rows = steps % ring.n_rows
            storage.write(rows, envs, self.read_steps(rows * ring.n_envs + envs))
        return storage

    def clear(self) -> None:
        """Forget all frames; rows are written over."""
        for store in self.frame_stores.values():
            store.clear()

    def reserve(self, n_steps: int) -> None:
        """
        Make room for steps, so that :meth:`write` cannot fail.

        :param n_steps: number of steps that are written next, counting every environment
        :raises MemoryError: if there is no memory for them; nothing has changed then
        """
        for store in self.frame_stores.values():
            store.reserve(n_steps)

    def write(self, rows: Any, envs: np.ndarray | None, steps: Steps) -> None:
        """
        Store steps that were checked before.

        :param rows: row of one step of all environments, or int64 of shape (T, k)
        :param envs: environments of the steps, int64 of shape (k,); ``None``: all of them
        :param steps: arrays in the matching shapes
        :raises MemoryError: see :meth:`reserve`; nothing has changed then
        """
        at = rows if envs is None else (rows, envs)
        obs, next_obs, actions, rewards, dones, timeouts, infos = steps
        if self.frame_stores:
            self._write_frames(rows, envs, obs, next_obs)
        _put(self.observations, at, obs)
        if self.next_observations is None:
            # The newest next observation goes into the row after the last one.
            if envs is None:
                self.observations[(rows + 1) % self.n_rows] = next_obs
            elif len(rows):
                self.observations[(rows[-1] + 1) % self.n_rows, envs] = next_obs[-1]
        else:
            _put(self.next_observations, at, next_obs)
        self.actions[at] = actions
        self.rewards[at] = rewards
        self.dones[at] = dones
        if self.handles_timeouts:
            self.timeouts[at] = 0.0 if timeouts is None else timeouts
        if self.infos is not None:
            self.infos[at] = infos

    def truncate(self, rows: Any, envs: np.ndarray) -> None:
        """
        Let episodes end after steps that were stored, without a terminal observation.

        :param rows: rows of the steps: an int, or integers of shape (k,)
        :param envs: environments of the steps, shape (k,)
        """
        self.dones[rows, envs] = 1
        # As in SB3's HER: without `handle_timeout_termination`, a truncation is stored as a termination.
        if self.handles_timeouts:
            self.timeouts[rows, envs] = 1

    def _write_frames(self, rows: Any, envs: np.ndarray | None, observations: Any, next_observations: Any) -> None:
        self.reserve(self.n_envs if envs is None else rows.size)  # for all of them, before one of them changes
        for key, store in self.frame_stores.items():
            obs, next_obs = (each if key is None else each[key] for each in (observations, next_observations))
            if envs is None:
                store.write(self._all_envs, rows, obs[None], next_obs[None])
            elif rows.size:
                store.write(envs, rows[0], obs, next_obs)

    def read(self, slots: np.ndarray, last: np.ndarray) -> tuple[Any, Any, np.ndarray]:
        """
        Read a batch.

        :param slots: slots of transitions, int64 of shape (batch_size,)
        :param last: slots of the last step of each, which differ from ``slots`` for n-step returns
        :return: observations, next observations of the last steps, and actions: copies of shape (batch_size, ...)
        """
        return self.read_observations(slots), self.read_next_observations(last), take(self.actions, slots)

    def read_steps(self, slots: np.ndarray) -> Steps:
        """
        Read everything that is stored of some steps.

        :param slots: int64 of shape (T, k)
        :return: arrays of shape (T, k, ...)
        """
        arrays = (take(part, slots) for part in (self.actions, self.rewards, self.dones, self.timeouts))
        infos = None if self.infos is None else take(self.infos, slots)
        return (self.read_observations(slots), self.read_next_observations(slots), *arrays, infos)

    def read_observations(self, slots: np.ndarray) -> Any:
        """
        Read observations.

        :param slots: integers of any shape
        :return: a copy, shape (*slots.shape, ...); a dictionary for Dict observation spaces
        """
        return take(self.observations, slots)

    def read_next_observations(self, slots: np.ndarray) -> Any:
        """
        Read next observations.

        :param slots: integers of any shape
        :return: a copy, in the form of :meth:`read_observations`
        """
        if self.next_observations is None:
            return take(self.observations, (slots + self.n_envs) % (self.n_rows * self.n_envs))
        return take(self.next_observations, slots)


def keyed(observations: Any) -> dict[str | None, Any]:
    """
    Make a dictionary of observations.

    :param observations: an array, or a dictionary of them
    :return: a dictionary, with the key ``None`` for a single array
    """
    return dict(observations) if isinstance(observations, dict) else {None: observations}


def _put(stored: Any, at: Any, given: Any) -> None:
    """Write to arrays; frames were written before."""
    if isinstance(stored, np.ndarray):
        stored[at] = given
    elif isinstance(stored, dict):
        for key, part in stored.items():
            _put(part, at, given[key])
