"""
Arrays in files that are mapped into memory, for buffers larger than RAM.

The operating system keeps in RAM what was used last. Blocks of the disk are allocated before they are written to: without
one, a write to a mapped file on a full disk kills the process with a bus error.
"""

import contextlib
import errno
import gc
import math
import mmap
import os
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from numba import types

from sb3_per.utils.compiled import kernel

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK, _PREFIX, _SUFFIX = "sb3_per.lock", "sb3_per-", ".mapped"

# Most bytes that are allocated ahead, in all arrays together.
_AHEAD_BYTES = 64 * 2**20

# A process that removes its folder at this moment makes another one try again.
_MOST_TRIES = 100

# Errors that a smaller buffer does not have.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)

_madvise: Any = types.ExternalFunction("madvise", types.int32(types.uint64, types.uint64, types.int32))
#: bytes that the operating system reads at once, at least
PAGE = mmap.PAGESIZE
#: size of the RAM of this machine, bytes
RAM_BYTES = PAGE * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
_WILL_NEED = int(getattr(mmap, "MADV_WILLNEED", 3))


@kernel
def will_need(address: int, n_bytes: int) -> None:
    """
    Ask the operating system to read a range of a mapped file, and do not wait for it.

    A batch asks for all its rows before it copies the first. Where none was in RAM, a batch of 32 pairs of images took 13 ms
    instead of 617 ms: the disk reads them at the same time, and no neighbours.

    :param address: of the first byte
    :param n_bytes: size of the range
    """
    start = address - address % PAGE
    _madvise(np.uint64(start), np.uint64(address + n_bytes - start), np.int32(_WILL_NEED))


@kernel
def rows_will_be_needed(address: int, row_bytes: int, slots: np.ndarray) -> None:
    """
    Ask for rows of an array, see :func:`will_need`.

    :param address: of the array
    :param row_bytes: size of a row
    :param slots: numbers of rows, int64 of shape (n,)
    """
    for i in range(slots.size):
        will_need(address + slots[i] * row_bytes, row_bytes)


class FolderInUseError(OSError):
    """A folder that was named as ``storage_folder`` belongs to another buffer, or to another process."""


def absolute(path: str | os.PathLike[str]) -> str:
    """
    Complete a path.

    :param path: absolute, relative to the working directory, or one that begins with ``~``
    :return: the path from the root, without links, which stays the same when the working directory changes
    """
    return os.path.realpath(os.path.expanduser(path))


