"""
A directory of generations: which files belong together, which of them are whole, and which can go.

A generation is a manifest, ``gen-<number>-<num_timesteps>.json``, and the files that it names; it counts from the moment that
its manifest is there. Its first line is the CRC-32 of all that follows. It knows names, bytes and JSON, nothing of buffers.
"""

import json
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sb3_per.files.atomic as atomic
from sb3_per.files.npz import DamagedFileError, Facts, Member, open_plain, read_member, write_npz

FORMAT = "sb3_per.buffer"
VERSION = 1

_MANIFEST = re.compile(r"gen-([0-9]{1,12})-([0-9]{1,18})\.json")
_PART = re.compile(r"(?:seg|frm)-[0-9a-f]{12}-[0-9]{1,18}-[0-9]{1,18}\.npz|state-([0-9]{1,12})\.npz")
_LEFTOVER = re.compile(rf"(?:{_MANIFEST.pattern}|{_PART.pattern}){re.escape(atomic.TEMPORARY)}")

# A manifest has a few hundred bytes for each of its files. What it becomes in memory can be 25 times as large.
_MAX_MANIFEST = 4 * 2**20

# Names have room for smaller numbers, and so have 64 bits.
_MAX_NUMBER = 10**18

# First line of a manifest, which is JSON as a whole nevertheless.
_HEAD = re.compile(rb'\{"crc32": "([0-9a-f]{8})",\n')


@dataclass
class Part:
    """
    A file of a generation.

    :param name: of the file
    :param stream: what it is a part of: ``"rows"``, a pool of frames, or ``"state"``
    :param first: number of the first step, or frame
    :param end: number behind the last
    :param size: of the file, bytes
    :param members: what is known of its arrays
    """

    name: str
    stream: str
    first: int
    end: int
    size: int
    members: dict[str, Facts]

    def to_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {**vars(self), "members": {name: vars(facts) for name, facts in self.members.items()}}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Part":
        """
        :param content: from a manifest
        :return: the part
        :raises ValueError: for anything else
        """
        part = cls(**content)
        part.members = {name: Facts.from_json(facts) for name, facts in part.members.items()}
        if not _PART.fullmatch(part.name):
            raise ValueError(f"{part.name!r} is no name of a part")
        if not all(isinstance(number, int) for number in (part.size, part.first, part.end)):
            raise ValueError(f"{part.name} is described by something else than integers")
        if not 0 <= part.first <= part.end < _MAX_NUMBER:
            raise ValueError(f"{part.name} from {part.first} to {part.end}")
        for name, facts in part.members.items():
            if facts.offset + facts.n_header + facts.n_bytes > part.size:
                raise ValueError(f"{name} does not fit into {part.size} bytes")
        return part

    def check(self, directory: Path) -> None:
        """
        Read all of it.

        :param directory: where it is
        :raises DamagedFileError: if it is not what was written
        """
        with open_plain(directory / self.name, self.size) as file:
            for member, facts in self.members.items():
                read_member(file, f"{directory / self.name} ({member})", facts, [facts.n_bytes])


@dataclass
class Manifest:
    """
    What a generation is.

    :param generation: its number
    :param num_timesteps: of the model at that moment
    :param about: what the buffer is, for comparing it with another
    :param numbers: of the buffer
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
        """Parts of a stream, in their order."""
        return [part for part in self.parts if part.stream == stream]

    def to_bytes(self) -> bytes:
        """
        :return: the file
        :raises ValueError: if it could not be read again
        """
        if not _MANIFEST.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a manifest")
        content = {"format": FORMAT, "version": VERSION, **vars(self), "parts": [part.to_json() for part in self.parts]}
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
        :raises ValueError: if it was written by another version
        """
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_MANIFEST:
                raise DamagedFileError(f"{path} is damaged: no manifest has more than {_MAX_MANIFEST} bytes")
            data = file.read()
        head = _HEAD.match(data)
        if head is None or int(head[1], 16) != zlib.crc32(data[head.end() :]):
            raise DamagedFileError(f"{path} is damaged: its checksum is another")
        try:
            content = json.loads(data)
            del content["crc32"]
            found_format, version = content.pop("format"), content.pop("version")
            if found_format == FORMAT and version != VERSION:
                raise UnknownVersionError(
                    f"{path} has version {version} of the format, and this release of sb3_per reads version {VERSION}"
                )
            manifest = cls(**{**content, "parts": [Part.from_json(part) for part in content["parts"]]})
            if not (isinstance(manifest.about, dict) and isinstance(manifest.numbers, dict)):
                raise ValueError("it does not say what the buffer was")
            if found_format != FORMAT or manifest.name != path.name:
                raise ValueError("it was written under another name")
        except UnknownVersionError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedFileError(f"{path} is damaged: {error}") from error
        return manifest


class UnknownVersionError(ValueError):
    """A manifest of a version that this release does not read."""


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
        numbers = [_generation_of(name) for name in os.listdir(self.path)]
        return max(numbers, default=0) + 1

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
                part.check(self.path)
                self.note(part.name)

    def note(self, name: str) -> None:
        """A file is known to be whole."""
        signature = self._signature(name)
        if signature is not None:
            self.known[name] = signature

    def _signature(self, name: str) -> tuple[int, int, int] | None:
        try:
            found = os.lstat(self.path / name)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino

    def write_part(self, name: str, stream: str, first: int, end: int, members: Callable[[], dict[str, Member]]) -> Part:
        """
        :param name: of the file
        :param stream: what it is a part of
        :param first: number of the first step, or frame
        :param end: number behind the last
        :param members: makes its arrays
        :return: what was written; durable when the manifest is
        :raises OSError: e.g. on a full disk; nothing is left of it then
        """
        facts = atomic.write_file(self.path / name, lambda file: write_npz(file, members()))
        self.note(name)
        return Part(name, stream, first, end, os.stat(self.path / name).st_size, facts)

    def discard(self, names: list[str]) -> None:
        """
        Remove what was written for a generation that does not count; on a full disk, others may want the room.

        :param names: of its files, the manifest first; not all of them need be there
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
        atomic.remove_files(self.path, surplus)
        if surplus:
            atomic.sync_directory(self.path)
        wanted |= {part.name for manifest in kept for part in manifest.parts}
        names = [entry.name for entry in os.scandir(self.path)]
        stale = [name for name in names if (_PART.fullmatch(name) and name not in wanted) or _LEFTOVER.fullmatch(name)]
        atomic.remove_files(self.path, stale)
        for name in stale:
            self.known.pop(name, None)


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
