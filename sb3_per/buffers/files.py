"""
Arrays in files, for buffers larger than RAM.

A file has no name, so nothing is left behind however the process ends, and no other process can open it. Its blocks of the
disk are allocated before they are written to: without one, a write to a mapped file on a full disk kills the process with a
bus error.
"""

import contextlib
import ctypes
import errno
import math
import mmap
import os
import pickle
import sys
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

#: Size of the RAM of this machine, bytes.
RAM_BYTES = mmap.PAGESIZE * os.sysconf("SC_PHYS_PAGES")

#: Flag of a mapping that takes RAM only where it is written, also if the whole is larger than RAM. Python has it since 3.13.
MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_MAP_FIXED = 0x10

# Bytes that a system without `posix_fallocate` (macOS) writes at a time.
_WRITTEN_BYTES = 2**24

# Errors that a smaller buffer does not have.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class _Mapping:
    """A mapped file of this process: descriptor, size, and bytes whose blocks are allocated."""

    def __init__(self, descriptor: int, n_bytes: int):
        self.descriptor = descriptor
        self.n_bytes = n_bytes
        self.n_allocated = 0


# By address. Those of the process that a forked one comes from are not among them.
_MAPPINGS: dict[int, _Mapping] = {}


def absolute(path: str | os.PathLike[str]) -> str:
    """
    Complete a path.

    :param path: absolute, relative to the working directory, or one that begins with ``~``
    :return: the path from the root, without links, which stays the same when the working directory changes
    """
    return os.path.realpath(os.path.expanduser(path))


class MappedFile:
    """
    A file without a name, mapped into memory. It lives as long as this object or a view of its bytes.

    :param folder: folder on the disk that holds the bytes; made if it does not exist
    :param n_bytes: size, above 0. :meth:`allocate` allocates blocks of the disk
    :raises OSError: if the file cannot be made; the message names the folder and the bytes
    """

    #: whether all files of this process are larger than RAM, so that a read may wait for the disk
    exceed_ram: ClassVar[bool] = False

    def __init__(self, folder: str | os.PathLike[str], n_bytes: int):
        self.folder = Path(absolute(folder))
        descriptor = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = _nameless_file(self.folder)
            os.ftruncate(descriptor, n_bytes)
            self._map = mmap.mmap(descriptor, n_bytes)
        except (OSError, OverflowError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise self._explained(error, n_bytes) from None
        #: all bytes, zeros at first, uint8 of shape (n_bytes,)
        self.content = np.frombuffer(self._map, np.uint8)
        #: descriptor of the file
        self.descriptor = descriptor
        address = self.content.ctypes.data
        self._mapping = _MAPPINGS[address] = _Mapping(descriptor, n_bytes)
        weakref.finalize(self._map, _close, address, descriptor)

    def allocate(self, n_bytes: int) -> None:
        """
        Allocate blocks of the disk for the first bytes of the file.

        :param n_bytes: number of bytes, at most the size
        :raises OSError: on a full disk; the message names the folder and the missing bytes. Nothing has changed then
        """
        mapping = self._mapping
        start = mapping.n_allocated
        if n_bytes <= start:
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(mapping.descriptor, start, n_bytes - start)
            else:
                while start < n_bytes:
                    start += os.pwrite(mapping.descriptor, bytes(min(_WRITTEN_BYTES, n_bytes - start)), start)
        except OSError as error:
            raise self._explained(error, n_bytes - mapping.n_allocated) from None
        mapping.n_allocated = n_bytes
        _note_size()

    def will_need(self, starts: np.ndarray, n_bytes: int) -> None:
        """
        Ask the operating system to read pieces, and do not wait: so the disk reads all of a batch at the same time.

        :param starts: first byte of each piece, integers of shape (n,)
        :param n_bytes: size of a piece
        """
        for start in starts.tolist():
            page_start = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page_start, start + n_bytes - page_start)

    def _explained(self, error: Exception, n_bytes: int) -> OSError:
        """Make an error that names the folder, and says what to do."""
        number = getattr(error, "errno", None) or errno.EFBIG
        reason = os.strerror(number)
        folder = f"storage_folder={str(self.folder)!r}"
        if number in _NO_ROOM:
            advice = "Nothing has changed. Free space there, or choose a smaller buffer_size"
            return OSError(number, f"{folder} has no room for {n_bytes:,} bytes more ({reason}). {advice}")
        return OSError(number, f"{folder} cannot hold {n_bytes:,} bytes ({reason})")


def _nameless_file(folder: Path) -> int:
    """Make a file without a name in a folder, and return its descriptor."""
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # some file systems, such as those of networks, do not have it
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    descriptor, name = tempfile.mkstemp(prefix="sb3_per-", dir=folder)
    os.unlink(name)
    return descriptor


