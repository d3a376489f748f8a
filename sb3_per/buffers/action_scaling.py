"""Scale actions: buffers store those of a Box in [-1, 1], as SB3 does. Rescale those that were recorded with other bounds."""

from typing import Any

import numpy as np
from gymnasium import spaces

#: By how much rounding can move a scaled action out of [-1, 1].
ROUNDING = 1e-4


def middle_and_half(space: spaces.Space) -> tuple[Any, Any]:
    """
    Return the scaling of actions: of a Box, (a - middle) / half is stored, in [-1, 1]. SB3 computes the same from the bounds.
    This form loses no bit for ranges like [-1, 1] and [-2, 2].

    :param space: action space
    :return: middle and half of its range; 0 and 1 for spaces that are not scaled
    """
    if not isinstance(space, spaces.Box):
        return 0, 1
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return (low + high) / 2, (high - low) / 2


def scaled(actions: np.ndarray, space: spaces.Space) -> np.ndarray:
    """
    Scale actions as SB3 stores them.

    :param actions: actions of the environment, shape (..., action_dim)
    :param space: action space
    :return: scaled actions, 0 where the bounds are equal, in the same shape
    """
    middle, half = middle_and_half(space)
    return np.asarray((actions - middle) / np.where(half == 0, 1, half))


def unscaled(actions: np.ndarray, space: spaces.Space) -> np.ndarray:
    """
    Return actions of the environment, the inverse of :func:`scaled`.

    :param actions: actions as SB3 stores them, shape (..., action_dim)
    :param space: action space
    :return: actions of the environment, shape (n, *space.shape)
    """
    middle, half = middle_and_half(space)
    return np.asarray(middle + actions.reshape(-1, *(space.shape or ())) * half)


def is_scaled(space: spaces.Space) -> bool:
    """Whether SB3 can scale the actions of a space: those of a Box of floats with finite bounds."""
    return isinstance(space, spaces.Box) and space.dtype.kind == "f" and bool(np.isfinite([space.low, space.high]).all())


def can_be_rescaled(recorded: spaces.Space, space: spaces.Space) -> bool:
    """
    Tell whether actions of one space may be actions of another one, whose bounds differ.

    :param recorded: action space of the actions
    :param space: the other action space
    :return: whether both are a Box of floats of the same shape
    """
    if not (isinstance(recorded, spaces.Box) and isinstance(space, spaces.Box)):
        return False
    return recorded.dtype.kind == space.dtype.kind == "f" and recorded.shape == space.shape


def require_scaled(actions: np.ndarray, space: spaces.Space) -> None:
    """
    Check that actions are scaled as SB3 stores them. Discrete actions are not scaled.

    :param actions: actions of demonstrations, shape (..., action_dim)
    :param space: action space
    :raises ValueError: for an action outside [-1, 1] if the space is a Box with finite bounds
    """
    if not isinstance(space, spaces.Box) or not np.isfinite([space.low, space.high]).all():
        return
    is_outside = np.abs(actions) > 1.0 + ROUNDING
    if is_outside.any():
        raise ValueError(
            f"Actions of demonstrations must be scaled to [-1, 1], as SB3 stores them, not {actions[is_outside][0]}. Give "
            f"model.policy.scale_action(actions), which scales actions of {space}; from_minari() scales them itself"
        )


def require_inside(actions: np.ndarray, space: spaces.Space) -> None:
    """
    Check that an environment can take actions.

    :param actions: actions of an environment, which are not scaled, shape (n, *space.shape)
    :param space: action space, a Box
    :raises ValueError: with the first action outside of the bounds
    """
    middle, half = middle_and_half(space)
    is_outside = (np.abs(actions - middle) > half * (1.0 + ROUNDING)).reshape(len(actions), -1).any(axis=1)
    if is_outside.any():
        first = int(np.argmax(is_outside))
        raise ValueError(
            f"Action {first} of {len(actions)} (counted from 0) is {actions[first]}, outside of the action space {space}. "
            "Leave out the transitions with such actions, or use an environment whose bounds include them"
        )
