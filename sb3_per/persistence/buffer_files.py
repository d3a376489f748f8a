"""
Save a buffer to a directory of files, see :mod:`sb3_per.persistence.generations`, and load it.

Rows of SB3's arrays that do not change any more, e.g. observations and actions, are streams: they go into files that are never
written again. Values that may change later are the state, and each save writes all of them.
"""

import dataclasses
import json
import uuid
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.arrays import ARRAYS, FLAGS, HER_ARRAYS, WRITTEN_ONCE
from sb3_per.buffers.conversion import empty_like
from sb3_per.buffers.state import BufferState
from sb3_per.persistence import generations
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.generations import Blocks, DamagedFileError, DataFile, Manifest, manifest_names_in, numbers_in
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import SCHEMES
from sb3_per.utils.checks import check_argument, integer

SUFFIX = ".buffer"

# Names of the spaces in files: all that SB3's buffers take.
_SPACES: dict[str, type[spaces.Space]] = {
    "box": spaces.Box,
    "discrete": spaces.Discrete,
    "multi discrete": spaces.MultiDiscrete,
    "multi binary": spaces.MultiBinary,
}

# Prefix of the streams and of the state of demonstrations.
_DEMONSTRATIONS = "demonstrations/"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)

# Facts in which a saved buffer and the buffer of the model must be equal.
_MUST_FIT = ("kind", "observation_space", "action_space", "n_envs", "optimize_memory_usage", "sequences")

# |td| of two critics, whose masses tell a user's schemes apart.
_TD_ERRORS = np.outer([0.013, 0.17, 0.71, 1.9, 13.7, 137.0], [1.0, 0.6])

# Largest size of a file. Files become larger if there would be more than this number, because the manifest names them all.
_FILE_BYTES, _MANY_FILES = 16 * 2**20, 128

# Files below this size, or this share of the stream, are joined with newer rows. This keeps the number at a few dozen.
_SMALL_BYTES, _SMALL_SHARE = 4 * 2**20, 1 / 64


# ---- facts


