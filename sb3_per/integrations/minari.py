"""Import a Minari dataset as experience or demonstrations. Minari's own DataCollector writes datasets."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_per.buffers.action_scaling import can_be_rescaled, is_scaled, require_inside, scaled
from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.buffers.slots import keyed, map_arrays

if TYPE_CHECKING:
    from minari import MinariDataset

# Number of steps to compare, or to add, at a time.
_BLOCK = 256


def from_minari(dataset: "MinariDataset | str", buffer: PrioritizedReplayBuffer, demonstrations: bool = False) -> int:
    """
    Add all transitions of a Minari dataset to a buffer, as experience or as demonstrations.

    With several environments, the dataset is divided into parts of equal length, one for each environment, and an episode that
    continues in the next part is cut. The first transitions, fewer than ``n_envs``, are left out if the number of transitions
    is not a multiple of ``n_envs``.

    Terminations stay terminations. Truncations, cuts and episodes that end without a flag become timeouts, so that the value
    of the next observation counts; without ``handle_timeout_termination`` they become terminations, as everywhere in SB3.
    Actions of a Box are scaled to [-1, 1], as SB3 stores them, and not clipped. The dataset may have other bounds, if every
    action is inside of those of the buffer. Images with channels last are transposed. Infos are not read. The dataset must fit
    into RAM beside the buffer.

    Old transitions are overwritten only if the buffer is full. Episodes under way are cut before the import, and the imported
    ones after it, see :meth:`~sb3_per.PrioritizedReplayBuffer.end_episodes`. Other threads cannot add or draw in between.

    :param dataset: dataset, or a selection of its episodes, or the name of a dataset on this machine; nothing is downloaded
    :param buffer: buffer of this package
    :param demonstrations: store the transitions beside the ring, where they stay, see
        :meth:`~sb3_per.PrioritizedReplayBuffer.add_demonstrations`. Any number fits, and none is cut or left out
    :return: number of transitions that were added; without ``demonstrations`` a multiple of ``n_envs``
    :raises ImportError: without Minari
    :raises TypeError: for a buffer of another package
    :raises ValueError: for other spaces, a Box of actions without finite bounds or with integers, more transitions than the
        buffer can hold, or fewer than it has environments, or for demonstrations or other bounds an action outside of the
        action space of the buffer; nothing is changed then
    """
    minari = _minari_for(buffer)
    dataset = minari.load_dataset(dataset) if isinstance(dataset, str) else dataset
    channels_last = _channels_last(dataset.observation_space, buffer.observation_space)
    _require_fit(dataset, buffer, demonstrations)
    observations, places, actions, rewards, dones, terminations = _read(dataset, buffer, channels_last)
    if isinstance(buffer.action_space, spaces.Box) and (demonstrations or dataset.action_space != buffer.action_space):
        require_inside(actions, buffer.action_space)
    actions = scaled(actions, buffer.action_space)

    def at(numbers: np.ndarray) -> tuple[Any, ...]:
        """Arguments of ``extend`` for these transitions, shape (n, k)."""
        obs = map_arrays(lambda array: array[places[numbers]], observations)
        next_obs = map_arrays(lambda array: array[places[numbers] + 1], observations)
        timeouts = dones[numbers] & ~terminations[numbers]
        infos = [[{"TimeLimit.truncated": bool(is_timeout)} for is_timeout in step] for step in timeouts]
        return obs, next_obs, actions[numbers], rewards[numbers], dones[numbers], infos

    if demonstrations:
        buffer.add_demonstrations(*at(np.arange(len(rewards))[:, None]))
        return len(rewards)
    n_steps, n_left_out = divmod(len(rewards), buffer.n_envs)
    numbers = n_left_out + np.arange(n_steps)[:, None] + np.arange(buffer.n_envs) * n_steps
    with buffer.lock:
        buffer.end_episodes()
        for start in range(0, n_steps, _BLOCK):
            buffer.extend(*at(numbers[start : start + _BLOCK]))
        buffer.end_episodes()
    return n_steps * buffer.n_envs


def _require_fit(dataset: "MinariDataset", buffer: PrioritizedReplayBuffer, demonstrations: bool) -> None:
    """
    Check that a dataset fits a buffer.

    :param dataset: dataset to import
    :param buffer: buffer that it is for
    :param demonstrations: whether its size does not matter
    :raises ValueError: if actions or number of transitions do not fit
    """
    theirs, ours = dataset.action_space, buffer.action_space
    if theirs != ours and not can_be_rescaled(theirs, ours):
        raise ValueError(f"The action space of the dataset is not that of the buffer: {theirs} and {ours}")
    least, most = 1, math.inf
    if not demonstrations:
        least, most = buffer.n_envs, (buffer.buffer_size - buffer.optimize_memory_usage) * buffer.n_envs
    if not least <= dataset.total_steps < most + buffer.n_envs:
        raise ValueError(
            f"The dataset has {dataset.total_steps} transitions, and the buffer takes from {least} to {most}: select episodes "
            "with dataset.filter_episodes(), or make a larger buffer"
        )


def _read(dataset: "MinariDataset", buffer: PrioritizedReplayBuffer, channels_last: Any) -> tuple[Any, ...]:
    """
    Read a dataset into arrays.

    :param dataset: dataset with n transitions
    :param buffer: buffer that they are for
    :param channels_last: from :func:`_channels_last`
    :return: observations of all episodes, one more than transitions for each; place of the observation of each transition,
        where the next place has its next observation; actions of the environment, rewards, ends of episodes and
        terminations: arrays of shape (n, ...)
    """

    episodes = list(dataset.iterate_episodes())
    lengths = np.array([len(episode.rewards) for episode in episodes])
    places = np.arange(lengths.sum()) + np.repeat(np.arange(len(episodes)), lengths)
    parts = (episode.observations for episode in episodes)
    observations = map_arrays(_join, _spaces_of(buffer.observation_space), channels_last, *parts)
    columns = ((each.actions, each.rewards, each.terminations, each.truncations) for each in episodes)
    actions, rewards, terminations, truncations = map(np.concatenate, zip(*columns, strict=True))
    dones = terminations | truncations
    dones[np.cumsum(lengths) - 1] = True
    return observations, places, actions, rewards, dones, terminations


def _minari_for(buffer: ReplayBuffer) -> Any:
    """
    Import Minari, and check that it supports a buffer.

    :param buffer: buffer to import into
    :return: the package Minari
    :raises ImportError: without Minari
    :raises TypeError: for a buffer of another package
    :raises ValueError: for a Box of actions without finite bounds or with integers
    """
    if not isinstance(buffer, PrioritizedReplayBuffer):
        convert = "PrioritizedReplayBuffer.from_replay_buffer()"
        raise TypeError(f"A {type(buffer).__name__} is not a prioritized buffer: convert it with {convert}")
    space = buffer.action_space
    if isinstance(space, spaces.Box) and not is_scaled(space):
        raise ValueError(f"SB3 stores actions scaled to [-1, 1], which needs floats with finite bounds, not {space}")
    try:
        import minari
    except ImportError as error:
        command = 'pip install "minari[hdf5]" "pillow", or pip install ".[minari]" in a clone of this package'
        raise ImportError(f"A dataset of demonstrations needs minari: {command}") from error
    return minari


def _join(space: spaces.Space, is_last: bool, *parts: Any) -> np.ndarray:
    """
    Join observations, and put the channels of images first.

    :param space: observation space of the buffer
    :param is_last: whether channels are last in the dataset
    :param parts: observations, shape (n, ...)
    :return: all observations, shape (n, ...)
    """
    joined = np.concatenate(parts)
    return np.moveaxis(joined, 3, 1) if is_last else joined.reshape(-1, *(space.shape or ()))


def _spaces_of(space: spaces.Space) -> Any:
    """Return an observation space in the form of its observations: a space, or a dictionary of spaces."""
    return space.spaces if isinstance(space, spaces.Dict) else space


def _channels_last(outside: spaces.Space, inside: spaces.Space) -> Any:
    """
    Compare observation spaces. Images have channels first in SB3, and may have them last in a dataset.

    :param outside: observation space of the dataset
    :param inside: observation space of the buffer
    :return: whether channels are last in the dataset; a dictionary for Dict observation spaces
    :raises ValueError: if the spaces differ in anything else
    """
    theirs, ours = keyed(_spaces_of(outside)), keyed(_spaces_of(inside))
    is_last = {key: theirs.get(key) != space for key, space in ours.items()}
    if theirs.keys() != ours.keys() or not all(_is_transposed(theirs[key], ours[key]) for key in ours if is_last[key]):
        raise ValueError(f"The observation space of the dataset is not that of the buffer: {outside} and {inside}")
    return is_last.get(None, is_last)


def _is_transposed(outside: Any, inside: Any) -> bool:
    return is_image_space(outside) and VecTransposeImage.transpose_space(outside) == inside
