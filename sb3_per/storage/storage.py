"""What is in a slot: observations in stores, see :mod:`sb3_per.storage.store`, and everything else in SB3's arrays."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sb3_per.storage.array_store import ArrayStore, moved, writable
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.mapped import Files, Folder
from sb3_per.storage.nested import flat, keyed, map_arrays, read_slots
from sb3_per.storage.store import ObservationStore

#: attributes of SB3's buffers that are arrays, or dictionaries of them
ARRAY_NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "infos")


class Steps(NamedTuple):
    """
    Checked steps: arrays of shape (n_envs, ...) for one step of all environments, (T, k, ...) for T steps of k environments.
    """

    #: observations, a dictionary for Dict observation spaces
    obs: Any
    #: next observations, in the same form
    next_obs: Any
    actions: np.ndarray
    rewards: np.ndarray
    #: ends of episodes, truncations too
    dones: np.ndarray
    #: which of them are truncations
    timeouts: np.ndarray
    #: info dictionaries, an array of objects; ``None`` where they are not kept
    infos: Any

    def at(self, index: Any) -> "Steps":
        """
        Index the first axes of all arrays.

        :param index: of these axes; ``None`` adds one
        :return: the steps at this index
        """
        return Steps(*(map_arrays(lambda array: array[index], part) for part in self))

    def with_time_axis(self) -> "Steps":
        """Make one step of all environments T = 1 steps of each."""
        return self.at(None)


@dataclass(frozen=True)
class Layout:
    """
    Shapes and types of one transition, and how it is stored.

    :param shapes: shape of one observation by key; ``None`` is the key of observations that are no dictionary
    :param dtypes: type of observations, by the same keys
    :param action_shape: shape of an action
    :param action_dtype: type of an action
    :param shares_next_obs: SB3's ``optimize_memory_usage``: the next observation is the observation of the following row
    :param handles_timeouts: SB3's ``handle_timeout_termination``; otherwise ``timeouts`` stay 0
    :param keeps_infos: whether info dictionaries are stored
    :param frames: number of frames in a stack, by key of the observations that are stored in frames
    :param store_class: makes stores of observations, by ``(n_rows, n_envs, shape, dtype)``; ``None``: arrays
    """

    shapes: dict[str | None, tuple[int, ...]]
    dtypes: dict[str | None, np.dtype]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype
    shares_next_obs: bool = False
    handles_timeouts: bool = True
    keeps_infos: bool = False
    frames: dict[str | None, int] = field(default_factory=dict)
    store_class: Callable[..., ObservationStore] | None = None

    def as_arrays(self) -> "Layout":
        """The same transitions with all observations in arrays. A new field that says how they are stored is reset here."""
        return replace(self, frames={}, store_class=None)


class Storage:
    """
    Transitions by row and environment: SB3's arrays of shape (n_rows, n_envs, ...), and stores of observations.

    With a folder, observations and actions are in files. Rewards and ends of episodes stay in RAM: draws and n-step returns
    read them one by one.

    :param layout: of the transitions
    :param stores: of the observations, by key
    :param actions: as SB3 stores them
    :param rewards: shape (n_rows, n_envs), as the next two
    :param dones: ends of episodes
    :param timeouts: which of them are truncations
    :param infos: info dictionaries, an array of objects; ``None``: not kept
    :param files: in which arrays of observations and actions are; ``None``: in RAM
    """

    def __init__(
        self,
        layout: Layout,
        stores: dict[str | None, ObservationStore],
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: np.ndarray,
        infos: np.ndarray | None = None,
        files: Files | None = None,
    ):
        self.layout = layout
        self.stores = stores
        self.actions = actions
        self.rewards = rewards
        self.dones = dones
        self.timeouts = timeouts
        self.infos = infos
        self.files = files
        self.n_rows, self.n_envs = rewards.shape
        #: shapes of one step of all environments: of observations (``None`` for a dictionary of them), actions, and rewards
        self.row_shapes = (
            (self.n_envs, *layout.shapes[None]) if None in layout.shapes else None,
            (self.n_envs, *layout.action_shape),
            (self.n_envs,),
        )
        self.handles_timeouts = layout.handles_timeouts
        #: what one step of all environments without a truncation has in place of ``timeouts``
        self.no_timeouts = np.zeros(self.n_envs, np.float32)
        #: counts the arrays that users have assigned, after which a saved buffer writes everything anew
        self.n_assigned = 0
        self._prepare()

    def _prepare(self) -> None:
        """Make what follows from the stores and arrays, and is not saved."""
        self._show_stores()
        self._actions_by_slot = flat(self.actions)
        # Rows below this one have room.
        self._room_end = self._n_rows_with_room()
        if self.files is not None:
            _IN_FILES.add(self)

    def _show_stores(self) -> None:
        """Let the attributes of SB3's buffers show what the stores hold."""
        #: observations and next observations as SB3's buffers show them
        self.observations = self._as_sb3_arrays("observations", is_next=False)
        self.next_observations = None
        if not self.layout.shares_next_obs:
            self.next_observations = self._as_sb3_arrays("next_observations", is_next=True)
        # Saves the dictionary in the usual case.
        self._only_store = self.stores.get(None)

    def _as_sb3_arrays(self, name: str, is_next: bool) -> Any:
        arrays = {}
        for key, store in self.stores.items():
            shape = (self.n_rows, self.n_envs, *self.layout.shapes[key])
            arrays[key] = store.as_sb3_array(shape, self.layout.dtypes[key], is_next)
        if None in arrays:
            return arrays[None]
        return KeyedArrays(arrays, weakref.WeakMethod(self.assign), name)

    @property
    def array_stores(self) -> dict[str | None, ArrayStore]:
        """Stores that are arrays, by key."""
        return {key: store for key, store in self.stores.items() if isinstance(store, ArrayStore)}

    @property
    def frame_stores(self) -> dict[str | None, FrameStore]:
        """Stores that share frames, by key."""
        return {key: store for key, store in self.stores.items() if isinstance(store, FrameStore)}

    @property
    def folder(self) -> Folder | None:
        """Folder of the files; ``None``: everything is in RAM."""
        if self.files is None:
            return None
        return self.files.folder

    @property
    def has_plain_arrays(self) -> bool:
        """Whether everything is in RAM in arrays of SB3's form, which a store of a user may not be."""
        return self.files is None and len(self.array_stores) == len(self.stores) and self.layout.store_class is None

    def frames_per(self, n_transitions: int) -> float:
        """
        Count the frames that a transition takes.

        :param n_transitions: number of transitions that are stored
        :return: frames per transition, the largest for Dict observations; 0 if there are no transitions
        :raises AttributeError: without frames
        """
        stores = self.frame_stores.values()
        if not stores:
            raise AttributeError("This buffer does not store frames: give it the setting frames")
        return max(store.pool.end - store.pool.first for store in stores) / max(n_transitions, 1)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that SB3's buffers have as attributes, by name."""
        arrays = {name: getattr(self, name) for name in ARRAY_NAMES}
        return {name: array for name, array in arrays.items() if array is not None}

    def full_nbytes(self) -> tuple[int, int]:
        """
        Estimate the size of the full storage, with one frame for each transition where frames are shared.

        :return: bytes of RAM, and bytes of the disk
        """
        n_ram = self.rewards.nbytes + self.dones.nbytes + self.timeouts.nbytes
        n_disk = 0
        if self.files is None:
            n_ram += self.actions.nbytes
        else:
            n_disk += self.actions.nbytes
        for store in self.stores.values():
            of_store = store.full_nbytes()
            n_ram += of_store[0]
            n_disk += of_store[1]
        return n_ram, n_disk

    # ---- writing

    def reserve(self, n_transitions: int, last_row: int) -> None:
        """
        Make room for steps, in all stores before any of them changes.

        :param n_transitions: number of steps that are written next, of all environments together
        :param last_row: largest row that is written
        :raises MemoryError: if there is no memory for them; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """
        if self.files is not None:
            self.files.reserve(last_row + 1)
        for store in self.stores.values():
            store.reserve(n_transitions, last_row)
        self._room_end = self._n_rows_with_room()

    def _n_rows_with_room(self) -> int:
        return min([store.n_rows_with_room for store in self.stores.values()])

    def write_row(self, row: int, steps: Steps) -> None:
        """
        Store one step of every environment.

        :param row: row of the step
        :param steps: checked, of shape (n_envs, ...)
        :raises MemoryError: see :meth:`reserve`; nothing has changed then
        :raises OSError: see :meth:`reserve`; nothing has changed then
        """
        if row >= self._room_end:
            self.reserve(self.n_envs, row)
        obs, next_obs, actions, rewards, dones, timeouts, infos = steps
        if self._only_store is not None:
            self._only_store.write_row(row, obs, next_obs)
        else:
            for key, store in self.stores.items():
                store.write_row(row, obs[key], next_obs[key])
        self.actions[row] = actions
        self.rewards[row] = rewards
        self.dones[row] = dones
        self.timeouts[row] = timeouts
        if self.infos is not None:
            self.infos[row] = infos

    def write(self, rows: np.ndarray, envs: np.ndarray, steps: Steps) -> None:
        """
        Store T successive steps of k environments.

        :param rows: rows of the steps, int64 of shape (T, k)
        :param envs: environments of the steps, int64 of shape (k,)
        :param steps: checked, of shape (T, k, ...)
        :raises MemoryError: see :meth:`reserve`; nothing has changed then
        :raises OSError: see :meth:`reserve`; nothing has changed then
        """
        self.reserve(rows.size, int(rows.max(initial=-1)))
        obs = keyed(steps.obs)
        next_obs = keyed(steps.next_obs)
        for key, store in self.stores.items():
            store.write(rows, envs, obs[key], next_obs[key])
        self.actions[rows, envs] = steps.actions
        self.rewards[rows, envs] = steps.rewards
        self.dones[rows, envs] = steps.dones
        self.timeouts[rows, envs] = steps.timeouts
        if self.infos is not None:
            self.infos[rows, envs] = steps.infos

    def truncate(self, row: int | np.ndarray, envs: np.ndarray) -> None:
        """
        Let episodes end after steps that were stored, without a terminal observation.

        :param row: row of the steps, or a row for each, shape (k,)
        :param envs: environments of the steps, shape (k,)
        """
        self.dones[row, envs] = 1
        # As in SB3's HER: without `handle_timeout_termination`, a truncation is stored as a termination.
        if self.handles_timeouts:
            self.timeouts[row, envs] = 1

    def clear(self) -> None:
        """Forget all observations; new steps overwrite the rows."""
        for store in self.stores.values():
            store.clear()

    # ---- reading

    def read_observations(self, slots: np.ndarray, is_next: bool = False) -> Any:
        """
        Read observations.

        :param slots: integers of any shape
        :param is_next: whether to read next observations
        :return: a copy, shape (\\*slots.shape, ...); a dictionary for Dict observation spaces
        """
        if self._only_store is not None:
            return self._only_store.read(slots, is_next)
        return {key: store.read(slots, is_next) for key, store in self.stores.items()}

    def read_actions(self, slots: np.ndarray) -> np.ndarray:
        """
        Read actions.

        :param slots: integers of any shape
        :return: a copy, shape (\\*slots.shape, action_dim)
        """
        return self._actions_by_slot.take(slots, axis=0)

    def read_steps(self, slots: np.ndarray) -> Steps:
        """
        Read everything that is stored of some steps.

        :param slots: int64 of shape (T, k)
        :return: arrays of shape (T, k, ...)
        """
        return Steps(
            obs=self.read_observations(slots),
            next_obs=self.read_observations(slots, is_next=True),
            actions=self.read_actions(slots),
            rewards=read_slots(self.rewards, slots),
            dones=read_slots(self.dones, slots),
            timeouts=read_slots(self.timeouts, slots),
            infos=None if self.infos is None else read_slots(self.infos, slots),
        )

    # ---- arrays in place of others

    def assign(self, name: str, given: Any) -> Any:
        """
        Use an array in place of one of SB3's, or a dictionary of them for Dict observations. It is shared if it is in RAM, not
        in frames, and of the type that is stored; otherwise it is copied.

        :param name: name of the attribute, see :meth:`arrays`
        :param given: of the same shape
        :return: what the attribute is from now on
        :raises ValueError: for another shape, or values that are no numbers; nothing has changed then
        :raises MemoryError: if there is no memory for frames; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """
        new = self.checked(name, given)
        if name in ("observations", "next_observations"):
            self._assign_observations(keyed(new), is_next=name == "next_observations")
        elif name == "actions" and self.files is not None:
            self.reserve(0, self.n_rows - 1)
            self.actions[...] = new
        else:
            setattr(self, name, writable(new))
            self._actions_by_slot = flat(self.actions)  # they may be what was set
        self.n_assigned += 1
        return getattr(self, name)

    def checked(self, name: str, given: Any) -> Any:
        """
        Check arrays that are to be used in place of others.

        :param name: as in :meth:`assign`
        :param given: as in :meth:`assign`
        :return: an array of the stored shape and type, or a dictionary of them
        :raises ValueError: if they do not fit
        """
        stored = getattr(self, name)
        if stored is None:
            raise ValueError(f"{name} cannot be assigned: this buffer does not store them")
        return _fitting(name, given, stored)

    def _assign_observations(self, new: dict[str | None, np.ndarray], is_next: bool) -> None:
        if self.files is not None:
            self.reserve(0, self.n_rows - 1)
        # Frames first: they may find no room, and nothing has changed then. Arrays follow, which cannot fail.
        keys = sorted(new, key=lambda key: key not in self.frame_stores)
        self.stores.update({key: self.stores[key].with_array(new[key], is_next) for key in keys})
        self._show_stores()

    def set_next_row(self, pos: int) -> None:
        """
        Note that rows were written by hand, so that the next step follows another row.

        :param pos: row that is written next; the one after it is the oldest
        """
        for store in self.stores.values():
            store.set_next_row(pos)

    # ---- processes and copies

    def make_read_only(self) -> None:
        """Refuse all writes into the files from now on: they belong to the process that this one was forked from."""
        self._room_end = 0  # so that the next write reserves its rows, which is refused
        self.actions.flags.writeable = False
        for store in self.stores.values():
            store.make_read_only()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out views of the stores, and rows of files that were never written: on some disks, reading takes space."""
        state = {name: value for name, value in vars(self).items() if name not in _FOLLOWS}
        if self.files is not None:
            state["actions"] = self.actions[: self.files.n_reserved]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Move the arrays of a copy into files of its own. Without the folder of the original, they stay in RAM."""
        vars(self).update(state)
        stores = list(self.array_stores.values())
        of_stores = [array for store in stores for array in store.arrays_by_row().values()]
        arrays = moved([self.actions, *of_stores], self.n_rows, self.files)
        self.actions = arrays.pop(0)
        for store in stores:
            store.use_arrays([arrays.pop(0) for _ in store.arrays_by_row()], self.files)
        self._prepare()


