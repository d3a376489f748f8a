"""
Save a buffer to a directory of files, see :mod:`sb3_per.persistence.generations`, and load it.

Rows and frames, e.g. observations and actions, go into files that are never written again. Values that may change later are
small, and each save writes all of them.
"""

import itertools
import uuid
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.transfer import copy_newest, emptied
from sb3_per.persistence import contents, generations
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.generations import Manifest, Part, manifests_in, numbers_in
from sb3_per.persistence.npz import CONTRADICTIONS, READING, DamagedFileError, as_damage
from sb3_per.storage.arrays import ArrayStorage
from sb3_per.utils.checks import integer, require

SUFFIX = ".buffer"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)

# Largest size of a file. Files become larger if there would be more than this number, because the manifest names them all.
_PART_BYTES, _MANY_PARTS = 64 * 2**20, 128

# Files below this size, or this share of the stream, are joined with newer rows. This keeps the number at a few dozen.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64

# More threads do not make a disk faster.
_MAX_THREADS = 4

# Largest number of slots that is allocated to read a buffer of another size, unless the files themselves are larger.
_MOST_SLOTS = 2**27


# Files that the next save can keep, by storage, directory, stream, and how many arrays were assigned before. A copied buffer,
# or one whose frames were stored again, has another storage and writes everything.
_SAVED: "weakref.WeakKeyDictionary[ArrayStorage, dict[tuple[Path, str, int], list[Part]]]" = weakref.WeakKeyDictionary()


# ---- saving


def save_buffer(
    buffer: PrioritizedReplayBuffer, path: str | Path, num_timesteps: int = 0, full: bool = False, keep: int = 2
) -> None:
    """
    Write a generation to a directory: only what is new since this buffer was last saved to or loaded from it.

    On any error, the generations that were there before remain.

    :param buffer: buffer to save; it does not change
    :param path: path of the directory, which is made if it does not exist
    :param num_timesteps: steps of the model, part of the name of the manifest
    :param full: write everything, e.g. because stored observations were changed by hand
    :param keep: number of generations to keep, at least 1
    :raises ValueError: for a ``keep`` below 1, infos that only a pickle can hold, or a buffer that could not be loaded again,
        e.g. with a beta of 2 that was set by hand; or if another version has written to the directory
    :raises OSError: e.g. on a full disk, or if another process is saving to the directory
    """
    require("keep", keep, integer())
    path = Path(path).absolute()
    make_directory(path)
    with sole_writer(path), buffer.lock:
        # Another version may not be able to read what this one leaves: this raises an error then.
        older = generations.whole_generations(path, with_contents=False)
        manifest = _write(buffer, path, num_timesteps, full)
        _remember(buffer, path, manifest)
        try:
            generations.clean_up(path, [manifest, *older[: keep - 1]])
        except OSError as error:
            warnings.warn(f"{path / manifest.name} is saved, but older files could not be removed: {error}")


def _write(buffer: PrioritizedReplayBuffer, directory: Path, num_timesteps: int, full: bool) -> Manifest:
    """
    Write a generation, or nothing.

    :param buffer: buffer to save
    :param directory: path of the directory
    :param num_timesteps: steps of the model
    :param full: write everything
    :return: manifest of the generation
    """
    state, streams = contents.state_of(buffer), contents.streams_of(buffer)
    _require_restorable(buffer, state)
    arrays = {name: [value] for name, value in state.items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in state.items() if name not in arrays}
    generation = max((numbers_in(name)[0] for name in manifests_in(directory)), default=0) + 1
    part_of_state = Part(f"state-{generation:08d}.npz", "state", streams[0].first, streams[0].end, 0, {})
    manifest = Manifest(generation, num_timesteps, contents.about(buffer), numbers, [part_of_state])
    new = {part_of_state.name: partial(generations.write_part, directory, part_of_state, lambda: arrays)}
    saved = _saved_at(directory, [] if full else streams)
    for stream in streams:
        kept, added = _plan(stream, saved.get(stream.name, []))
        manifest.parts += kept + added
        for part in added:
            content = contents.arrays_of, stream, part.first, part.end
            new[part.name] = partial(generations.write_part, directory, part, *content)
    try:
        in_parallel(list(new.values()))
        generations.commit(directory, manifest)
    except BaseException:
        # The manifest first. On a full disk, others may need the space.
        generations.remove(directory, [manifest.name, *new])
        raise
    return manifest


