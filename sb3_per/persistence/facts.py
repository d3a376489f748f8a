"""What tells whether saved files fit a buffer. It knows settings and spaces, no files."""

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.storage.frames import frames_by_key, stack_axis


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
    frames = {} if buffer.frames is None else frames_by_key(buffer.frames, buffer.observation_space)
    return {
        "kind": next(kind.__name__ for kind in kinds if isinstance(buffer, kind)),
        "observation_space": _describe(buffer.observation_space, with_bounds=False),
        "action_space": _describe(buffer.action_space, with_bounds=True),
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": bool(buffer.optimize_memory_usage),
        "copy_info_dict": bool(getattr(buffer, "copy_info_dict", False)),
        "buffer_size": buffer.buffer_size,
        "frames": [
            {"key": key, "n_frames": int(n), "axis": stack_axis(_part(buffer.observation_space, key).shape or (), n)}
            for key, n in frames.items()
        ],
        "scheme": repr(buffer.scheme),
        **buffer._facts(),
    }


def _part(space: Any, key: str | None) -> spaces.Space:
    found: spaces.Space = space if key is None else space.spaces[key]
    return found


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
