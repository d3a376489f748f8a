"""
Select what to save of a buffer: facts, rows, frames and state.

Rows and frames are streams and are written once. The state is small and is written with every generation.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.persistence import infos
from sb3_per.persistence.generations import Part
from sb3_per.persistence.npz import Arrays
from sb3_per.storage.arrays import ArrayStorage, ArrayStore
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.ring import Ring

# Flags that SB3 stores as floats. They are saved as bytes.
_FLAGS = ("dones", "timeouts")

# With ``optimize_memory_usage``: the next observations of the newest steps. In a full ring they take the place of the oldest.
_NEWEST = "newest_next_observations"

#: Prefix of the streams and arrays of demonstrations.
DEMONSTRATIONS = "demonstrations/"


# ---- facts


def about(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Describe a buffer, to tell whether its files fit another one.

    :param buffer: prioritized buffer
    :return: kind, spaces and form of the buffer, as JSON can hold them
    """
    facts = {
        # A subclass of a user stores what its base class of this package stores.
        "kind": next(kind.__name__ for kind in type(buffer).__mro__ if kind.__module__.startswith("sb3_per.")),
        "observation_space": _describe(buffer.observation_space, with_bounds=False),
        "action_space": _describe(buffer.action_space, with_bounds=True),
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": bool(buffer.optimize_memory_usage),
        "copy_info_dict": buffer.storage.infos is not None,
        "sequences": None,
        "buffer_size": buffer.buffer_size,
        "frames": [
            {"key": key, "n_frames": int(store.n_frames), "axis": store.axis}
            for key, store in buffer.storage.frame_stores.items()
        ],
        # A mass has a meaning only together with its scheme and with what is drawn.
        "scheme": f"{buffer.scheme!r}, by {buffer.sampler.eligible.unit}",
    }
    if isinstance(buffer, PrioritizedSequenceReplayBuffer):
        shapes = [list(shape) for shape in buffer.state_shapes]
        facts["sequences"] = {"period": buffer.period, "burn_in": buffer.burn_in, "state_shapes": shapes}
    return facts


def _describe(space: spaces.Space, with_bounds: bool) -> dict[str, Any]:
    """
    Describe a space.

    :param space: space of observations or actions
    :param with_bounds: whether bounds matter: stored actions are scaled with them, observations are not
    :return: description of the space, as JSON can hold it
    """
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {str(key): _describe(part, with_bounds) for key, part in space.spaces.items()}}
    described: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    for name in ("n", "start", "nvec", *(("low", "high") if with_bounds else ())):
        if hasattr(space, name):
            described[name] = np.asarray(getattr(space, name)).tolist()
    return described


# ---- rows and frames


@dataclass
class Stream:
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
    storage: ArrayStorage
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
        parts = (slice(begin, begin + end - first), slice(max(begin + end - first - n_rows, 0)))
        return {name: [array[part] for part in parts] for name, array in self.rows.items()}

    def reserve(self, first: int, end: int) -> int:
        """
        Make room in an empty storage.

        :param first: number of the first entry
        :param end: number after the last
        :return: number of the first entry that there is room for
        """
        if self.store is None:
            if self.storage.files is not None:
                # With `optimize_memory_usage`, the newest next observation goes into the row after the last one.
                self.storage.files.reserve(min(end + 1, self.storage.n_rows))
            return int(max(first, end - self.storage.n_rows))
        self.store.pool.reserve_numbers(first, end)
        return first


def collections_of(buffer: PrioritizedReplayBuffer) -> list[tuple[str, Ring, ArrayStorage]]:
    """
    List the collections of transitions that a buffer owns: experience and demonstrations.

    :param buffer: prioritized buffer
    :return: of each collection the prefix of its streams and arrays, its ring, and its storage
    """
    others, collections = buffer.demonstrations, [("", buffer.ring, buffer.storage)]
    if others.storage is not None:
        collections.append((DEMONSTRATIONS, others.ring, others.storage))
    return collections


def streams_of(buffer: PrioritizedReplayBuffer) -> list[Stream]:
    """
    List the streams of a buffer.

    :param buffer: prioritized buffer
    :return: its rows, numbered by step, first; its pools of frames; and those of the demonstrations
    """
    streams = []
    for prefix, ring, storage in collections_of(buffer):
        rows, first = _rows_of(storage), ring.most - ring.n_rows_used
        n_bytes = sum(array[:1].nbytes for array in rows.values())
        # The slowest environment still writes to the steps from `least` on.
        streams.append(Stream(f"{prefix}rows", storage, None, rows, first, ring.most, max(ring.least, first), n_bytes))
        for key, store in storage.frame_stores.items():
            first, end = store.pool.first, store.pool.end
            streams.append(Stream(prefix + _name("frames", key), storage, store, {}, first, end, end, store.frame_bytes))
    return streams


def _rows_of(storage: ArrayStorage) -> dict[str, np.ndarray]:
    """See :class:`Stream`."""
    rows = {"actions": storage.actions, "rewards": storage.rewards}
    for key, store in storage.stores.items():
        if isinstance(store, FrameStore):
            rows[_name("references", key)] = store.references
        elif isinstance(store, ArrayStore):
            rows[_name("observations", key)] = store.observations
            if store.next_observations is not None:
                rows[_name("next_observations", key)] = store.next_observations
        else:
            raise NotImplementedError(
                f"Observations in a {type(store).__name__} cannot be saved to a directory: save the buffer to a pickle"
            )
    if storage.infos is not None:
        rows["infos"] = storage.infos
    return rows


