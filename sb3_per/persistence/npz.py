"""
NumPy's ``.npz``, not compressed, written from and read into arrays that are there already.

``numpy.load`` reads what this writes, but is not used to read it: it allocates what the file asks for, and copies every array
once more, which is 64 MiB beside the buffer for each file under way. Here the manifest says where the bytes of an array lie,
how many they are, and their CRC-32. Nothing else of the file is looked at.
"""

import errno
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

# Bytes that are read or written at a time: they are still in the cache when their checksum is computed.
_CHUNK = 2**20


class DamagedFileError(ValueError):
    """A file is not what was written: its message names the file and the damage."""


@dataclass
class Member:
    """
    What the manifest says of an array in a file.

    :param shape: of the array
    :param dtype: as in the header of the array, e.g. ``"<f4"``
    :param offset: where in the file the member begins, with the header of the array
    :param n_bytes: of header and array
    :param crc32: of both
    """

    shape: list[int]
    dtype: str
    offset: int
    n_bytes: int
    crc32: int

    def fits(self, dtype: np.dtype, shape: Sequence[int]) -> bool:
        """
        :param dtype: that is wanted
        :param shape: likewise
        :return: whether this is such an array
        """
        n_bytes = math.prod(shape) * dtype.itemsize
        return (self.dtype, self.shape) == (dtype.str, list(shape)) and self.n_bytes >= n_bytes


def write_npz(file: BinaryIO, arrays: dict[str, list[np.ndarray]]) -> dict[str, Member]:
    """
    :param file: open for writing, empty
    :param arrays: by name, in parts along the first axis, at least one
    :return: what was written, by name
    """
    members = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, blocks in arrays.items():
            shape, dtype = (sum(map(len, blocks)), *blocks[0].shape[1:]), blocks[0].dtype
            header = io.BytesIO()
            npy.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
            info = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date: the same contents are the same bytes
            info.file_size = len(header.getvalue()) + math.prod(shape) * dtype.itemsize
            with archive.open(info, "w") as out:
                offset = file.tell()
                out.write(header.getvalue())
                for block in blocks:
                    content = _bytes_of(np.ascontiguousarray(block))
                    for start in range(0, len(content), _CHUNK):
                        out.write(content[start : start + _CHUNK])
            members[name] = Member(list(shape), dtype.str, offset, info.file_size, info.CRC)
    return members


def _bytes_of(array: np.ndarray) -> memoryview:
    """Memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def read_member(file: BinaryIO, name: str, member: Member, into: Sequence[np.ndarray] = ()) -> None:
    """
    Read a member to its end. Its last bytes go into arrays, those before them nowhere.

    :param file: open for reading
    :param name: of file and member, in errors
    :param member: to read
    :param into: contiguous arrays, no larger than the member
    :raises DamagedFileError: if the bytes are not those that were written; what has been read is not to be used then
    """
    scratch = np.empty(_CHUNK, np.uint8).data
    n_before, crc = member.n_bytes - sum(array.nbytes for array in into), 0
    file.seek(member.offset)
    chunks = [scratch[: min(_CHUNK, n_before - start)] for start in range(0, n_before, _CHUNK)]
    for array in into:
        content = _bytes_of(array)
        chunks += [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]
    for chunk in chunks:
        if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
            raise DamagedFileError(f"{name} is damaged: it ends too early")
        crc = zlib.crc32(chunk, crc)
    if crc != member.crc32:
        raise DamagedFileError(f"{name} is damaged: its checksum is {crc:08x}, not {member.crc32:08x}")


# What comes of contents that do not agree with themselves.
CONTRADICTIONS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def as_damage(path: Path) -> Iterator[None]:
    """
    Call it damage if contents do not agree with themselves.

    :param path: of the file that holds them
    :raises DamagedFileError: in place of another error
    """
    try:
        yield
    except DamagedFileError:
        raise
    except CONTRADICTIONS as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


@contextmanager
def open_plain(path: Path, n_bytes: int | None = None) -> Iterator[BinaryIO]:
    """
    Open a file of a directory that may have been made by somebody else.

    :param path: of the file
    :param n_bytes: its size, if it is known
    :return: the file, open for reading
    :raises DamagedFileError: if it is not there, has another size, or is a link or anything but a plain file
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFileError(f"{path} is damaged: it is no plain file")
        if n_bytes is not None and found.st_size != n_bytes:
            raise DamagedFileError(f"{path} is damaged: it has {found.st_size} bytes, not {n_bytes}")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path} is missing") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DamagedFileError(f"{path} is damaged: {error}") from error
