"""
Keep generations of a saved buffer in a directory: find those that are complete, add one, and remove old ones.

A generation is a manifest, ``gen-<number>-<num_timesteps>.json``, and the files that it names. It counts from the moment its
manifest exists. The first line of a manifest is the CRC-32 of everything after it. The manifest has the CRC-32 of each array.
"""

import dataclasses
import errno
import itertools
import json
import os
import re
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

import sb3_per.persistence.atomic as atomic

#: Number of the format that this release writes and reads.
FORMAT = 1

_MANIFEST = re.compile(r"gen-([0-9]+)-([0-9]+)\.json")
_PART = re.compile(r"(?:seg|frm)-[0-9a-f]{12}-[0-9]+-[0-9]+\.npz|state-[0-9]+\.npz")
_OURS = re.compile(rf"(?:{_MANIFEST.pattern}|{_PART.pattern})(?:{atomic.TEMPORARY})?")

# The first line of a manifest. The whole file is JSON too.
_HEAD = re.compile(rb'\{"crc32": "([0-9a-f]{8})",\n')

# Number of bytes to read or write at a time: few enough to be in the cache when their checksum is computed.
_CHUNK = 2**18

# NumPy reads headers with `ast.literal_eval`. If threads do so at the same time, CPython 3.11 before 3.11.8 may raise a
# SystemError, when the garbage collector runs in the middle (https://github.com/python/cpython/issues/106905).
_HEADERS = threading.Lock()

#: arrays by name, each in parts along the first axis, at least one
Arrays = dict[str, list[np.ndarray]]


class DamagedFileError(ValueError):
    """Report a file that is not as it was written. The message names the file and the damage."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """
    Report what goes wrong while a file is read as damage. No code of a user runs meanwhile.

    :param path: path of the file
    :raises DamagedFileError: if the file is missing, cannot be read, or has another content than expected
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path} is missing") from error
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EISDIR):
            raise  # e.g. a lack of permission, which is no damage
        raise DamagedFileError(f"{path} is damaged: {error}") from error
    except MemoryError:
        raise
    except Exception as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


# ---- one file


@dataclasses.dataclass(frozen=True)
class PartFile:
    """
    A file of a generation.

    :param name: name of the file
    :param stream: name of the stream that it belongs to, or ``"state"``
    :param first: number of its first step or frame
    :param end: number after the last
    :param size: size of the file, bytes
    :param crc32: checksum of each of its arrays, by name
    """

    name: str
    stream: str
    first: int
    end: int
    size: int = 0
    crc32: dict[str, int] = dataclasses.field(default_factory=dict)

    def check_size(self, directory: Path) -> None:
        """
        Check that the file is there.

        :param directory: path of the directory
        :raises DamagedFileError: if the file is missing or has another size
        """
        with reading(directory / self.name):
            size = os.stat(directory / self.name).st_size
            if size != self.size:
                raise ValueError(f"it has {size} bytes, not {self.size}")

    def read(self, directory: Path) -> dict[str, np.ndarray]:
        """
        Read all arrays.

        :param directory: path of the directory
        :return: arrays by name
        :raises DamagedFileError: if the file is missing, or has other arrays than were written
        """
        self.check_size(directory)
        with reading(directory / self.name), np.load(directory / self.name, allow_pickle=False) as archive:
            self._check_checksums(archive.zip)
            with _HEADERS:
                return dict(archive)

    def read_into(self, directory: Path, n_before: int, arrays: Arrays) -> None:
        """
        Read arrays into the memory where they belong. ``np.load`` would copy each once more, which takes images 1.7 times as
        long.

        :param directory: path of the directory
        :param n_before: number of entries at the beginning of each array that are not needed
        :param arrays: contiguous arrays to fill in order, by name
        :raises DamagedFileError: if the file is missing, or has other arrays than were written or than are expected. Discard
            what was read then
        """
        self.check_size(directory)
        with reading(directory / self.name), zipfile.ZipFile(directory / self.name) as archive:
            self._check_checksums(archive)
            for name, blocks in arrays.items():
                member: Any
                with archive.open(f"{name}.npy") as member:
                    npy.read_magic(member)
                    with _HEADERS:
                        header = npy.read_array_header_1_0(member)
                    expected = ((n_before + sum(map(len, blocks)), *blocks[0].shape[1:]), False, blocks[0].dtype)
                    if header != expected:
                        raise ValueError(f"{name} has shape, order and type {header}, not {expected}")
                    member.read(n_before * blocks[0][:1].nbytes)
                    for block in blocks:
                        for chunk in _chunks_of(block):
                            member.readinto(chunk)

    def _check_checksums(self, archive: zipfile.ZipFile) -> None:
        """Compare checksums with those in the zip, which it compares with the bytes that it reads."""
        found = _checksums_of(archive)
        if found != self.crc32:
            raise ValueError(f"its checksums are {found}, not {self.crc32}")


def _checksums_of(archive: zipfile.ZipFile) -> dict[str, int]:
    return {info.filename.removesuffix(".npy"): info.CRC for info in archive.infolist()}


def _chunks_of(array: np.ndarray) -> Iterator[memoryview]:
    """View the bytes of a contiguous array, some at a time."""
    content = array.reshape(-1).view(np.uint8)
    return (content[start : start + _CHUNK].data for start in range(0, len(content), _CHUNK))


