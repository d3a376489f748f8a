"""
NumPy's ``.npz``, not compressed, written from and read into arrays that are there already.

``numpy.load`` reads what this writes. What is read here needs no parser, so that none can be led astray: where the bytes of an
array lie, how many they are and their CRC-32 were noted when they were written, and nothing else of the file is looked at. It
knows arrays and bytes, nothing of replay.
"""

import errno
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

# Bytes that are read or written at a time: they are still in the cache when their checksum is computed.
_CHUNK = 2**20

# Booleans, integers and floats: no objects, which would be pickles.
_PLAIN_TYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


class DamagedFileError(ValueError):
    """A file is not what was written: its message names the file and the damage."""


@dataclass
class Member:
    """
    One array of a file.

    :param shape: of the array
    :param dtype: of the array
    :param blocks: its parts along the first axis, contiguous
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterable[np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> "Member":
        """The whole of an array."""
        return cls(array.shape, array.dtype, [np.ascontiguousarray(array)])


@dataclass
class Facts:
    """
    What is noted of a member when it is written.

    :param shape: of the array
    :param dtype: as in the header of the array, e.g. ``"<f4"``
    :param offset: where in the file the member begins, with the header of the array
    :param n_header: bytes of that header, which is followed by the array's own
    :param crc32: of both
    """

    shape: tuple[int, ...]
    dtype: str
    offset: int
    n_header: int
    crc32: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        n_bytes = np.dtype(self.dtype).itemsize
        for length in self.shape:
            n_bytes *= length  # Python's integers do not overflow
        return n_bytes

    @classmethod
    def from_json(cls, content: Any) -> "Facts":
        """
        :param content: the fields, from a manifest
        :return: the facts
        :raises ValueError: for anything else
        """
        facts = cls(**content)
        facts.shape = tuple(facts.shape)
        numbers = (*facts.shape, facts.offset, facts.n_header, facts.crc32)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"{content} does not describe an array")
        plain_type(facts.dtype)
        return facts


def plain_type(name: str) -> np.dtype:
    """
    :param name: of a type, as in the header of an array
    :return: the type
    :raises ValueError: if it is none of booleans, integers and floats
    """
    if not _PLAIN_TYPE.fullmatch(name):
        raise ValueError(f"arrays of type {name!r} are not read")
    return np.dtype(name)


def write_npz(file: BinaryIO, members: dict[str, Member]) -> dict[str, Facts]:
    """
    :param file: open for writing, empty
    :param members: arrays by name
    :return: what was written, by name
    """
    facts = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, member in members.items():
            header = io.BytesIO()
            descr = str(npy.dtype_to_descr(member.dtype))
            npy.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": member.shape})
            noted = Facts(member.shape, descr, 0, len(header.getvalue()), 0)
            info = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date: the same contents are the same bytes
            info.file_size = noted.n_header + noted.n_bytes
            n_written = 0
            with archive.open(info, "w") as out:
                noted.offset = file.tell()
                out.write(header.getvalue())
                for block in member.blocks:
                    content = _bytes_of(block)
                    for start in range(0, len(content), _CHUNK):
                        n_written += out.write(content[start : start + _CHUNK])
            assert n_written == noted.n_bytes, f"{name}: the blocks are not what the shape says"
            noted.crc32 = info.CRC
            facts[name] = noted
    return facts


def _bytes_of(block: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return block.reshape(-1).view(np.uint8).data if block.size else memoryview(b"")


def read_member(file: BinaryIO, name: str, facts: Facts, into: Iterable[np.ndarray | int]) -> None:
    """
    Read a member to its end.

    :param file: open for reading
    :param name: of file and member, in errors
    :param facts: of the member
    :param into: where the bytes of the array go, in order: contiguous arrays or, for parts that are not wanted, numbers of
        bytes; together as many as there are
    :raises DamagedFileError: if they are not those that were written; what has been read is not to be used then
    """
    scratch = np.empty(_CHUNK, np.uint8)
    file.seek(facts.offset)
    crc = 0
    for part in (facts.n_header, *into):
        target = None if isinstance(part, int) else _bytes_of(part)
        n_bytes = part if isinstance(part, int) else part.nbytes
        for start in range(0, n_bytes, _CHUNK):
            n_chunk = min(_CHUNK, n_bytes - start)
            chunk = scratch.data[:n_chunk] if target is None else target[start : start + n_chunk]
            if file.readinto(chunk) != n_chunk:  # type: ignore[attr-defined]
                raise DamagedFileError(f"{name} is damaged: it ends too early")
            crc = zlib.crc32(chunk, crc)
    if crc != facts.crc32:
        raise DamagedFileError(f"{name} is damaged: its checksum is {crc:08x}, not {facts.crc32:08x}")


def read_array(file: BinaryIO, name: str, facts: Facts) -> np.ndarray:
    """
    :param file: open for reading
    :param name: of file and member, in errors
    :param facts: of the member
    :return: the array
    :raises DamagedFileError: see :func:`read_member`
    """
    if facts.offset + facts.n_header + facts.n_bytes > os.fstat(file.fileno()).st_size:
        raise DamagedFileError(f"{name} is damaged: it ends too early")  # before so much is allocated
    array = np.empty(facts.shape, facts.dtype)
    read_member(file, name, facts, [array])
    return array


@contextmanager
def open_plain(path: Path, n_bytes: int | None = None) -> Iterator[BinaryIO]:
    """
    Open a file of a directory that may have been made by somebody else.

    :param path: of the file
    :param n_bytes: its size, if it is known
    :return: the file, open for reading
    :raises DamagedFileError: if there is none, if it has another size, or if it is a link or anything else than a plain file
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
