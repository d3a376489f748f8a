"""
Transitions to and from Minari datasets: what a buffer holds as episodes, demonstrations as transitions.

It knows what the columns of a buffer mean, and what an episode of Minari is; nothing of priorities, nor how observations are
stored. What comes in comes through ``add``.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.storage.arrays import take
from sb3_per.utils.extras import require

if TYPE_CHECKING:
    from minari import MinariDataset
    from minari.data_collector import EpisodeBuffer

# Observations that are compared at a time.
_BLOCK = 256


# ---- out


def to_minari(buffer: PrioritizedReplayBuffer, dataset_id: str, **kwargs: Any) -> "MinariDataset":
    """
    Write everything that a buffer holds into a new Minari dataset: the episodes of one environment after the other, each in
    the order of its steps.

    An episode of T transitions has T + 1 observations, the last of which is the last next observation. It ends with a
    termination or a truncation as stored. It is cut, which is a truncation too, after the newest transition, and where a next
    observation is not the observation that comes next: there the buffer has a hole. Where the beginning was overwritten, an
    episode begins with the oldest transition held.

    Actions are those that the environment got: SB3 stores those of a Box scaled to [-1, 1]. Rewards are as stored, as
    observations are, without loss: ``jpeg_encoding`` is off unless it is asked for. Infos are there where a HER buffer has
    copied them: those numbers and arrays of numbers that all steps of an episode have.

    Not in the dataset: priorities and ids. Truncations that the buffer does not know, without ``handle_timeout_termination``,
    come out as terminations. Nothing is added to the buffer in the meantime, nor drawn.

    :param buffer: a buffer of this package
    :param dataset_id: of the dataset, e.g. ``"pendulum/replay-v0"``; none with this name may exist
    :param kwargs: for ``minari.create_dataset_from_buffers``: ``env``, ``eval_env``, ``algorithm_name``, ``author``,
        ``description``, ... . With ``observation_space``, that of the environment, images get their channels last again
    :return: the dataset, which lies in Minari's folder
    :raises ImportError: without Minari
    :raises TypeError: for a buffer of another package
    :raises ValueError: for an empty buffer, an ``observation_space`` that is not the buffer's, a Box of actions that has no
        finite range of floats, and by Minari, e.g. if the dataset exists. What cannot be written to its end is deleted
    """
    minari = _import_minari()
    from minari.storage.datasets_root_dir import get_dataset_path

    _require_own(buffer)
    _require_range(buffer.action_space)
    observation_space = kwargs.pop("observation_space", buffer.observation_space)
    channels_last = _channels_last(observation_space, buffer.observation_space)
    with buffer.lock:
        if buffer.ring.n_whole == 0:
            raise ValueError("An empty buffer has no episodes to export")
        if buffer.optimize_memory_usage:
            warnings.warn(
                "With optimize_memory_usage the last observation of an episode is lost: in the dataset, as in the buffer, the "
                "first one of the next episode stands in its place"
            )
        # JPEG loses bits, and takes some stacks of frames for pictures.
        settings = {"jpeg_encoding": False, **kwargs}
        folder = get_dataset_path(dataset_id)
        is_new = not folder.exists()
        try:
            dataset = minari.create_dataset_from_buffers(
                dataset_id, [], observation_space=observation_space, action_space=buffer.action_space, **settings
            )
            # One episode at a time: unpacked, frames may take many times the memory of the buffer.
            dataset.storage.update_episodes(_episodes(buffer, channels_last))
        except BaseException:
            if is_new:  # also what Minari slots of a call that it refuses: it would stand in the way of the next one
                shutil.rmtree(folder, ignore_errors=True)
            raise
    written: MinariDataset = minari.load_dataset(dataset_id)
    return written


def _episodes(buffer: PrioritizedReplayBuffer, channels_last: set[str | None]) -> Iterator["EpisodeBuffer"]:
    """
    :param buffer: that holds transitions
    :param channels_last: keys of the images that are to have their channels last
    :return: all episodes, environment by environment
    """
    added, oldest = buffer.ring.added, buffer.ring.oldest
    for env_idx in np.flatnonzero(added > oldest):
        slots = (np.arange(oldest[env_idx], added[env_idx]) * buffer.n_envs + env_idx) % buffer.ring.capacity
        for episode in np.split(slots, np.flatnonzero(_is_last(buffer, slots))[:-1] + 1):
            yield _episode(buffer, episode, channels_last)


def _is_last(buffer: PrioritizedReplayBuffer, slots: np.ndarray) -> np.ndarray:
    """
    :param buffer: that holds the transitions
    :param slots: successive transitions of one environment, shape (n,)
    :return: which of them the next one does not continue, bool of shape (n,)
    """
    is_last: np.ndarray = (take(buffer.dones, slots) != 0) | (take(buffer.timeouts, slots) != 0)
    is_last[-1] = True
    for start in range(0, len(slots) - 1, _BLOCK):
        following = slots[start + 1 : start + 1 + _BLOCK]
        block = slice(start, start + len(following))
        is_last[block] |= _differ(
            buffer.storage.read_next_observations(slots[block]), buffer.storage.read_observations(following)
        )
    return is_last


def _differ(a: Any, b: Any) -> np.ndarray:
    """
    :param a: observations, shape (n, ...), or a dictionary of them
    :param b: in the same form
    :return: which of them differ, bool of shape (n,); NaN is equal to NaN
    """
    if isinstance(a, dict):
        differ: np.ndarray = np.any([_differ(a[key], b[key]) for key in a], axis=0)
    else:
        differ = ((a != b) & ((a == a) | (b == b))).reshape(len(a), -1).any(axis=1)
    return differ


def _episode(buffer: PrioritizedReplayBuffer, slots: np.ndarray, channels_last: set[str | None]) -> "EpisodeBuffer":
    """
    :param buffer: that holds the transitions
    :param slots: all transitions of the episode, shape (n,)
    :param channels_last: keys of the images that are to have their channels last
    :return: the episode
    """
    from minari.data_collector import EpisodeBuffer

    def join(key: str | None, space: spaces.Space, obs: np.ndarray, last: np.ndarray) -> np.ndarray:
        joined = np.concatenate([obs, last]).reshape(-1, *(space.shape or ()))
        return np.moveaxis(joined, 1, 3) if key in channels_last else joined

    infos = _infos_of(buffer)
    terminations, truncations = np.zeros((2, len(slots)), bool)
    terminations[-1] = take(buffer.dones, slots[-1]) != 0 and take(buffer.timeouts, slots[-1]) == 0
    truncations[-1] = not terminations[-1]
    return EpisodeBuffer(
        observations=_by_key(
            join,
            buffer.observation_space,
            buffer.storage.read_observations(slots),
            buffer.storage.read_next_observations(slots[-1:]),
        ),
        actions=_unscale(buffer.action_space, take(buffer.actions, slots)),
        rewards=take(buffer.rewards, slots),
        terminations=terminations,
        truncations=truncations,
        infos=None if infos is None else _columns(list(take(infos, slots))),
    )


def _columns(infos: list[dict[str, Any]]) -> dict[str, Any] | None:
    """
    :param infos: of all steps of an episode
    :return: what all of them have, as arrays of shape (n + 1, ...) by key: Minari begins with the info of the reset, which a
        buffer does not know, and which is all zeros here; ``None`` if there is nothing
    """
    columns: dict[str, Any] = {}
    for key in infos[0]:
        # A slash is a group of HDF5; truncations have a column of their own.
        if not all(key in info for info in infos) or "/" in str(key) or key == "TimeLimit.truncated":
            continue
        values = [info[key] for info in infos]
        if all(isinstance(value, dict) for value in values):
            column: Any = _columns(values)
        else:
            column = _column(values)
        if column is not None:
            columns[str(key)] = column
    return columns or None


def _column(values: list[Any]) -> np.ndarray | None:
    try:
        column = np.stack([np.asarray(value) for value in values])
    except ValueError:  # of several shapes
        return None
    return np.concatenate([np.zeros_like(column[:1]), column]) if column.dtype.kind in "biuf" else None


# ---- in


class _Step(NamedTuple):
    """One transition of one environment; observations are arrays, or dictionaries of them."""

    obs: Any
    next_obs: Any
    action: np.ndarray
    reward: float
    done: bool
    info: dict[str, Any]


def from_minari(dataset: "MinariDataset | str", buffer: PrioritizedReplayBuffer) -> int:
    """
    Add all transitions of a Minari dataset to a buffer, e.g. demonstrations before the training.

    They are added in the order of the dataset: with several environments, each gets a stretch of it, as long as that of the
    others. An episode that goes on in the stretch of the next environment is cut there. Where the number of transitions is not
    a multiple of that of the environments, the first ones of the dataset, fewer than ``n_envs``, are left out: what is gone is
    the beginning of an episode, not its end.

    Terminations are terminations. Truncations, cuts and ends without a flag are timeouts: the value of the next observation
    counts. (Where the buffer has no timeouts, without ``handle_timeout_termination``, they are terminations, as everywhere in
    SB3.) Actions of a Box are scaled to [-1, 1], as SB3 stores them, and not clipped. Images that have their channels last are
    transposed. Infos go to a HER buffer that copies them.

    What the buffer held is overwritten only where there is no more room. Nothing continues over the seams: the episodes that
    run are cut before the import, and those of the dataset behind it, see
    :meth:`~sb3_per.PrioritizedReplayBuffer.end_episodes`. Nobody else adds or draws in the meantime.

    :param dataset: a dataset, which may be a selection of episodes, or the name of one on this machine: nothing is downloaded
    :param buffer: a buffer of this package
    :return: number of transitions added, a multiple of ``n_envs``
    :raises ImportError: without Minari
    :raises TypeError: for a buffer of another package
    :raises ValueError: for other spaces, a Box of actions that has no finite range of floats, and a dataset with more
        transitions than the buffer can hold, or fewer than it has environments: before anything is changed
    :raises ValueError: for an episode that contradicts its metadata; what was added before it stays
    """
    minari = _import_minari()
    _require_own(buffer)
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    channels_last = _channels_last(dataset.observation_space, buffer.observation_space)
    if dataset.action_space != buffer.action_space:
        raise ValueError(
            f"The action space of the dataset is not that of the buffer: {dataset.action_space} and {buffer.action_space}"
        )
    _require_range(buffer.action_space)
    metadata = dataset.storage.get_episode_metadata(dataset.episode_indices)
    lengths = np.array([episode["total_steps"] for episode in metadata], dtype=np.int64)
    n_steps, n_left_out = divmod(int(lengths.sum()), buffer.n_envs)
    n_rows = buffer.buffer_size - buffer.optimize_memory_usage
    if not 1 <= n_steps <= n_rows:
        raise ValueError(
            f"The dataset has {lengths.sum()} transitions, and the buffer takes from {buffer.n_envs} to "
            f"{n_rows * buffer.n_envs}: select episodes with dataset.filter_episodes(), or make a larger buffer"
        )
    reader = _Reader(dataset, lengths, buffer, channels_last)
    with buffer.lock:
        buffer.end_episodes()
        try:
            stretches = [reader.stretch(n_left_out + env_idx * n_steps, n_steps) for env_idx in range(buffer.n_envs)]
            for steps in zip(*stretches, strict=True):
                obs, next_obs, action, reward, done, infos = map(list, zip(*steps, strict=True))
                buffer.add(_stack(obs), _stack(next_obs), np.stack(action), np.array(reward), np.array(done), infos)
        finally:
            buffer.end_episodes()
    return n_steps * buffer.n_envs


class _Reader:
    """
    Transitions of a dataset as a buffer takes them.

    :param dataset: to be read
    :param lengths: number of transitions of each episode, shape (n_episodes,)
    :param buffer: that they are for
    :param channels_last: keys of the images that have their channels last in the dataset
    """

    def __init__(
        self, dataset: "MinariDataset", lengths: np.ndarray, buffer: PrioritizedReplayBuffer, channels_last: set[str | None]
    ):
        self.dataset, self.channels_last = dataset, channels_last
        self.observation_space, self.action_space = buffer.observation_space, buffer.action_space
        self.needs_infos = _infos_of(buffer) is not None
        self.episode_indices, self.lengths = dataset.episode_indices[lengths > 0], lengths[lengths > 0]

    def stretch(self, first: int, n_steps: int) -> Iterator[_Step]:
        """
        :param first: number of the first transition, counted over all episodes
        :param n_steps: how many
        :return: successive transitions, the last of which ends an episode
        """
        ends = np.cumsum(self.lengths)
        first_episode, last_episode = np.searchsorted(ends, [first, first + n_steps - 1], side="right")
        chosen = slice(first_episode, last_episode + 1)
        episodes = self.dataset.iterate_episodes(self.episode_indices[chosen])
        for episode, length, end in zip(episodes, self.lengths[chosen], ends[chosen], strict=True):
            if len(episode.rewards) != length:
                raise ValueError(
                    f"Episode {episode.id} of {self.dataset.id} has {len(episode.rewards)} rewards, and {length} steps "
                    "by its metadata"
                )
            begin = end - length
            yield from self._steps(episode, max(first - begin, 0), min(first + n_steps - begin, length))

    def _steps(self, episode: Any, start: int, stop: int) -> Iterator[_Step]:
        """
        :param episode: of Minari
        :param start: number of its first step that is wanted
        :param stop: number of the step behind the last one
        :return: these transitions
        """
        obs = _by_key(self._arrange, self.observation_space, episode.observations)
        actions = _scale(self.action_space, np.asarray(episode.actions))
        terminations, truncations = (np.asarray(flags, dtype=bool) for flags in (episode.terminations, episode.truncations))
        infos = (episode.infos or {}) if self.needs_infos else {}
        for t in range(start, stop):
            is_terminated = bool(terminations[t])
            is_done = is_terminated or bool(truncations[t]) or t == stop - 1
            info = {**_info_at(infos, t, len(episode.rewards)), "TimeLimit.truncated": is_done and not is_terminated}
            yield _Step(_row(obs, t), _row(obs, t + 1), actions[t], episode.rewards[t], is_done, info)

    def _arrange(self, key: str | None, space: spaces.Space, obs: Any) -> np.ndarray:
        """Observations of an episode in the form of the buffer's space."""
        array = np.asarray(obs)
        if key in self.channels_last:
            array = np.moveaxis(array, 3, 1)
        return array.reshape(-1, *(space.shape or ()))


