"""
A buffer as a directory of files, see :mod:`sb3_per.persistence.generations`, and back.

What is written once for every step, e.g. observations and actions, is in files that are never written again. All that may
change later is small, and is written in full every time.
"""

import functools
import os
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.settings import Count, require
from sb3_per.buffers.transfer import emptied, take_steps
from sb3_per.persistence import infos
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.contents import State, Stream, about, expected_arrays, pools_of, rows_of, slices_of, streams_of
from sb3_per.persistence.generations import Directory, Manifest, Part
from sb3_per.persistence.npz import DamagedFileError
from sb3_per.storage.arrays import ArrayStorage
from sb3_per.storage.frames import FrameStore

SUFFIX = ".buffer"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)
ResultT = TypeVar("ResultT")

# Size of a file, at most; but no more than so many files, for the manifest has to name them all.
_PART_BYTES, _MANY_PARTS = 64 * 2**20, 128

# Files below this size, or this share of what is held, are joined with what comes after them: a few dozens are enough.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64

# More at once do not make a disk faster.
_MAX_THREADS = 4

# How often a directory is looked at again, when a writer has removed what was about to be read.
_RETRIES = 5

# Transitions of a buffer of another size, unless its files are large enough for more.
_MOST_SLOTS = 2**27

# What comes of contents that do not agree with themselves.
_CONTRADICTIONS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@dataclass
class _Saved:
    """
    What is known of a directory that rows were saved to or loaded from.

    :param directory: with the files that are known to be whole
    :param about: what the buffer was
    :param parts: that hold what is held
    """

    directory: Directory
    about: dict[str, Any]
    parts: list[Part] = field(default_factory=list)


# By storage: rows and frames that are stored anew are saved anew, and a copy of a buffer begins anew.
_SAVED: "weakref.WeakKeyDictionary[ArrayStorage, dict[Path, _Saved]]" = weakref.WeakKeyDictionary()


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
    require("keep", keep, Count())
    path = Path(path).absolute()
    make_directory(path)
    with sole_writer(path), buffer.lock:
        facts, state = about(buffer), State.of(buffer)
        _require_restorable(buffer, state)
        saved = _saved_at(buffer, path, facts, full)
        directory = saved.directory
        generation = directory.next_generation()
        name = f"state-{generation:08d}.npz"
        arrays = {key: [array] for key, array in state.arrays.items()}
        new, kept = [_NewPart(name, "state", state.first, state.end, lambda: arrays)], list[Part]()
        streams = streams_of(buffer)
        for stream in streams:
            kept_of_stream, new_of_stream = _divide(stream, saved)
            kept += kept_of_stream
            new += new_of_stream
        manifest = Manifest(generation, num_timesteps, facts, state.numbers, [])
        try:
            part_of_state, *written = in_parallel([functools.partial(directory.write_part, *part) for part in new])
            parts = sorted([*kept, *written], key=lambda part: (part.stream, part.first))
            manifest.parts = [*parts, part_of_state]
            directory.commit(manifest)
        except BaseException:
            directory.discard([manifest.name, *(part.name for part in new)])
            raise
        saved.parts = _lasting(parts, streams)
        _SAVED.setdefault(buffer.storage, {})[path] = saved
        try:
            directory.clean_up(manifest, keep)
        except OSError as error:
            warnings.warn(f"{path / manifest.name} is saved, but what is older could not be looked at or removed: {error}")


def _require_restorable(buffer: PrioritizedReplayBuffer, state: State) -> None:
    """
    Try the state before it is written: a generation that could not be loaded must not push out one that can.

    :param buffer: that is saved
    :param state: of it
    :raises ValueError: if it could not be loaded
    """
    try:
        emptied(buffer).load(state.nested())
        for store in buffer.storage.frame_stores.values():
            store.require_sound()
    except _CONTRADICTIONS as error:
        raise ValueError(
            f"This buffer is not saved, for it could not be loaded again: {error}. What was saved before is still there"
        ) from error


def _saved_at(buffer: PrioritizedReplayBuffer, path: Path, facts: dict[str, Any], full: bool) -> _Saved:
    """What can be continued there."""
    saved = _SAVED.get(buffer.storage, {}).get(path)
    directory = Directory(path) if saved is None else saved.directory
    for name in directory.manifests():
        try:
            Manifest.read(path / name)  # another version may not be able to read what this one leaves of it
        except DamagedFileError:
            continue
    if saved is None or full or saved.about != {**facts, "scheme": saved.about["scheme"]}:
        return _Saved(directory, facts)
    try:
        directory.check(saved.parts)
    except DamagedFileError as error:
        warnings.warn(f"All is written anew: {error}")
        return _Saved(directory, facts)
    return saved


class _NewPart(NamedTuple):
    """What :meth:`Directory.write_part` is given."""

    name: str
    stream: str
    first: int
    end: int
    arrays: Callable[[], dict[str, list[np.ndarray]]]


def _divide(stream: Stream, saved: _Saved) -> tuple[list[Part], list[_NewPart]]:
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
        # No two files have the same name: what is written, and removed if that fails, is never a file that others need.
        name = f"{stream.prefix}-{uuid.uuid4().hex[:12]}-{first}-{end - 1}.npz"
        new.append(_NewPart(name, stream.name, first, end, functools.partial(stream.arrays, first, end)))
    return kept, new


