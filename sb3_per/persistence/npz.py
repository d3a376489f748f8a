"""
Write arrays to uncompressed ``.npz`` files, and read such files into existing arrays.

``numpy.load`` can read these files, but we do not use it: it trusts the header in the file and allocates what the header asks
for. It also copies every array once more. Loading then takes 1.4 times as long, and 64 MiB more RAM for each file that is read
in parallel. Here the manifest says where the bytes of an array are, how many there are, and their CRC-32. Nothing else in the
file is read.
"""

import errno
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

#: arrays by name, each in parts along the first axis, at least one
Arrays = dict[str, list[np.ndarray]]

# Number of bytes to read or write at a time: few enough to be in the cache when their checksum is computed.
_CHUNK = 2**20


class DamagedFileError(ValueError):
    """Report a file that is not as it was written. The message names the file and the damage."""


def require_counts(*numbers: Any) -> None:
    """
    Check numbers from a manifest.

    :param numbers: values from a manifest
    :raises ValueError: if one of them is not an integer in [0, 2^60)
    """
    for number in numbers:
        if type(number) is not int or not 0 <= number < 2**60:
            raise ValueError(f"{str(number)[:100]} is not a count")


@dataclass
class Member:
    """
    Description of an array in a file.

    :param shape: shape of the array
    :param dtype: NumPy's type string, e.g. ``"<f4"``, of booleans or of numbers in native byte order
    :param offset: position of the header of the array in the file, bytes
    :param n_bytes: size of header and array
    :param crc32: checksum of both
    :raises ValueError: for another type, a shape that is no list, or a number that is not a count
    """

    shape: list[int]
    dtype: str
    offset: int
    n_bytes: int
    crc32: int

    def __post_init__(self) -> None:
        require_counts(*self.shape, self.offset, self.n_bytes, self.crc32)
        dtype = np.dtype(self.dtype)
        if not isinstance(self.shape, list) or dtype.str != self.dtype or dtype.kind not in "biuf" or not dtype.isnative:
            raise ValueError(f"arrays of type {self.dtype!r} and shape {self.shape} are not read")
        if math.prod(self.shape) * dtype.itemsize > self.n_bytes:
            raise ValueError(f"{self.n_bytes} bytes are too few for an array of shape {self.shape}")

    def read(self, file: BinaryIO, into: Sequence[np.ndarray] = ()) -> None:
        """
        Read the last entries of this array into other arrays, and check all its bytes.

        :param file: file, open for reading
        :param into: contiguous arrays to fill in order; none, to check only
        :raises ValueError: if types, shapes or sizes do not fit, or the checksum differs. Discard what was read then
        """
        n_before = self.n_bytes - sum(array.nbytes for array in into)
        if n_before < 0 or any((array.dtype.str, array.shape[1:]) != (self.dtype, tuple(self.shape[1:])) for array in into):
            raise ValueError("it has another type or size than expected")
        file.seek(self.offset)
        crc = 0
        for start in range(0, n_before, _CHUNK):
            crc = zlib.crc32(file.read(min(_CHUNK, n_before - start)), crc)
        for array in into:
            for chunk in _chunks_of(array):
                file.readinto(chunk)  # type: ignore[attr-defined]
                crc = zlib.crc32(chunk, crc)
        if crc != self.crc32:
            raise ValueError(f"its checksum is {crc:08x}, not {self.crc32:08x}")


def write_npz(file: BinaryIO, arrays: Arrays) -> dict[str, Member]:
    """
    Write arrays to an npz file.

    :param file: empty file, open for writing
    :param arrays: arrays to write
    :return: description of each array, by name
    """
    members = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, blocks in arrays.items():
            shape, dtype = (sum(map(len, blocks)), *blocks[0].shape[1:]), blocks[0].dtype
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                offset = file.tell()
                npy.write_array_header_1_0(out, {"descr": dtype.str, "fortran_order": False, "shape": shape})
                for block in blocks:
                    for chunk in _chunks_of(np.ascontiguousarray(block)):
                        out.write(chunk)
            info = archive.getinfo(f"{name}.npy")
            members[name] = Member(list(shape), dtype.str, offset, info.file_size, info.CRC)
    return members


def _chunks_of(array: np.ndarray) -> Iterator[memoryview]:
    """View the bytes of a contiguous array, some at a time."""
    content = array.reshape(-1).view(np.uint8)
    return (content[start : start + _CHUNK].data for start in range(0, len(content), _CHUNK))


# Errors of contents that contradict themselves: values or indices out of range, missing names, integers that are too large,
# and JSON that is too deep. TypeError and AttributeError are mistakes in code, perhaps in a user's subclass, and must not
# look like damage.
CONTRADICTIONS = (ValueError, LookupError, OverflowError, RecursionError)

# While a file is read, no code of a user runs: a wrong type is damage, too.
READING = (*CONTRADICTIONS, TypeError)


@contextmanager
def as_damage(path: Path, errors: tuple[type[Exception], ...] = CONTRADICTIONS) -> Iterator[None]:
    """
    Report contents that contradict themselves as damage.

    :param path: path of the file with these contents
    :param errors: errors that become damage
    :raises DamagedFileError: in place of such an error
    """
    try:
        yield
    except DamagedFileError:
        raise
    except errors as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


@contextmanager
def open_plain(path: Path, n_bytes: int | None = None) -> Iterator[BinaryIO]:
    """
    Open a file in a directory that somebody else may have made.

    :param path: path of the file
    :param n_bytes: expected size; ``None``: any
    :return: the file, open for reading; errors of its content become damage
    :raises DamagedFileError: if the file is missing, has another size, or is a link, a pipe or a directory
    """
    with as_damage(path, READING):
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is not a plain file")
            if n_bytes is not None and found.st_size != n_bytes:
                raise ValueError(f"it has {found.st_size} bytes, not {n_bytes}")
            with open(path, "rb") as file:
                yield file
        except FileNotFoundError as error:
            raise DamagedFileError(f"{path} is missing") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise DamagedFileError(f"{path} is damaged: {error}") from error
