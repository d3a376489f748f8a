"""
A directory of generations: which files belong together, which of them are whole, and which can go.

A generation is a manifest, ``gen-<number>-<num_timesteps>.json``, and the files that it names; it counts from the moment that
its manifest is there. Its first line is the CRC-32 of all that follows.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

import sb3_per.persistence.atomic as atomic
from sb3_per.persistence.npz import DamagedFileError, Member, as_damage, open_plain, read_member, write_npz

FORMAT = "sb3_per.buffer"
VERSION = 1

_MANIFEST = re.compile(r"gen-([0-9]{1,12})-([0-9]{1,18})\.json")
_PART = re.compile(r"(?:seg|frm)-[0-9a-f]{12}-[0-9]{1,18}-[0-9]{1,18}\.npz|state-([0-9]{1,12})\.npz")
_LEFTOVER = re.compile(rf"(?:{_MANIFEST.pattern}|{_PART.pattern}){re.escape(atomic.TEMPORARY)}")

# A manifest has a few hundred bytes for each of its files. What it becomes in memory can be 25 times as large.
_MAX_MANIFEST = 4 * 2**20

# First line of a manifest, which is JSON as a whole nevertheless.
_HEAD = re.compile(rb'\{"crc32": "([0-9a-f]{8})",\n')


def _parsed(kind: Any, value: Any) -> Any:
    """
    Read JSON by the types of a dataclass; integers are counts.

    :param kind: type that is wanted
    :param value: from a manifest
    :return: the value, with dataclasses in place of objects
    :raises ValueError: if it is of another type, or an object has other fields
    """
    form, of = get_origin(kind) or kind, get_args(kind)
    if is_dataclass(form):
        types = {part.name: part.type for part in fields(form)}
        if isinstance(value, dict) and value.keys() == types.keys():
            return form(**{name: _parsed(types[name], value[name]) for name in types})  # type: ignore[operator]
    elif form is int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60:
            return value
    elif form is list and isinstance(value, list):
        return [_parsed(of[0], part) for part in value]
    elif form is dict and isinstance(value, dict):
        return {name: _parsed(of[1], part) for name, part in value.items()}
    elif kind is Any or (form is str and isinstance(value, str)):
        return value
    raise ValueError(f"{str(value)[:100]} is no {getattr(kind, '__name__', kind)}")


class UnknownVersionError(ValueError):
    """A manifest of a version that this release does not read."""


@dataclass
class Part:
    """
    A file of a generation.

    :param name: of the file
    :param stream: what it is a part of: ``"rows"``, a pool of frames, or ``"state"``
    :param first: number of the first step, or frame
    :param end: number after the last
    :param size: of the file, bytes
    :param members: what is known of its arrays
    """

    name: str
    stream: str
    first: int
    end: int
    size: int
    members: dict[str, Member]

    @contextmanager
    def open(self, directory: Path) -> Iterator["PartFile"]:
        """
        :param directory: where it is
        :return: the file, open for reading
        :raises DamagedFileError: if it is not there, or has another size
        """
        with open_plain(directory / self.name, self.size) as file:
            yield PartFile(self, file, directory / self.name)


@dataclass
class PartFile:
    """
    A part that is open for reading.

    :param part: that it is
    :param file: the open file
    :param path: of the file
    """

    part: Part
    file: Any
    path: Path

    def check(self) -> None:
        """
        Read all of it.

        :raises DamagedFileError: if it is not what was written
        """
        for name in self.part.members:
            self._read(name, [])

    def into(self, name: str, targets: list[np.ndarray], n_rows: int) -> None:
        """
        Read the last rows of an array.

        :param name: of the array
        :param targets: contiguous arrays that they go into, in order, at least one
        :param n_rows: number of rows that the array has
        :raises DamagedFileError: if it is another one, or damaged
        """
        self._require(name, targets[0].dtype, (n_rows, *targets[0].shape[1:]))
        self._read(name, targets)

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """
        :param name: of the array
        :param dtype: of it
        :param shape: likewise
        :return: the array
        :raises DamagedFileError: if it is another one, or damaged
        """
        self._require(name, dtype, shape)
        array = np.empty(shape, dtype)
        self._read(name, [array])
        return array

    def _require(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Before memory is taken for it."""
        member = self.part.members.get(name)
        if member is None or not member.fits(dtype, shape):
            found = "not there" if member is None else f"{member.dtype} of shape {member.shape}"
            raise DamagedFileError(f"{self.path} is damaged: {name} is {found}, not {dtype.str} of shape {list(shape)}")

    def _read(self, name: str, into: list[np.ndarray]) -> None:
        read_member(self.file, f"{self.path} ({name})", self.part.members[name], into)


