"""
Files that are there as a whole or not at all, after a kill and after a loss of power. It knows names and bytes.

A file is written under a temporary name, made durable, and renamed; the name is durable once its directory is.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_T = TypeVar("_T")

TEMPORARY = ".tmp"
_LOCK_NAME = ".lock"


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
        with open(temporary, "wb") as file:
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
    finally:
        os.close(descriptor)


def remove_files(directory: Path, names: list[str]) -> None:
    """
    Remove files, for good after :func:`sync_directory`. One that is not there, or cannot be removed, is left.

    :param directory: where they are
    :param names: of the files
    """
    for name in names:
        with suppress(OSError):
            os.unlink(directory / name)


def make_directory(path: Path) -> None:
    """
    Make a directory, with those above it, durable.

    :param path: of the directory
    :raises NotADirectoryError: if there is a file of that name
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, and a buffer is stored in a directory: remove it, or take another name")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


@contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """
    Keep other writers away. The operating system gives the lock back when a process ends, however it ends.

    :param directory: that is written to
    :raises BlockingIOError: if another writer is at it
    """
    with open(directory / _LOCK_NAME, "ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(f"Another process or thread is saving to {directory} at this moment") from error
        yield