class Folder:
    """
    A folder that belongs to one buffer, and to its copies in this process. What a killed process left there is removed.

    It is removed with the last array in it. The operating system releases the lock when the process ends, however it ends. A
    forked process can read the files; it cannot write to them, and has no lock.

    :param path: path of the folder, which is made if it does not exist; other files in it stay
    :raises FolderInUseError: if another buffer has it
    :raises OSError: if it cannot be made or locked
    """

    def __init__(self, path: str | os.PathLike[str]):
        if fcntl is None:
            raise NotImplementedError("storage_folder needs Linux or macOS: this system has no locks that end with a process")
        self.path = Path(absolute(path))
        self.pid = os.getpid()
        #: whether this process may write to the files; a fork of the owner may not
        self.is_own = True
        if self.path in _FOLDERS:
            # The buffer of a deleted model may still be there: after `learn`, SB3's callbacks keep a model in a cycle.
            gc.collect()
        self._lock = _Lock(self.path)
        for left in self.path.glob(f"{_PREFIX}*{_SUFFIX}"):
            left.unlink(missing_ok=True)
        _FOLDERS[self.path] = self

    @classmethod
    def shared(cls, path: str | os.PathLike[str]) -> "Folder":
        """
        Share a folder with the buffer that has it in this process, or take it.

        :param path: path of the folder
        :return: the folder
        :raises OSError: see the class
        """
        folder = _FOLDERS.get(Path(absolute(path)))
        if folder is None or not folder.is_own:
            return cls(path)
        folder.make_again()
        return folder

    def make_again(self) -> None:
        """
        Make the folder, and lock it, if somebody has removed it. The arrays in it live on without their names.

        :raises OSError: see the class
        """
        if not self._lock.is_there():
            self._lock = _Lock(self.path)

    def leave(self) -> None:
        """Leave the folder to its owner: this process is a fork of it."""
        self.is_own = False
        self._lock.leave()

    def require_own(self) -> None:
        """
        Check that this process may write to the files.

        :raises FolderInUseError: in a fork of the owner
        """
        if not self.is_own:
            owner = (
                f"storage_folder={str(self.path)!r} belongs to process {self.pid}, and process {os.getpid()} is a fork of it"
            )
            raise FolderInUseError(
                f"{owner}: it can read the buffer, and cannot write to it. To add transitions here, make a copy of the buffer "
                "first, with copy.deepcopy(buffer), or a new buffer with a folder of its own"
            )

    def file(self, n_bytes: int) -> tuple[int, np.ndarray]:
        """
        Make a file, and map it. It is removed with the last view of the array.

        :param n_bytes: size, above 0
        :return: descriptor of the file, to be closed by the caller, and its bytes: zeros, uint8 of shape (n_bytes,)
        :raises OSError: if it cannot be made
        """
        self.require_own()
        self.make_again()
        descriptor, path = tempfile.mkstemp(_SUFFIX, _PREFIX, self.path)
        try:
            os.ftruncate(descriptor, n_bytes)
            # Unlike `mmap`, this needs no descriptor while the file is mapped: a process has few of them.
            content = th.from_file(path, shared=True, size=n_bytes, dtype=th.uint8).numpy()
        except BaseException as error:
            os.close(descriptor)
            os.unlink(path)
            if isinstance(error, (OverflowError, RuntimeError)):  # from `ftruncate` and PyTorch, for a size beyond all limits
                raise self.error(OSError(errno.EFBIG, str(error))) from None
            if isinstance(error, OSError):
                raise self.error(error) from None
            raise
        weakref.finalize(content, _remove, path, self)  # the last file keeps the folder
        return descriptor, content

    def allocate(self, descriptor: int, start: int, n_bytes: int) -> None:
        """
        Allocate blocks of the disk.

        :param descriptor: of a file
        :param start: first byte
        :param n_bytes: number of bytes
        :raises OSError: on a full disk
        """
        if n_bytes <= 0:
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, start, n_bytes)
                return
            end = start + n_bytes  # macOS: nothing was written there before
            while start < end:
                start += os.pwrite(descriptor, bytes(min(_AHEAD_BYTES, end - start)), start)
        except OSError as error:
            raise self.error(error) from None

    def error(self, error: OSError) -> OSError:
        """
        Explain an error of the operating system.

        :param error: from making or enlarging a file
        :return: an error that names the folder and says what to do
        """
        folder = f"storage_folder={str(self.path)!r}"
        if error.errno in _NO_ROOM:
            return OSError(
                error.errno,
                f"{folder} has no room for the next transitions, of which none is stored ({error.strerror}). Free some space "
                "on this disk, or choose a smaller buffer_size",
            )
        return OSError(error.errno, f"{folder} cannot store the next transitions, of which none is stored ({error.strerror})")


_FOLDERS: "weakref.WeakValueDictionary[Path, Folder]" = weakref.WeakValueDictionary()


def _leave_folders() -> None:
    """In a forked process, leave all folders to the process that it was forked from."""
    for folder in list(_FOLDERS.values()):
        folder.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_folders)


def folder_of_copy(folder: Folder | None) -> Folder | None:
    """
    Choose the folder for a copy of a buffer in this process.

    :param folder: of the buffer; ``None``: the buffer is in RAM
    :return: the same folder; ``None``, if it belongs to another process, because this one was forked: the copy stays in RAM
    :warns UserWarning: if the copy stays in RAM although the buffer does not
    """
    return None if folder is None else _shared_or_none(folder.path)


def _shared_or_none(path: str | os.PathLike[str]) -> Folder | None:
    """Share or take the folder of a buffer for its copy. If that is impossible, warn that the copy stays in RAM."""
    try:
        return Folder.shared(path)
    except (OSError, NotImplementedError) as error:
        warnings.warn(f"This copy of a buffer keeps its transitions in RAM: {error}")
        return None