@dataclass
class Manifest:
    """
    What a generation is.

    :param generation: its number
    :param num_timesteps: of the model at that moment
    :param about: what the buffer is, for comparing it with another
    :param numbers: of the buffer's state, by name
    :param parts: its files
    """

    generation: int
    num_timesteps: int
    about: dict[str, Any]
    numbers: dict[str, Any]
    parts: list[Part]

    @property
    def name(self) -> str:
        """Of its file."""
        return f"gen-{self.generation:08d}-{self.num_timesteps}.json"

    def of_stream(self, stream: str) -> list[Part]:
        """
        :param stream: name of a stream
        :return: its parts, which follow one another
        :raises ValueError: if they do not
        """
        parts = [part for part in self.parts if part.stream == stream]
        ends = [*(part.first for part in parts[:1]), *(part.end for part in parts)]
        if ends != sorted(ends) or [part.first for part in parts] != ends[:-1]:
            raise ValueError(f"the parts of {stream} do not follow one another")
        return parts

    def to_bytes(self) -> bytes:
        """
        :return: the file
        :raises ValueError: if it could not be read again
        """
        if not _MANIFEST.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a manifest")
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        body = json.dumps(content, allow_nan=False).encode()[1:]  # the brace goes before the checksum
        if len(body) > _MAX_MANIFEST - 100:  # the first line
            raise ValueError(f"{self.name} would have {len(body)} bytes, which is too much to be read again")
        return b'{"crc32": "%08x",\n' % zlib.crc32(body) + body

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """
        :param path: of the file
        :return: what it says
        :raises DamagedFileError: if it is not what was written
        :raises UnknownVersionError: if it was written by another version
        """
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_MANIFEST:
                raise DamagedFileError(f"{path} is damaged: no manifest has more than {_MAX_MANIFEST} bytes")
            data = file.read()
        head = _HEAD.match(data)
        if head is None or int(head[1], 16) != zlib.crc32(data[head.end() :]):
            raise DamagedFileError(f"{path} is damaged: its checksum is another")
        with as_damage(path):
            content = json.loads(data)
            del content["crc32"]
            found_format, version = content.pop("format"), content.pop("version")
        if found_format == FORMAT and version != VERSION:
            raise UnknownVersionError(
                f"{path} has version {version} of the format, and this release of sb3_per reads version {VERSION}"
            )
        with as_damage(path):
            manifest: Manifest = _parsed(cls, content)
            if (found_format, manifest.name) != (FORMAT, path.name):
                raise ValueError(f"it was written as {manifest.name} in the format {found_format}")
            for part in manifest.parts:
                if not _PART.fullmatch(part.name):
                    raise ValueError(f"{part.name!r} is no name of a part")
                if any(member.offset + member.n_bytes > part.size for member in part.members.values()):
                    raise ValueError(f"{part.name} is too small for what it is to hold")
        return manifest


