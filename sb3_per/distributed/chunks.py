"""Store the chunks that actors send, and show their transitions to callbacks."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.distributed.algorithm_state import last_obs
from sb3_per.distributed.random_state import RandomState
from sb3_per.storage.arrays import flat, keyed, tree_map


@dataclass(frozen=True)
class Chunk:
    """
    T successive steps of an actor's k environments.

    :param version: number of updates of the weights that it acted with
    :param steps: arguments of ``add_steps``, e.g. observations and rewards before normalization, of shape (T, k, ...); with TD
        errors by the actor's weights if they are wanted, shape (T, k, n_critics)
    :param infos: pickled list of one dictionary per transition, step by step
    :param last_obs: observations that the actor acts on next, shape (k, ...): normalized, and before normalization
    :param random_state: random state after the last step, if the learner sent one
    """

    version: int
    steps: dict[str, Any]
    infos: bytes
    last_obs: tuple[Any, Any]
    random_state: RandomState | None


class Transitions:
    """
    Transitions of a chunk that callbacks have not seen yet.

    :param actor: number of the actor
    :param chunk: the chunk; its arrays are copied, because they may lie in Ray's object store, which must become free
    :param n: number of transitions, the first ones of the chunk
    """

    def __init__(self, actor: int, chunk: Chunk, n: int):
        self.actor = actor
        #: number of transitions that are left
        self.n_left = n
        names = {"buffer_actions": "actions", "new_obs": "next_obs", "rewards": "rewards", "dones": "dones"}
        self._content = {name: tree_map(lambda part: np.array(flat(part)), chunk.steps[key]) for name, key in names.items()}
        self._content |= {"dones": self._content["dones"].astype(bool), "infos": cloudpickle.loads(chunk.infos)}
        self._n = n

    def take(self, n: int) -> dict[str, Any]:
        """
        Take the next transitions.

        :param n: largest number of transitions to take
        :return: what callbacks find in ``locals``: arrays and infos with one entry per transition
        """
        first = self._n - self.n_left
        self.n_left -= min(n, self.n_left)
        end = self._n - self.n_left
        return {name: tree_map(lambda part: part[first:end], each) for name, each in self._content.items()}


def joined(parts: Any) -> Any:
    """
    Join arrays and lists along their first axis.

    :param parts: arrays, lists, or dictionaries or tuples of them, all in the same form
    :return: a new one in this form
    """
    first = parts[0]
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(joined, zip(*parts, strict=True)))
    if isinstance(first, list):
        return [each for part in parts for each in part]
    return np.concatenate(parts)


def store(model: ActingMixin, columns: np.ndarray, chunk: Chunk, n: int) -> None:
    """
    Store a chunk as a whole, because a large write costs as much as a small one. Also update statistics and last observations.

    :param model: the learner's algorithm
    :param columns: columns of the actor's environments in the buffer, shape (k,)
    :param chunk: the chunk
    :param n: number of transitions that count, the first ones of the chunk
    """
    n_steps, n_rest = divmod(n, len(columns))
    _add(model, columns, chunk, slice(n_steps))
    if n_rest > 0:
        _add(model, columns[:n_rest], chunk, slice(n_steps, n_steps + 1))
    normalize = model.get_vec_normalize_env()
    if normalize is not None and normalize.training and n_steps > 0:
        update_statistics(normalize, columns, chunk, n_steps)
    # For callbacks, and for a run that continues.
    for present, last in zip(last_obs(model), chunk.last_obs, strict=True):
        for key, part in keyed(present).items() if present is not None else ():
            part[columns] = keyed(last)[key]


def _add(model: ActingMixin, columns: np.ndarray, chunk: Chunk, rows: slice) -> None:
    """Store some steps of the first environments of an actor."""
    steps = {name: tree_map(lambda part: part[rows, : len(columns)], each) for name, each in chunk.steps.items()}
    model.replay_buffer.add_steps(columns, **steps, initial_priority="td_error")


def cut(model: ActingMixin, columns: np.ndarray) -> None:
    """
    Cut the episodes of an actor after its last stored step, which its next step does not follow.

    :param model: the learner's algorithm
    :param columns: columns of the actor's environments, shape (k,)
    """
    model.replay_buffer.end_episodes(columns)
    if (normalize := model.get_vec_normalize_env()) is not None:
        normalize.returns[columns] = 0.0


def update_statistics(normalize: VecNormalize, columns: np.ndarray, chunk: Chunk, n_steps: int) -> None:
    """
    Update statistics with the steps of an actor, as ``VecNormalize.step_wait`` does with its own.

    :param normalize: the learner's wrapper
    :param columns: indices of the actor's environments, shape (k,)
    :param chunk: the steps
    :param n_steps: number of steps that count, the first ones, at least 1
    """
    if normalize.norm_obs:
        obs, last = keyed(chunk.steps["obs"]), keyed(chunk.last_obs[1])
        for key, statistics in keyed(normalize.obs_rms).items():
            # The next step begins at what the environment returned after this step, or after the reset that followed.
            after = np.concatenate((obs[key][1:], last[key][None]))
            statistics.update(flat(after[:n_steps]))
    rewards, dones = (chunk.steps[name][:n_steps] for name in ("rewards", "dones"))
    returns = np.empty(rewards.shape)
    for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        returns[t] = normalize.returns[columns] * normalize.gamma + reward
        normalize.returns[columns] = np.where(done, 0.0, returns[t])
    normalize.ret_rms.update(returns.reshape(-1))