def _row(obs: Any, t: int) -> Any:
    return {key: array[t] for key, array in obs.items()} if isinstance(obs, dict) else obs[t]


def _stack(obs: list[Any]) -> Any:
    """Observations of all environments, as a VecEnv stacks them."""
    return {key: np.stack([o[key] for o in obs]) for key in obs[0]} if isinstance(obs[0], dict) else np.stack(obs)


def _info_at(infos: dict[str, Any], t: int, n_steps: int) -> dict[str, Any]:
    """
    :param infos: of an episode, by key, arrays of shape (n_steps + 1, ...), the first of the reset, or (n_steps, ...)
    :param t: number of a step
    :param n_steps: of the episode
    :return: its info
    :raises ValueError: for infos of another number of steps
    """
    info = {}
    for key, column in infos.items():
        if isinstance(column, dict):
            info[key] = _info_at(column, t, n_steps)
            continue
        n_before = len(column) - n_steps
        if n_before not in (0, 1):
            raise ValueError(f"An episode of {n_steps} steps has {len(column)} infos {key!r}")
        info[key] = column[t + n_before]
    return info


# ---- both


def _import_minari() -> Any:
    return require("minari", "minari", "A dataset of demonstrations")


def _require_own(buffer: ReplayBuffer) -> None:
    if not isinstance(buffer, PrioritizedReplayBuffer):
        raise TypeError(
            f"A {type(buffer).__name__} is not a buffer of this package: PrioritizedReplayBuffer.from_replay_buffer() makes "
            "one of it"
        )


