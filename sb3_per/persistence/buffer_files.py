"""
Save a buffer to a directory of files, see :mod:`sb3_per.persistence.generations`, and load it.

Rows and frames, e.g. observations and actions, are streams: they go into files that are never written again. Values that may
change later are the state: they are small, and each save writes all of them.
"""

import functools
import json
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.persistence import generations
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.generations import Arrays, DamagedFileError, Manifest, PartFile, manifest_names_in, numbers_in
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import SCHEMES
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.storage import Storage
from sb3_per.utils.checks import check_argument, integer

SUFFIX = ".buffer"

#: Names of the kinds of buffers in files. A user's class stores what its base class of this package stores.
KINDS: dict[str, type[PrioritizedReplayBuffer]] = {
    "dict sequences": PrioritizedDictSequenceReplayBuffer,
    "sequences": PrioritizedSequenceReplayBuffer,
    "hindsight": PrioritizedHerReplayBuffer,
    "dict transitions": PrioritizedDictReplayBuffer,
    "transitions": PrioritizedReplayBuffer,
}

# Names of the spaces in files: all that SB3's buffers take.
_SPACES: dict[str, type[spaces.Space]] = {
    "box": spaces.Box,
    "discrete": spaces.Discrete,
    "multi discrete": spaces.MultiDiscrete,
    "multi binary": spaces.MultiBinary,
}

# Prefix of the streams and arrays of demonstrations.
_DEMONSTRATIONS = "demonstrations/"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)

# Facts in which a saved buffer and the buffer of the model must be equal.
_MUST_FIT = ("kind", "observation_space", "action_space", "n_envs", "optimize_memory_usage", "sequences", "arrays_by_row")

# |td| of two critics, whose masses tell a user's schemes apart.
_TD_ERRORS = np.outer([0.013, 0.17, 0.71, 1.9, 13.7, 137.0], [1.0, 0.6])

# Flags that SB3 stores as floats. They are saved as bytes.
_FLAGS = ("dones", "timeouts")

# With ``optimize_memory_usage``: the next observations of the newest steps. In a full ring they take the place of the oldest.
_NEWEST = "newest_next_observations"

# Largest size of a file. Files become larger if there would be more than this number, because the manifest names them all.
_PART_BYTES, _MANY_PARTS = 16 * 2**20, 128

# Files below this size, or this share of the stream, are joined with newer rows. This keeps the number at a few dozen.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64

# More threads do not make a disk faster.
_N_THREADS = 4


# ---- facts


