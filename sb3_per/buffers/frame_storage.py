"""SB3's storage, with observations in frames where that is asked for. It knows nothing of ids or priorities."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_per.buffers.frames import FramedArray, FrameStore, frames_by_key, without


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
        n_held, first = self.size(), self.pos if self.full else 0
        held_rows = [(first + i) % self.buffer_size for i in range(n_held)]
        for key in space.spaces if isinstance(space, spaces.Dict) else [None]:
            obs, next_obs = ((each if key is None else each[key]) for each in (self.observations, self.next_observations))
            if isinstance(obs, FramedArray) and obs.store.n_frames == n_frames.get(key):
                continue
            if key in n_frames:
                part = space if key is None else space.spaces[key]  # type: ignore[attr-defined]
                store = FrameStore(self.buffer_size, self.n_envs, part.shape or (), part.dtype, int(n_frames[key]))
                arrays: Any = (FramedArray(store, False), FramedArray(store, True))
                for row in held_rows:
                    arrays[0][row], arrays[1][row] = obs[row], np.array(next_obs[row])
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
        n_held = self.size() * self.n_envs
        return max(store.n_frames_held for store in stores) / n_held if n_held else 0.0

    def _frame_stores(self) -> list[FrameStore]:
        parts = self.observations.values() if isinstance(self.observations, dict) else [self.observations]
        return [part.store for part in parts if isinstance(part, FramedArray)]
