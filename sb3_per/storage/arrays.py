"""
Storage of transitions: observations in stores, see :mod:`sb3_per.storage.store`, and everything else in SB3's arrays.
"""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from sb3_per.storage.frames import FrameStore
from sb3_per.storage.mapped import PAGE, Files, Folder, rows_will_be_needed
from sb3_per.storage.ring import Ring
from sb3_per.storage.store import ObservationStore, StoredArray

#: Observations, next observations, actions, rewards, dones, timeouts, infos: arrays of shape (n_envs, ...) for one step of all
#: environments, (T, k, ...) for T steps of k environments. Observations are dictionaries for Dict observation spaces; timeouts
#: and infos may be ``None``. A plain tuple: a class with names takes a tenth of the time of ``add``.
StepArrays = tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, Any]

# Attributes of a storage whose arrays are in files, if it has any.
_LARGE = ("observations", "next_observations", "actions")


#: attributes of SB3's buffers that are arrays, or dictionaries of them
ARRAY_NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "infos")


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """
    Apply a function to an array, or to every array of a dictionary.

    :param function: of one array from each tree
    :param tree: array, dictionary of arrays, or ``None``, which stays ``None``
    :param others: in the same form
    :return: the results in the same form
    """
    if isinstance(tree, dict):
        return {key: function(part, *(other[key] for other in others)) for key, part in tree.items()}
    return None if tree is None else function(tree, *others)


