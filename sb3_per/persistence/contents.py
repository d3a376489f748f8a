"""What of a buffer is saved, and what tells whether it fits another one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
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
from sb3_per.persistence import infos
from sb3_per.storage.arrays import keyed
from sb3_per.storage.frames import FramedArray, FrameStore

# Flags that SB3 keeps as floats, and that are saved as bytes.
_FLAGS = ("dones", "timeouts")

# With ``optimize_memory_usage``: the observations after the newest ones, which lie over the oldest ones in a full ring.
_NEWEST = "newest_next_observations"


# ---- facts


def about(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    :param buffer: any
    :return: what tells whether its files fit another one
    """
    kinds = (
        PrioritizedDictSequenceReplayBuffer,
        PrioritizedSequenceReplayBuffer,
        PrioritizedHerReplayBuffer,
        PrioritizedDictReplayBuffer,
        PrioritizedReplayBuffer,
    )
    facts = {
        "kind": next(kind.__name__ for kind in kinds if isinstance(buffer, kind)),
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
        # Whose masses they are, and of what.
        "scheme": f"{buffer.scheme!r}, by {buffer.sampler.eligible.unit}",
    }
    if isinstance(buffer, PrioritizedSequenceReplayBuffer):
        shapes = [list(shape) for shape in buffer.state_shapes]
        facts["sequences"] = {"period": buffer.period, "burn_in": buffer.burn_in, "state_shapes": shapes}
    return facts


