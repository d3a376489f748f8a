"""
Keep generations of a saved buffer in a directory: find those that are complete, add one, and remove old ones.

A generation is a manifest, ``gen-<number>-<num_timesteps>.json``, and the files that it names. It counts from the moment its
manifest exists. The first line of a manifest is the CRC-32 of everything after it.
"""

import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sb3_per.persistence.atomic as atomic
from sb3_per.persistence.npz import Arrays, DamagedFileError, Member, open_plain, require_counts, write_npz

FORMAT = "sb3_per.buffer"
VERSION = 1

_MANIFEST = re.compile(r"gen-([0-9]{1,12})-([0-9]{1,18})\.json")
_PART = re.compile(r"(?:seg|frm)-[0-9a-f]{12}-[0-9]{1,18}-[0-9]{1,18}\.npz|state-[0-9]{1,12}\.npz")
_OURS = re.compile(rf"(?:{_MANIFEST.pattern}|{_PART.pattern})(?:{atomic.TEMPORARY})?")

# Largest size of a manifest, bytes. It has a few hundred bytes for each of its files, and can take 25 times its size in RAM.
_MAX_MANIFEST = 4 * 2**20

# The first line of a manifest. The whole file is JSON too.
_HEAD = re.compile(rb'\{"crc32": "([0-9a-f]{8})",\n')


@dataclass
class Part:
    """
    A file of a generation.

    :param name: name of the file
    :param stream: name of the stream that it belongs to, or ``"state"``
    :param first: number of its first step or frame
    :param end: number after the last
    :param size: size of the file, bytes
    :param members: its arrays by name
    :raises ValueError: for another name, a number that is not a count, or a size below that of its arrays
    """

    name: str
    stream: str
    first: int
    end: int
    size: int
    members: dict[str, Member]

    def __post_init__(self) -> None:
        require_counts(self.first, self.end - self.first, self.size)
        if not _PART.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a part")
        if any(member.offset + member.n_bytes > self.size for member in self.members.values()):
            raise ValueError(f"{self.name} is too small for its arrays")

    def read(self, directory: Path, into: Arrays) -> None:
        """
        Read the last rows of some arrays, and check all bytes of these arrays.

        :param directory: path of the directory
        :param into: by name, contiguous arrays to fill in order
        :raises DamagedFileError: if the file is missing, has another size, or other bytes than were written
        """
        with open_plain(directory / self.name, self.size) as file:
            for name, arrays in into.items():
                self.members[name].read(file, arrays)


@dataclass
class Manifest:
    """
    Description of a generation.

    :param generation: number of the generation
    :param num_timesteps: steps of the model when it was saved
    :param about: kind, spaces and form of the buffer, from :func:`~sb3_per.persistence.contents.about`
    :param numbers: numbers of the state, by name
    :param parts: files of the generation
    :raises ValueError: for a value of another type
    """

    generation: int
    num_timesteps: int
    about: dict[str, Any]
    numbers: dict[str, Any]
    parts: list[Part]

    def __post_init__(self) -> None:
        require_counts(self.generation, self.num_timesteps)
        if not (isinstance(self.about, dict) and isinstance(self.numbers, dict)):
            raise ValueError("it does not describe a buffer")

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"gen-{self.generation:08d}-{self.num_timesteps}.json"

    def of_stream(self, stream: str) -> list[Part]:
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
        content = {"format": FORMAT, "version": VERSION, **vars(self)}
        body = json.dumps(content, default=vars, allow_nan=False).encode()[1:]  # the brace goes before the checksum
        return b'{"crc32": "%08x",\n' % zlib.crc32(body) + body

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """
        Read a manifest.

        :param path: path of a manifest
        :return: the manifest
        :raises DamagedFileError: if the file is missing, or is not a manifest with this name
        :raises ValueError: if the file has another format or version
        """
        with open_plain(path) as file:
            data = file.read(_MAX_MANIFEST + 1)
            if len(data) > _MAX_MANIFEST:
                raise ValueError(f"it has more than {_MAX_MANIFEST} bytes")
            head = _HEAD.match(data)
            if head is None or int(head[1], 16) != zlib.crc32(data[head.end() :]):
                raise ValueError("its checksum does not fit")
            content = json.loads(data)
            del content["crc32"]
            found_format, version = content.pop("format"), content.pop("version")
            if (found_format, version) == (FORMAT, VERSION):
                for part in content["parts"]:
                    part["members"] = {name: Member(**member) for name, member in dict(part["members"]).items()}
                content["parts"] = [Part(**part) for part in content["parts"]]
                manifest = cls(**content)
                if manifest.name != path.name or not _MANIFEST.fullmatch(path.name):
                    raise ValueError(f"it was written as {manifest.name}")
                return manifest
        known = f"this release of sb3_per reads version {VERSION} of {FORMAT}"
        raise ValueError(f"{path} has version {version} of the format {found_format}, and {known}")


