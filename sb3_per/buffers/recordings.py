"""Transitions of another buffer that become demonstrations: check them, and read them environment by environment."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.action_scaling import can_be_rescaled, is_scaled, require_inside, require_scaled, scaled, unscaled
from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.storage.nested import read_slots
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Steps, Storage

#: Transitions of a buffer: where they stand, and where they are stored.
Recording = tuple[Ring, Storage]


def require_demonstrations_in(other: Any, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """
    Check that the transitions of another buffer can become demonstrations.

    :param other: buffer with the transitions
    :param observation_space: observation space that it must have
    :param action_space: action space that it must have, except for the bounds of a Box
    :raises TypeError: for anything but a buffer, e.g. a model
    :raises ValueError: for other spaces, a buffer with ``optimize_memory_usage``, or a reward that is NaN or infinite
    """
    if not isinstance(other, ReplayBuffer):
        hint = ": give model.replay_buffer" if isinstance(other, BaseAlgorithm) else ""
        raise TypeError(f"add_demonstrations_from() takes a replay buffer, not a {type(other).__name__}{hint}")
    if other.observation_space != observation_space:
        raise ValueError(f"The other buffer has observation_space {other.observation_space}, and this one {observation_space}")
    has_other_bounds = can_be_rescaled(other.action_space, action_space) and is_scaled(other.action_space)
    if other.action_space != action_space and not (has_other_bounds and is_scaled(action_space)):
        raise ValueError(f"The other buffer has action_space {other.action_space}, and this one {action_space}")
    if other.optimize_memory_usage:
        raise ValueError(
            "The other buffer has optimize_memory_usage=True, which does not store the last observation of an episode, so its "
            "transitions cannot be demonstrations"
        )
    require_finite_rewards(other.rewards[: other.size()])


def require_actions_in(recordings: Sequence[Recording], recorded: spaces.Space, space: spaces.Space) -> None:
    """
    Check the actions of another buffer.

    :param recordings: transitions of the other buffer
    :param recorded: action space of the other buffer
    :param space: action space that the demonstrations are for
    :raises ValueError: for actions that are not scaled, or that are outside of other bounds
    """
    actions = np.concatenate([read_slots(storage.actions, slots) for storage, slots in _columns(recordings)])
    if recorded == space:
        require_scaled(actions, space)
    else:
        require_inside(unscaled(actions, recorded), space)


def columns_of(recordings: Sequence[Recording], recorded: spaces.Space, space: spaces.Space) -> Iterator[Steps]:
    """
    Read a buffer environment by environment. Actions that were recorded with other bounds are scaled anew.

    :param recordings: transitions of the buffer
    :param recorded: action space of the buffer
    :param space: action space that the steps are for
    :return: of each environment all complete steps that it holds, arrays of shape (n, 1, ...)
    """
    for storage, slots in _columns(recordings):
        steps = storage.read_steps(slots[:, None])
        if recorded != space:
            actions = scaled(unscaled(steps.actions, recorded), space)
            steps = steps._replace(actions=actions.reshape(steps.actions.shape))
        yield steps


def _columns(recordings: Sequence[Recording]) -> Iterator[tuple[Storage, np.ndarray]]:
    """Of each environment that has complete steps, return the storage, and their slots, oldest first, int64 of shape (n,)."""
    for ring, storage in recordings:
        for env in range(ring.n_envs):
            steps = np.arange(ring.oldest_complete[env], ring.next_steps[env])
            if len(steps):
                yield storage, steps % ring.n_rows * ring.n_envs + env
