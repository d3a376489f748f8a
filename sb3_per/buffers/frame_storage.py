"""SB3's storage, with observations in frames where that is asked for. It knows nothing of ids or priorities."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_per.storage.frames import FramedArray, FrameStore, frames_by_key, without


class FrameStorage(ReplayBuffer):
    """
    SB3's replay buffer, which stores each frame of stacked observations once if it is told how many there are.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param frames: number of frames in a stack, or a dictionary of them; ``None``: plain arrays
    :param kwargs: SB3's keyword arguments
    """

    def __init__(self, *args: Any, frames: int | str | dict[str, int] | None = None, **kwargs: Any):
        if frames is None:
            super().__init__(*args, **kwargs)
        else:
            self._init_with_frames(frames, *args, **kwargs)
        self.frames = frames

    def _init_with_frames(
        self, frames: Any, buffer_size: int, observation_space: spaces.Space, *args: Any, **kwargs: Any
    ) -> None:
        n_frames = frames_by_key(frames, observation_space)
        optimizes = kwargs.get("optimize_memory_usage", len(args) > 3 and args[3])  # SB3's sixth argument
        if optimizes and not isinstance(observation_space, spaces.Dict):
            raise NotImplementedError(
                f"frames={frames} with optimize_memory_usage=True is not supported: frames store all observations once already"
            )
        # SB3's constructors allocate everything; of what is stored in frames, nothing.
        super().__init__(buffer_size, without(observation_space, n_frames), *args, **kwargs)
        self.observation_space = observation_space
        self.obs_shape = get_obs_shape(observation_space)  # type: ignore[assignment]
        self._store_frames(n_frames)

    def _store_frames(self, n_frames: dict[str | None, int]) -> None:
        """
        Store the observations of these keys in frames, and those of all others in arrays; what is held comes along.

        :param n_frames: number of frames by key
        """
        if not n_frames and not self._frame_stores():
            return
        space = self.observation_space
        for key in space.spaces if isinstance(space, spaces.Dict) else [None]:
            obs, next_obs = ((each if key is None else each[key]) for each in (self.observations, self.next_observations))
            if isinstance(obs, FramedArray) and obs.store.n_frames == n_frames.get(key):
                continue
            if key in n_frames:
                part = space if key is None else space.spaces[key]  # type: ignore[attr-defined]
                store = FrameStore(self.buffer_size, self.n_envs, part.shape or (), part.dtype, int(n_frames[key]))
                arrays: Any = (FramedArray(store, False), FramedArray(store, True))
                self._write_frames(store, obs, next_obs)
            elif isinstance(obs, FramedArray):
                arrays = (obs[:], next_obs[:])
            else:
                continue
            if key is None:
                self.observations, self.next_observations = arrays
            else:
                # New dictionaries: those of another buffer stay what they are.
                self.observations = {**self.observations, key: arrays[0]}  # type: ignore[dict-item, assignment]
                self.next_observations = {**self.next_observations, key: arrays[1]}  # type: ignore[dict-item, assignment]

    def _write_frames(self, store: FrameStore, obs: Any, next_obs: Any) -> None:
        """Write what is held into an empty store, the oldest step first."""
        oldest_row = self.pos if self.full else 0
        for i in range(self.size()):
            row = (oldest_row + i) % self.buffer_size
            store.begin(obs[row])
            store.finish(row, np.array(next_obs[row]))

    @property
    def frames_per_transition(self) -> float:
        """
        How many frames are stored for each transition: little above 1 where observations are stacks, and up to twice the
        number of frames in a stack where they are not. The largest, for Dict observations; 0 for an empty buffer.

        :raises AttributeError: without ``frames``
        """
        stores = self._frame_stores()
        if not stores:
            raise AttributeError("This buffer does not store frames: give it the setting frames")
        n_held = self._n_slots_held
        return max(store.n_frames_held for store in stores) / n_held if n_held else 0.0

    @property
    def _n_slots_held(self) -> int:
        """How many transitions are there."""
        return self.size() * self.n_envs

    def _frame_stores(self) -> list[FrameStore]:
        return list(self._named_stores().values())

    # ---- by name, for files

    def _named_stores(self) -> dict[str, FrameStore]:
        """Stores of frames."""
        return {name: part.store for name, part in _named("frames", self.observations) if isinstance(part, FramedArray)}

    def _rows(self) -> dict[str, np.ndarray]:
        """What is written once for every step: arrays of shape (buffer_size, n_envs, ...)."""
        parts = dict(_named("observations", self.observations))
        if not self.optimize_memory_usage:
            parts.update(_named("next_observations", self.next_observations))
        arrays = {name: part for name, part in parts.items() if not isinstance(part, FramedArray)}
        for name, store in self._named_stores().items():
            arrays[name.replace("frames", "references", 1)] = store.references
        return {**arrays, "actions": self.actions}

    def _columns(self) -> dict[str, np.ndarray]:
        """What may change after the step it belongs to: arrays of shape (buffer_size, n_envs)."""
        return {"rewards": self.rewards, "dones": self.dones, "timeouts": self.timeouts}

    def _allocate(self) -> None:
        """New arrays with nothing in them, in place of those that may be another buffer's as well."""

        def empty(part: Any) -> Any:
            # Not `zeros_like`, which writes all of it; this takes memory for rows that are written.
            return np.zeros(part.shape, part.dtype)

        def pair(obs: Any, next_obs: Any) -> Any:
            if isinstance(obs, FramedArray):
                store = obs.store.emptied()
                return FramedArray(store, False), FramedArray(store, True)
            return empty(obs), empty(next_obs)

        if isinstance(self.observations, dict):
            pairs = {key: pair(obs, self.next_observations[key]) for key, obs in self.observations.items()}
            self.observations = {key: both[0] for key, both in pairs.items()}  # type: ignore[assignment]
            self.next_observations = {key: both[1] for key, both in pairs.items()}  # type: ignore[assignment]
        elif self.optimize_memory_usage:
            self.observations = empty(self.observations)
        else:
            self.observations, self.next_observations = pair(self.observations, self.next_observations)
        self.actions, self.rewards = empty(self.actions), empty(self.rewards)
        self.dones, self.timeouts = empty(self.dones), empty(self.timeouts)
        self.pos, self.full = 0, False


def _named(name: str, observations: Any) -> Iterator[tuple[str, Any]]:
    """The parts of observations; the name of one of several has its key behind a dot."""
    if isinstance(observations, dict):
        yield from ((f"{name}.{quote(str(key), safe='')}", part) for key, part in observations.items())
    else:
        yield name, observations
