"""
Write files that are complete or do not exist, even after a kill or a power failure.

Each writer has a temporary file of its own, makes it durable, and renames it. The name is durable once its directory is.
"""

import errno
import fcntl
import os
import re
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

_T = TypeVar("_T")

#: Pattern of the end of a temporary name; the part before it is the final name.
TEMPORARY = r"(?:\.[0-9a-f]{32})?\.tmp"

# Errors of file systems, e.g. on clusters, that have no locks or cannot make a directory durable.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def write_file(path: Path, write: Callable[[BinaryIO], _T]) -> _T:
    """
    Write a file, which replaces one of the same name only when it is complete. The name is durable after
    :func:`sync_directory`.

    The new file has the mode and, if we may set it, the group of the old one, so the same people may read it. Several threads
    and processes may write to one name: the last one to finish wins.

    :param path: path of the file, in a directory that exists
    :param write: writes the content into an open file
    :return: what ``write`` returned
    :raises OSError: e.g. on a full disk, or for an old file that we may not write to; it remains, and no temporary one
    """
    old = _status_of(path)
    remove_temporary(path.parent, re.escape(path.name))
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with _open_temporary(temporary) as file:
            result = write(file)
            file.flush()
            if old is not None:
                with suppress(OSError):  # we may be no member of the group
                    os.fchown(file.fileno(), -1, old.st_gid)
                with suppress(OSError):  # not every file system has modes
                    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            os.fsync(file.fileno())
            os.replace(temporary, path)  # the file is still locked, so that nobody removes it
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return result


def _status_of(path: Path) -> os.stat_result | None:
    """
    Look at the file that a new one will replace.

    :param path: path of the file
    :return: its owner and mode; ``None`` if there is none
    :raises PermissionError: if we may not write to it: a rename would need no such right
    """
    if not path.exists():
        return None
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return path.stat()


def _open_temporary(path: Path) -> BinaryIO:
    """
    Create a temporary file. As long as it is open, :func:`remove_temporary` leaves it alone.

    :param path: path of the file
    :return: the file, open for writing
    """
    while True:
        file = open(path, "xb")
        with suppress(OSError):  # without locks, `remove_temporary` removes nothing
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file
        file.close()  # it was removed before it was locked


def remove_temporary(directory: Path, names: str) -> None:
    """
    Remove the temporary files of killed writers. Those of others stay.

    :param directory: path of the directory
    :param names: pattern of the final names of the files
    """
    for name in os.listdir(directory):
        if re.fullmatch(f"(?:{names}){TEMPORARY}", name):
            # An error if the writer is alive, because its file is locked.
            with suppress(OSError), open(directory / name, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(directory / name)


def sync_directory(path: Path) -> None:
    """
    Write the names in a directory to the disk, so that a power loss does not undo them.

    :param path: path of the directory
    """
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
    Make a directory and its missing parents, durably.

    :param path: absolute path of the directory
    :raises NotADirectoryError: if a file has this name
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, and a directory is needed: remove the file, or choose another name")
    n_missing = sum(not folder.exists() for folder in path.parents)
    os.makedirs(path, exist_ok=True)
    # Even if the directory exists: the process that made it may have been killed before the name was durable.
    for folder in path.parents[: n_missing + 1]:
        with suppress(PermissionError):  # a parent that we may enter, but not read
            sync_directory(folder)


@contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """
    Keep other writers away. The operating system releases the lock when a process ends, however it ends.

    :param directory: directory to write to
    :raises BlockingIOError: if another process or thread is writing to it
    """
    with open(directory / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"Another process or thread is saving to {directory} at this moment") from error
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            warnings.warn(f"{directory} cannot be locked ({error}): make sure that nobody else saves to it")
        yield