def arrays_of(stream: Stream, first: int, end: int) -> Arrays:
    """
    Collect the arrays of some entries.

    :param stream: rows or frames
    :param first: number of the first entry
    :param end: number after the last
    :return: arrays to write by name, each in parts
    :raises ValueError: for infos that only a pickle can hold
    """
    arrays = stream.views(first, end)
    if "infos" in arrays:
        arrays["infos"], arrays["infos_end"] = ([part] for part in infos.encode(np.concatenate(arrays["infos"])))
    return arrays


def read_part(stream: Stream, directory: Path, part: Part, begin: int) -> None:
    """
    Read the entries of a file into the storage.

    :param stream: rows or frames, with room for them
    :param directory: path of the directory
    :param part: file to read
    :param begin: number of the first entry to read
    :raises Exception: if the file is damaged, or contradicts itself
    """
    into = stream.views(begin, part.end)
    stored = into.pop("infos", [])
    if stored:
        for name, dtype in (("infos", np.uint8), ("infos_end", np.int64)):
            into[name] = [np.empty(part.members[name].shape, dtype)]
    part.read(directory, into)
    if stored:
        decoded = infos.decode(into["infos"][0], into["infos_end"][0])[begin - part.first :]
        for view in stored:
            view[:], decoded = decoded[: len(view)], decoded[len(view) :]


def _name(array: str, key: str | None) -> str:
    # Quoted: a name in a zip can be a path, and somebody may unpack it.
    return array if key is None else f"{array}.{quote(key, safe='')}"


# ---- state


def state_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Collect the values that may change after a step is stored. Arrays by row begin with row 0.

    :param buffer: prioritized buffer
    :return: numbers and arrays, of which some are views; names of nested dictionaries are joined with slashes
    """
    state = _flat("", buffer.state())
    for prefix, ring, storage in collections_of(buffer):
        state.update({prefix + name: getattr(storage, name)[: ring.n_rows_used].astype(np.uint8) for name in _FLAGS})
        if storage.next_observations is None:
            state[prefix + _NEWEST] = storage.observations[ring.added % ring.n_rows, np.arange(ring.n_envs)]
    return state


def _flat(prefix: str, content: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat.update(_flat(f"{prefix}{key}/", value) if isinstance(value, dict) else {prefix + key: value})
    return flat


def nested(state: dict[str, Any]) -> dict[str, Any]:
    """
    Undo the joining of names.

    :param state: from :func:`state_of`
    :return: what ``buffer.state()`` returned, and the entries without a slash
    """
    content: dict[str, Any] = {}
    for name, value in state.items():
        *parents, key = name.split("/")
        functools.reduce(lambda place, parent: place.setdefault(parent, {}), parents, content)[key] = value
    return content


def _require_types(state: dict[str, Any], example: dict[str, Any]) -> None:
    """
    Check types, so that a TypeError while a state is loaded is a mistake in the code, and not in the file.

    :param state: from a file
    :param example: state of an empty buffer of the same kind
    :raises ValueError: for another type, or arrays of another shape, apart from their length
    """
    groups = {part.rpartition("/")[0] for part in example}
    for name, found in state.items():
        expected = example.get(name)
        if isinstance(expected, np.ndarray):
            fits = isinstance(found, np.ndarray) and found.ndim == expected.ndim
            fits = fits and (found.dtype, found.shape[1:]) == (expected.dtype, expected.shape[1:])
        elif expected is None:
            fits = name not in groups  # other names may be missing in an empty buffer
        else:
            fits = isinstance(found, int if isinstance(expected, int) else (int, float))
        if not fits:
            raise ValueError(f"{name} is {found!r}, and {expected!r} is an example of what it should be")


def put_state(buffer: PrioritizedReplayBuffer, state: dict[str, Any], keeps_masses: bool) -> None:
    """
    Restore the state of a buffer.

    :param buffer: empty buffer of the kind and size that was saved, whose rows and frames are read. Discard it after an error
    :param state: from :func:`state_of`
    :param keeps_masses: whether the buffer has the scheme that was saved
    :raises ValueError: if the state contradicts itself
    :raises LookupError: if something is missing
    """
    _require_types(state, {**state_of(buffer), **_flat(DEMONSTRATIONS, buffer.demonstrations.state())})
    buffer.load(nested(state), keeps_masses)
    for prefix, ring, storage in collections_of(buffer):
        for name in _FLAGS:
            flags = state[prefix + name]
            if len(flags) != ring.n_rows_used:
                raise ValueError(f"{prefix + name} has {len(flags)} rows, not {ring.n_rows_used}")
            getattr(storage, name)[: len(flags)] = flags
        if storage.next_observations is None:
            storage.observations[ring.added % ring.n_rows, np.arange(ring.n_envs)] = state[prefix + _NEWEST]
        for store in storage.frame_stores.values():
            store.adopt(ring.first, ring.added)
