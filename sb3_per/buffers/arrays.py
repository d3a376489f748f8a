"""
Make SB3's arrays of another kind, where the settings ask for it: ``frames`` and ``storage_folder``.

Observations, next observations and actions may be frames or files. The small arrays (rewards, ends of episodes) are in RAM.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.files import FileArray, make_arrays
from sb3_per.buffers.frame_setting import frames_by_key
from sb3_per.buffers.frames import FrameArray, FrameStore
from sb3_per.buffers.settings import BufferSettings
from sb3_per.buffers.slots import keyed, map_arrays, read_slots, write_rows

try:
    import psutil
except ImportError:  # as in SB3
    psutil = None

# SB3's arrays with one row per step. Dict observations are dictionaries of arrays.
_OBSERVATIONS = ("observations", "next_observations")
#: those that may be frames or files
LARGE = (*_OBSERVATIONS, "actions")
#: those of which a row does not change after it was stored
WRITTEN_ONCE = (*LARGE, "rewards")
#: ends of episodes, which may change later: ``end_episodes`` sets them. They are floats of 0 and 1
FLAGS = ("dones", "timeouts")
#: the arrays of all buffers, in the order of :class:`StoredRows`
ARRAYS = (*WRITTEN_ONCE, *FLAGS)
#: further arrays of HER
HER_ARRAYS = ("infos", "ep_start", "ep_length")

# Rows that are copied at a time.
_COPIED_ROWS = 256


class StoredRows(NamedTuple):
    """Rows of SB3's arrays, by the names that ``append_rows`` gives them."""

    #: shape (n, n_envs, ...), or a dictionary of such arrays
    obs: Any
    next_obs: Any
    actions: np.ndarray
    #: shape (n, n_envs), as the next two
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray

    @classmethod
    def of(cls, buffer: ReplayBuffer, rows: np.ndarray) -> "StoredRows":
        """
        Read rows of a buffer.

        :param buffer: any buffer with next observations
        :param rows: which ones, int64 of shape (n,)
        :return: copies
        """
        shape = (len(rows), buffer.n_envs)
        slots = (rows[:, None] * buffer.n_envs + np.arange(buffer.n_envs)).reshape(-1)
        read = (read_slots(getattr(buffer, name), slots) for name in ARRAYS)
        return cls(*(map_arrays(lambda array: array.reshape(*shape, *array.shape[1:]), part) for part in read))

    def select(self, index: Any) -> "StoredRows":
        """
        Select rows, or rows and environments.

        :param index: slices of the first axes
        :return: views
        """
        return StoredRows(*(map_arrays(lambda array: array[index], part) for part in self))

    def write_to(self, buffer: ReplayBuffer, rows: np.ndarray) -> None:
        """
        Write these rows into a buffer.

        :param buffer: any buffer with next observations
        :param rows: where, int64 of shape (n,)
        """
        for name, values in zip(ARRAYS, self, strict=True):
            map_arrays(lambda stored, part: write_rows(stored, rows, part), getattr(buffer, name), values)


def place_arrays(buffer: ReplayBuffer, settings: BufferSettings, n_rows: int) -> None:
    """
    Give a buffer that SB3 built with one row its real number of rows. SB3's constructor would allocate all of them in RAM.

    :param buffer: new buffer, built with ``buffer_size=n_envs``
    :param settings: where the transitions are to be
    :param n_rows: number of rows
    :raises OSError: if the disk has no room; the buffer has not changed then
    """
    made = new_arrays(buffer, settings, n_rows, buffer.n_envs)
    vars(buffer).update(made, buffer_size=n_rows)


def new_arrays(like: ReplayBuffer, settings: BufferSettings, n_rows: int, n_envs: int) -> dict[str, Any]:
    """
    Make empty arrays for the transitions of a buffer.

    :param like: buffer with arrays of the same types, and the same shapes from the third axis on
    :param settings: where the transitions are to be
    :param n_rows: number of rows
    :param n_envs: number of environments
    :return: arrays by the names of SB3's attributes
    :raises OSError: if the disk has no room
    :warns UserWarning: if a full buffer would need more RAM than there is
    """
    made = _new_large_arrays(like, settings, n_rows, n_envs)
    for name in ("rewards", *FLAGS, *HER_ARRAYS):
        if name == "infos" and hasattr(like, name):
            made[name] = np.full((n_rows, n_envs), {})  # one dictionary for all: infos are replaced, and never written to
        elif hasattr(like, name):
            made[name] = np.zeros((n_rows, n_envs), getattr(like, name).dtype)
    return made