def describe_buffer(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Describe a buffer, to tell whether its files fit another one.

    :param buffer: prioritized buffer
    :return: kind, spaces, layout and scheme of the buffer, as they are in a manifest
    :raises ValueError: for what a directory cannot hold: infos, or settings of a scheme that are no numbers or texts
    :raises NotImplementedError: for a store of the user's that cannot be saved to a directory
    """
    if buffer.storage.infos is not None:
        raise ValueError(
            "Infos (copy_info_dict=True) can only be saved as a pickle, and a pickle runs code when it is loaded: save to a "
            "name that does not end in .buffer, or leave out copy_info_dict"
        )
    sequences = None
    if isinstance(buffer, PrioritizedSequenceReplayBuffer):
        sequences = {"period": buffer.period, "burn_in": buffer.burn_in, "state_shapes": buffer.state_shapes}
    facts = {
        "kind": next(name for name, cls in KINDS.items() if isinstance(buffer, cls)),
        "observation_space": describe_space(buffer.observation_space, with_bounds=False),
        "action_space": describe_space(buffer.action_space, with_bounds=True),
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": bool(buffer.optimize_memory_usage),
        "sequences": sequences,
        "arrays_by_row": _describe_own_stores(buffer.storage),
        "buffer_size": buffer.buffer_size,
        "frames": [
            {"key": key, "n_frames": store.n_frames, "axis": store.axis} for key, store in buffer.storage.frame_stores.items()
        ],
        # A mass has a meaning only together with its scheme and with what is drawn.
        "scheme": {**_describe_scheme(buffer.sampler), "unit": buffer.sampler.candidates.mass_owner},
    }
    return dict(json.loads(json.dumps(facts)))  # so that it equals what is read from a manifest


def describe_space(space: spaces.Space, with_bounds: bool) -> dict[str, Any]:
    """
    Describe a space.

    :param space: space of observations or actions
    :param with_bounds: whether bounds matter: stored actions are scaled with them, observations are not
    :return: description of the space, as JSON can hold it
    """
    if isinstance(space, spaces.Dict):
        return {"type": "dict", "spaces": {str(key): describe_space(part, with_bounds) for key, part in space.spaces.items()}}
    kind = next(name for name, cls in _SPACES.items() if isinstance(space, cls))
    described: dict[str, Any] = {"type": kind, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    for name in ("n", "start", "nvec", *(("low", "high") if with_bounds else ())):
        if hasattr(space, name):
            described[name] = np.asarray(getattr(space, name)).tolist()
    return described


def _describe_own_stores(storage: Storage) -> dict[str, Any] | None:
    """Return the type and shape of what a user's stores keep of each row; ``None`` where the stores are of this package."""
    if storage.layout.store_class is None:
        return None
    described = {}
    for key, store in storage.stores.items():
        if key not in storage.frame_stores:
            for name, array in store.arrays_by_row().items():
                described[_name(name, key)] = {"dtype": str(array.dtype), "shape": array.shape[2:]}
    return described


def _describe_scheme(sampler: Sampler) -> dict[str, Any]:
    """
    Return the name of a scheme and its settings, as JSON can hold them. A user's scheme has no name in files: some of its
    masses take the place of one. They are rounded, because the last digits differ between processors.
    """
    scheme = sampler.scheme
    settings = {}
    for name, value in scheme.settings.items():
        plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        try:
            json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{type(scheme).__name__}.{name} is {value!r}, which a directory cannot hold: begin its name with an "
                "underscore if priorities do not depend on it, or save to a name that does not end in .buffer"
            ) from error
        settings[name] = plain
    names = {made_by: name for name, made_by in SCHEMES.items()}
    if type(scheme) in names:
        return {"name": names[type(scheme)], "settings": settings}
    masses, _ = sampler.evaluate(_TD_ERRORS)
    return {"name": "own", "settings": settings, "masses": [float(f"{mass:.6g}") for mass in masses]}


# ---- rows and frames


@dataclass
class _Stream:
    """
    Rows or frames of a buffer. Each keeps its number, so that it is written only once.

    :param name: name of the stream
    :param storage: storage that holds the rows or frames
    :param store: store of the frames; ``None`` for rows
    :param rows: arrays that do not change after a step, shape (n_rows, n_envs, ...), by name; empty for frames
    :param first: number of the oldest entry that is held
    :param end: number after the newest
    :param end_of_final: entries from this number on may still change; they are written with every generation
    :param n_bytes: size of one entry, bytes
    """

    name: str
    storage: Storage
    store: FrameStore | None
    rows: dict[str, np.ndarray]
    first: int
    end: int
    end_of_final: int
    n_bytes: int

    def views(self, first: int, end: int) -> Arrays:
        """
        View entries in place.

        :param first: number of the first entry
        :param end: number after the last, at most as many as there is room for
        :return: views of these entries by name, each in parts along the first axis
        """
        if self.store is not None:
            return {"frames": self.store.frames(first, end)}
        # Step s is in row s % n_rows of every environment: row 0 follows the last row.
        n_rows = self.storage.n_rows
        begin = first % n_rows
        last = begin + end - first
        parts = (slice(begin, last), slice(max(last - n_rows, 0)))
        return {name: [array[part] for part in parts] for name, array in self.rows.items()}

    def reserve(self, first: int, end: int) -> int:
        """
        Make room in an empty storage.

        :param first: number of the first entry
        :param end: number after the last
        :return: number of the first entry that there is room for
        """
        if self.store is not None:
            self.store.pool.reserve_numbers(first, end)
            return first
        if self.storage.files is not None:
            # With `optimize_memory_usage`, the newest next observation goes into the row after the last one.
            self.storage.files.reserve(min(end + 1, self.storage.n_rows))
        return max(first, end - self.storage.n_rows)