def read_slots(stored: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """
    Read slots. ``take`` from the flat view is several times faster than ``stored[rows, envs]``.

    :param stored: array of shape (n_rows, n_envs, ...)
    :param slots: integers of any shape
    :return: a copy, shape (*slots.shape, ...)
    """
    return stored.reshape(-1, *stored.shape[2:]).take(slots, axis=0)


def flat(stored: np.ndarray) -> np.ndarray:
    """
    View an array by slot.

    :param stored: one of SB3's arrays, shape (n_rows, n_envs, ...), contiguous
    :return: a view of shape (capacity, ...); a copy if the array is not contiguous
    """
    return stored.reshape(-1, *stored.shape[2:])


class KeyedArrays(dict[str, Any]):
    """
    Arrays of Dict observations by key. One that is put in place of another is used from then on.

    :param arrays: arrays, or views of stores, by key
    :param put: as :meth:`ArrayStorage.put`, with the name of the attribute; it may be gone before the arrays
    """

    def __init__(self, arrays: dict[str, Any], put: "weakref.WeakMethod[Callable[[str, Any], None]]", name: str):
        super().__init__(arrays)
        self._put, self._name = put, name

    def __setitem__(self, key: str, array: Any) -> None:
        self.update({key: array})

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Put arrays in place of others."""
        put = self._put()
        if put is None:
            raise ReferenceError(f"The buffer of these {self._name} does not exist any more: keep the buffer as well")
        put(self._name, {**self, **dict(*args, **kwargs)})

    def __ior__(self, arrays: Any) -> "KeyedArrays":  # type: ignore[override, misc]
        self.update(arrays)
        return self

    def show(self, arrays: dict[Any, Any]) -> None:
        """Show the arrays that are used from now on."""
        super().update(arrays)

    def __reduce__(self) -> Any:
        """A copy is a plain dictionary until a storage takes it."""
        return dict, (dict(self),)


class ArrayStore:
    """
    Keep observations in arrays, see :class:`~sb3_per.storage.store.ObservationStore`.

    :param observations: shape (n_rows, n_envs, ...)
    :param next_observations: in the same shape; ``None`` with ``optimize_memory_usage``: the next observation of a row is the
        observation of the following row
    :param files: in which the arrays are; ``None``: in RAM
    """

    def __init__(self, observations: np.ndarray, next_observations: np.ndarray | None, files: Files | None = None):
        self.observations, self.next_observations, self.files = observations, next_observations, files
        self.n_rows, self.n_envs = observations.shape[:2]
        self._slot_bytes = flat(observations)[:1].nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.observations.nbytes + (0 if self.next_observations is None else self.next_observations.nbytes)

    def reserve(self, rows: Any, envs: np.ndarray | None) -> None:
        """Allocate blocks of the disk, if the arrays are in files."""
        if self.files is not None:
            # With `optimize_memory_usage`, the next observation goes into the row after the last one.
            self.files.reserve((rows if envs is None else int(rows.max(initial=-1))) + 2)

    def write(self, rows: Any, envs: np.ndarray | None, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """See :class:`~sb3_per.storage.store.ObservationStore`."""
        at = rows if envs is None else (rows, envs)
        self.observations[at] = observations
        if self.next_observations is not None:
            self.next_observations[at] = next_observations
        elif envs is None:
            self.observations[(rows + 1) % self.n_rows] = next_observations
        elif len(rows):
            self.observations[(rows[-1] + 1) % self.n_rows, envs] = next_observations[-1]

    def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """See :class:`~sb3_per.storage.store.ObservationStore`."""
        array = self.next_observations if is_next else self.observations
        if array is None:
            array, slots = self.observations, (slots + self.n_envs) % (self.n_rows * self.n_envs)
        # While they are in RAM, rows below a page take less time to read than to ask for.
        if self.files is not None and self._slot_bytes >= PAGE and self.files.exceed_ram:
            rows_will_be_needed(array.ctypes.data, self._slot_bytes, np.ascontiguousarray(slots).reshape(-1))
        return read_slots(array, slots)

    def clear(self) -> None:
        """Do nothing: new steps overwrite the rows."""

    def put(self, array: np.ndarray, is_next: bool) -> np.ndarray:
        """
        Use another array, or copy it into the file.

        :param array: of the shape and type of the present one. Files have room for all of it
        :param is_next: whether it has next observations
        :return: the array that is used from now on
        """
        if self.files is not None:
            used = self.next_observations if is_next else self.observations
            assert used is not None
            used[...] = array
            return used
        used = shared(array)
        if is_next:
            self.next_observations = used
        else:
            self.observations = used
        return used


@dataclass(eq=False, repr=False)
class ArrayStorage:
    """
    Keep transitions in SB3's arrays of shape (n_rows, n_envs, ...), and observations in stores.

    With a folder, observations and actions are in files. Rewards and ends of episodes stay in RAM: draws and n-step returns
    read them one by one.

    :param observations: array, view of a store, or a dictionary of these
    :param next_observations: in the same form; ``None`` with ``optimize_memory_usage``
    :param actions: as SB3 stores them
    :param rewards: shape (n_rows, n_envs), as the next two
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :param infos: info dictionaries, an array of objects; ``None``: not kept
    :param handles_timeouts: SB3's ``handle_timeout_termination``; otherwise ``timeouts`` stay 0
    :param files: in which arrays of observations and actions are; ``None``: in RAM
    :param store_class: makes stores of observations, by ``(n_rows, n_envs, shape, dtype)``; ``None``: arrays
    """

    observations: Any
    next_observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray
    infos: np.ndarray | None = None
    handles_timeouts: bool = True
    files: Files | None = None
    store_class: Callable[..., ObservationStore] | None = None

    def __post_init__(self) -> None:
        self.n_rows, self.n_envs = self.rewards.shape
        #: counts the arrays that were put in place of others
        self.n_put = 0
        for name in ("observations", "next_observations"):
            if isinstance(arrays := getattr(self, name), dict):
                setattr(self, name, KeyedArrays(arrays, weakref.WeakMethod(self.put), name))
        #: shape of one observation, or a dictionary of shapes; and shape of one action
        self.obs_shape: Any = tree_map(lambda part: part.shape[2:], self.observations)
        self.action_shape: tuple[int, ...] = self.actions.shape[2:]
        pairs = {key: (obs, keyed(self.next_observations).get(key)) for key, obs in keyed(self.observations).items()}
        #: stores by key; ``None`` is the key of observations that are no dictionary
        self.stores: dict[str | None, ObservationStore] = {
            key: pair[0].store if isinstance(pair[0], StoredArray) else ArrayStore(*pair, self.files)
            for key, pair in pairs.items()
        }
        #: the stores that share frames, by key
        self.frame_stores = {key: store for key, store in self.stores.items() if isinstance(store, FrameStore)}
        # Saves the dictionary in the usual case.
        self._only_store = self.stores.get(None)
        # Rows below this one have room.
        self._n_ready = self._count_ready()
        if self.files is not None:
            _IN_FILES.add(self)

    def _count_ready(self) -> int:
        if not all(isinstance(store, ArrayStore) for store in self.stores.values()):
            return 0
        return self.n_rows if self.files is None or self.files.n_reserved >= self.n_rows else self.files.n_reserved - 1

    @property
    def frames(self) -> dict[str | None, int]:
        """Number of frames in a stack, by key of the observations that are stored in frames."""
        return {key: store.n_frames for key, store in self.frame_stores.items()}

    @property
    def folder(self) -> Folder | None:
        """Folder of the files; ``None``: everything is in RAM."""
        return None if self.files is None else self.files.folder

    @property
    def has_plain_arrays(self) -> bool:
        """Whether everything is in RAM in arrays of SB3's form."""
        return self.files is None and all(isinstance(store, ArrayStore) for store in self.stores.values())

    def frames_per(self, n_transitions: int) -> float:
        """
        Count the frames that a transition takes.

        :param n_transitions: number of transitions that are stored
        :return: frames per transition, the largest for Dict observations; 0 if there are no transitions
        :raises AttributeError: without frames
        """
        if not self.frame_stores:
            raise AttributeError("This buffer does not store frames: give it the setting frames")
        return max(store.pool.end - store.pool.first for store in self.frame_stores.values()) / max(n_transitions, 1)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that SB3's buffers have as attributes, by name."""
        return {name: array for name in ARRAY_NAMES if (array := getattr(self, name)) is not None}

    def full_nbytes(self) -> tuple[int, int]:
        """
        Estimate the size of the full storage, with one frame for each transition where frames are shared.

        :return: bytes of RAM, and bytes of the disk
        """
        small = self.rewards.nbytes + self.dones.nbytes + self.timeouts.nbytes
        large = self.actions.nbytes
        for store in self.stores.values():
            if isinstance(store, FrameStore):
                small += store.references_nbytes
                large += store.frame_bytes * self.rewards.size
            else:
                large += store.nbytes
        return (small + large, 0) if self.files is None else (small, large)

    def emptied(
        self,
        n_rows: int,
        frames: dict[str | None, int],
        n_envs: int | None = None,
        with_infos: bool = True,
        folder: Folder | None = None,
    ) -> "ArrayStorage":
        """
        Make an empty storage of the same shapes.

        :param n_rows: number of rows
        :param frames: number of frames in a stack, by key; all other observations are kept in arrays
        :param n_envs: number of environments; ``None``: as many as here
        :param with_infos: whether infos are kept if they are kept here
        :param folder: folder for files; ``None``: in RAM
        :return: the new storage
        """
        n_envs = self.n_envs if n_envs is None else n_envs
        files = None if folder is None else Files(folder)

        def empty(array: Any, files: Files | None = None) -> Any:
            # `zeros_like` would write to all memory; this way only rows that are written take any.
            make = np.zeros if files is None else files.array
            return None if array is None else make((n_rows, n_envs, *array.shape[2:]), array.dtype)

        pairs: dict[str | None, Any] = {}
        for key, obs in keyed(self.observations).items():
            make = partial(FrameStore, n_frames=frames[key], files=files) if key in frames else self.store_class
            if make is None:
                pairs[key] = empty(obs, files), None if self.next_observations is None else empty(obs, files)
            else:
                shape = obs.shape[2:]
                view = partial(StoredArray, make(n_rows, n_envs, shape, obs.dtype), (n_rows, n_envs, *shape), obs.dtype)
                pairs[key] = view(is_next=False), view(is_next=True)
        obs, next_obs = pairs[None] if None in pairs else ({key: pair[i] for key, pair in pairs.items()} for i in (0, 1))
        rest: dict[str, Any] = {name: empty(getattr(self, name)) for name in ("rewards", "dones", "timeouts")}
        # One dictionary for all: infos are replaced, and never written to.
        rest["infos"] = np.full((n_rows, n_envs), {}) if with_infos and self.infos is not None else None
        actions = empty(self.actions, files)
        return replace(self, observations=obs, next_observations=next_obs, actions=actions, **rest, files=files)

    def converted(
        self,
        ring: Ring,
        frames: dict[str | None, int],
        folder: Folder | None,
        store_class: Callable[..., ObservationStore] | None,
    ) -> "ArrayStorage":
        """
        Move observations from arrays to frames, or from RAM to files, or to stores of another class, or back.

        :param ring: ring, which says what is held
        :param frames: number of frames in a stack, by key
        :param folder: folder for files; ``None``: in RAM
        :param store_class: see the class
        :return: a new storage in this form; this one if it has the form already
        """
        if frames == self.frames and folder is self.folder and store_class is self.store_class:
            return self
        storage = replace(self, store_class=store_class).emptied(self.n_rows, frames, folder=folder)
        for envs, steps in ring.blocks(ring.first):
            rows = steps % ring.n_rows
            storage.write(rows, envs, self.read_steps(rows * ring.n_envs + envs))
        return storage

    def put(self, name: str, given: Any) -> None:
        """
        Use an array in place of one of SB3's, or a dictionary of them for Dict observations. It is shared if it is in RAM, not
        in frames, and of the type that is stored; otherwise it is copied.

        :param name: name of the attribute, see :meth:`arrays`
        :param given: of the same shape
        :raises ValueError: for another shape, or values that are no numbers; nothing has changed then
        :raises MemoryError: if there is no memory for frames; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """
        new = self.fitting(name, given)
        if name in ("observations", "next_observations"):
            self._put_observations(name, keyed(new))
        elif name == "actions" and self.files is not None:
            self._reserve_files()
            self.actions[...] = new
        else:
            setattr(self, name, shared(new))
        self.n_put += 1

    def fitting(self, name: str, given: Any) -> Any:
        """
        Check arrays that are to be used in place of others.

        :param name: as in :meth:`put`
        :param given: as in :meth:`put`
        :return: an array of the stored shape and type, or a dictionary of them
        :raises ValueError: if they do not fit
        """
        stored = getattr(self, name)
        if stored is None:
            raise ValueError(f"{name} cannot be assigned: this buffer does not store them")
        return _fitting(name, given, stored)

    def _put_observations(self, name: str, new: dict[str | None, np.ndarray]) -> None:
        is_next = name == "next_observations"
        for key in new:
            if not isinstance(self.stores[key], (ArrayStore, FrameStore)):
                kind = type(self.stores[key]).__name__
                raise ValueError(f"{name} cannot be assigned: they are in a {kind}. Write steps with add() or extend()")
        frames = {key: store.with_rows(new[key], is_next) for key, store in self.frame_stores.items()}
        if self.files is not None:
            self._reserve_files()
        for key, store in frames.items():
            self.stores[key] = self.frame_stores[key] = store
            for views in (self.observations, self.next_observations):
                keyed(views)[key].store = store
        self._only_store = self.stores.get(None)
        arrays = {key: store.put(new[key], is_next) for key, store in self.stores.items() if isinstance(store, ArrayStore)}
        if isinstance(shown := getattr(self, name), KeyedArrays):
            shown.show(arrays)
        elif arrays:
            setattr(self, name, arrays[None])

    def _reserve_files(self) -> None:
        """Make room for all rows of all files."""
        assert self.files is not None
        self.files.reserve(self.n_rows)
        self._n_ready = self._count_ready()

    def reorder(self, pos: int) -> None:
        """
        Note that rows were written by hand, so that the next step follows another row.

        :param pos: row that is written next; the one after it is the oldest
        """
        for store in self.frame_stores.values():
            store.reorder(pos)

    def clear(self) -> None:
        """Forget all observations; new steps overwrite the rows."""
        for store in self.stores.values():
            store.clear()

    def reserve(self, rows: Any, envs: np.ndarray | None) -> None:
        """
        Make room for steps, so that :meth:`write` cannot fail.

        :param rows: as in :meth:`write`
        :param envs: as in :meth:`write`
        :raises MemoryError: if there is no memory for them; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """
        if self.files is not None:
            self.files.reserve((rows if envs is None else int(rows.max(initial=-1))) + 1)
        for store in self.stores.values():
            store.reserve(rows, envs)
        self._n_ready = self._count_ready()

    def write(self, rows: Any, envs: np.ndarray | None, steps: StepArrays) -> None:
        """
        Store steps that were checked before.

        :param rows: row of one step of all environments, or int64 of shape (T, k)
        :param envs: environments of the steps, int64 of shape (k,); ``None``: all of them
        :param steps: arrays in the matching shapes
        :raises MemoryError: see :meth:`reserve`; nothing has changed then
        :raises OSError: see :meth:`reserve`; nothing has changed then
        """
        at = rows if envs is None else (rows, envs)
        obs, next_obs, actions, rewards, dones, timeouts, infos = steps
        if envs is not None or rows >= self._n_ready:
            self.reserve(rows, envs)  # in all stores, before any of them changes
        if self._only_store is not None:
            self._only_store.write(rows, envs, obs, next_obs)
        else:
            for key, store in self.stores.items():
                store.write(rows, envs, obs[key], next_obs[key])
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

    def read(self, slots: np.ndarray, last: np.ndarray) -> tuple[Any, Any, np.ndarray]:
        """
        Read a batch.

        :param slots: slots of transitions, int64 of shape (batch_size,)
        :param last: slots of the last step of each, which differ from ``slots`` for n-step returns
        :return: observations, next observations of the last steps, and actions: copies of shape (batch_size, ...)
        """
        return self.read_observations(slots), self.read_observations(last, True), read_slots(self.actions, slots)

    def read_steps(self, slots: np.ndarray) -> StepArrays:
        """
        Read everything that is stored of some steps.

        :param slots: int64 of shape (T, k)
        :return: arrays of shape (T, k, ...)
        """
        arrays = (read_slots(part, slots) for part in (self.actions, self.rewards, self.dones, self.timeouts))
        infos = None if self.infos is None else read_slots(self.infos, slots)
        return (self.read_observations(slots), self.read_next_observations(slots), *arrays, infos)

    def read_observations(self, slots: np.ndarray, is_next: bool = False) -> Any:
        """
        Read observations.

        :param slots: integers of any shape
        :param is_next: whether to read next observations
        :return: a copy, shape (*slots.shape, ...); a dictionary for Dict observation spaces
        """
        if self._only_store is not None:
            return self._only_store.read(slots, is_next)
        return {key: store.read(slots, is_next) for key, store in self.stores.items()}

    def read_next_observations(self, slots: np.ndarray) -> Any:
        """
        Read next observations.

        :param slots: integers of any shape
        :return: a copy, in the form of :meth:`read_observations`
        """
        return self.read_observations(slots, True)

    # ---- processes and copies

    def protect(self) -> None:
        """Refuse all writes into the files from now on: they belong to the process that this one was forked from."""
        self._n_ready = 0  # so that the next write reserves its rows, which is refused
        for name in _LARGE:
            for array in keyed(getattr(self, name)).values():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the stores, and rows of files that were never written: on some disks, reading them takes space."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.files is not None:
            n_written = self.files.n_reserved
            for name in _LARGE:
                state[name] = tree_map(lambda part: part[:n_written] if isinstance(part, np.ndarray) else part, state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Move the arrays of a copy into files of its own. Without the folder of the original, they stay in RAM."""
        vars(self).update(state)
        n_written, n_rows = len(self.actions), len(self.rewards)
        if self.files is not None or n_written < n_rows:
            make = np.zeros if self.files is None else self.files.array
            copies: list[tuple[np.ndarray, np.ndarray]] = []

            def complete(part: Any) -> Any:
                if not isinstance(part, np.ndarray):
                    return part
                copies.append((make((n_rows, *part.shape[1:]), part.dtype), part))
                return copies[-1][0]

            for name in _LARGE:
                setattr(self, name, tree_map(complete, getattr(self, name)))
            if self.files is not None:
                self.files.reserve(n_written)
            for array, part in copies:
                array[:n_written] = part
        self.__post_init__()


# Storages whose arrays are in files.
_IN_FILES: "weakref.WeakSet[ArrayStorage]" = weakref.WeakSet()


def _protect_files() -> None:
    """In a forked process, protect the files of the process that it was forked from."""
    for storage in list(_IN_FILES):
        storage.protect()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_protect_files)


def shared(array: np.ndarray) -> np.ndarray:
    """
    Return an array that kernels can read and steps can be written into.

    :param array: of any order in memory
    :return: the same array, or a copy if it is read-only or not contiguous
    """
    return np.require(array, requirements=["C", "W"])


def _fitting(name: str, given: Any, stored: Any) -> Any:
    """See :meth:`ArrayStorage.fitting`; ``stored`` is what the array takes the place of."""
    if isinstance(stored, dict):
        if not isinstance(given, dict) or given.keys() != stored.keys():
            found = sorted(given) if isinstance(given, dict) else f"a {type(given).__name__}"
            raise ValueError(f"{name} must be a dictionary with the keys {sorted(stored)}, not {found}")
        return {key: _fitting(f"{name}[{key!r}]", given[key], part) for key, part in stored.items()}
    try:
        array = np.asarray(given)
        if array.shape == stored.shape:
            return array.astype(stored.dtype, copy=False)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name} must be an array of {stored.dtype} of shape {stored.shape}: {error}") from None
    raise ValueError(
        f"{name} must have shape {stored.shape}, which is (rows, environments, ...), not {array.shape}. To change some rows "
        f"only, write into them: buffer.{name}[rows] = values"
    )


def keyed(observations: Any) -> dict[str | None, Any]:
    """
    Make a dictionary of observations.

    :param observations: an array, or a dictionary of them
    :return: a dictionary, with the key ``None`` for a single array
    """
    return dict(observations) if isinstance(observations, dict) else {None: observations}
