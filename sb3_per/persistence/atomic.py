"""
Files that are there as a whole or not at all, after a kill and after a loss of power.

A file is written under a temporary name, made durable, and renamed; the name is durable once its directory is.
"""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from filelock import FileLock, Timeout

_T = TypeVar("_T")

TEMPORARY = ".tmp"

# Answers of file systems, e.g. on clusters, that have no locks, or cannot make a directory durable.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def write_file(path: Path, write: Callable[[BinaryIO], _T]) -> _T:
    """
    Write a file that takes the place of another only when it is whole. Its name is durable after :func:`sync_directory`.

    :param path: of the file, in a directory that exists
    :param write: is given the open file
    :return: what ``write`` returned
    :raises OSError: e.g. on a full disk; what was there before is there still, and nothing else
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        # Made anew: what has that name may be a link that somebody else put there.
        with open(temporary, "xb") as file:
            result = write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return result


def sync_directory(path: Path) -> None:
    """
    Make durable which files a directory has.

    :param path: of the directory
    """
    if os.name == "nt":
        return  # a directory cannot be opened there; NTFS journals its names
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """
    Make a directory, with those above it, durable.

    :param path: of the directory
    :raises NotADirectoryError: if there is a file of that name
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, and a directory is needed: remove it, or take another name")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    # Also of the one that is there: who made it may have been killed before it was durable.
    with suppress(PermissionError):  # others own what it is in, and it can be passed and not read
        sync_directory((missing[-1].parent if missing else path).parent)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder)
        sync_directory(folder.parent)


@contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """
    Keep other writers away. The operating system gives the lock back when a process ends, however it ends.

    :param directory: that is written to
    :raises BlockingIOError: if another writer is at it
    :raises FileExistsError: if something else than a file has the name of the lock
    """
    path = directory / ".lock"
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise FileExistsError(f"{path} must be a file: it keeps other writers away. Remove what has its name")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"Another process or thread is saving to {directory} at this moment") from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(f"The file system of {directory} has no locks: see to it that nobody else saves there ({error})")
    try:
        yield
    finally:
        with suppress(OSError):
            lock.release()