def _streams_of(buffer: PrioritizedReplayBuffer) -> list[_Stream]:
    """
    List the streams of a buffer.

    :param buffer: prioritized buffer
    :return: its rows, numbered by step, first; its pools of frames; and those of the demonstrations
    """
    streams = []
    for prefix, part in buffer.sets():
        ring = part.ring
        storage = part.storage
        rows = _rows_of(storage)
        first = ring.max_next_step - ring.n_rows_used
        n_bytes = sum(array[:1].nbytes for array in rows.values())
        # The slowest environment still writes to its own steps.
        end_of_final = max(ring.min_next_step, first)
        streams.append(_Stream(f"{prefix}rows", storage, None, rows, first, ring.max_next_step, end_of_final, n_bytes))
        for key, store in storage.frame_stores.items():
            pool = store.pool
            name = prefix + _name("frames", key)
            streams.append(_Stream(name, storage, store, {}, pool.first, pool.end, pool.end, store.frame_bytes))
    return streams


def _rows_of(storage: Storage) -> dict[str, np.ndarray]:
    """See :class:`_Stream`."""
    rows = {"actions": storage.actions, "rewards": storage.rewards}
    for key, store in storage.stores.items():
        for name, array in store.arrays_by_row().items():
            rows[_name(name, key)] = array
    return rows


def _name(array: str, key: str | None) -> str:
    # Quoted: a name in a zip can be a path, and somebody may unpack it.
    return array if key is None else f"{array}.{quote(key, safe='')}"


