"""Store the chunks that actors send, and show their transitions to callbacks."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.distributed.algorithm_state import AlgorithmState
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
        self._arrays = {name: tree_map(lambda part: np.array(flat(part)), chunk.steps[key]) for name, key in names.items()}
        self._arrays["dones"] = self._arrays["dones"].astype(bool)
        self._infos = cloudpickle.loads(chunk.infos)
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
        taken = {name: tree_map(lambda part: part[first:end], each) for name, each in self._arrays.items()}
        return {**taken, "infos": self._infos[first:end]}


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Join transitions.

    :param parts: what :meth:`Transitions.take` returned
    :return: one dictionary in the same form
    """
    infos = [info for part in parts for info in part.pop("infos")]
    return {"infos": infos, **{name: concatenated([part[name] for part in parts]) for name in parts[0]}}


def concatenated(parts: Any) -> Any:
    """
    Join observations along their first axis.

    :param parts: arrays, or dictionaries of arrays
    :return: new arrays in the same form
    """
    return tree_map(lambda *arrays: np.concatenate(arrays), *parts)


class Storing:
    """
    Store the steps of actors in their columns of the buffer, and keep the learner's statistics and last observations current.

    :param model: the learner's algorithm
    :param n_actors: number of actors
    :param n_envs: environments of each actor
    """

    def __init__(self, model: ActingMixin, n_actors: int, n_envs: int):
        self._state, self._buffer, self._normalize = AlgorithmState(model), model.replay_buffer, model.get_vec_normalize_env()
        # Columns of each actor.
        self._columns = np.arange(n_actors * n_envs).reshape(n_actors, n_envs)

    def store(self, actor: int, chunk: Chunk, n: int) -> None:
        """
        Store a chunk as a whole, because a large write costs as much as a small one.

        :param actor: number of the actor
        :param chunk: the chunk
        :param n: number of transitions that count, the first ones of the chunk
        """
        columns = self._columns[actor]
        n_steps, n_rest = divmod(n, len(columns))
        self._add(columns, chunk, slice(n_steps))
        if n_rest > 0:
            self._add(columns[:n_rest], chunk, slice(n_steps, n_steps + 1))
        if self._normalize is not None and self._normalize.training and n_steps > 0:
            update_statistics(self._normalize, columns, chunk, n_steps)
        self._set_last_obs(columns, chunk)

    def cut(self, actor: int) -> None:
        """
        Cut the episodes of an actor after its last stored step, which its next step does not follow.

        :param actor: number of the actor
        """
        columns = self._columns[actor]
        self._buffer.end_episodes(columns)
        if self._normalize is not None:
            self._normalize.returns[columns] = 0.0

    def _add(self, columns: np.ndarray, chunk: Chunk, rows: slice) -> None:
        """Store some steps of the first environments of an actor."""
        steps = {name: tree_map(lambda part: part[rows, : len(columns)], each) for name, each in chunk.steps.items()}
        self._buffer.add_steps(columns, **steps, initial_priority="td_error")

    def _set_last_obs(self, columns: np.ndarray, chunk: Chunk) -> None:
        """Set the learner's last observations, for callbacks and for a run that continues."""

        def write(present: np.ndarray, last: np.ndarray) -> None:
            present[columns] = last

        for present, last in zip(self._state.last_obs, chunk.last_obs, strict=True):
            if present is not None and last is not None:
                tree_map(write, present, last)


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
