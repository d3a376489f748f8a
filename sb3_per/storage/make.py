"""Make an empty storage, or move the transitions of one into another layout."""

import shutil
import warnings
from functools import partial

import numpy as np

from sb3_per.storage.array_store import ArrayStore, empty_array
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.mapped import Files, Folder
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Layout, Storage
from sb3_per.storage.store import ObservationStore

try:
    import psutil
except ImportError:  # as in SB3
    psutil = None


def make_storage(layout: Layout, n_rows: int, n_envs: int, folder: Folder | None) -> Storage:
    """
    Make an empty storage.

    :param layout: of the transitions
    :param n_rows: number of rows
    :param n_envs: number of environments
    :param folder: folder for files; ``None``: in RAM
    :return: the storage
    :raises NotImplementedError: for a store of the user's with a folder, with ``optimize_memory_usage``, or with frames in its
        place
    :raises OSError: if the files cannot be made
    """
    if layout.store_class is not None and folder is not None:
        raise NotImplementedError(
            "storage_folder with a store_class is not supported: the store decides where observations are kept"
        )
    if layout.store_class is not None and layout.shares_next_obs:
        raise NotImplementedError(
            "optimize_memory_usage=True with a store_class is not supported: the store decides how next observations are kept"
        )
    if layout.store_class is not None and layout.frames.keys() == layout.shapes.keys():
        raise NotImplementedError(
            f"frames={layout.frames} with a store_class is not supported: all observations would be stored as frames, and "
            "none in the store"
        )
    files = None if folder is None else Files(folder)
    stores = {key: _make_store(layout, key, n_rows, n_envs, files) for key in layout.shapes}
    infos = None
    if layout.keeps_infos:
        infos = np.full((n_rows, n_envs), {})  # one dictionary for all: infos are replaced, and never written to
    return Storage(
        layout,
        stores,
        actions=empty_array((n_rows, n_envs, *layout.action_shape), layout.action_dtype, files),
        rewards=np.zeros((n_rows, n_envs), np.float32),
        dones=np.zeros((n_rows, n_envs), np.float32),
        timeouts=np.zeros((n_rows, n_envs), np.float32),
        infos=infos,
        files=files,
    )


def _make_store(layout: Layout, key: str | None, n_rows: int, n_envs: int, files: Files | None) -> ObservationStore:
    shape = layout.shapes[key]
    dtype = layout.dtypes[key]
    if key in layout.frames:
        return FrameStore(n_rows, n_envs, shape, dtype, layout.frames[key], files)
    if layout.store_class is not None:
        return layout.store_class(n_rows, n_envs, shape, dtype)
    empty = partial(empty_array, (n_rows, n_envs, *shape), dtype, files)
    observations = empty()
    if layout.shares_next_obs:
        return ArrayStore(observations, None, files)
    return ArrayStore(observations, empty(), files)


def converted(storage: Storage, ring: Ring, layout: Layout, folder: Folder | None) -> Storage:
    """
    Move observations from arrays to frames, or from RAM to files, or to stores of another class, or back.

    :param storage: of the transitions; not to be used any more
    :param ring: of the same transitions
    :param layout: of the new storage
    :param folder: folder of the new storage; ``None``: in RAM
    :return: a new storage in this layout; the given one if it has the layout already
    """
    if layout == storage.layout and folder is storage.folder:
        return storage
    new = make_storage(layout, storage.n_rows, storage.n_envs, folder)
    copy_rows(storage, ring, new)
    return new


def copy_rows(storage: Storage, ring: Ring, target: Storage) -> None:
    """
    Copy all transitions that a ring holds.

    :param storage: of the transitions
    :param ring: of the same transitions
    :param target: storage of as many rows, which gets each step in the same row
    """
    for envs, steps in ring.in_order(ring.oldest_held):
        slots = ring.slots_of_steps(steps, envs)
        target.write(steps % ring.n_rows, envs, storage.read_steps(slots))


def warn_of_size(storage: Storage, sampler_nbytes: int) -> None:
    """
    Warn if a full buffer would be larger than the memory or the space that is free.

    :param storage: of the buffer, still empty
    :param sampler_nbytes: bytes of the masses, which are in RAM
    :warns UserWarning: if it would be
    """
    n_ram, n_disk = storage.full_nbytes()
    n_ram += sampler_nbytes
    if psutil is not None and n_ram > (available := psutil.virtual_memory().available):
        warnings.warn(
            "This system does not have apparently enough memory to store the complete replay buffer "
            f"{n_ram / 1e9:.2f}GB > {available / 1e9:.2f}GB. Set frames=... if observations are stacks, "
            "storage_folder=... to keep transitions on a disk, or a smaller buffer_size"
        )
    if storage.folder is not None and n_disk > (free := shutil.disk_usage(storage.folder.path).free):
        sizes = f"{free / 1e9:.2f}GB of free space, and the complete replay buffer takes {n_disk / 1e9:.2f}GB"
        warnings.warn(f"The disk of storage_folder={str(storage.folder.path)!r} has {sizes}")