def _note_size() -> None:
    MappedFile.exceed_ram = sum(mapping.n_allocated for mapping in _MAPPINGS.values()) > RAM_BYTES


def _close(address: int, descriptor: int) -> None:
    """Close the descriptor of a file whose mapping ends."""
    mapping = _MAPPINGS.get(address)
    if mapping is not None and mapping.descriptor == descriptor:
        del _MAPPINGS[address]
    _note_size()
    os.close(descriptor)


def _make_private() -> None:
    """
    In a forked process, map the same files again so that writes stay in this process. The arrays keep their addresses.

    Python's ``mmap`` cannot map to a given address, so this calls the function of the C library.
    """
    if not _MAPPINGS:
        return
    map_at = ctypes.CDLL(None, use_errno=True).mmap
    map_at.restype = ctypes.c_void_p
    map_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | _MAP_FIXED | MAP_NORESERVE
    for address, mapping in _MAPPINGS.items():
        if map_at(address, mapping.n_bytes, protection, flags, mapping.descriptor, 0) != address:
            os.write(2, b"sb3_per: a forked process cannot map storage_folder privately, so it ends here\n")
            os._exit(1)
    # A process that is forked from this one must see its writes, so it must not map the files once more.
    _MAPPINGS.clear()


os.register_at_fork(after_in_child=_make_private)


# ---- arrays


class FileArray(np.ndarray):
    """
    Array in a file. Views are plain arrays of the same bytes; a deep copy or a pickle is in a file of its own in the same
    folder.
    """

    #: file that holds the array; ``None`` for views
    file: MappedFile | None = None
    #: first byte of the array in the file
    start: int = 0

    def will_need(self, slots: np.ndarray) -> None:
        """
        Ask the operating system to read slots, if they may not be in RAM.

        :param slots: ``row * n_envs + env``, int64 of shape (n,)
        """
        if MappedFile.exceed_ram and self.file is not None:
            n_bytes = self[0, 0].nbytes
            self.file.will_need(self.start + slots * n_bytes, n_bytes)

    def __deepcopy__(self, memo: dict[int, Any] | None) -> np.ndarray:  # type: ignore[override]
        # In RAM if the folder has no room.
        if self.file is None:
            return self.view(np.ndarray).copy()
        return _copy_in(str(self.file.folder), self.view(np.ndarray))

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = self.view(np.ndarray)
        if self.file is None:
            return plain.__reduce_ex__(protocol)
        content: Any = plain.reshape(-1).view(np.uint8)
        # From protocol 5 on, the bytes are written without a copy of them.
        content = pickle.PickleBuffer(content) if protocol >= 5 else content.tobytes()
        return _unpickled, (str(self.file.folder), self.shape, self.dtype, content)


def make_arrays(shapes: list[tuple[tuple[int, ...], Any]], folder: str | os.PathLike[str]) -> list[FileArray]:
    """
    Make arrays of zeros in one file, of which every block is allocated.

    :param shapes: shape and type of each
    :param folder: folder of the file
    :return: the arrays; the file ends with the last view of them
    :raises OSError: if the disk has no room for all of them; see :class:`MappedFile`
    """
    starts = [0]
    for shape, dtype in shapes:
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        starts.append(starts[-1] + -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    file = MappedFile(folder, starts[-1])
    file.allocate(starts[-1])
    arrays = []
    for start, (shape, dtype) in zip(starts[:-1], shapes, strict=True):
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        array = file.content[start : start + n_bytes].view(dtype).reshape(shape).view(FileArray)
        array.file = file
        array.start = start
        arrays.append(array)
    return arrays


def warn_of_ram(error: OSError) -> None:
    """
    Say that a copy of a buffer is in RAM.

    :param error: why it has no file
    :warns UserWarning: always
    """
    warnings.warn(f"This copy of a buffer keeps its transitions in RAM: {error.strerror}", stacklevel=2)


def _copy_in(folder: str, array: np.ndarray) -> np.ndarray:
    """Copy an array into a file, or into RAM if that is impossible."""
    try:
        [copied] = make_arrays([(array.shape, array.dtype)], folder)
    except OSError as error:
        warn_of_ram(error)
        return array.copy()
    copied[...] = array
    return copied


def _unpickled(folder: str, shape: tuple[int, ...], dtype: np.dtype, content: Any) -> np.ndarray:
    """Make an array of what :meth:`FileArray.__reduce_ex__` gave."""
    return _copy_in(folder, np.frombuffer(content, dtype).reshape(shape))
