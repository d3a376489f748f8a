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

from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.conversion import ARRAY_NAMES, empty_like
from sb3_per.buffers.state import BufferState
from sb3_per.persistence import generations
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.generations import Blocks, DamagedFileError, DataFile, Manifest, manifest_names_in, numbers_in
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import SCHEMES
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

# Prefix of the streams and of the state of demonstrations.
_DEMONSTRATIONS = "demonstrations/"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)

# Facts in which a saved buffer and the buffer of the model must be equal.
_MUST_FIT = ("kind", "observation_space", "action_space", "n_envs", "optimize_memory_usage", "sequences")

# |td| of two critics, whose masses tell a user's schemes apart.
_TD_ERRORS = np.outer([0.013, 0.17, 0.71, 1.9, 13.7, 137.0], [1.0, 0.6])

# SB3's arrays of which a row does not change after it was stored.
_ROWS = ("observations", "next_observations", "actions", "rewards")

# SB3's flags, which may change later: `end_episodes` sets them. They are floats, and are saved as bytes.
_FLAGS = ("dones", "timeouts")

# With ``optimize_memory_usage``: the next observations of the newest row. In a full ring they take the place of the oldest.
_NEWEST = "newest_next_observations"

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
    if getattr(buffer, "copy_info_dict", False):
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
        "buffer_size": buffer.buffer_size,
        "frames": buffer.settings.frames,
        "arrays_by_row": {
            name: [array.dtype.str, array.shape[2:]] for name, array in _stream_of(buffer).arrays.items() if _is_plain(array)
        },
        # A mass has a meaning only together with its scheme and with what is drawn.
        "scheme": {**_describe_scheme(buffer.sampler), "unit": buffer.mass_owner},
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
class _Stream:
    """
    Rows that do not change after they were written. Step ``s`` is in row ``(s - shift) % n_rows``.

    :param arrays: SB3's arrays by name, shape (n_rows, n_envs, ...). An array-like with a ``store`` is in it by the name of
        the observations: this store packs and unpacks observations and next observations
    :param n_rows: number of rows of the arrays
    :param n_envs: number of environments
    :param first: oldest step that is held
    :param end: step after the newest
    :param shift: above 0 only after steps were loaded into arrays with another number of rows
    """

    arrays: dict[str, Any]
    n_rows: int
    n_envs: int
    first: int
    end: int
    shift: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about."""
        n_bytes = 0
        for array in self.arrays.values():
            if hasattr(array, "pack"):
                n_bytes += array.nbytes // max(self.end - self.first, 1)
            else:
                n_bytes += int(np.prod(array.shape[1:])) * array.dtype.itemsize
        return max(n_bytes, 1)

    def pack(self, first: int, end: int) -> Blocks:
        """
        Collect rows.

        :param first: first step
        :param end: step after the last
        :return: arrays of these steps; views if possible
        """
        packed: Blocks = {}
        for name, array in self.arrays.items():
            if _is_plain(array):
                packed[name] = self.blocks(array, first, end)
                continue
            rows = (np.arange(first, end) - self.shift) % self.n_rows
            if hasattr(array, "pack"):
                packed.update({f"{name}:{part}": [content] for part, content in array.pack(rows).items()})
            else:
                packed[name] = [np.stack([np.asarray(array[rows, np.full_like(rows, env)]) for env in range(self.n_envs)], 1)]
        return packed

    def unpack(self, first: int, end: int, arrays: dict[str, np.ndarray]) -> None:
        """
        Write rows back, as far as the stream has room for them.

        :param first: first step of the arrays
        :param end: step after the last one of the arrays
        :param arrays: from a file
        :raises LookupError: if an array is missing
        :raises ValueError: if an array has another shape or type
        """
        n_old = max(self.first - first, 0)
        for name, array in self.arrays.items():
            if hasattr(array, "pack"):
                parts = {key.removeprefix(f"{name}:"): part for key, part in arrays.items() if key.startswith(f"{name}:")}
                array.unpack((np.arange(first + n_old, end) - self.shift) % self.n_rows, parts)
            else:
                if len(arrays[name]) != end - first:
                    raise ValueError(f"{name} has {len(arrays[name])} rows, not {end - first}")
                self.put(array, first + n_old, end, arrays[name][n_old:])

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

    def put(self, array: Any, first: int, end: int, values: np.ndarray) -> None:
        """
        Write the rows of steps.

        :param array: shape (n_rows, ...)
        :param first: first step
        :param end: step after the last
        :param values: shape (end - first, ...)
        :raises ValueError: for values of another shape or type
        """
        if (values.shape, values.dtype) != ((end - first, *array.shape[1:]), array.dtype):
            raise ValueError(f"{values.dtype} of shape {values.shape} does not fit {array.dtype} of shape {array.shape}")
        if not _is_plain(array):
            for row, value in zip((np.arange(first, end) - self.shift) % self.n_rows, values, strict=True):
                array[row] = value
            return
        start = 0
        for block in self.blocks(array, first, end):
            block[...] = values[start : start + len(block)]
            start += len(block)


def _stream_of(buffer: PrioritizedReplayBuffer) -> _Stream:
    """Collect the rows that a buffer holds."""
    arrays: dict[str, Any] = {}
    for name in _ROWS:
        for key, array in _by_key(name, getattr(buffer, name, {})).items():
            if hasattr(array, "store"):
                arrays[key.removeprefix("next_")] = array.store
            else:
                arrays[key] = array
    end = buffer.ids.next_step
    return _Stream(arrays, buffer.buffer_size, buffer.n_envs, end - buffer.size(), end)


def _by_key(name: str, array: Any) -> dict[str, Any]:
    """Name an array, or the arrays of a dictionary."""
    if isinstance(array, dict):
        return {f"{name}/{key}": part for key, part in array.items()}
    return {name: array}


def _is_plain(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _parts_of(buffer: PrioritizedReplayBuffer) -> dict[str, PrioritizedReplayBuffer]:
    """Return a buffer, and the one with its demonstrations, by the prefix of their names."""
    demonstrations = buffer.demonstrations.buffer
    return {"": buffer} if demonstrations is None else {"": buffer, _DEMONSTRATIONS: demonstrations}


def _ranges_to_write(stream: _Stream, kept: list[DataFile]) -> list[tuple[int, int]]:
    """List first step and end of each new file."""
    begin = max(kept[-1].end, stream.first) if kept else stream.first
    n_bytes = max(_FILE_BYTES, (stream.end - stream.first) * stream.row_bytes // _MANY_FILES)
    n_steps = max(n_bytes // stream.row_bytes, 1)
    return [(first, min(first + n_steps, stream.end)) for first in range(begin, stream.end, n_steps)]


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
            name: ([weakref.ref(array) for array in stream.arrays.values()], manifest.of_stream(name))
            for name, stream in streams.items()
        }

    def _files_of(self, streams: dict[str, _Stream]) -> dict[str, list[DataFile]]:
        """Find the files that need not be written again, by stream."""
        known = {}
        for name, stream in streams.items():
            arrays, files = self._known.get(name, ([], []))
            present = list(stream.arrays.values())
            if len(arrays) == len(present) and all(saved() is array for saved, array in zip(arrays, present, strict=True)):
                known[name] = [file for file in files if stream.first < file.end <= stream.end]
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
        ranges = {name: [stream.first, stream.end] for name, stream in streams.items()}
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
        path = self.path / name
        manifest = Manifest.read(path)
        found = manifest.about
        facts = describe_buffer(buffer)
        with _restoring(path):
            frames = found["frames"]
            keeps_masses = found["scheme"] == facts["scheme"]
        for fact in _MUST_FIT:
            _require_fit(path, fact, found.get(fact), facts[fact])
        if frames == facts["frames"]:
            loaded = empty_like(buffer)
        else:
            with _restoring(path):  # a bad setting
                loaded = empty_like(buffer, frames=frames)
        _require_fit(path, "arrays_by_row", found.get("arrays_by_row"), describe_buffer(loaded)["arrays_by_row"])
        with _restoring(path):
            streams = self._fill(loaded, manifest)
            _put_state(loaded, manifest, self._read_state(manifest), streams, keeps_masses)
        if all(stream.shift == 0 for stream in streams.values()):
            self._remember(streams, manifest)
        if frames != facts["frames"]:
            loaded = type(buffer).from_replay_buffer(loaded, frames=buffer.settings.frames)  # type: ignore[assignment]
        if buffer.draw_record is not None:
            loaded.draw_record = buffer.draw_record.emptied(loaded.ids.capacity)
        if not keeps_masses:
            schemes = f"{found['scheme']}, and this buffer has {facts['scheme']}"
            warnings.warn(f"{self.path} was saved with {schemes}: all transitions get the largest priority")
        return loaded

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
            if prefix or part.buffer_size == n_rows:
                stream.first = first
            else:
                # With `optimize_memory_usage`, the oldest observation of a full buffer was overwritten.
                is_overwritten = part.optimize_memory_usage and end - first == n_rows
                stream.first = max(first + is_overwritten, end - part.buffer_size)
                # They begin with row 0, and have other ids.
                stream.shift = stream.first
            stream.end = end
            n_filled = stream.first
            for file in manifest.of_stream(name):
                if file.end > stream.first:
                    arrays = file.read(self.path)
                    if file.first > n_filled:
                        raise ValueError(f"steps {n_filled} to {file.first} are in no file")
                    stream.unpack(file.first, file.end, arrays)
                    n_filled = file.end
            if n_filled != max(end, stream.first):
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
    n_small = max(_SMALL_BYTES // stream.row_bytes, (stream.end - stream.first) * _SMALL_SHARE)
    begin = kept[-1].end if kept else stream.end
    while kept and begin < stream.end:
        n_old = begin - kept[-1].first
        if stream.end - kept[-1].first > n_small or n_old > stream.end - begin:
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
        state = part.state()
        stream = _stream_of(part)
        numbers.update({prefix + name: value for name, value in state.numbers.items()})
        for name in _FLAGS:
            flags = stream.blocks(getattr(part, name), stream.first, stream.end)
            blocks[prefix + name] = [block.astype(np.uint8) for block in flags]
        for name, array in state.by_row.items():
            blocks[f"{prefix}{name}"] = stream.blocks(array, stream.first, stream.end)
        for name, array in state.arrays.items():
            blocks[f"{prefix}{name}"] = [array]
    if buffer.optimize_memory_usage:
        blocks[_NEWEST] = [np.asarray(buffer.observations[buffer.pos])]
    return numbers, blocks


def _own_arrays(buffer: PrioritizedReplayBuffer) -> list[str]:
    """
    Name the arrays that a user's class keeps beside SB3's.

    :param buffer: to be saved
    :return: names of attributes with a value for each slot
    """
    shape = (buffer.buffer_size, buffer.n_envs)
    known = {*ARRAY_NAMES, *buffer.parts, "infos", "ep_start", "ep_length"}
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
        stream = streams[f"{prefix}rows"]
        n_saved = stream.end - manifest.ranges[f"{prefix}rows"][0]
        n_held = stream.end - stream.first
        names = part.state()
        # Another scheme may have left out an array of this one.
        by_row = {name: np.zeros_like(like) for name, like in names.by_row.items() if keeps_masses or prefix + name in arrays}
        for name in (*_FLAGS, *by_row):
            if len(arrays[prefix + name]) != n_saved:
                raise ValueError(f"{prefix + name} has {len(arrays[prefix + name])} rows, not {n_saved}")
        for name in _FLAGS:
            array = getattr(part, name)
            flags = arrays[prefix + name][n_saved - n_held :]
            stream.put(array, stream.first, stream.end, flags.astype(array.dtype))
        if stream.shift == 0:
            first_step = manifest.numbers[f"{prefix}first_step"]
            part.stand_at(first_step, stream.end)
        else:
            # Ids that nobody has yet.
            first_step = -(-stream.end // part.buffer_size) * part.buffer_size
            part.stand_at(first_step, first_step + n_held)
        for name, array in by_row.items():
            stream.put(array, stream.first, stream.end, arrays[prefix + name][n_saved - n_held :])
        state = BufferState(
            {name: manifest.numbers[prefix + name] for name in names.numbers},
            by_row,
            {name: arrays[prefix + name] for name in names.arrays},
        )
        part.load(state, keeps_masses, is_whole=n_held == n_saved)
    if buffer.optimize_memory_usage:
        newest = arrays[_NEWEST]
        if newest.shape != buffer.observations.shape[1:]:
            raise ValueError(f"{_NEWEST} has shape {newest.shape}")
        buffer.observations[buffer.pos] = newest


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