def write_part(directory: Path, part: PartFile, arrays: Arrays) -> PartFile:
    """
    Write a file. It is durable once the manifest is.

    :param directory: path of the directory
    :param part: description of the file
    :param arrays: its arrays
    :return: the description, with size and checksums
    :raises OSError: e.g. on a full disk; no part of the file is left
    """

    def write(file: BinaryIO) -> PartFile:
        with zipfile.ZipFile(file, "w") as archive:
            for name, blocks in arrays.items():
                shape = (sum(map(len, blocks)), *blocks[0].shape[1:])
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = {"descr": blocks[0].dtype.str, "fortran_order": False, "shape": shape}
                    npy.write_array_header_1_0(member, header)
                    for block in blocks:
                        for chunk in _chunks_of(np.ascontiguousarray(block)):
                            member.write(chunk)
        return dataclasses.replace(part, size=file.tell(), crc32=_checksums_of(archive))

    return atomic.write_file(directory / part.name, write)


# ---- one generation


@dataclasses.dataclass
class Manifest:
    """
    Description of a generation.

    :param generation: number of the generation
    :param num_timesteps: steps of the model when it was saved
    :param about: kind, spaces and layout of the buffer
    :param numbers: numbers of the state, by name
    :param parts: files of the generation
    """

    generation: int
    num_timesteps: int
    about: dict[str, Any]
    numbers: dict[str, Any]
    parts: list[PartFile]

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"gen-{self.generation:08d}-{self.num_timesteps}.json"

    def of_stream(self, stream: str) -> list[PartFile]:
        """
        List the parts of a stream.

        :param stream: name of a stream
        :return: its parts, in order and without gaps
        :raises ValueError: if there is a gap, or another order
        """
        parts = [part for part in self.parts if part.stream == stream]
        if any(part.end != following.first for part, following in itertools.pairwise(parts)):
            raise ValueError(f"the parts of {stream} do not follow one another")
        return parts

    def to_bytes(self) -> bytes:
        """
        Write the manifest as JSON.

        :return: content of the file
        """
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        body = json.dumps(content).encode()[1:]  # the brace goes before the checksum
        return b'{"crc32": "%08x",\n' % zlib.crc32(body) + body

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """
        Read a manifest.

        :param path: path of a manifest
        :return: the manifest
        :raises DamagedFileError: if the file is missing, or is not a manifest with this name
        :raises ValueError: if the file has another format
        """
        with reading(path):
            data = path.read_bytes()
            head = _HEAD.match(data)
            if head is None or int(head[1], 16) != zlib.crc32(data[head.end() :]):
                raise ValueError("its checksum is wrong")
            content = json.loads(data)
            del content["crc32"]
            found = content.pop("format")
            if found == FORMAT:
                content["parts"] = [PartFile(**part) for part in content["parts"]]
                manifest = cls(**content)
                if manifest.name != path.name:
                    raise ValueError(f"it was written as {manifest.name}")
                for part in manifest.parts:
                    if not _PART.fullmatch(part.name):
                        raise ValueError(f"{part.name!r} is not the name of a file of a buffer")
                return manifest
        raise ValueError(
            f"{path} has format {found!r}, and this release of sb3_per reads and writes format {FORMAT}: use the release that "
            "wrote it, or another directory"
        )


def numbers_in(name: str) -> tuple[int, int]:
    """
    Read the numbers in the name of a manifest.

    :param name: name of a manifest
    :return: number of its generation, and steps of the model when it was saved
    """
    found = _MANIFEST.fullmatch(name)
    assert found is not None, name
    return int(found[1]), int(found[2])


# ---- all generations of a directory


def manifest_names_in(directory: Path) -> list[str]:
    """
    List the manifests in a directory.

    :param directory: path of a directory, which need not exist
    :return: names of its manifests, the newest generation first
    """
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(filter(_MANIFEST.fullmatch, names), key=numbers_in, reverse=True)


def whole_generations(directory: Path, with_contents: bool) -> list[Manifest]:
    """
    Find the generations that are complete.

    :param directory: path of a directory, which need not exist
    :param with_contents: whether to read all files; otherwise only their sizes are checked
    :return: manifests of the generations of which no file is missing or damaged, the newest generation first
    :raises ValueError: if a manifest has another format
    """
    found = []
    checked: dict[str, PartFile] = {}  # generations share most of their files
    for name in manifest_names_in(directory):
        with suppress(DamagedFileError):
            manifest = Manifest.read(directory / name)
            for part in manifest.parts:
                if checked.get(part.name) != part:
                    part.read(directory) if with_contents else part.check_size(directory)
                    checked[part.name] = part
            found.append(manifest)
    return found


def commit(directory: Path, manifest: Manifest) -> None:
    """
    Make a generation count.

    :param directory: path of the directory
    :param manifest: manifest of the generation, whose parts are written
    :raises OSError: e.g. on a full disk; remove the manifest then
    """
    atomic.sync_directory(directory)  # the parts must be durable before the manifest is
    content = manifest.to_bytes()
    atomic.write_file(directory / manifest.name, lambda file: file.write(content))
    atomic.sync_directory(directory)


def remove(directory: Path, names: Iterable[str]) -> None:
    """
    Remove files.

    :param directory: path of the directory
    :param names: names of the files; one that is missing or cannot be removed is skipped
    """
    for name in names:
        with suppress(OSError):
            os.unlink(directory / name)


def clean_up(directory: Path, kept: Iterable[Manifest]) -> None:
    """
    Remove other generations, and files that no remaining generation needs. A kill on the way may leave a manifest without its
    files, which counts no more than a damaged one.

    :param directory: path of the directory
    :param kept: generations to keep
    """
    wanted = {name for manifest in kept for name in (manifest.name, *(part.name for part in manifest.parts))}
    remove(directory, (name for name in os.listdir(directory) if _OURS.fullmatch(name) and name not in wanted))
