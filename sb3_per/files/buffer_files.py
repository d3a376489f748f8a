"""
A buffer as a directory of files, see :mod:`sb3_per.files.generations`, and back.

What is written once for every step, observations and actions, is in files that are never written again; all that may change
later is small, and is written in full every time. It knows buffers and files, nothing of algorithms.
"""

import functools
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.columns import Move
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.frames import FrameStore, frames_by_key
from sb3_per.buffers.ring import is_count
from sb3_per.files import infos
from sb3_per.files.atomic import make_directory, sole_writer
from sb3_per.files.facts import about
from sb3_per.files.generations import Directory, Manifest, Part
from sb3_per.files.npz import DamagedFileError, Member, open_plain, read_array, read_member

SUFFIX = ".buffer"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)
ResultT = TypeVar("ResultT")

# Size of a file, at most; but no more than so many files, for the manifest has to name them all.
_PART_BYTES, _MANY_PARTS = 64 * 2**20, 128

# Files below this size, or this share of what is held, are joined with what comes behind them: a few dozens are enough.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64

# In the arrays of a state, each of which has a few numbers for a transition, or one observation of each environment.
_MAX_BYTES_OF_TRANSITION = 64

# Columns that are written as bytes where they are zeros and ones.
_FLAGS = ("dones", "timeouts")

# More at once do not make a disk faster.
_MAX_THREADS = 4

# How often a directory is looked at again, when a writer has removed what was about to be read.
_RETRIES = 5


@dataclass
class Saved:
    """
    What a buffer knows of a directory that it was saved to or loaded from.

    :param directory: with the files that are known to be whole
    :param about: what the buffer was
    :param parts: that hold what this buffer holds
    """

    directory: Directory
    about: dict[str, Any]
    parts: list[Part] = field(default_factory=list)


# ---- out


def save_buffer(
    buffer: PrioritizedReplayBuffer, path: str | Path, num_timesteps: int = 0, full: bool = False, keep: int = 2
) -> None:
    """
    Write a generation into a directory: only what came since this buffer was saved there last, if it was.

    :param buffer: to save; it does not change
    :param path: of the directory, which is made if it is not there
    :param num_timesteps: of the model, becomes part of the manifest's name
    :param full: write all, e.g. because stored observations were changed by hand
    :param keep: number of generations that stay, at least 1
    :raises ValueError: for another ``keep``; for infos that cannot be saved; for what could not be loaded again, e.g. a beta
        of 2 that was set by hand; if another version has written to the directory. What was saved before stays
    :raises OSError: e.g. on a full disk, or if another writer is at it. What was saved before stays
    """
    if not is_count(keep):
        raise ValueError(f"keep must be an integer of at least 1, not {keep!r}")
    path = Path(path).absolute()
    make_directory(path)
    with sole_writer(path), buffer._lock:
        contents, facts = buffer._extract(), about(buffer)
        saved = _saved_at(buffer, path, facts, full)
        directory = saved.directory
        generation = directory.next_generation()
        kept: list[Part] = []
        new = [_new_state(contents, generation)]
        for stream in _streams(buffer, contents):
            kept_of_stream, new_of_stream = _divide(stream, saved)
            kept += kept_of_stream
            new += new_of_stream
        manifest = Manifest(generation, num_timesteps, facts, contents.numbers, [])
        try:
            state, *written = in_parallel([functools.partial(directory.write_part, *part) for part in new])
            _require_restorable(buffer, directory, state, contents.numbers)
            parts = sorted([*kept, *written], key=lambda part: (part.stream, part.first))
            manifest.parts = [*parts, state]
            directory.commit(manifest)
        except BaseException:
            directory.discard([manifest.name, *(part.name for part in new)])
            raise
        saved.parts = _lasting(parts, buffer, contents)
        buffer._lock.saved[path] = saved
        try:
            directory.clean_up(manifest, keep)
        except OSError as error:
            warnings.warn(f"{path / manifest.name} is saved, but what is older could not be looked at or removed: {error}")