def _describe(space: spaces.Space, with_bounds: bool) -> dict[str, Any]:
    """
    :param space: of observations or actions
    :param with_bounds: actions are scaled with their bounds when they are stored; observations are not
    :return: what data of this space look like
    """
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {str(key): _describe(part, with_bounds) for key, part in space.spaces.items()}}
    described: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Box) and with_bounds:
        described.update(low=np.asarray(space.low, float).tolist(), high=np.asarray(space.high, float).tolist())
    elif isinstance(space, spaces.Discrete):
        described.update(n=int(space.n), start=int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        described.update(nvec=np.asarray(space.nvec).tolist())
    return described


# ---- rows and frames


@dataclass
class Stream:
    """
    What is numbered on and on, and written once.

    :param name: of the stream
    :param prefix: of the names of its files
    :param first: number of what is held
    :param end: number after it
    :param end_of_final: number after what does not change any more; all after it is written anew every time
    :param n_bytes: of one
    :param arrays: of a range, by name, in parts along the first axis
    """

    name: str
    prefix: str
    first: int
    end: int
    end_of_final: int
    n_bytes: int
    arrays: Callable[[int, int], dict[str, list[np.ndarray]]]


def streams_of(buffer: PrioritizedReplayBuffer) -> list[Stream]:
    """
    :param buffer: any
    :return: its rows by step, and its pools of frames. Step ``s`` is in row ``s % n_rows`` of all environments, also of those
        that stand at an older one
    """
    ring, rows = buffer.ring, rows_of(buffer)

    def arrays_of_steps(first: int, end: int) -> dict[str, list[np.ndarray]]:
        arrays = {name: [array[part] for part in slices_of(first, end, ring.n_rows)] for name, array in rows.items()}
        if "infos" in arrays:
            arrays["infos"], arrays["infos_end"] = ([part] for part in infos.encode(np.concatenate(arrays["infos"])))
        return arrays

    n_bytes = sum(array[:1].nbytes for array in rows.values())
    first = ring.most - ring.n_rows_used
    # From the step of the slowest environment on, rows are still written to.
    streams = [Stream("rows", "seg", first, ring.most, max(ring.least, first), n_bytes, arrays_of_steps)]
    for name, store in pools_of(buffer).items():
        begin, end = store.numbers

        def arrays_of_frames(first: int, end: int, store: FrameStore = store) -> dict[str, list[np.ndarray]]:
            return {"frames": store.frames(first, end)}

        streams.append(Stream(name, "frm", begin, end, end, store.frame_bytes, arrays_of_frames))
    return streams


def rows_of(buffer: PrioritizedReplayBuffer) -> dict[str, np.ndarray]:
    """
    :param buffer: any
    :return: arrays that do not change after a step, of shape (n_rows, n_envs, ...), by name
    """
    storage = buffer.storage
    rows = {"actions": storage.actions, "rewards": storage.rewards}
    for key, obs in keyed(storage.observations).items():
        if isinstance(obs, FramedArray):
            rows[_name("references", key)] = obs.store.references
            continue
        rows[_name("observations", key)] = obs
        if storage.next_observations is not None:
            rows[_name("next_observations", key)] = keyed(storage.next_observations)[key]
    if storage.infos is not None:
        rows["infos"] = storage.infos
    return rows


def pools_of(buffer: PrioritizedReplayBuffer) -> dict[str, FrameStore]:
    """
    :param buffer: any
    :return: its pools of frames, by the name of their stream
    """
    return {_name("frames", key): store for key, store in buffer.storage.frame_stores.items()}


def slices_of(first: int, end: int, n_rows: int) -> list[slice]:
    """
    :param first: step
    :param end: the step after the last one, at most ``n_rows`` later
    :param n_rows: of the ring
    :return: the rows of these steps, in order
    """
    begin, n = first % n_rows, end - first
    n_before_end = min(n, n_rows - begin)
    slices = [slice(begin, begin + n_before_end), slice(0, n - n_before_end)]
    return [part for part in slices if part.stop > part.start]


def _name(array: str, key: str | None) -> str:
    # Quoted: names of a zip can be paths, and somebody may unpack it.
    return array if key is None else f"{array}.{quote(key, safe='')}"


# ---- state


@dataclass
class State:
    """
    All that may change after a step. Small, and written every time.

    :param first: step in the oldest row
    :param end: step after the newest row
    :param numbers: by name, joined with slashes
    :param arrays: likewise; those by row begin with row 0
    """

    first: int
    end: int
    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, buffer: PrioritizedReplayBuffer) -> "State":
        """
        :param buffer: any
        :return: its state; parts of it are views
        """
        ring, storage = buffer.ring, buffer.storage
        state = cls(ring.most - ring.n_rows_used, ring.most, {}, {})
        state._flatten("", buffer.state())
        state.arrays.update({name: _as_bytes(getattr(storage, name)[: ring.n_rows_used]) for name in _FLAGS})
        if storage.next_observations is None:
            state.arrays[_NEWEST] = storage.observations[ring.added % ring.n_rows, np.arange(ring.n_envs)]
        return state

    def _flatten(self, prefix: str, content: dict[str, Any]) -> None:
        for key, value in content.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                self._flatten(f"{name}/", value)
            elif isinstance(value, np.ndarray):
                self.arrays[name] = value
            else:
                self.numbers[name] = value

    def nested(self) -> dict[str, Any]:
        """What :meth:`PrioritizedReplayBuffer.state` has given."""
        nested: dict[str, Any] = {}
        for name, value in {**self.numbers, **self.arrays}.items():
            *parents, key = name.split("/")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[key] = value
        return nested

    def put_into(self, buffer: PrioritizedReplayBuffer, keeps_masses: bool) -> None:
        """
        :param buffer: an empty one, of the same kind and size, whose rows and frames are there already
        :param keeps_masses: whether its masses are those that were saved
        :raises Exception: if it contradicts itself; the buffer is of no use then
        """
        ring, storage = buffer.ring, buffer.storage
        for name in _FLAGS:
            getattr(storage, name)[: self.end - self.first] = self.arrays[name]
        buffer.load(self.nested(), keeps_masses)
        if (ring.most - ring.n_rows_used, ring.most) != (self.first, self.end):
            raise ValueError(f"steps from {self.first} to {self.end} are not those of {ring.state()}")
        if storage.next_observations is None:
            storage.observations[ring.added % ring.n_rows, np.arange(ring.n_envs)] = self.arrays[_NEWEST]
        for store in storage.frame_stores.values():
            store.adopt(ring.first, ring.added)


def expected_arrays(buffer: PrioritizedReplayBuffer) -> dict[str, list[tuple[np.dtype, tuple[int, ...], int]]]:
    """
    Forms of the arrays of a state, so that nothing else is read.

    :param buffer: an empty one, of the kind and size of the one that was saved
    :return: by name: type, shape of an entry, and the largest number of entries
    """
    storage, size = buffer.storage, buffer.ring.capacity
    state = State.of(buffer)
    forms = {name: [(array.dtype, array.shape[1:], max(size, len(array)))] for name, array in state.arrays.items()}
    for name in _FLAGS:
        forms[name] = [(dtype, getattr(storage, name).shape[1:], size) for dtype in (np.dtype(np.uint8), storage.dones.dtype)]
    forms["sampler/given_masses"] = [(np.dtype(np.float64), (), size)]
    return forms


def _as_bytes(flags: np.ndarray) -> np.ndarray:
    """SB3 writes zeros and ones as floats; where that is all, a quarter of the bytes will do."""
    with np.errstate(invalid="ignore"):
        small = flags.astype(np.uint8)
    return small if np.array_equal(small, flags) else flags