def _require_range(space: spaces.Space) -> None:
    if isinstance(space, spaces.Box) and not (space.dtype.kind == "f" and np.isfinite([space.low, space.high]).all()):
        raise ValueError(f"SB3 stores actions scaled to [-1, 1], which needs floats with finite bounds, not {space}")


def _infos_of(buffer: PrioritizedReplayBuffer) -> np.ndarray | None:
    """The infos that a HER buffer has copied, shape (buffer_size, n_envs); ``None`` for others."""
    return buffer.infos if isinstance(buffer, PrioritizedHerReplayBuffer) and buffer.copy_info_dict else None


def _by_key(function: Callable[..., Any], space: spaces.Space, *obs: Any) -> Any:
    """Apply a function to each key, which is ``None`` for observations that are no dictionary, its space, and its arrays."""
    if isinstance(space, spaces.Dict):
        return {key: function(key, part, *(each[key] for each in obs)) for key, part in space.spaces.items()}
    return function(None, space, *obs)


def _channels_last(outside: spaces.Space, inside: spaces.Space) -> set[str | None]:
    """
    :param outside: of the observations of a dataset
    :param inside: of those of a buffer: images of Stable-Baselines3 have channels first
    :return: keys of the images that have channels last in the dataset, ``None`` for observations that are no dictionary
    :raises ValueError: if that is not the only difference
    """
    is_dict = isinstance(outside, spaces.Dict) and isinstance(inside, spaces.Dict)
    pairs: dict[str | None, Any] = {None: (outside, inside)}
    if is_dict:
        pairs = {key: (outside.get(key), inside.get(key)) for key in {*outside.spaces, *inside.spaces}}  # type: ignore[attr-defined]
    keys = {key for key, (theirs, ours) in pairs.items() if theirs != ours}
    if not all(_is_transposed(*pairs[key]) for key in keys):
        raise ValueError(f"The observation space of the dataset is not that of the buffer: {outside} and {inside}")
    return keys