def _require_restorable(buffer: PrioritizedReplayBuffer, state: dict[str, Any]) -> None:
    """
    Try to load a state before it is written: a generation that cannot be loaded must not replace one that can.

    :param buffer: buffer to save
    :param state: its state
    :raises ValueError: if the state cannot be loaded
    """
    trial = emptied(buffer, storage=buffer.storage)  # which it only reads
    try:
        trial.demonstrations.copy(buffer.demonstrations, trial.storage, keeps_masses=True)
        trial.load(contents.nested(state))
    except CONTRADICTIONS as error:
        raise ValueError(
            f"This buffer is not saved, because it could not be loaded again: {error}. Earlier saves remain"
        ) from error


def _saved_at(directory: Path, streams: list[contents.Stream]) -> dict[str, list[Part]]:
    """
    Find files of an earlier save that need not be written again.

    :param directory: path of the directory
    :param streams: streams whose files are looked for
    :return: files that the next save can keep, by stream
    """
    saved = {}
    for stream in streams:
        saved[stream.name] = _SAVED.get(stream.storage, {}).get((directory, stream.name, stream.storage.n_put), [])
    try:
        for part in itertools.chain(*saved.values()):
            part.read(directory, {})
    except DamagedFileError as error:
        warnings.warn(f"Everything is written anew: {error}")
        return {}
    return saved


def _remember(buffer: PrioritizedReplayBuffer, directory: Path, manifest: Manifest) -> None:
    """Note which files the next save can keep: those with rows that do not change any more."""
    for stream in contents.streams_of(buffer):
        parts = [part for part in manifest.of_stream(stream.name) if part.end <= stream.end_of_final]
        _SAVED.setdefault(stream.storage, {})[directory, stream.name, stream.storage.n_put] = parts


def _plan(stream: contents.Stream, saved: list[Part]) -> tuple[list[Part], list[Part]]:
    """
    Choose the files that stay, and those to write.

    :param stream: stream to write
    :param saved: files of this stream that are there already
    :return: files that stay, and files to write
    """
    kept = [part for part in saved if stream.first < part.end <= stream.end]
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
        # Names are unique, so that a failed save never removes a file that another generation needs.
        name = f"{'seg' if stream.store is None else 'frm'}-{uuid.uuid4().hex[:12]}-{first}-{end - 1}.npz"
        new.append(Part(name, stream.name, first, end, 0, {}))
    return kept, new


def in_parallel(functions: Sequence[Callable[[], Any]]) -> None:
    """
    Call functions in threads, so that checksums, copies and the disk overlap.

    :param functions: functions that read or write one file each; all have returned at the end
    :raises Exception: the first error
    """
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        list(pool.map(lambda function: function(), functions))


# ---- loading


def is_buffer_path(path: Path) -> bool:
    """
    Tell the directory of a saved buffer from a pickle.

    :param path: any path
    :return: whether this is such a directory, a manifest in one or, if nothing exists there, the name of one
    """
    return (
        path.is_dir()
        or (path.suffix == SUFFIX and not path.exists())
        or (path.suffix, path.parent.suffix) == (".json", SUFFIX)
    )


def load_buffer(buffer: BufferT, path: str | Path) -> BufferT:
    """
    Load the newest complete generation. No code from the files runs.

    :param buffer: buffer that says class, spaces, scheme and settings; it does not change
    :param path: path of the directory or, to choose a generation, of its manifest
    :return: a new buffer with these settings
    :raises FileNotFoundError: if nothing is saved there
    :raises DamagedFileError: if no generation is complete; the message names file and damage
    :raises ValueError: if the files do not fit this buffer, or have another version
    """
    path = Path(path).absolute()
    directory = path.parent if path.is_file() else path
    damage: dict[str, DamagedFileError] = {}
    while True:
        names = [path.name] if path.is_file() else manifests_in(path)
        # A writer may have replaced generations in the meantime: try the newest that has not been tried.
        name = next((name for name in names if name not in damage), None)
        if name is None:
            raise next(iter(damage.values()), FileNotFoundError(f"There is no saved buffer at {path}"))
        try:
            loaded = _load_generation(buffer, directory / name)
        except DamagedFileError as error:
            damage[name] = error
            continue
        newer = [error for other, error in damage.items() if numbers_in(other) > numbers_in(name)]
        if newer:
            warnings.warn(f"{newer[0]}. An older generation was loaded instead: {directory / name}")
        return loaded


