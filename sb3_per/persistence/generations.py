"""
Keep generations of a saved buffer in a directory: find those that are complete, add one, and remove old ones.

Files of a directory::

    rows-<unique>-<first step>-<end>.bin   rows that do not change any more, e.g. observations
    state-<generation>.bin                 what may change later, in full, e.g. masses and dones
    gen-<generation>-<num_timesteps>.json  the manifest: which files belong together, their sizes and checksums

A ``.bin`` file has the bytes of its arrays one after another; the manifest has their names, types and shapes. A generation
counts from the moment its manifest exists. Its other files are durable before the manifest is written. The first line of a
manifest is the CRC-32 of everything after it.
"""

import dataclasses
import errno
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import sb3_per.persistence.atomic as atomic

#: Number of the format that this release writes and reads.
FORMAT = 2

_MANIFEST = re.compile(r"gen-([0-9]+)-([0-9]+)\.json")
_DATA = re.compile(r"rows-[0-9a-f]{12}-[0-9]+-[0-9]+\.bin|state-[0-9]+\.bin")
_OURS = re.compile(rf"(?:{_MANIFEST.pattern}|{_DATA.pattern})(?:{atomic.TEMPORARY})?")

# The first line of a manifest. The whole file is JSON, too.
_HEAD = re.compile(rb'\{"crc32": "([0-9a-f]{8})",\n')

# Bytes that are written at a time: few enough to be in the cache when their checksum is computed.
_CHUNK = 2**18

# Errors that say nothing about the file: no permission, or too few resources.
_NO_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)

#: arrays by name, each in blocks along the first axis
Blocks = dict[str, list[np.ndarray]]


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
    except (DamagedFileError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path} is missing") from error
    except OSError as error:
        if error.errno in _NO_DAMAGE:
            raise
        raise DamagedFileError(f"{path} is damaged: {error}") from error
    except Exception as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


def to_json(content: dict[str, Any]) -> str:
    """
    Write JSON, also of NumPy's numbers, which are allowed as settings.

    :param content: what to write
    :return: the text
    :raises TypeError: for anything else that JSON does not know
    """

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{value!r} cannot be written as JSON")

    return json.dumps(content, default=plain)


# ---- one file


@dataclasses.dataclass(frozen=True)
class DataFile:
    """
    A file of a generation.

    :param name: name of the file
    :param stream: name of the stream that its rows belong to, or ``"state"``
    :param first: its first step
    :param end: step after its last
    :param size: size of the file, bytes
    :param crc32: checksum of all bytes
    :param arrays: name, type and shape of each array, in their order
    """

    name: str
    stream: str
    first: int
    end: int
    size: int
    crc32: int
    arrays: list[list[Any]]

    @classmethod
    def write(cls, directory: Path, name: str, stream: str, first: int, end: int, blocks: Blocks) -> "DataFile":
        """
        Write a file. It is durable once the manifest is. The other parameters are those of the class.

        :param directory: path of the directory
        :param blocks: arrays to write, each in at least one block
        :return: description of the file
        :raises OSError: e.g. on a full disk; no part of the file is left
        """

        def write(file: BinaryIO) -> tuple[int, int]:
            crc32 = 0
            for block in itertools.chain.from_iterable(blocks.values()):
                content = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
                for start in range(0, len(content), _CHUNK):
                    chunk = content[start : start + _CHUNK].data
                    file.write(chunk)
                    crc32 = zlib.crc32(chunk, crc32)
            return file.tell(), crc32

        arrays = [[key, parts[0].dtype.str, [sum(map(len, parts)), *parts[0].shape[1:]]] for key, parts in blocks.items()]
        size, crc32 = atomic.write_file(directory / name, write)
        return cls(name, stream, first, end, size, crc32, arrays)

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
        :raises DamagedFileError: if the file is missing, or has another content than was written
        """
        self.check_size(directory)
        with reading(directory / self.name):
            content = np.fromfile(directory / self.name, np.uint8)
            if len(content) != self.size or zlib.crc32(content.data) != self.crc32:
                raise ValueError("its checksum is wrong")
            arrays = {}
            start = 0
            for name, dtype, shape in self.arrays:
                stop = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
                # Only the first array is aligned; NumPy works with others, too.
                arrays[name] = content[start:stop].view(dtype).reshape(shape)
                start = stop
            return arrays


# ---- one generation


@dataclasses.dataclass
class Manifest:
    """
    Description of a generation.

    :param generation: number of the generation
    :param num_timesteps: steps of the model when it was saved
    :param about: kind, spaces and layout of the buffer
    :param numbers: numbers of the state, by name
    :param ranges: first step and end of each stream of rows
    :param files: files of the generation
    """

    generation: int
    num_timesteps: int
    about: dict[str, Any]
    numbers: dict[str, Any]
    ranges: dict[str, list[int]]
    files: list[DataFile]

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"gen-{self.generation:08d}-{self.num_timesteps}.json"

    def of_stream(self, stream: str) -> list[DataFile]:
        """
        List the files of a stream.

        :param stream: name of a stream
        :return: its files, from old to new
        """
        return [file for file in self.files if file.stream == stream]

    def to_bytes(self) -> bytes:
        """
        Write the manifest as JSON.

        :return: content of the file
        """
        body = to_json({"format": FORMAT, **dataclasses.asdict(self)}).encode()[1:]  # the brace goes before the checksum
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
                content["files"] = [DataFile(**file) for file in content["files"]]
                manifest = cls(**content)
                if manifest.name != path.name:
                    raise ValueError(f"it was written as {manifest.name}")
                for file in manifest.files:
                    if not _DATA.fullmatch(file.name):
                        raise ValueError(f"{file.name!r} is not the name of a file of a buffer")
                return manifest
        raise ValueError(_other_format(path, found))


def _other_format(path: Path, found: Any) -> str:
    """Say what to do with a manifest of another format."""
    message = f"{path} has format {found!r}, and this release of sb3_per reads and writes format {FORMAT}: "
    if found != 1:
        return message + "use the release that wrote it, or another directory"
    return message + (
        "with sb3_per at commit 1aaa58c4, load it into a model with model.load_replay_buffer(), and save "
        "model.replay_buffer.to_replay_buffer() with stable_baselines3.common.save_util.save_to_pkl('stock.pkl', ...). This "
        "release turns that file into a directory: sb3-per convert stock.pkl new.buffer --trust"
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
    checked: dict[str, DataFile] = {}  # generations share most of their files
    for name in manifest_names_in(directory):
        with suppress(DamagedFileError):
            manifest = Manifest.read(directory / name)
            for file in manifest.files:
                if checked.get(file.name) != file:
                    file.read(directory) if with_contents else file.check_size(directory)
                    checked[file.name] = file
            found.append(manifest)
    return found


def commit(directory: Path, manifest: Manifest) -> None:
    """
    Make a generation count.

    :param directory: path of the directory
    :param manifest: manifest of the generation, whose files are written
    :raises OSError: e.g. on a full disk; remove the manifest then
    """
    atomic.sync_directory(directory)  # the files must be durable before the manifest is
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
    wanted = {name for manifest in kept for name in (manifest.name, *(file.name for file in manifest.files))}
    remove(directory, (name for name in os.listdir(directory) if _OURS.fullmatch(name) and name not in wanted))