def _require_restorable(buffer: PrioritizedReplayBuffer, directory: Directory, state: Part, numbers: dict[str, Any]) -> None:
    """
    Try what is about to count, before what is older goes: all but rows and frames, in whose place those in memory stand.

    :param buffer: that is saved
    :param directory: where it is saved
    :param state: that was written there
    :param numbers: of the manifest
    :raises ValueError: if it could not be loaded
    """
    contents, twin = Contents(state.first, state.end, buffer.buffer_size, numbers), buffer._emptied()
    try:
        _require_sound(contents, buffer.n_envs)
        for store, original in zip(twin._frame_stores(), buffer._frame_stores(), strict=True):
            store.look_like(original)
        twin._place(state.first, state.end, numbers["n_before_ring"])
        _read_state(directory, state, twin, contents, None)
        twin._restore(contents)
    except _CONTRADICTIONS as error:
        raise ValueError(
            f"This buffer is not saved, for it could not be loaded again: {error}. What was saved before is still there"
        ) from error


def _saved_at(buffer: PrioritizedReplayBuffer, path: Path, facts: dict[str, Any], full: bool) -> Saved:
    """What can be continued there."""
    saved: Saved | None = buffer._lock.saved.get(path)
    directory = Directory(path) if saved is None else saved.directory
    for name in directory.manifests():
        try:
            Manifest.read(path / name)  # another version may not be able to read what this one leaves of it
        except DamagedFileError:
            continue
    if saved is None or full or saved.about != {**facts, "scheme": saved.about["scheme"]}:
        return Saved(directory, facts)
    try:
        directory.check(saved.parts)
    except DamagedFileError as error:
        warnings.warn(f"All is written anew: {error}")
        return Saved(directory, facts)
    return saved


class _NewPart(NamedTuple):
    """What :meth:`Directory.write_part` is given."""

    name: str
    stream: str
    first: int
    end: int
    members: Callable[[], dict[str, Member]]


def _as_bytes(blocks: list[np.ndarray]) -> list[np.ndarray]:
    """SB3 writes zeros and ones as floats; where that is all, a quarter of the bytes will do."""
    with np.errstate(invalid="ignore"):
        small = [block.astype(np.uint8) for block in blocks]
    is_all = all(np.array_equal(a, b) for a, b in zip(small, blocks, strict=True))
    return small if is_all else blocks


def _new_state(contents: Contents, generation: int) -> _NewPart:
    def members() -> dict[str, Member]:
        columns = {}
        for name, blocks in contents.columns.items():
            blocks = _as_bytes(blocks) if name in _FLAGS else blocks
            columns[name] = Member(_shape_of(blocks), blocks[0].dtype, blocks)
        return {**columns, **{name: Member.of(array) for name, array in contents.arrays.items()}}

    return _NewPart(f"state-{generation:08d}.npz", "state", contents.first, contents.end, members)


@dataclass
class _Stream:
    """
    What is numbered on and on, and written once.

    :param name: of the stream
    :param prefix: of the names of its files
    :param first: number of what is held
    :param end: number behind it
    :param end_of_final: number behind what does not change any more; all behind it is written anew every time
    :param n_bytes: of one
    :param members: arrays of a range
    """

    name: str
    prefix: str
    first: int
    end: int
    end_of_final: int
    n_bytes: int
    members: Callable[[int, int], dict[str, Member]]


def _streams(buffer: PrioritizedReplayBuffer, contents: Contents) -> Iterator[_Stream]:
    rows = buffer._rows()

    def members_of_steps(first: int, end: int) -> dict[str, Member]:
        blocks = {name: buffer._in_order(array, first, end) for name, array in rows.items()}
        if "infos" in blocks:
            blocks["infos"], blocks["infos_end"] = ([part] for part in infos.encode(np.concatenate(blocks["infos"])))
        return {name: Member(_shape_of(parts), parts[0].dtype, parts) for name, parts in blocks.items()}

    n_bytes = sum(array[:1].nbytes for array in rows.values())
    yield _Stream("rows", "seg", contents.first, contents.end, _end_of_final(buffer, contents), n_bytes, members_of_steps)
    for name, store in buffer._named_stores().items():

        def members_of_frames(first: int, end: int, store: Any = store) -> dict[str, Member]:
            return {"frames": Member((end - first, *store.frame_shape), store.dtype, store.frames(first, end))}

        first, end = store.numbers
        yield _Stream(name, "frm", first, end, end, store.frame_bytes, members_of_frames)