def describe_buffer(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Describe a buffer, to tell whether its files fit another one.

    :param buffer: prioritized buffer
    :return: kind, spaces, layout and scheme of the buffer, as they are in a manifest
    :raises ValueError: for what a directory cannot hold: infos, or settings of a scheme that are no numbers or texts
    """
    facts = {
        **buffer.describe_for_files(),
        "observation_space": describe_space(buffer.observation_space, with_bounds=False),
        "action_space": describe_space(buffer.action_space, with_bounds=True),
        "arrays_by_row": {
            rows.name: [rows.array.dtype.str, rows.array.shape[2:]]
            for rows in _stream_of(buffer).rows
            if isinstance(rows, _ArrayRows) and rows.is_plain
        },
        # A mass has a meaning only together with its scheme and with what is drawn.
        "scheme": {**_describe_scheme(buffer.priority_sampler), "unit": buffer.mass_owner},
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


# ---- rows


@dataclasses.dataclass
class _Steps:
    """
    Steps of a ring. Step ``s`` is in row ``(s - shift) % n_rows``.

    :param n_rows: number of rows
    :param first: oldest step that is held
    :param end: step after the newest
    :param shift: above 0 only after steps were loaded into arrays with another number of rows
    """

    n_rows: int
    first: int
    end: int
    shift: int = 0

    def rows(self, first: int, end: int) -> np.ndarray:
        """Find the rows of steps, int64 of shape (end - first,)."""
        return (np.arange(first, end) - self.shift) % self.n_rows

    def blocks(self, array: np.ndarray, first: int, end: int) -> list[np.ndarray]:
        """
        View the rows of steps.

        :param array: shape (n_rows, ...)
        :param first: first step
        :param end: step after the last, at most ``n_rows`` steps later
        :return: two views, from old to new
        """
        start = (first - self.shift) % self.n_rows
        stop = start + end - first
        return [array[start : min(stop, self.n_rows)], array[: max(stop - self.n_rows, 0)]]

    def put(self, array: np.ndarray, first: int, end: int, values: np.ndarray) -> None:
        """
        Write the rows of steps.

        :param array: shape (n_rows, ...)
        :param first: first step
        :param end: step after the last
        :param values: shape (end - first, ...)
        :raises ValueError: for values of another shape or type
        """
        _require_same_form(array, first, end, values)
        start = 0
        for block in self.blocks(array, first, end):
            block[...] = values[start : start + len(block)]
            start += len(block)


class _ArrayRows:
    """
    Rows of one of SB3's arrays.

    :param name: name of the array in files
    :param array: shape (n_rows, n_envs, ...), from NumPy, or a user's that is indexed by rows, and rows and environments
    """

    def __init__(self, name: str, array: Any):
        self.name = name
        self.array = array
        #: whether NumPy can view its rows
        self.is_plain = isinstance(array, np.ndarray)

    def row_bytes(self, steps: _Steps) -> int:
        """Return the bytes of a row."""
        return int(np.prod(self.array.shape[1:])) * self.array.dtype.itemsize

    def pack(self, steps: _Steps, first: int, end: int) -> Blocks:
        """Collect the rows of steps; views if possible."""
        if self.is_plain:
            return {self.name: steps.blocks(self.array, first, end)}
        rows = steps.rows(first, end)
        columns = [np.asarray(self.array[rows, np.full_like(rows, env)]) for env in range(self.array.shape[1])]
        return {self.name: [np.stack(columns, 1)]}

    def unpack(self, steps: _Steps, first: int, end: int, n_left_out: int, packed: dict[str, np.ndarray]) -> None:
        """Write the rows of steps, but for the oldest ``n_left_out``. ``packed`` has all of them."""
        values = packed[self.name]
        if len(values) != end - first:
            raise ValueError(f"{self.name} has {len(values)} rows, not {end - first}")
        first += n_left_out
        values = values[n_left_out:]
        if self.is_plain:
            steps.put(self.array, first, end, values)
            return
        _require_same_form(self.array, first, end, values)
        for row, value in zip(steps.rows(first, end), values, strict=True):
            self.array[row] = value


class _StoreRows:
    """
    Rows that a store packs in its own way, e.g. observations and next observations as frames.

    :param name: name of the observations in files
    :param store: has ``pack``, ``unpack`` and ``nbytes``, see :class:`~sb3_per.buffers.frames.FrameStore`
    """

    def __init__(self, name: str, store: Any):
        self.name = name
        self.array = store

    def row_bytes(self, steps: _Steps) -> int:
        """Return the bytes of a row, about."""
        return int(self.array.nbytes) // max(steps.end - steps.first, 1)

    def pack(self, steps: _Steps, first: int, end: int) -> Blocks:
        """Collect the rows of steps."""
        packed = self.array.pack(steps.rows(first, end))
        return {f"{self.name}:{part}": [content] for part, content in packed.items()}

    def unpack(self, steps: _Steps, first: int, end: int, n_left_out: int, packed: dict[str, np.ndarray]) -> None:
        """Write the rows of steps, but for the oldest ``n_left_out``. ``packed`` has all of them."""
        own = f"{self.name}:"
        parts = {key.removeprefix(own): part for key, part in packed.items() if key.startswith(own)}
        self.array.unpack(steps.rows(first + n_left_out, end), parts)


def _rows_of(name: str, array: Any) -> _ArrayRows | _StoreRows:
    """
    Say how the rows of an array are read and written.

    :param name: name of the array in files
    :param array: one of SB3's arrays. An array-like with a ``store`` shares it with the other array of observations
    :return: its rows
    """
    if hasattr(array, "store"):
        return _StoreRows(name.removeprefix("next_"), array.store)
    return _ArrayRows(name, array)


def _require_same_form(array: Any, first: int, end: int, values: np.ndarray) -> None:
    """Check that values from a file have the shape and the type of the rows of steps in an array."""
    if (values.shape, values.dtype) != ((end - first, *array.shape[1:]), array.dtype):
        raise ValueError(f"{values.dtype} of shape {values.shape} does not fit {array.dtype} of shape {array.shape}")


@dataclasses.dataclass
class _Stream:
    """
    Rows that do not change after they were written.

    :param rows: those of each array
    :param steps: which steps they hold
    """

    rows: list[_ArrayRows | _StoreRows]
    steps: _Steps

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about."""
        return max(sum(rows.row_bytes(self.steps) for rows in self.rows), 1)

    def pack(self, first: int, end: int) -> Blocks:
        """
        Collect rows.

        :param first: first step
        :param end: step after the last
        :return: arrays of these steps; views if possible
        """
        packed: Blocks = {}
        for rows in self.rows:
            packed.update(rows.pack(self.steps, first, end))
        return packed

    def unpack(self, first: int, end: int, packed: dict[str, np.ndarray]) -> None:
        """
        Write rows back, as far as the stream has room for them.

        :param first: first step of the arrays
        :param end: step after the last one of the arrays
        :param packed: arrays from a file
        :raises LookupError: if an array is missing
        :raises ValueError: if an array has another shape or type
        """
        n_left_out = max(self.steps.first - first, 0)
        for rows in self.rows:
            rows.unpack(self.steps, first, end, n_left_out, packed)


def _stream_of(buffer: PrioritizedReplayBuffer) -> _Stream:
    """Collect the rows that a buffer holds."""
    rows = {}
    for name in WRITTEN_ONCE:
        for key, array in _by_key(name, getattr(buffer, name, {})).items():
            found = _rows_of(key, array)
            rows[found.name] = found  # a store is found twice
    end = buffer.numbering.next_step
    return _Stream(list(rows.values()), _Steps(buffer.buffer_size, end - buffer.size(), end))


def _by_key(name: str, array: Any) -> dict[str, Any]:
    """Name an array, or the arrays of a dictionary."""
    if isinstance(array, dict):
        return {f"{name}/{key}": part for key, part in array.items()}
    return {name: array}


def _parts_of(buffer: PrioritizedReplayBuffer) -> dict[str, PrioritizedReplayBuffer]:
    """Return a buffer, and the one with its demonstrations, by the prefix of their names."""
    demonstrations = buffer.demonstrations.buffer
    return {"": buffer} if demonstrations is None else {"": buffer, _DEMONSTRATIONS: demonstrations}


def _ranges_to_write(stream: _Stream, kept: list[DataFile]) -> list[tuple[int, int]]:
    """List first step and end of each new file."""
    steps = stream.steps
    begin = max(kept[-1].end, steps.first) if kept else steps.first
    n_bytes = max(_FILE_BYTES, (steps.end - steps.first) * stream.row_bytes // _MANY_FILES)
    n_steps = max(n_bytes // stream.row_bytes, 1)
    return [(first, min(first + n_steps, steps.end)) for first in range(begin, steps.end, n_steps)]


# ---- saving and loading


class SavedBuffer:
    """
    A directory to which a buffer is saved again and again. It remembers which files have the rows of this buffer, so that each
    save writes only what is new since the last save or load. A copy of it remembers nothing, and writes everything.

    :param path: path of the directory
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        # By stream, the arrays that were saved, and their files. Arrays that were assigned since are other ones.
        self._known: dict[str, tuple[list[weakref.ref[Any]], list[DataFile]]] = {}

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
        :warns UserWarning: for arrays of a user's class, which a directory does not hold
        """
        check_argument("keep", keep, integer())
        if left_out := _own_arrays(buffer):
            warnings.warn(
                f"{self.path} does not hold what {type(buffer).__name__} keeps in {', '.join(left_out)}: save such a buffer "
                "to a pickle, or save these arrays yourself"
            )
        with buffer.lock:
            facts = describe_buffer(buffer)
            make_directory(self.path)
            with sole_writer(self.path):
                # A release with another format may not be able to read what this one leaves: this raises an error then.
                older = generations.whole_generations(self.path, with_contents=False)
                manifest = self._write(buffer, facts, num_timesteps, full)
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

    def _remember(self, streams: dict[str, _Stream], manifest: Manifest) -> None:
        """Note which files have the rows of these arrays."""
        self._known = {
            name: ([weakref.ref(rows.array) for rows in stream.rows], manifest.of_stream(name))
            for name, stream in streams.items()
        }

    def _files_of(self, streams: dict[str, _Stream]) -> dict[str, list[DataFile]]:
        """Find the files that need not be written again, by stream."""
        known = {}
        for name, stream in streams.items():
            arrays, files = self._known.get(name, ([], []))
            present = [rows.array for rows in stream.rows]
            if len(arrays) == len(present) and all(saved() is array for saved, array in zip(arrays, present, strict=True)):
                known[name] = [file for file in files if stream.steps.first < file.end <= stream.steps.end]
        try:
            for files in known.values():
                for file in files:
                    file.check_size(self.path)
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
        numbers, blocks = _state_of(buffer)  # first, because it counts the rows that somebody has written by hand
        streams = {f"{prefix}rows": _stream_of(part) for prefix, part in _parts_of(buffer).items()}
        ranges = {name: [stream.steps.first, stream.steps.end] for name, stream in streams.items()}
        generation = max((numbers_in(name)[0] for name in manifest_names_in(self.path)), default=0) + 1
        manifest = Manifest(generation, num_timesteps, facts, numbers, ranges, [])
        known = {} if full else self._files_of(streams)
        new = [manifest.name]
        try:
            for name, stream in streams.items():
                kept = _without_small(known.get(name, []), stream)
                manifest.files += kept
                for first, end in _ranges_to_write(stream, kept):
                    # Names are unique, so that a failed save never removes a file that another generation needs.
                    new.append(f"rows-{uuid.uuid4().hex[:12]}-{first}-{end}.bin")
                    manifest.files.append(DataFile.write(self.path, new[-1], name, first, end, stream.pack(first, end)))
            new.append(f"state-{generation:08d}.bin")
            manifest.files.append(DataFile.write(self.path, new[-1], "state", 0, 0, blocks))
            generations.commit(self.path, manifest)
        except BaseException:
            # The manifest first. On a full disk, others may need the space.
            generations.remove(self.path, new)
            raise
        self._remember(streams, manifest)
        return manifest

    def _read(self, buffer: BufferT, name: str) -> BufferT:
        """
        Read a generation.

        :param buffer: see :meth:`load`
        :param name: name of the manifest
        :return: a new buffer
        :raises DamagedFileError: if a file is damaged, or the files contradict each other
        """
        manifest = Manifest.read(self.path / name)
        facts = describe_buffer(buffer)
        loaded, keeps_masses = self._empty_buffer_for(manifest, buffer, facts)
        with _restoring(self.path / name):
            streams = self._fill(loaded, manifest)
            _put_state(loaded, manifest, self._read_state(manifest), streams, keeps_masses)
        if all(stream.steps.shift == 0 for stream in streams.values()):
            self._remember(streams, manifest)
        if loaded.settings.frames != buffer.settings.frames:
            loaded = type(buffer).from_replay_buffer(loaded, frames=buffer.settings.frames)  # type: ignore[assignment]
        if buffer.draw_record is not None:
            loaded.draw_record = buffer.draw_record.emptied(loaded.numbering.capacity)
        if not keeps_masses:
            schemes = f"{manifest.about['scheme']}, and this buffer has {facts['scheme']}"
            warnings.warn(f"{self.path} was saved with {schemes}: all transitions get the largest priority")
        return loaded

    def _empty_buffer_for(self, manifest: Manifest, buffer: BufferT, facts: dict[str, Any]) -> tuple[BufferT, bool]:
        """
        Make an empty buffer that stores as the saved one does, if this fits the model.

        :param manifest: manifest of the generation
        :param buffer: see :meth:`load`
        :param facts: description of this buffer
        :return: the new buffer, and whether its masses have the same meaning
        :raises ValueError: if the files do not fit the buffer
        :raises DamagedFileError: for settings that cannot be
        """
        path = self.path / manifest.name
        found = manifest.about
        with _restoring(path):
            frames = found["frames"]
            keeps_masses = found["scheme"] == facts["scheme"]
        for fact in _MUST_FIT:
            _require_fit(path, fact, found.get(fact), facts[fact])
        if frames == facts["frames"]:
            empty = empty_like(buffer)
        else:
            with _restoring(path):  # a bad setting
                empty = empty_like(buffer, frames=frames)
        _require_fit(path, "arrays_by_row", found.get("arrays_by_row"), describe_buffer(empty)["arrays_by_row"])
        return empty, keeps_masses

    def _fill(self, buffer: PrioritizedReplayBuffer, manifest: Manifest) -> dict[str, _Stream]:
        """
        Read the rows of a generation into an empty buffer.

        :param buffer: empty buffer of any size. Discard it after an error
        :param manifest: manifest of the generation
        :return: what was read, by stream
        :raises ValueError: if a file is damaged, or rows are missing
        """
        n_rows = manifest.about["buffer_size"]
        first, end = manifest.ranges["rows"]
        if not 0 <= end - first <= n_rows or first < 0:
            raise ValueError(f"rows from {first} to {end} are in a buffer of {n_rows} rows")
        if f"{_DEMONSTRATIONS}rows" in manifest.ranges:
            n_demonstrations = manifest.ranges[f"{_DEMONSTRATIONS}rows"][1]
            buffer.demonstrations.adopt(buffer.empty_twin(n_demonstrations + 1))
        streams = {}
        for prefix, part in _parts_of(buffer).items():
            name = f"{prefix}rows"
            first, end = manifest.ranges[name]
            stream = streams[name] = _stream_of(part)
            steps = stream.steps
            if prefix or part.buffer_size == n_rows:
                steps.first = first
            else:
                # With `optimize_memory_usage`, the oldest observation of a full buffer was overwritten.
                is_overwritten = part.optimize_memory_usage and end - first == n_rows
                steps.first = max(first + is_overwritten, end - part.buffer_size)
                # They begin with row 0, and have other ids.
                steps.shift = steps.first
            steps.end = end
            n_filled = steps.first
            for file in manifest.of_stream(name):
                if file.end > steps.first:
                    arrays = file.read(self.path)
                    if file.first > n_filled:
                        raise ValueError(f"steps {n_filled} to {file.first} are in no file")
                    stream.unpack(file.first, file.end, arrays)
                    n_filled = file.end
            if n_filled != max(end, steps.first):
                raise ValueError(f"{name} ends at {n_filled}, not at {end}")
        return streams

    def _read_state(self, manifest: Manifest) -> dict[str, np.ndarray]:
        (file,) = manifest.of_stream("state")
        return file.read(self.path)


def _without_small(files: list[DataFile], stream: _Stream) -> list[DataFile]:
    """
    Leave out the last files, which are written anew, together with what is new, while the joined file stays small and no more
    is old in it than new. So every step is written a few times at most.
    """
    kept = list(files)
    first, end = stream.steps.first, stream.steps.end
    n_small = max(_SMALL_BYTES // stream.row_bytes, (end - first) * _SMALL_SHARE)
    begin = kept[-1].end if kept else end
    while kept and begin < end:
        n_old = begin - kept[-1].first
        if end - kept[-1].first > n_small or n_old > end - begin:
            break
        begin = kept.pop().first
    return kept


# ---- state


def _state_of(buffer: PrioritizedReplayBuffer) -> tuple[dict[str, Any], Blocks]:
    """
    Collect the values that may change after a step is stored.

    :param buffer: prioritized buffer
    :return: numbers, as JSON can hold them; and arrays in blocks, of which some are views, those by row from old to new
    """
    numbers: dict[str, Any] = {}
    blocks: Blocks = {}
    for prefix, part in _parts_of(buffer).items():
        state = part.state_to_save()
        steps = _stream_of(part).steps
        numbers.update({prefix + name: value for name, value in state.numbers.items()})
        for name in FLAGS:
            flags = steps.blocks(getattr(part, name), steps.first, steps.end)
            blocks[prefix + name] = [block.astype(np.uint8) for block in flags]
        for name, array in state.by_row.items():
            if name not in part.row_state or array.dtype != part.row_state[name]:
                raise ValueError(
                    f"state() of {type(part).__name__} returns {name!r} by row: add {name!r} to row_state, with {array.dtype}"
                )
            blocks[prefix + name] = steps.blocks(array, steps.first, steps.end)
        for name, array in state.arrays.items():
            blocks[prefix + name] = [array]
    return numbers, blocks


def _own_arrays(buffer: PrioritizedReplayBuffer) -> list[str]:
    """
    Name the arrays that a user's class keeps beside SB3's, and that ``row_state`` does not name: files do not hold them.

    :param buffer: to be saved
    :return: names of attributes with a value for each slot
    """
    shape = (buffer.buffer_size, buffer.n_envs)
    known = {*ARRAYS, *HER_ARRAYS, *buffer.part_names, *buffer.row_state}
    arrays = {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray)}
    return sorted(name for name, array in arrays.items() if array.shape[:2] == shape and name not in known)


def _put_state(
    buffer: PrioritizedReplayBuffer,
    manifest: Manifest,
    arrays: dict[str, np.ndarray],
    streams: dict[str, _Stream],
    keeps_masses: bool,
) -> None:
    """
    Restore the state of a buffer.

    :param buffer: whose rows were read. Discard it after an error
    :param manifest: of the generation
    :param arrays: of the state
    :param streams: what was read
    :param keeps_masses: whether the buffer has the scheme that was saved
    :raises ValueError: if the state contradicts itself
    :raises LookupError: if something is missing
    """
    for prefix, part in _parts_of(buffer).items():
        steps = streams[f"{prefix}rows"].steps
        n_saved = steps.end - manifest.ranges[f"{prefix}rows"][0]
        n_held = steps.end - steps.first
        saved = _named(arrays, prefix)
        numbers = _named(manifest.numbers, prefix)
        names = [name for name in part.row_state if name in saved]
        for name in (*FLAGS, *names):
            if len(saved[name]) != n_saved:
                raise ValueError(f"{prefix + name} has {len(saved[name])} rows, not {n_saved}")
            saved[name] = saved[name][n_saved - n_held :]
        for name in FLAGS:
            array = getattr(part, name)
            steps.put(array, steps.first, steps.end, saved.pop(name).astype(array.dtype))
        if steps.shift == 0:
            part.row_tracker.stand_at(part, numbers["first_step"], steps.end)
        else:
            # Ids that nobody has yet.
            first_step = -(-steps.end // part.buffer_size) * part.buffer_size
            part.row_tracker.stand_at(part, first_step, first_step + n_held)
        by_row = {}
        for name in names:
            by_row[name] = np.zeros((part.buffer_size, part.n_envs), part.row_state[name])
            steps.put(by_row[name], steps.first, steps.end, saved.pop(name))
        part.restore_state(BufferState(numbers, by_row, saved), keeps_masses, is_whole=n_held == n_saved)


def _named(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Choose the values of a buffer, or with a prefix of its demonstrations, by the names that they have there."""
    if prefix:
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return {name: value for name, value in values.items() if not name.startswith(_DEMONSTRATIONS)}


def _require_fit(path: Path, fact: str, found: Any, expected: Any) -> None:
    """
    Check that a saved buffer fits the one of the model.

    :raises ValueError: if it does not
    """
    if found != expected:
        raise ValueError(f"{path} does not fit this model: it has {fact} {found}, and the model has {expected}")


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