def _plan(stream: _Stream, saved: list[PartFile]) -> tuple[list[PartFile], list[PartFile]]:
    """
    Choose the files that stay, and those to write.

    :param stream: stream to write
    :param saved: files of this stream that are there already
    :return: files that stay, and files to write
    """
    final = stream.end_of_final
    n_bytes = max(stream.n_bytes, 1)
    kept = [part for part in saved if stream.first < part.end <= stream.end]
    begin = max(kept[-1].end, stream.first) if kept else stream.first
    if begin < final:
        n_small = max(_SMALL_BYTES // n_bytes, (stream.end - stream.first) * _SMALL_SHARE)
        # Write the last files anew, together with what is new, while the joined file stays small and no more is old in it than
        # new. So every step is written a few times at most.
        while kept and final - kept[-1].first <= n_small and begin - kept[-1].first <= final - begin:
            begin = max(kept.pop().first, stream.first)
    part_bytes = max(_PART_BYTES, (stream.end - stream.first) * n_bytes // _MANY_PARTS)
    step = max(part_bytes // n_bytes, 1)
    kind = "seg" if stream.store is None else "frm"
    new = []
    for start, stop in ((begin, final), (max(begin, final), stream.end)):
        for first in range(start, stop, step):
            end = min(first + step, stop)
            # Names are unique, so that a failed save never removes a file that another generation needs.
            new.append(PartFile(f"{kind}-{uuid.uuid4().hex[:12]}-{first}-{end - 1}.npz", stream.name, first, end))
    return kept, new


# ---- state


def _state_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Collect the values that may change after a step is stored. Arrays by row begin with row 0.

    :param buffer: prioritized buffer
    :return: numbers and arrays, of which some are views; names of nested dictionaries are joined with slashes
    """
    state = _flat("", buffer.state())
    for prefix, part in buffer.sets():
        ring = part.ring
        storage = part.storage
        for name in _FLAGS:
            state[prefix + name] = getattr(storage, name)[: ring.n_rows_used].astype(np.uint8)
        if storage.next_observations is None:
            state[prefix + _NEWEST] = storage.observations[ring.next_steps % ring.n_rows, ring.all_envs]
    return state


def _put_state(buffer: PrioritizedReplayBuffer, state: dict[str, Any], keeps_masses: bool) -> None:
    """
    Restore the state of a buffer.

    :param buffer: empty buffer of the kind and size that was saved, whose rows and frames are read. Discard it after an error
    :param state: from :func:`_state_of`
    :param keeps_masses: whether the buffer has the scheme that was saved
    :raises ValueError: if the state contradicts itself
    :raises LookupError: if something is missing
    """
    buffer.load(_nested(state), keeps_masses)
    for prefix, part in buffer.sets():
        ring = part.ring
        storage = part.storage
        for name in _FLAGS:
            flags = state[prefix + name]
            if len(flags) != ring.n_rows_used:
                raise ValueError(f"{prefix + name} has {len(flags)} rows, not {ring.n_rows_used}")
            getattr(storage, name)[: len(flags)] = flags
        if storage.next_observations is None:
            storage.observations[ring.next_steps % ring.n_rows, ring.all_envs] = state[prefix + _NEWEST]
        for store in storage.frame_stores.values():
            store.use_references(ring.oldest_held, ring.next_steps)


def _flat(prefix: str, content: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat.update(_flat(f"{prefix}{key}/", value) if isinstance(value, dict) else {prefix + key: value})
    return flat


def _nested(state: dict[str, Any]) -> dict[str, Any]:
    """Undo the joining of names."""
    content: dict[str, Any] = {}
    for name, value in state.items():
        *parents, key = name.split("/")
        functools.reduce(lambda place, parent: place.setdefault(parent, {}), parents, content)[key] = value
    return content


# ---- saving and loading


class SavedBuffer:
    """
    A directory to which a buffer is saved again and again. It remembers which files have the rows of this buffer, so that each
    save writes only what is new since the last save or load. A copy of it remembers nothing, and writes everything.

    :param path: path of the directory
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        # Files that the next save can keep, by stream, with the storage whose entries they have, and how many arrays were
        # assigned to it before. A copied buffer, or one whose frames were stored again, has another storage.
        self._files: dict[str, tuple[weakref.ref[Storage], int, list[PartFile]]] = {}

    def __reduce__(self) -> Any:
        return SavedBuffer, (self.path,)

    def save(self, buffer: PrioritizedReplayBuffer, num_timesteps: int = 0, full: bool = False, keep: int = 2) -> None:
        """
        Write a generation. On any error, the generations that were there before remain.

        :param buffer: buffer to save; it does not change
        :param num_timesteps: steps of the model, part of the name of the manifest
        :param full: write everything, e.g. because stored observations were changed by hand
        :param keep: number of generations to keep, at least 1
        :raises ValueError: for a ``keep`` below 1, or what a directory cannot hold; or if the directory has another format
        :raises OSError: e.g. on a full disk, or if another process is saving to the directory
        """
        check_argument("keep", keep, integer())
        facts = describe_buffer(buffer)
        make_directory(self.path)
        with sole_writer(self.path), buffer.lock:
            # A release with another format may not be able to read what this one leaves: this raises an error then.
            older = generations.whole_generations(self.path, with_contents=False)
            manifest = self._write(buffer, facts, num_timesteps, full)
            self._remember(buffer, manifest)
            generations.clean_up(self.path, [manifest, *older[: keep - 1]])

    def load(self, buffer: BufferT, generation: str | None = None) -> BufferT:
        """
        Load a generation. No code from the files runs.

        :param buffer: buffer that says class, spaces, scheme and settings; it does not change
        :param generation: name of its manifest; ``None``: the newest complete generation
        :return: a new buffer with these settings
        :raises FileNotFoundError: if nothing is saved there
        :raises DamagedFileError: if no generation is complete; the message names file and damage
        :raises ValueError: if the files do not fit this buffer, or have another format
        """
        damage: dict[str, DamagedFileError] = {}
        while True:
            names = manifest_names_in(self.path) if generation is None else [generation]
            # A writer may have replaced generations in the meantime: try the newest that has not been tried.
            name = next((name for name in names if name not in damage), None)
            if name is None:
                raise next(iter(damage.values()), FileNotFoundError(f"There is no saved buffer at {self.path}"))
            try:
                loaded = self._read(buffer, name)
            except DamagedFileError as error:
                damage[name] = error
                continue
            newer = [error for other, error in damage.items() if numbers_in(other) > numbers_in(name)]
            if newer:
                warnings.warn(f"{newer[0]}. An older generation was loaded instead: {self.path / name}")
            return loaded

    # ---- what the last save or load wrote or read

    def _remember(self, buffer: PrioritizedReplayBuffer, manifest: Manifest) -> None:
        """Note which files the next save can keep: those with entries that do not change any more."""
        self._files.clear()
        for stream in _streams_of(buffer):
            parts = [part for part in manifest.of_stream(stream.name) if part.end <= stream.end_of_final]
            self._files[stream.name] = weakref.ref(stream.storage), stream.storage.n_assigned, parts

    def _files_of(self, streams: list[_Stream]) -> dict[str, list[PartFile]]:
        """
        Find the files that need not be written again.

        :param streams: streams to save
        :return: files that can be kept, by stream
        """
        known = {}
        for stream in streams:
            if stream.name in self._files:
                storage, n_assigned, parts = self._files[stream.name]
                if storage() is stream.storage and n_assigned == stream.storage.n_assigned:
                    known[stream.name] = parts
        try:
            for parts in known.values():
                for part in parts:
                    part.check_size(self.path)
        except DamagedFileError as error:
            warnings.warn(f"Everything is written anew: {error}")
            return {}
        return known

    # ---- one generation

    def _write(self, buffer: PrioritizedReplayBuffer, facts: dict[str, Any], num_timesteps: int, full: bool) -> Manifest:
        """
        Write a generation, or nothing.

        :param buffer: buffer to save
        :param facts: description of the buffer
        :param num_timesteps: steps of the model
        :param full: write everything
        :return: manifest of the generation
        """
        streams = _streams_of(buffer)
        state = _state_of(buffer)
        numbers = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
        generation = max((numbers_in(name)[0] for name in manifest_names_in(self.path)), default=0) + 1
        manifest = Manifest(generation, num_timesteps, facts, numbers, [])
        part_of_state = PartFile(f"state-{generation:08d}.npz", "state", streams[0].first, streams[0].end)
        new: list[tuple[PartFile, Arrays]] = [
            (part_of_state, {name: [value] for name, value in state.items() if name not in numbers})
        ]
        known = {} if full else self._files_of(streams)
        for stream in streams:
            kept, added = _plan(stream, known.get(stream.name, []))
            manifest.parts += kept
            new += [(part, stream.views(part.first, part.end)) for part in added]
        try:
            manifest.parts += in_parallel([partial(generations.write_part, self.path, *each) for each in new])
            generations.commit(self.path, manifest)
        except BaseException:
            # The manifest first. On a full disk, others may need the space.
            generations.remove(self.path, [manifest.name, *(part.name for part, _ in new)])
            raise
        return manifest

    def _read(self, buffer: BufferT, name: str) -> BufferT:
        """
        Read a generation.

        :param buffer: see :meth:`load`
        :param name: name of the manifest
        :return: a new buffer
        :raises DamagedFileError: if a file is damaged, or the files contradict each other
        """
        from sb3_per.buffers.conversion import copy_newest, empty_twin  # type: ignore[attr-defined]

        path = self.path / name
        manifest = Manifest.read(path)
        found, facts = manifest.about, describe_buffer(buffer)
        for fact in _MUST_FIT:
            if found.get(fact) != facts[fact]:
                fits = f"it has {fact} {found.get(fact)}, and the model has {facts[fact]}"
                raise ValueError(f"{path} does not fit this model: {fits}")
        with _restoring(path):
            keeps_masses = found["scheme"] == facts["scheme"]
            is_same_form = found["buffer_size"] == facts["buffer_size"] and found["frames"] == facts["frames"]
            if is_same_form:
                loaded = empty_twin(buffer, buffer.buffer_size, buffer.frames)
            else:
                frames = {entry["key"]: entry["n_frames"] for entry in found["frames"]}
                loaded = empty_twin(buffer, found["buffer_size"], frames.get(None, frames) or None)
            self._fill(loaded, manifest, keeps_masses)
        if is_same_form:
            self._remember(loaded, manifest)
        else:
            saved = loaded
            loaded = empty_twin(buffer, buffer.buffer_size, buffer.frames)
            copy_newest(saved, loaded, keeps_masses)
        if not keeps_masses:
            schemes = f"{found['scheme']}, and this buffer has {facts['scheme']}"
            warnings.warn(f"{self.path} was saved with {schemes}: all transitions get the largest priority")
        return loaded

    def _fill(self, buffer: PrioritizedReplayBuffer, manifest: Manifest, keeps_masses: bool) -> None:
        """
        Fill a buffer from the files of a generation.

        :param buffer: empty buffer of the layout that was saved. Discard it after an error
        :param manifest: manifest of the generation
        :param keeps_masses: whether the buffer has the scheme that was saved
        :raises ValueError: if a file is damaged, or the files contradict each other
        """
        demonstrations = manifest.of_stream(f"{_DEMONSTRATIONS}rows")
        if demonstrations:
            buffer.demonstrations.reserve(demonstrations[-1].end)
        (part_of_state,) = manifest.of_stream("state")
        state = dict(manifest.numbers)
        reads: list[Callable[[], None]] = [lambda: state.update(part_of_state.read(self.path))]
        for stream in _streams_of(buffer):
            parts = manifest.of_stream(stream.name)
            begin = stream.reserve(*_range_of(parts))
            for part in parts:
                if part.end > begin:
                    first = max(begin, part.first)
                    reads.append(partial(part.read_into, self.path, first - part.first, stream.views(first, part.end)))
        in_parallel(reads)
        _put_state(buffer, state, keeps_masses)
        for stream in _streams_of(buffer):
            first, end = _range_of(manifest.of_stream(stream.name))
            if stream.first < stream.end and not (first <= stream.first and end == stream.end):
                raise ValueError(f"the files have {stream.name} from {first} to {end}, not {stream.first} to {stream.end}")


@contextmanager
def _restoring(path: Path) -> Iterator[None]:
    """
    Report contents that contradict themselves as damage: values out of range, or missing names. Other errors are mistakes in
    code, perhaps in a user's subclass, and must not look like damage.

    :param path: path of the manifest
    :raises DamagedFileError: in place of such an error
    """
    try:
        yield
    except DamagedFileError:
        raise
    except (ValueError, LookupError, OverflowError) as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


def _range_of(parts: list[PartFile]) -> tuple[int, int]:
    """Return the first number of some parts, and the number after the last."""
    return (parts[0].first, parts[-1].end) if parts else (0, 0)


def in_parallel(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """
    Call functions in threads, so that checksums, copies and the disk overlap.

    :param functions: functions that read or write one file each; all have returned at the end
    :return: what they returned
    :raises Exception: the first error
    """
    with ThreadPoolExecutor(_N_THREADS) as pool:
        return list(pool.map(lambda function: function(), functions))


# ---- by path


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | Path, num_timesteps: int = 0, keep: int = 2) -> None:
    """
    Save everything to a directory, see :meth:`SavedBuffer.save`.

    :param buffer: buffer to save; it does not change
    :param path: path of the directory, which is made if it does not exist
    :param num_timesteps: steps of the model, part of the name of the manifest
    :param keep: number of generations to keep, at least 1
    """
    SavedBuffer(path).save(buffer, num_timesteps, keep=keep)


def load_buffer(buffer: BufferT, path: str | Path) -> BufferT:
    """
    Load a buffer from a directory, see :meth:`SavedBuffer.load`.

    :param buffer: buffer that says class, spaces, scheme and settings; it does not change
    :param path: path of the directory or, to choose a generation, of its manifest
    :return: a new buffer with these settings
    """
    directory, generation = located(path)
    return SavedBuffer(directory).load(buffer, generation)


def located(path: str | Path) -> tuple[Path, str | None]:
    """
    Find the directory of a saved buffer.

    :param path: path of the directory, or of a manifest in it
    :return: absolute path of the directory, and the name of the manifest; ``None`` for a directory
    """
    path = Path(path).absolute()
    return (path.parent, path.name) if path.suffix == ".json" and not path.is_dir() else (path, None)


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