# Attributes that follow from others, see `_prepare`.
_FOLLOWS = frozenset({"observations", "next_observations", "_only_store", "_actions_by_slot", "_room_end"})

# Storages whose arrays are in files.
_IN_FILES: "weakref.WeakSet[Storage]" = weakref.WeakSet()


def _protect_files() -> None:
    """In a forked process, protect the files of the process that it was forked from."""
    for storage in list(_IN_FILES):
        storage.make_read_only()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_protect_files)


class KeyedArrays(dict[str, Any]):
    """
    Arrays of Dict observations by key. One that is put in place of another is used from then on.

    :param arrays: arrays, or views of stores, by key
    :param put: :meth:`Storage.assign`, which takes the name of the attribute; the storage may be gone before the arrays
    :param name: name of the attribute
    """

    def __init__(self, arrays: dict[Any, Any], put: "weakref.WeakMethod[Callable[[str, Any], Any]]", name: str):
        super().__init__(arrays)
        self._put = put
        self._name = name

    def __setitem__(self, key: str, array: Any) -> None:
        self.update({key: array})

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Put arrays in place of others."""
        put = self._put()
        if put is None:
            raise ReferenceError(f"The buffer of these {self._name} does not exist any more: keep the buffer as well")
        super().update(put(self._name, {**self, **dict(*args, **kwargs)}))

    def __ior__(self, arrays: Any) -> "KeyedArrays":  # type: ignore[override, misc]
        self.update(arrays)
        return self

    def __reduce__(self) -> Any:
        """A copy is a plain dictionary."""
        return dict, (dict(self),)


def _fitting(name: str, given: Any, stored: Any) -> Any:
    """See :meth:`Storage.checked`; ``stored`` is what the array takes the place of."""
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
    how = ""
    if isinstance(stored, np.ndarray):  # what a store shows cannot be written to
        how = f". To change some rows only, write into them: buffer.{name}[rows] = values"
    raise ValueError(f"{name} must have shape {stored.shape}, which is (rows, environments, ...), not {array.shape}{how}")