def manifests_in(directory: Path) -> list[str]:
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
    :raises ValueError: if a manifest has another version
    """
    found = []
    checked: dict[str, Part] = {}  # generations share most of their files
    for name in manifests_in(directory):
        with suppress(DamagedFileError):
            manifest = Manifest.read(directory / name)
            for part in manifest.parts:
                if checked.get(part.name) != part:
                    part.read(directory, {member: [] for member in part.members} if with_contents else {})
                    checked[part.name] = part
            found.append(manifest)
    return found


def write_part(directory: Path, part: Part, arrays: Callable[..., Arrays], *arguments: Any) -> None:
    """
    Write a file. It is durable once the manifest is.

    :param directory: path of the directory
    :param part: description of the file; its size and its arrays are filled in
    :param arrays: returns its arrays
    :param arguments: arguments of ``arrays``
    :raises OSError: e.g. on a full disk; no part of the file is left
    """
    part.members = atomic.write_file(directory / part.name, lambda file: write_npz(file, arrays(*arguments)))
    part.size = os.stat(directory / part.name).st_size


def remove(directory: Path, names: Iterable[str]) -> None:
    """
    Remove files. Removal is durable after :func:`~sb3_per.persistence.atomic.sync_directory`.

    :param directory: path of the directory
    :param names: names of the files; one that is missing or cannot be removed is skipped
    """
    for name in names:
        with suppress(OSError):
            os.unlink(directory / name)


def commit(directory: Path, manifest: Manifest) -> None:
    """
    Make a generation count.

    :param directory: path of the directory
    :param manifest: manifest of the generation, whose parts are written
    :raises OSError: e.g. on a full disk; remove the manifest then
    :raises ValueError: if the generation could not be found again; remove the manifest then
    """
    atomic.sync_directory(directory)  # the parts must be durable before the manifest is
    atomic.write_file(directory / manifest.name, lambda file: file.write(manifest.to_bytes()))
    Manifest.read(directory / manifest.name)
    atomic.sync_directory(directory)


def clean_up(directory: Path, kept: Iterable[Manifest]) -> None:
    """
    Remove other generations, and files that no remaining generation needs.

    :param directory: path of the directory
    :param kept: generations to keep
    """
    wanted = {name for manifest in kept for name in (manifest.name, *(part.name for part in manifest.parts))}
    surplus = [name for name in os.listdir(directory) if _OURS.fullmatch(name) and name not in wanted]
    # Remove manifests first, and durably: no manifest may be left without its files.
    manifests = list(filter(_MANIFEST.fullmatch, surplus))
    remove(directory, manifests)
    if manifests:
        atomic.sync_directory(directory)
    remove(directory, surplus)


def numbers_in(name: str) -> tuple[int, int]:
    """
    Read the numbers in the name of a manifest.

    :param name: name of a manifest
    :return: number of its generation, and steps of the model when it was saved
    """
    found = _MANIFEST.fullmatch(name)
    assert found is not None, name
    return int(found[1]), int(found[2])