def _is_transposed(outside: Any, inside: Any) -> bool:
    if not isinstance(outside, spaces.Box) or len(outside.shape) != 3:
        return False
    low, high = (np.moveaxis(bound, 2, 0) for bound in (outside.low, outside.high))
    return bool(spaces.Box(low, high, dtype=outside.dtype) == inside)


def _middle_and_half(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """
    Middle of the range and half its width: scaled to [-1, 1], a is (a - middle) / half. SB3 writes it with the bounds; so, a
    range like [-1, 1] or [-2, 2] costs no bit.
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return (low + high) / 2, (high - low) / 2


def _unscale(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    """
    :param space: of the actions
    :param actions: as a buffer stores them, shape (n, action_dim)
    :return: as the environment got them, in the type of the space, shape (n, ...)
    """
    actions = actions.reshape(-1, *(space.shape or ()))
    if isinstance(space, spaces.Box):
        middle, half = _middle_and_half(space)
        actions = actions * half + middle
    return actions.astype(space.dtype)


def _scale(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    """
    :param space: of the actions
    :param actions: of the environment, shape (n, ...)
    :return: as a buffer stores them, in the same shape; 0 where the range is a point
    """
    if not isinstance(space, spaces.Box):
        return actions
    middle, half = _middle_and_half(space)
    return np.asarray((actions - middle) / np.where(half > 0, half, 1.0))