class Files:
    """
    Arrays of one storage, each in a file of a folder.

    :param folder: folder of the files
    """

    def __init__(self, folder: Folder):
        self.folder = folder
        # Arrays by row, each with its descriptor.
        self._arrays: list[tuple[np.ndarray, int]] = []
        #: number of rows, from row 0 on, whose blocks are allocated
        self.n_reserved = 0
        # Bytes of all files.
        self._n_bytes = 0

    @property
    def exceed_ram(self) -> bool:
        """Whether a read may wait for the disk. While all is in RAM, :func:`will_need` would take longer than the read."""
        return self._n_bytes > RAM_BYTES

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """
        Make an array. Call :meth:`reserve` before rows are written.

        :param shape: (n_rows, ...)
        :param dtype: type of the numbers
        :return: zeros of this shape
        :raises OSError: see :meth:`Folder.file`
        """
        descriptor, content = self.folder.file(math.prod(shape) * np.dtype(dtype).itemsize)
        weakref.finalize(content, os.close, descriptor)
        array: np.ndarray = content.view(dtype).reshape(shape)
        self._arrays.append((array, descriptor))
        self._n_bytes += array.nbytes
        return array

    def block(self, n_bytes: int) -> np.ndarray:
        """
        Make a file whose blocks are allocated at once.

        :param n_bytes: size, above 0
        :return: zeros, uint8 of shape (n_bytes,), which may be written
        :raises OSError: see :meth:`Folder.file` and :meth:`Folder.allocate`
        """
        descriptor, content = self.folder.file(n_bytes)
        try:
            self.folder.allocate(descriptor, 0, n_bytes)
        finally:
            os.close(descriptor)
        self._n_bytes += n_bytes
        return content

    def reserve(self, n_rows: int) -> None:
        """
        Allocate the blocks of rows in all arrays, and of some rows ahead if there is space.

        :param n_rows: number of rows, from row 0 on, that will be written
        :raises OSError: on a full disk
        :raises FolderInUseError: in a fork of the process that has the folder, also if the blocks are there
        """
        self.folder.require_own()
        if n_rows <= self.n_reserved:
            return
        row_bytes = sum(array[:1].nbytes for array, _ in self._arrays)
        n_ahead = self.n_reserved + max(_AHEAD_BYTES // max(row_bytes, 1), 1)
        try:
            self._allocate(max(n_rows, n_ahead))
        except OSError:
            self._allocate(n_rows)

    def _allocate(self, n_rows: int) -> None:
        for array, descriptor in self._arrays:
            start, end = (min(n, len(array)) * array[:1].nbytes for n in (self.n_reserved, n_rows))
            self.folder.allocate(descriptor, start, end - start)
        self.n_reserved = n_rows

    def __reduce__(self) -> Any:
        """Copies are in the same folder; the arrays are copied by their owner."""
        return _files_in, (str(self.folder.path),)


def _files_in(path: str) -> Files | None:
    """Make files for a copy of a buffer; without the folder, it stays in RAM."""
    folder = _shared_or_none(path)
    return None if folder is None else Files(folder)


class _Lock:
    """
    The lock of a folder, which ends with this object, or with the process.

    :param folder: path of the folder, which is made if it does not exist
    :raises FolderInUseError: if it is locked
    :raises OSError: if it cannot be made
    """

    def __init__(self, folder: Path):
        self._path = folder / _LOCK
        self._descriptor = _locked(folder)
        self._end = weakref.finalize(self, _release, self._descriptor, folder)

    def is_there(self) -> bool:
        """Whether the file of the lock is still in the folder."""
        return _is_at(self._path, self._descriptor)

    def leave(self) -> None:
        """Close the descriptor of a forked process; the lock stays with the process that it was forked from."""
        if self._end.detach() is not None:
            os.close(self._descriptor)


def _locked(folder: Path) -> int:
    """Lock a folder, and return the descriptor of the lock."""
    path, n_tries = folder / _LOCK, 0
    while True:
        n_tries += 1
        try:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except (FileExistsError, FileNotFoundError):  # the last owner has removed the folder in the meantime
            if n_tries == _MOST_TRIES:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode()
            os.close(descriptor)
            what = f"storage_folder={str(folder)!r} belongs to another buffer" + (f" (process {owner})" if owner else "")
            raise FolderInUseError(f"{what}: each buffer needs a folder of its own") from None
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor
        os.close(descriptor)  # the last owner has removed the file in the meantime


def _is_at(path: Path, descriptor: int) -> bool:
    """Tell whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _release(descriptor: int, folder: Path) -> None:
    """Remove a folder if it is empty, and unlock it."""
    path = folder / _LOCK
    if _is_at(path, descriptor):
        with contextlib.suppress(OSError):  # somebody else has files there, or has removed it
            path.unlink()
            folder.rmdir()
    os.close(descriptor)


def _remove(path: str, folder: Folder) -> None:
    """Remove a file that is not used any more, unless it belongs to another process. The folder stays until then."""
    if folder.is_own:
        Path(path).unlink(missing_ok=True)