def _new_large_arrays(like: ReplayBuffer, settings: BufferSettings, n_rows: int, n_envs: int) -> dict[str, Any]:
    """Make what :data:`LARGE` names, see :func:`new_arrays`."""
    frames = frames_by_key(settings.frames, like.observation_space)
    folder = settings.storage_folder
    # Everything that is no stack of frames, by its name and key.
    parts = {
        (name, key): ((n_rows, n_envs, *part.shape[2:]), part.dtype)
        for name in LARGE
        for key, part in keyed(getattr(like, name, {})).items()  # no `next_observations` with `optimize_memory_usage`
        if name == "actions" or key not in frames
    }
    if folder is None:
        arrays: dict[Any, Any] = {place: np.zeros(shape, dtype) for place, (shape, dtype) in parts.items()}
    else:
        arrays = dict(zip(parts, make_arrays(list(parts.values()), folder), strict=True))
    stores: list[FrameStore] = []
    for key, n_frames in frames.items():
        part = keyed(like.observations)[key]
        store = FrameStore(n_rows, n_envs, part.shape[2:], part.dtype, n_frames, folder, stores)
        for is_next, name in enumerate(_OBSERVATIONS):
            arrays[name, key] = FrameArray(store, is_next)
    _warn_of_ram([array for array in arrays.values() if type(array) is np.ndarray], stores)
    made: dict[str, Any] = {}
    for (name, key), array in arrays.items():
        if key is None:
            made[name] = array
        else:
            made.setdefault(name, {})[key] = array
    return made


def _warn_of_ram(arrays: list[np.ndarray], stores: list[FrameStore]) -> None:
    """Warn, as SB3's constructor does, if a full buffer would need more RAM than there is."""
    n_bytes = sum(array.nbytes for array in arrays) + sum(store.expected_ram_bytes for store in stores)
    if psutil is not None and n_bytes > (available := psutil.virtual_memory().available):
        warnings.warn(
            "This system does not have apparently enough memory to store the complete replay buffer "
            f"{n_bytes / 1e9:.2f}GB > {available / 1e9:.2f}GB. Set frames=... if observations are stacks, storage_folder=... "
            "to keep transitions on a disk, or a smaller buffer_size"
        )


def move_arrays(buffer: ReplayBuffer, settings: BufferSettings) -> None:
    """
    Move the transitions of a buffer to where settings want them. Nothing happens if they are there.

    :param buffer: any buffer
    :param settings: where the transitions are to be
    :raises OSError: if the disk has no room; the buffer has not changed then
    """
    frames = frames_by_key(settings.frames, buffer.observation_space)
    are_placed = [
        _is_placed(part, None if name == "actions" else frames.get(key), settings.storage_folder)
        for name in LARGE
        for key, part in keyed(getattr(buffer, name, {})).items()
    ]
    if all(are_placed):
        return
    made = _new_large_arrays(buffer, settings, buffer.buffer_size, buffer.n_envs)
    # With `optimize_memory_usage`, the next observation of the newest row is in the row that is written next.
    n_rows = min(buffer.size() + buffer.optimize_memory_usage, buffer.buffer_size)
    copy_rows({name: getattr(buffer, name) for name in made}, made, n_rows)
    vars(buffer).update(made)


def _is_placed(array: Any, n_frames: int | None, folder: str | None) -> bool:
    """Tell whether an array is where it is wanted."""
    if isinstance(array, FrameArray):
        return array.store.n_frames == n_frames and array.store.folder == folder
    return n_frames is None and _folder_of(array) == folder


def _folder_of(array: Any) -> str | None:
    file = getattr(array, "file", None) if isinstance(array, FileArray) else None
    return None if file is None else str(file.folder)


def frames_held(buffer: ReplayBuffer) -> float:
    """
    Count the frames that a buffer holds.

    :param buffer: with ``frames``
    :return: number of frames; of several keys, the mean
    :raises AttributeError: if it has none
    """
    stores = [part.store for part in keyed(buffer.observations).values() if isinstance(part, FrameArray)]
    if not stores:
        raise AttributeError("This buffer stores no frames: frames_per_transition needs the setting frames")
    return sum(store.n_held - 1 for store in stores) / len(stores)  # the frame of zeros takes no memory of a transition


def folder_of(buffer: ReplayBuffer) -> str | None:
    """
    Name the folder of a buffer.

    :param buffer: any buffer
    :return: absolute path of the folder that holds its transitions; ``None`` if they are in RAM, e.g. in a copy for which the
        folder had no room
    """
    return _folder_of(buffer.actions)


def copy_rows(source: dict[str, Any], target: dict[str, Any], n_rows: int) -> None:
    """
    Copy the first rows of arrays.

    :param source: arrays, or dictionaries of arrays, by name
    :param target: in the same form; gets the rows
    :param n_rows: number of rows
    """
    for start in range(0, n_rows, _COPIED_ROWS):
        rows = slice(start, min(start + _COPIED_ROWS, n_rows))
        for name, arrays in target.items():
            map_arrays(lambda new, old: new.__setitem__(rows, old[rows]), arrays, source[name])  # noqa: B023 - called at once


def plain_array(array: Any) -> np.ndarray:
    """
    Return an array that needs nothing of this package.

    :param array: any kind of array of a buffer
    :return: the same array; of frames a copy
    """
    if isinstance(array, FrameArray):
        return np.asarray(array)
    return array.view(np.ndarray) if isinstance(array, FileArray) else array
