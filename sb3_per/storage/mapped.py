"""
Arrays in files that are mapped into memory, for buffers larger than RAM.

The operating system keeps in RAM what was used last. Blocks of the disk are allocated before they are written to: without
one, a write to a mapped file on a full disk kills the process with a bus error.
"""

import contextlib
import math
import mmap
import os
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from sb3_per.utils.compiled import kernel

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK, _PREFIX, _SUFFIX = "sb3_per.lock", "sb3_per-", ".mapped"

# Most bytes that are allocated ahead, in all arrays together.
_AHEAD_BYTES = 64 * 2**20


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
    """A folder that was named as ``storage_folder`` belongs to another buffer."""


class Folder:
    """
    A folder that belongs to one buffer, and to its copies in this process. What a killed process left there is removed.

    It is removed with the last array in it. The operating system releases the lock when the process ends, however it ends.

    :param path: path of the folder, which is made if it does not exist; other files in it stay
    :raises FolderInUseError: if another buffer has it
    :raises OSError: if it cannot be made or locked
    """

    def __init__(self, path: str | Path):
        if fcntl is None:
            raise NotImplementedError("storage_folder needs Linux or macOS: this system has no locks that end with a process")
        self.path, self.pid = Path(os.path.realpath(path)), os.getpid()
        descriptor = _locked(self.path)
        weakref.finalize(self, _release, descriptor, self.path, self.pid)
        for left in self.path.glob(f"{_PREFIX}*{_SUFFIX}"):
            left.unlink()
        _FOLDERS[self.path] = self

    @classmethod
    def shared(cls, path: str | Path) -> "Folder":
        """
        Share a folder with the buffer that has it in this process, or take it.

        :param path: path of the folder
        :return: the folder
        :raises OSError: see the class
        """
        folder = _FOLDERS.get(Path(os.path.realpath(path)))
        return cls(path) if folder is None or folder.pid != os.getpid() else folder

    def file(self, n_bytes: int) -> tuple[int, np.ndarray]:
        """
        Make a file, and map it. It is removed with the last view of the array.

        :param n_bytes: size, above 0
        :return: descriptor of the file, valid as long as the array, and its bytes: zeros, uint8 of shape (n_bytes,)
        :raises OSError: if it cannot be made
        """
        descriptor, path = tempfile.mkstemp(_SUFFIX, _PREFIX, self.path)
        try:
            os.ftruncate(descriptor, n_bytes)
            mapped = mmap.mmap(descriptor, n_bytes)
        except OSError as error:
            _remove(descriptor, path, self.pid, self)
            raise self.error(error) from None
        weakref.finalize(mapped, _remove, descriptor, path, self.pid, self)  # the last file keeps the folder
        return descriptor, np.ndarray((n_bytes,), np.uint8, buffer=mapped)

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
            else:  # macOS: nothing was written there before
                for begin in range(start, start + n_bytes, _AHEAD_BYTES):
                    os.pwrite(descriptor, bytes(min(_AHEAD_BYTES, start + n_bytes - begin)), begin)
        except OSError as error:
            raise self.error(error) from None

    def error(self, error: OSError) -> OSError:
        """
        Explain an error of the operating system.

        :param error: from a full disk
        :return: an error that names the folder and says what to do
        """
        return OSError(
            error.errno,
            f"storage_folder={str(self.path)!r} has no room for the next transitions, of which none is stored "
            f"({error.strerror}). Free some space on this disk, or choose a smaller buffer_size",
        )


_FOLDERS: "weakref.WeakValueDictionary[Path, Folder]" = weakref.WeakValueDictionary()


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

    def array(self, shape: tuple[int, ...], dtype: Any, is_whole: bool = False) -> np.ndarray:
        """
        Make an array. Call :meth:`reserve` before rows are written.

        :param shape: (n_rows, ...)
        :param dtype: type of the numbers
        :param is_whole: whether to allocate all blocks at once; :meth:`reserve` is not needed then
        :return: zeros of this shape
        :raises OSError: see :meth:`Folder.file` and :meth:`Folder.allocate`
        """
        descriptor, content = self.folder.file(math.prod(shape) * np.dtype(dtype).itemsize)
        array: np.ndarray = content.view(dtype).reshape(shape)
        if is_whole:
            self.folder.allocate(descriptor, 0, len(content))
        else:
            self._arrays.append((array, descriptor))
        self._n_bytes += array.nbytes
        return array

    def moved(self, array: Any) -> Any:
        """
        Move an array into a file.

        :param array: from RAM; anything else stays what it is, for example the view of a store
        :return: the array in a file
        :raises OSError: on a full disk
        """
        if not isinstance(array, np.ndarray):
            return array
        moved = self.array(array.shape, array.dtype, is_whole=True)
        moved[:] = array
        return moved

    def reserve(self, n_rows: int) -> None:
        """
        Allocate the blocks of rows in all arrays, and of some rows ahead if there is space.

        :param n_rows: number of rows, from row 0 on, that will be written
        :raises OSError: on a full disk
        """
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
    try:
        return Files(Folder.shared(path))
    except (OSError, NotImplementedError) as error:
        warnings.warn(f"This copy of a buffer keeps its transitions in RAM: {error}")
        return None


def _locked(folder: Path) -> int:
    """Lock a folder, and return the descriptor of the lock."""
    path = folder / _LOCK
    while True:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode()
            os.close(descriptor)
            what = f"storage_folder={str(folder)!r} belongs to another buffer (process {owner})"
            raise FolderInUseError(f"{what}: each buffer needs a folder of its own") from None
        # The last owner may have removed the file in the meantime.
        if path.exists() and os.path.samestat(os.fstat(descriptor), os.stat(path)):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor
        os.close(descriptor)


def _release(descriptor: int, folder: Path, pid: int) -> None:
    """Remove a folder if it is empty, and unlock it; a forked process leaves it to its owner."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):  # somebody else has files there, or has removed it
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()
    os.close(descriptor)


def _remove(descriptor: int, path: str, pid: int, folder: Folder) -> None:
    """Remove a file that is not used any more. The last argument keeps the folder until then."""
    if os.getpid() == pid:
        Path(path).unlink(missing_ok=True)
    os.close(descriptor)