@dataclass
class Directory:
    """
    Generations in a directory.

    :param path: of the directory
    :param known: size, time and number of files that have been read or written as a whole, by name
    :param refused: manifests of generations that could not be loaded
    """

    path: Path
    known: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def manifests(self) -> list[str]:
        """Names, those of the newest generation first."""
        try:
            names = [entry.name for entry in os.scandir(self.path) if _MANIFEST.fullmatch(entry.name)]
        except FileNotFoundError:
            return []
        return sorted(names, key=_generation_of, reverse=True)

    def next_generation(self) -> int:
        """A number that nothing of this directory has, be it whole or not."""
        return max(map(_generation_of, os.listdir(self.path)), default=0) + 1

    def is_whole(self, name: str) -> bool:
        """
        :param name: of a manifest
        :return: whether its generation is there as it was written, and nobody has failed to load it
        :raises UnknownVersionError: if another version has written it
        """
        if name in self.refused:
            return False
        try:
            self.check(Manifest.read(self.path / name).parts)
        except DamagedFileError:
            return False
        return True

    def check(self, parts: list[Part]) -> None:
        """
        Read all files that have changed since they were read or written last.

        :param parts: to look at
        :raises DamagedFileError: if one of them is not what was written
        """
        for part in parts:
            signature = self._signature(part.name)
            if signature is None or signature != self.known.get(part.name):
                self.known.pop(part.name, None)
                with part.open(self.path) as file:
                    file.check()
                self.note(part.name)

    def note(self, name: str) -> None:
        """
        Remember that a file is whole.

        :param name: of the file
        """
        signature = self._signature(name)
        if signature is not None:
            self.known[name] = signature

    def _signature(self, name: str) -> tuple[int, int, int] | None:
        try:
            found = os.lstat(self.path / name)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino

    def write_part(
        self, name: str, stream: str, first: int, end: int, arrays: Callable[[], dict[str, list[np.ndarray]]]
    ) -> Part:
        """
        :param name: of the file
        :param stream: what it is a part of
        :param first: number of the first step, or frame
        :param end: number after the last
        :param arrays: makes its arrays, by name, in parts along the first axis
        :return: what was written; durable when the manifest is
        :raises OSError: e.g. on a full disk; nothing is left of it then
        """
        members = atomic.write_file(self.path / name, lambda file: write_npz(file, arrays()))
        self.note(name)
        return Part(name, stream, first, end, os.stat(self.path / name).st_size, members)

    def remove(self, names: list[str]) -> None:
        """
        Remove files, for good after :func:`~sb3_per.persistence.atomic.sync_directory`.

        :param names: of the files; one that is not there, or cannot be removed, is left
        """
        for name in names:
            self.known.pop(name, None)
            with suppress(OSError):
                os.unlink(self.path / name)

    def commit(self, manifest: Manifest) -> None:
        """
        The generation counts when this returns.

        :param manifest: of the generation, whose parts are written
        :raises OSError: e.g. on a full disk; the generation does not count then
        """
        content = manifest.to_bytes()
        self.refused.discard(manifest.name)
        atomic.sync_directory(self.path)  # the parts are there for good before the manifest is
        atomic.write_file(self.path / manifest.name, lambda file: file.write(content))
        atomic.sync_directory(self.path)

    def clean_up(self, newest: Manifest, keep: int) -> None:
        """
        Remove what belongs to no generation that is kept, and generations that are not.

        :param newest: generation that was written just now
        :param keep: how many to keep, of those that are whole
        """
        kept = [newest]
        for name in self.manifests():
            if len(kept) == keep:
                break
            if name != newest.name and self.is_whole(name):
                kept.append(Manifest.read(self.path / name))
        wanted = {manifest.name for manifest in kept}
        # Manifests first, for good: none is to be there without its files.
        surplus = [name for name in self.manifests() if name not in wanted]
        self.remove(surplus)
        if surplus:
            atomic.sync_directory(self.path)
        wanted |= {part.name for manifest in kept for part in manifest.parts}
        names = [entry.name for entry in os.scandir(self.path)]
        stale = [name for name in names if (_PART.fullmatch(name) and name not in wanted) or _LEFTOVER.fullmatch(name)]
        self.remove(stale)


def num_timesteps_of(name: str) -> int:
    """
    :param name: of a manifest
    :return: steps of the model that it belongs to
    """
    found = _MANIFEST.fullmatch(name)
    assert found is not None, name
    return int(found[2])


def _generation_of(name: str) -> int:
    """Number of the generation that a manifest or a state belongs to; 0 for other names."""
    for pattern in (_MANIFEST, _PART):
        found = pattern.fullmatch(name)
        if found is not None and found[1] is not None:
            return int(found[1])
    return 0
