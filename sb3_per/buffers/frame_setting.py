"""The setting ``frames``: which observations are stacks, of how many frames, along which axis."""

from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, unwrap_vec_wrapper

from sb3_per.utils.checks import check_argument, integer

#: Observations that hindsight replaces.
GOALS = ("achieved_goal", "desired_goal")


def stack_axis(shape: tuple[int, ...], n_frames: int) -> int:
    """
    Find the axis that frames are stacked along. Images of Stable-Baselines3 have channels first. VecFrameStack stacks vectors
    and images with channels last along the last axis. Gymnasium's FrameStackObservation adds a first axis.

    :param shape: shape of an observation
    :param n_frames: number of frames in a stack
    :return: 0 or the last axis
    :raises ValueError: if neither can be cut into so many frames
    """
    first, last = 0, len(shape) - 1
    fitting = [axis for axis in (first, last) if shape and shape[axis] % n_frames == 0]
    if not fitting:
        raise ValueError(f"frames={n_frames} divides neither the first nor the last axis of observations of shape {shape}")
    if shape[first] == n_frames or len(fitting) == 1:
        return fitting[0]
    # Channels are fewer than rows and columns.
    return first if len(shape) == 3 and shape[first] <= shape[last] else last


def frames_by_key(frames: Any, space: spaces.Space) -> dict[str | None, int]:
    """
    Check the setting ``frames``.

    :param frames: number of frames in a stack; for Dict observations, by key; ``None``: no observations are stored in frames
    :param space: space of the observations
    :return: number of frames by key, with the key ``None`` for observations that are no dictionary
    :raises ValueError: if it does not fit the observations
    """
    if frames is None:
        return {}
    if frames == "auto":
        raise ValueError("frames='auto' asks the environment of an algorithm; a buffer on its own needs the number of frames")
    if isinstance(space, spaces.Dict) != isinstance(frames, dict):
        example = "frames=dict(image=4)" if isinstance(space, spaces.Dict) else "frames=4"
        raise ValueError(f"frames={frames!r} does not fit observations of {type(space).__name__}: write e.g. {example}")
    by_key: dict[str | None, int] = dict(frames) if isinstance(frames, dict) else {None: frames}
    parts: dict[Any, spaces.Space] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    for key, n_frames in by_key.items():
        check_argument("frames", n_frames, integer())
        if key in GOALS:
            raise ValueError(f"frames cannot be named for {key!r}: hindsight writes goals anew")
        if key not in parts:
            raise ValueError(f"frames names {key!r}, which is not among the observations: {sorted(parts)}")
        part = parts[key]
        if not isinstance(part, (spaces.Box, spaces.MultiBinary)):
            raise ValueError(f"frames={n_frames} needs observations that are arrays, not {part}")
        stack_axis(part.shape or (), int(n_frames))
    return by_key


def frames_of_env(env: VecEnv | None, space: spaces.Space) -> int | dict[str, int]:
    """
    Find the number of frames that an environment stacks.

    :param env: environment of a model
    :param space: its observations
    :return: number of frames; for Dict observations by key, without goals
    :raises ValueError: if the environment has no ``VecFrameStack``
    """
    stack = None if env is None else unwrap_vec_wrapper(env, VecFrameStack)
    if stack is None:
        raise ValueError(
            "frames='auto' found no VecFrameStack in the environment: give the number of frames in an observation, e.g. "
            "frames=4 for FrameStackObservation(env, 4), or frames=1 if none are stacked"
        )
    n_frames = int(stack.stacked_obs.n_stack)
    if not isinstance(space, spaces.Dict):
        return n_frames
    return {key: n_frames for key, part in space.spaces.items() if isinstance(part, spaces.Box) and key not in GOALS}


def require_stack_of_env(frames: Any, env: VecEnv | None) -> None:
    """
    Check the setting ``frames`` of a model against its environment, where it is known how many frames that stacks. Another
    number may divide an axis of the observations as well, e.g. 3 one of 84 pixels, but then no frame is ever shared.

    :param frames: the setting, see :func:`frames_by_key`, which checks the rest
    :param env: environment of the model
    :raises ValueError: for another number; 1, which shares whole observations, is always allowed
    """
    n_stacked = None if env is None else _stack_of_env(env)
    if n_stacked is None:
        return
    given = frames.values() if isinstance(frames, dict) else [frames]
    if any(n_frames not in (1, n_stacked) for n_frames in given if n_frames is not None):
        right = dict.fromkeys(frames, n_stacked) if isinstance(frames, dict) else n_stacked
        raise ValueError(
            f"frames={frames} does not fit the environment, which stacks {n_stacked} frames: write frames={right}, or 'auto'"
        )


def _stack_of_env(env: VecEnv) -> int | None:
    """Number of frames that an environment stacks; ``None``: not known."""
    if stack := unwrap_vec_wrapper(env, VecFrameStack):
        return int(stack.stacked_obs.n_stack)
    wrapper: Any = getattr(gym.wrappers, "FrameStackObservation", None)  # gymnasium 1.0
    if wrapper is not None and all(env.env_is_wrapped(wrapper)):
        return int(env.get_attr("stack_size")[0])
    return None