def _end_of_final(buffer: PrioritizedReplayBuffer, contents: Contents) -> int:
    """Step up to which all environments have added: from there on, rows are still written to."""
    return contents.end if buffer._apart is None else max(buffer._apart.least, contents.first)


def _lasting(parts: Sequence[Part], buffer: PrioritizedReplayBuffer, contents: Contents) -> list[Part]:
    """Those that another save can go on from."""
    end_of_final = _end_of_final(buffer, contents)
    return [part for part in parts if part.stream != "state" and (part.stream != "rows" or part.end <= end_of_final)]


def _shape_of(blocks: list[np.ndarray]) -> tuple[int, ...]:
    return (sum(len(block) for block in blocks), *blocks[0].shape[1:])


def _divide(stream: _Stream, saved: Saved) -> tuple[list[Part], list[_NewPart]]:
    """
    :param stream: to write
    :param saved: what is there already
    :return: files that stay, and those to write, which hold the stream together
    """
    kept = [part for part in saved.parts if part.stream == stream.name and part.end > stream.first]
    begin, final = max(kept[-1].end if kept else stream.first, stream.first), stream.end_of_final
    if begin < final:
        small = max(_SMALL_BYTES // max(stream.n_bytes, 1), (stream.end - stream.first) * _SMALL_SHARE)
        # Join no more than is new, again and again: every step is written a few times at most.
        while kept and kept[-1].first >= max(2 * begin - final, final - small):
            begin = max(kept.pop().first, stream.first)
    part_bytes = max(_PART_BYTES, (stream.end - stream.first) * stream.n_bytes // _MANY_PARTS)
    step = max(part_bytes // max(stream.n_bytes, 1), 1)
    new = []
    for first in [*range(begin, final, step), *range(final, stream.end, step)]:
        end = min(first + step, final if first < final else stream.end)
        members = functools.partial(stream.members, first, end)
        # No two files have the same name: what is written, and removed if that fails, is never a file that others need.
        name = f"{stream.prefix}-{uuid.uuid4().hex[:12]}-{first}-{end - 1}.npz"
        new.append(_NewPart(name, stream.name, first, end, members))
    return kept, new


def in_parallel(functions: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
    """
    Call functions that read or write a file each: checksums, copies and the disk can be had at the same time.

    :param functions: to call
    :return: what they returned, in their order; all have ended then
    :raises Exception: the first one of them
    """
    if len(functions) == 1:
        return [functions[0]()]
    with ThreadPoolExecutor(min(len(functions), os.cpu_count() or 1, _MAX_THREADS)) as pool:
        return [future.result() for future in [pool.submit(function) for function in functions]]


# ---- in


def is_buffer_path(path: Path) -> bool:
    """
    :param path: of anything
    :return: whether this is how a buffer in files looks, or would look if it were there
    """
    if path.exists():
        return path.is_dir() or (path.suffix == ".json" and path.parent.suffix == SUFFIX)
    return path.suffix == SUFFIX


def load_buffer(buffer: BufferT, path: str | Path) -> BufferT:
    """
    The newest generation that is whole, as a buffer like this one. No code of the file runs.

    :param buffer: says class, spaces, scheme and settings; it does not change
    :param path: of the directory or, for a generation of one's choice, of its manifest
    :return: a new buffer with the settings of this one
    :raises FileNotFoundError: if there is nothing
    :raises DamagedFileError: if no generation is whole; the message names file and damage
    :raises ValueError: if it does not fit this buffer, or was written by another version
    """
    path = Path(path).absolute()
    directory = Directory(path if path.is_dir() else path.parent)
    for n_left in reversed(range(_RETRIES)):
        names = directory.manifests() if path.is_dir() else [path.name]
        if not names or not path.exists():
            raise FileNotFoundError(f"There is no saved buffer at {path}")
        first_error: DamagedFileError | None = None
        for i, name in enumerate(names):
            try:
                loaded = _load_generation(buffer, directory, name)
            except DamagedFileError as error:
                directory.refused.add(name)
                first_error = first_error or error
                if path.is_dir() and n_left and directory.manifests() != names:
                    break  # a writer has put other generations in their place in the meantime
                continue
            if i > 0:
                warnings.warn(f"{first_error}. In its place, the generation before was loaded: {directory.path / name}")
            return loaded
        else:
            assert first_error is not None
            raise first_error
    raise AssertionError("the last time, all names are tried")


def _load_generation(buffer: BufferT, directory: Directory, name: str) -> BufferT:
    manifest = Manifest.read(directory.path / name)
    facts, found = about(buffer), manifest.about
    with _as_damage(directory.path / name, (RecursionError,)):
        _require_fit(found, facts, directory.path / name)
    with _as_damage(directory.path / name):
        (state,) = manifest.of_stream("state")
        contents = Contents(state.first, state.end, int(found["buffer_size"]), manifest.numbers)
        _require_sound(contents, buffer.n_envs)
        is_same_size, is_same_form = contents.buffer_size == buffer.buffer_size, found["frames"] == facts["frames"]
        twin = buffer._emptied()
        if not is_same_form:
            twin._store_frames({entry["key"]: int(entry["n_frames"]) for entry in found["frames"]})
        move = None if is_same_size else _move_of(directory, state, twin, contents)
        if move is None:
            first = _first_kept(contents, buffer)
            twin._place(first, contents.end, contents.numbers["n_before_ring"] if is_same_size else None)
        else:
            first, begin = contents.first, move.target.n_before_ring
            twin._place(begin, move.target.most, begin)
        reads: list[Callable[[], None]] = [functools.partial(_read_state, directory, state, twin, contents, move)]
        for stream, store in twin._named_stores().items():
            reads += _reads_of_frames(directory, _chain(manifest.of_stream(stream)), store)
        reads += _reads_of_rows(directory, _chain(manifest.of_stream("rows")), twin, first, contents.end, move)
        in_parallel(reads)
        if move is not None:
            twin._moved(contents, move)
        twin._restore(contents, found["scheme"] == facts["scheme"])
    if not is_same_form:
        twin._store_frames({} if buffer.frames is None else frames_by_key(buffer.frames, buffer.observation_space))
    elif is_same_size:
        for part in manifest.parts:
            directory.note(part.name)
        twin._lock.saved[directory.path] = Saved(directory, found, _lasting(manifest.parts, twin, contents))
    if found["scheme"] != facts["scheme"]:
        warnings.warn(
            f"{directory.path} was saved with the scheme {found['scheme']}, and this buffer has {facts['scheme']}: all "
            "priorities are the largest now"
        )
    return twin


def _require_fit(found: dict[str, Any], expected: dict[str, Any], path: Path) -> None:
    """
    :param found: what the files are of
    :param expected: what the buffer is
    :param path: of the manifest
    :raises ValueError: if they do not go together
    """
    names = "kind observation_space action_space n_envs optimize_memory_usage copy_info_dict sequences"
    for name in names.split():
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"The saved buffer does not fit this model: {path} has {name} {found.get(name)}, and the model has "
                f"{expected.get(name)}"
            )


# What comes of contents that do not agree with themselves.
_CONTRADICTIONS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def _as_damage(path: Path, errors: tuple[type[Exception], ...] = _CONTRADICTIONS) -> Iterator[None]:
    """What does not agree with itself is damage."""
    try:
        yield
    except DamagedFileError:
        raise
    except errors as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


def _chain(parts: list[Part]) -> list[Part]:
    """Parts of a stream, which follow one another."""
    for part, following in pairwise(parts):
        if part.end != following.first:
            raise ValueError(f"{following.name} does not follow {part.name}")
    return parts


def _require_sound(contents: Contents, n_envs: int) -> None:
    """The numbers are those of a ring, and ids have 64 bits."""
    n_before_ring, size = int(contents.numbers["n_before_ring"]), contents.buffer_size
    if not (size >= 1 and 0 <= n_before_ring <= contents.first and n_before_ring % size == 0):
        raise ValueError(f"a ring of {size} rows that begins at step {n_before_ring}")
    if contents.end - contents.first != min(contents.end - n_before_ring, size):
        raise ValueError(f"steps from {contents.first} to {contents.end} in a ring of {size} rows")
    if contents.end * n_envs >= 2**60:
        raise ValueError(f"{contents.end} steps of {n_envs} environments")


def _move_of(directory: Directory, state: Part, twin: PrioritizedReplayBuffer, contents: Contents) -> Move | None:
    """Where columns that stood apart go in a buffer of another size; ``None``: they stood together."""
    if "column_steps" not in state.members:
        return None
    with _PartReader.open(directory, state) as reader:
        for name in ("column_steps", "column_steps_admitted"):
            if state.members[name].shape != (twin.n_envs,):
                raise ValueError(f"{name} of shape {state.members[name].shape}")
            contents.arrays[name] = reader.array(name)
    return Move(twin._columns_in(contents), twin.buffer_size)


def _first_kept(contents: Contents, buffer: PrioritizedReplayBuffer) -> int:
    """The oldest step that comes along: the newest that fit."""
    n_held = contents.end - contents.first
    if buffer.optimize_memory_usage and n_held == contents.buffer_size < buffer.buffer_size:
        n_held -= 1  # the newest next observation lay over the oldest observation
    return contents.end - min(n_held, buffer.buffer_size)


class _PartReader:
    """
    Reads arrays of a file.

    :param directory: where it is
    :param part: the file
    :param file: the same, open
    """

    def __init__(self, directory: Directory, part: Part, file: BinaryIO):
        self.path, self.part, self.file = directory.path / part.name, part, file

    @classmethod
    @contextmanager
    def open(cls, directory: Directory, part: Part) -> Iterator["_PartReader"]:
        """Open a file of its known size."""
        with open_plain(directory.path / part.name, part.size) as file:
            yield cls(directory, part, file)

    def array(self, name: str) -> np.ndarray:
        """A whole array, in the byte order of this machine."""
        array = read_array(self.file, f"{self.path} ({name})", self.part.members[name])
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def rows(self, name: str, n: int, like: np.ndarray) -> np.ndarray:
        """
        :param name: of the array
        :param n: how many rows it has
        :param like: has rows of the same shape and type
        :return: the whole array
        """
        self._require_shape(name, n, like)
        array = self.array(name)
        if array.dtype != like.dtype and not (name in _FLAGS and array.dtype == np.uint8):
            raise DamagedFileError(f"{self.path} is damaged: {name} is of type {self.part.members[name].dtype}")
        return array

    def _require_shape(self, name: str, n: int, like: np.ndarray) -> None:
        if self.part.members[name].shape != (n, *like.shape[1:]):
            raise DamagedFileError(f"{self.path} is damaged: {name} has the shape {self.part.members[name].shape}")

    def into(self, name: str, targets: list[np.ndarray], n_skipped: int = 0) -> None:
        """
        :param name: of the array
        :param targets: views of contiguous rows that its rows go to, in their order
        :param n_skipped: rows before those
        """
        facts, like = self.part.members[name], targets[0]
        n = n_skipped + sum(len(target) for target in targets)
        self._require_shape(name, n, like)
        if np.dtype(facts.dtype) == like.dtype:
            n_bytes = n_skipped * (facts.n_bytes // facts.shape[0])
            read_member(self.file, f"{self.path} ({name})", facts, [n_bytes, *targets])
            return
        # Of a machine with another byte order, or flags.
        array = self.rows(name, n, like)[n_skipped:]
        for target in targets:
            target[...], array = array[: len(target)], array[len(target) :]


def _reads_of_frames(directory: Directory, parts: list[Part], store: FrameStore) -> Iterator[Callable[[], None]]:
    """Reads of a pool of frames, file by file."""
    for part in parts:
        with open_plain(directory.path / part.name, part.size):
            pass  # it is there, before memory is taken for what it holds
        if part.members["frames"].shape != (part.end - part.first, *store.frame_shape):
            raise ValueError(f"{part.name} holds frames of shape {part.members['frames'].shape}")
    store.reserve_numbers(parts[0].first if parts else 0, parts[-1].end if parts else 0)

    def read(part: Part) -> None:
        with _PartReader.open(directory, part) as reader:
            reader.into("frames", store.frames(part.first, part.end))

    yield from (functools.partial(read, part) for part in parts)


def _reads_of_rows(
    directory: Directory, parts: list[Part], twin: PrioritizedReplayBuffer, first: int, end: int, move: Move | None
) -> Iterator[Callable[[], None]]:
    """Reads of the steps from one to another, or of those of them that move, file by file."""
    if first < end and not (parts and parts[0].first <= first and parts[-1].end == end):
        raise ValueError(f"steps from {first} to {end} are not all there")
    shift, rows = twin._n_added - end, twin._rows()
    for part in parts:
        for name in [*(name for name in rows if name != "infos"), *(["infos_end"] if "infos" in rows else [])]:
            # Before memory is taken for what belongs to so many steps.
            if part.members[name].shape[:2] != (part.end - part.first, twin.n_envs):
                raise ValueError(f"{part.name} holds {name} of shape {part.members[name].shape}")

    def read(part: Part) -> None:
        begin = max(first, part.first)
        slices = twin._row_slices(begin + shift, part.end + shift)
        with _PartReader.open(directory, part) as reader:
            for name, array in rows.items():
                if name != "infos":
                    reader.into(name, [array[rows_of_part] for rows_of_part in slices], begin - part.first)
                    continue
                decoded = infos.decode(reader.array("infos"), reader.array("infos_end"))[begin - part.first :]
                for rows_of_part in slices:
                    array[rows_of_part] = decoded[: rows_of_part.stop - rows_of_part.start]
                    decoded = decoded[rows_of_part.stop - rows_of_part.start :]

    def read_moving(move: Move, part: Part) -> None:
        begin = max(first, part.first)
        with _PartReader.open(directory, part) as reader:
            for name, array in rows.items():
                move.put(reader.rows(name, part.end - part.first, array)[begin - part.first :], begin, array)

    read_part = read if move is None else functools.partial(read_moving, move)
    yield from (functools.partial(read_part, part) for part in parts if part.end > first)


def _read_state(
    directory: Directory, part: Part, twin: PrioritizedReplayBuffer, contents: Contents, move: Move | None
) -> None:
    """Fill the columns that are the buffer's own arrays; the others become arrays of the contents."""
    columns, n_held = twin._columns(), twin.size()
    slices = twin._row_slices(twin._n_added - n_held, twin._n_added)
    most_bytes = _SMALL_BYTES + _MAX_BYTES_OF_TRANSITION * (contents.end - contents.first) * twin.n_envs
    if twin.optimize_memory_usage:
        most_bytes += twin.observations[:1].nbytes
    with _PartReader.open(directory, part) as reader:
        for name, column in columns.items() if slices else ():
            if move is not None:
                move.put(reader.rows(name, contents.end - contents.first, column), contents.first, column)
                continue
            targets = [column[rows_of_part] for rows_of_part in slices]
            reader.into(name, targets, contents.end - contents.first - n_held)
        for name in part.members.keys() - columns.keys():
            if part.members[name].n_bytes > most_bytes:
                raise ValueError(f"{name} of shape {part.members[name].shape}")
            contents.arrays[name] = reader.array(name)