def _load_generation(buffer: BufferT, path: Path) -> BufferT:
    manifest, facts = Manifest.read(path), contents.about(buffer)
    found = manifest.about
    _require_fit(found, facts, path)
    for part in manifest.parts:
        part.read(path.parent, {})  # nothing is allocated unless all files are there, with their size
    with as_damage(path, READING):
        keeps_masses = found["scheme"] == facts["scheme"]
        is_same_form = all(found[fact] == facts[fact] for fact in ("buffer_size", "frames"))
        require("buffer_size", found["buffer_size"], integer())
        frames = {entry["key"]: entry["n_frames"] for entry in found["frames"]}
        form = () if is_same_form else (found["buffer_size"], frames.get(None, frames) or None)
        n_demonstrations = _range_of(manifest.of_stream(f"{contents.DEMONSTRATIONS}rows"))[1]
        n_slots = max(found["buffer_size"] * found["n_envs"], n_demonstrations)
        if n_slots > max(_MOST_SLOTS, sum(part.size for part in manifest.parts)):
            raise ValueError(f"{n_slots} transitions are more than the files can hold")
    with as_damage(path):
        loaded: BufferT = emptied(buffer, *form)
        if n_demonstrations:
            loaded.demonstrations.reserve(n_demonstrations, loaded.storage)
        _read(loaded, path.parent, manifest, keeps_masses)
    if is_same_form:
        _remember(loaded, path.parent, manifest)
    else:
        source, loaded = loaded, emptied(buffer)
        copy_newest(loaded, source, keeps_masses)
    if not keeps_masses:
        schemes = f"{found['scheme']}, and this buffer has {facts['scheme']}"
        warnings.warn(f"{path.parent} was saved with {schemes}: all transitions get the largest priority")
    return loaded


def _require_fit(found: dict[str, Any], expected: dict[str, Any], path: Path) -> None:
    """
    Check that a saved buffer fits the model.

    :param found: description of the saved buffer
    :param expected: description of the buffer of the model
    :param path: path of the manifest
    :raises ValueError: if the saved buffer does not fit
    """
    for name in "kind observation_space action_space n_envs optimize_memory_usage copy_info_dict sequences".split():
        if (theirs := found.get(name)) != (ours := expected.get(name)):
            raise ValueError(f"{path} does not fit this model: it has {name} {theirs}, and the model has {ours}")


def _read(buffer: PrioritizedReplayBuffer, directory: Path, manifest: Manifest, keeps_masses: bool) -> None:
    """
    Read a generation.

    :param buffer: empty buffer of the form that was saved. Discard it after an error
    :param directory: path of the directory
    :param manifest: manifest of the generation
    :param keeps_masses: whether the buffer has the scheme that was saved
    :raises Exception: if a file is damaged, or the files contradict each other
    """
    (part_of_state,) = manifest.of_stream("state")
    state = {name: [np.empty(member.shape, member.dtype)] for name, member in part_of_state.members.items()}
    reads: list[Callable[[], None]] = [partial(part_of_state.read, directory, state)]
    for stream in contents.streams_of(buffer):
        parts = manifest.of_stream(stream.name)
        if any((part.end - part.first) * stream.n_bytes > part.size for part in parts):
            raise ValueError(f"a file is too small for its {stream.name}")
        begin = stream.reserve(*_range_of(parts))
        for part in parts:
            if part.end > begin:
                reads.append(partial(contents.read_part, stream, directory, part, max(begin, part.first)))
    in_parallel(reads)
    contents.put_state(buffer, {**manifest.numbers, **{name: arrays[0] for name, arrays in state.items()}}, keeps_masses)
    for stream in contents.streams_of(buffer):
        first, end = _range_of(manifest.of_stream(stream.name))
        if stream.first < stream.end and not (first <= stream.first and end == stream.end):
            raise ValueError(f"the files have {stream.name} from {first} to {end}, not {stream.first} to {stream.end}")


def _range_of(parts: list[Part]) -> tuple[int, int]:
    """Return the first number of some parts, and the number after the last."""
    return (parts[0].first, parts[-1].end) if parts else (0, 0)
