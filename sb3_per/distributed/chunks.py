"""Chunks that have arrived: count their steps, show them to callbacks, and store them."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from sb3_per.distributed import environments
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.random_state import RandomState
from sb3_per.storage.arrays import flat, tree_map


@dataclass(frozen=True)
class Chunk:
    """
    T successive steps of an actor's k environments.

    :param actor: number of the actor
    :param version: number of updates of the weights that it acted with
    :param steps: arguments of ``add_steps``: observations before normalization, rewards before normalization of shape (T, k),
        and so on; with TD errors by the actor's weights if they are wanted, shape (T, k, n_critics)
    :param infos: pickled list of (step, environment, info), without empty infos
    :param last_obs: observations that the actor acts on next, shape (k, ...): normalized, and before normalization
    :param random_state: random state after the last step, if the learner sent one
    """

    actor: int
    version: int
    steps: dict[str, Any]
    infos: bytes
    last_obs: tuple[Any, Any]
    random_state: RandomState | None


class ReceivedChunk:
    """
    A copy of a chunk, and how far the learner has used it.

    :param chunk: the chunk; its arrays may lie in Ray's object store, which must become free
    :param n_left: transitions that the run has room for; of a larger chunk, the last transitions do not count
    """

    def __init__(self, chunk: Chunk, n_left: int):
        self.actor = chunk.actor
        self.data = data = {name: tree_map(np.array, part) for name, part in chunk.steps.items()}
        self.last_obs = tuple(None if obs is None else tree_map(np.array, obs) for obs in chunk.last_obs)
        self.n_steps, self.n_envs = data["rewards"].shape
        #: transitions that count
        self.n_wanted = min(n_left, self.n_steps * self.n_envs)
        #: whole steps that count, and environments that count in the step after them
        self.n_whole, self.n_rest = divmod(self.n_wanted, self.n_envs)
        #: steps that belong to a tick, and steps that are stored
        self.n_taken = self.n_stored = 0
        #: whether the actor's next step does not follow the last one here, because a chunk was lost
        self.is_cut = False
        # Infos that are not empty, by number of the transition.
        self._infos = {step * self.n_envs + env: info for step, env, info in cloudpickle.loads(chunk.infos)}
        # One entry per transition.
        self._seen = {
            "buffer_actions": flat(data["actions"]),
            "new_obs": tree_map(flat, data["next_obs"]),
            "rewards": flat(data["rewards"]),
            "dones": flat(data["dones"]).astype(bool),
        }

    def steps(self, first: int, end: int, n_envs: int | None = None) -> dict[str, Any]:
        """
        Return steps as arguments of ``add_steps``.

        :param first: first step
        :param end: step after the last
        :param n_envs: number of environments, from the first; ``None``: all
        :return: the arguments, without the columns
        """
        return {name: tree_map(lambda part: part[first:end, :n_envs], each) for name, each in self.data.items()}

    def seen(self, first: int, end: int) -> dict[str, Any]:
        """
        Return the steps as callbacks find them in ``locals``.

        :param first: first step
        :param end: step after the last
        :return: arrays and infos with one entry per transition that counts
        """
        first, end = first * self.n_envs, min(end * self.n_envs, self.n_wanted)
        seen: dict[str, Any] = {name: tree_map(lambda part: part[first:end], every) for name, every in self._seen.items()}
        seen["infos"] = [self._infos.get(i) or {"TimeLimit.truncated": False} for i in range(first, end)]
        return seen


#: Successive steps of a chunk that belong to the same tick: the chunk, the first step, the step after the last.
Piece = tuple[ReceivedChunk, int, int]


def seen_in(pieces: list[Piece]) -> dict[str, Any]:
    """
    Join the pieces of a tick as callbacks find them in ``locals``.

    :param pieces: the pieces
    :return: arrays and infos with one entry per transition that counts
    """
    parts = [chunk.seen(first, end) for chunk, first, end in pieces]
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

    def __init__(self, model: Any, n_actors: int, n_envs: int):
        self._state, self._buffer, self._normalize = AlgorithmState(model), model.replay_buffer, model.get_vec_normalize_env()
        # Columns of each actor.
        self._columns = np.arange(n_actors * n_envs).reshape(n_actors, n_envs)

    def store(self, chunk: ReceivedChunk, end: int) -> None:
        """
        Store the next steps of a chunk. A large write costs as much as a small one, so it includes steps of later ticks.

        :param chunk: the chunk
        :param end: step after the last that must be stored
        """
        buffer, columns, first = self._buffer, self._columns[chunk.actor], chunk.n_stored
        # In a small buffer, a whole chunk would overwrite its own first steps before their tick.
        ahead = max(1, buffer.buffer_size // 4)
        chunk.n_stored = end = min(max(end, first + ahead), chunk.n_steps)
        end_of_whole = min(end, chunk.n_whole)
        for begin in range(first, end_of_whole, buffer.buffer_size):
            self._add(columns, chunk.steps(begin, min(begin + buffer.buffer_size, end_of_whole)))
        if chunk.n_rest > 0 and first <= chunk.n_whole < end:
            self._add(columns[: chunk.n_rest], chunk.steps(chunk.n_whole, chunk.n_whole + 1, chunk.n_rest))
        self._update_statistics(chunk, first, end_of_whole)
        if end == chunk.n_steps:
            self._update_last_obs(chunk)
            if chunk.is_cut:
                self.cut(chunk.actor)

    def cut(self, actor: int) -> None:
        """
        Cut the episodes of an actor after the last step that is stored, because its next step does not follow.

        :param actor: number of the actor
        """
        columns = self._columns[actor]
        self._buffer.end_episodes(columns)
        if self._normalize is not None:
            self._normalize.returns[columns] = 0.0

    def _add(self, columns: np.ndarray, steps: dict[str, Any]) -> None:
        sampler = self._buffer.sampler
        own = sampler.initial_priority
        try:
            if "td_errors" in steps:  # they need this setting, but only during this call: callbacks may save the buffer
                sampler.initial_priority = "td_error"
            self._buffer.add_steps(columns, **steps)
        finally:
            sampler.initial_priority = own

    def _update_statistics(self, chunk: ReceivedChunk, first: int, end: int) -> None:
        """Update the learner's ``VecNormalize`` with stored steps."""
        if self._normalize is None or end <= first:
            return

        def after(steps: np.ndarray, last: np.ndarray) -> np.ndarray:
            # The buffer stores discrete observations with one more dimension.
            return np.concatenate((steps[first + 1 : end + 1], last.reshape(1, *steps.shape[1:])))[: end - first]

        steps = chunk.steps(first, end)
        new_obs = tree_map(after, chunk.data["obs"], chunk.last_obs[1])
        envs = self._columns[chunk.actor]
        environments.update_statistics(self._normalize, envs, new_obs, steps["rewards"], steps["dones"])

    def _update_last_obs(self, chunk: ReceivedChunk) -> None:
        """Set the learner's last observations, for callbacks and for a run that continues."""

        def write(present: np.ndarray, last: np.ndarray) -> None:
            present[self._columns[chunk.actor]] = last

        for present, last in zip(self._state.last_obs, chunk.last_obs, strict=True):
            if present is not None and last is not None:
                tree_map(write, present, last)