def _lasting(parts: Sequence[Part], streams: Sequence[Stream]) -> list[Part]:
    """Those that another save can go on from."""
    ends = {stream.name: stream.end_of_final for stream in streams}
    return [part for part in parts if part.end <= ends.get(part.stream, -1)]


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
    path = directory.path / name
    manifest, facts = Manifest.read(path), about(buffer)
    found = manifest.about
    _require_fit(found, facts, path)
    keeps_masses = found["scheme"] == facts["scheme"]
    is_same_form = all(found[fact] == facts[fact] for fact in ("buffer_size", "frames"))
    with _as_damage(path):
        loaded = emptied(buffer) if is_same_form else emptied(buffer, _n_rows_for(manifest), _frames_of(found["frames"]))
        _read(loaded, directory, manifest, keeps_masses)
    if is_same_form:
        for part in manifest.parts:
            directory.note(part.name)
        _SAVED[loaded.storage] = {directory.path: _Saved(directory, found, _lasting(manifest.parts, streams_of(loaded)))}
    else:
        source, loaded = loaded, emptied(buffer)
        take_steps(loaded, source, keeps_masses)
    if not keeps_masses:
        warnings.warn(
            f"{directory.path} was saved with the scheme {found['scheme']}, and this buffer has {facts['scheme']}: all "
            "priorities are the largest now"
        )
    return loaded


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


def _n_rows_for(manifest: Manifest) -> int:
    """
    :param manifest: of a generation
    :return: number of rows that it can be read into
    :raises ValueError: if nothing says that there are so many, before memory is taken for them
    """
    (state,) = manifest.of_stream("state")
    n_rows, n_used = manifest.about["buffer_size"], state.end - state.first
    if manifest.numbers["ring/begin"] == 0 and n_used < n_rows:
        return n_used + 1
    if n_rows * manifest.about["n_envs"] > max(_MOST_SLOTS, sum(part.size for part in manifest.parts)):
        raise ValueError(f"{n_rows} rows in files of {n_used} steps")
    return n_rows


def _frames_of(entries: list[dict[str, Any]]) -> Any:
    """The setting ``frames`` of what a manifest says."""
    by_key = {entry["key"]: entry["n_frames"] for entry in entries}
    return by_key.get(None, by_key) if by_key else None


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """What does not agree with itself is damage."""
    try:
        yield
    except DamagedFileError:
        raise
    except _CONTRADICTIONS as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


def _read(buffer: PrioritizedReplayBuffer, directory: Directory, manifest: Manifest, keeps_masses: bool) -> None:
    """
    :param buffer: an empty one, of the form that was saved; of no use after an error
    :param directory: to read from
    :param manifest: of the generation
    :param keeps_masses: whether its masses are those that were saved
    :raises Exception: if something is damaged or does not agree with itself
    """
    (part,) = manifest.of_stream("state")
    if part.end - part.first > buffer.buffer_size:
        raise ValueError(f"{part.end - part.first} steps in {buffer.buffer_size} rows")
    state = State(part.first, part.end, manifest.numbers, {})
    reads = [functools.partial(_read_state, buffer, directory, part, state)]
    for stream, store in pools_of(buffer).items():
        reads += _reads_of_frames(store, directory, manifest.of_stream(stream))
    reads += _reads_of_rows(buffer, directory, manifest.of_stream("rows"), state)
    in_parallel(reads)
    state.put_into(buffer, keeps_masses)


def _read_state(buffer: PrioritizedReplayBuffer, directory: Directory, part: Part, state: State) -> None:
    """Read those arrays that are known here; what lacks one complains."""
    forms = expected_arrays(buffer)
    with part.open(directory.path) as file:
        for name, member in part.members.items():
            for dtype, shape, n_most in forms.get(name, ()):
                if member.fits(dtype, (*member.shape[:1], *shape)) and member.shape[0] <= n_most:
                    state.arrays[name] = file.array(name, dtype, tuple(member.shape))


def _reads_of_frames(store: FrameStore, directory: Directory, parts: list[Part]) -> Iterator[Callable[[], None]]:
    """Reads of a pool of frames, file by file."""
    for part in parts:
        with part.open(directory.path):
            pass  # it is there, before memory is taken for what it holds
        if (part.end - part.first) * store.frame_bytes > part.size:
            raise ValueError(f"{part.name} is too small for {part.end - part.first} frames")
    store.reserve_numbers(parts[0].first if parts else 0, parts[-1].end if parts else 0)

    def read(part: Part) -> None:
        with part.open(directory.path) as file:
            file.into("frames", store.frames(part.first, part.end), part.end - part.first)

    yield from (functools.partial(read, part) for part in parts)


def _reads_of_rows(
    buffer: PrioritizedReplayBuffer, directory: Directory, parts: list[Part], state: State
) -> Iterator[Callable[[], None]]:
    """Reads of rows, file by file."""
    first, end = state.first, state.end
    if first < end and not (parts and parts[0].first <= first and parts[-1].end == end):
        raise ValueError(f"steps from {first} to {end} are not all there")
    rows = rows_of(buffer)

    def read(part: Part) -> None:
        begin, n = max(first, part.first), part.end - part.first
        slices = slices_of(begin, part.end, buffer.buffer_size)
        with part.open(directory.path) as file:
            for name, array in rows.items():
                if name != "infos":
                    file.into(name, [array[rows_of_part] for rows_of_part in slices], n)
                    continue
                ends = file.array("infos_end", np.dtype(np.int64), (n, buffer.n_envs))
                texts = file.array("infos", np.dtype(np.uint8), tuple(part.members["infos"].shape))
                decoded = infos.decode(texts, ends)[begin - part.first :]
                for rows_of_part in slices:
                    array[rows_of_part] = decoded[: rows_of_part.stop - rows_of_part.start]
                    decoded = decoded[rows_of_part.stop - rows_of_part.start :]

    yield from (functools.partial(read, part) for part in parts if part.end > first)
