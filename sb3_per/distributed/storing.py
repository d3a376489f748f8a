"""Write chunks into the learner's buffer, and keep its statistics and last observations up to date."""

from typing import Any

import numpy as np

from sb3_per.distributed import wrappers
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.messages import Chunk
from sb3_per.distributed.received import ReceivedChunk


class Storing:
    """
    Store the steps of actors in their columns of the buffer.

    :param model: the learner's algorithm
    :param n_actors: number of actors
    :param n_envs: environments of each actor
    """

    def __init__(self, model: Any, n_actors: int, n_envs: int):
        self._state, self._buffer = AlgorithmState(model), model.replay_buffer
        #: columns of each actor, shape (n_actors, n_envs)
        self.columns = np.arange(n_actors * n_envs).reshape(n_actors, n_envs)

    def store(self, chunk: ReceivedChunk, end: int) -> None:
        """
        Store the next steps of a chunk. One large write costs as much as a small one, so steps of later ticks go along.

        :param chunk: the chunk
        :param end: step after the last that must be stored
        """
        data, buffer, first = chunk.data, self._buffer, chunk.n_stored
        columns = self.columns[data.actor]
        # In a small buffer, a whole chunk would overwrite its own first steps before their tick.
        ahead = max(1, buffer.buffer_size // 4)
        chunk.n_stored = end = min(max(end, first + ahead), chunk.n_steps)
        end_of_whole = min(end, chunk.n_whole)
        for begin in range(first, end_of_whole, buffer.buffer_size):
            self._add(columns, chunk.steps(begin, min(begin + buffer.buffer_size, end_of_whole)))
        if chunk.n_rest > 0 and first <= chunk.n_whole < end:
            self._add(columns[: chunk.n_rest], chunk.rest())
        self._update_statistics(data, first, end_of_whole)
        if end == chunk.n_steps:
            self._update_last_obs(data)
            if chunk.is_cut:
                self.cut(data.actor)

    def cut(self, actor: int) -> None:
        """
        Say that the next step of an actor does not follow the last one that is stored.

        :param actor: number of the actor
        """
        columns, normalize = self.columns[actor], self._state.normalize
        self._buffer.cut_columns(columns)
        if normalize is not None:
            normalize.returns[columns] = 0.0

    def _add(self, columns: np.ndarray, steps: dict[str, Any]) -> None:
        buffer = self._buffer
        own = buffer.sampler.initial_priority
        try:
            if "td_errors" in steps:  # they need this setting, for the time of this call only: callbacks may save the buffer
                buffer.sampler.initial_priority = "td_error"
            buffer.add_steps(columns, **steps)
        finally:
            buffer.sampler.initial_priority = own

    def _update_statistics(self, data: Chunk, first: int, end: int) -> None:
        """Update the learner's ``VecNormalize`` with stored steps."""
        normalize = self._state.normalize
        if normalize is None or end <= first:
            return

        def after(steps: np.ndarray, last: np.ndarray) -> np.ndarray:
            # The buffer stores discrete observations with one more dimension.
            return np.concatenate((steps[first + 1 : end + 1], last.reshape(1, *steps.shape[1:])))[: end - first]

        if isinstance(data.obs, dict):
            new_obs: Any = {key: after(data.obs[key], data.last_original_obs[key]) for key in data.obs}
        else:
            new_obs = after(data.obs, data.last_original_obs)
        columns = self.columns[data.actor]
        wrappers.update_statistics(normalize, columns, new_obs, data.rewards[first:end], data.dones[first:end])

    def _update_last_obs(self, data: Chunk) -> None:
        """Set the learner's last observations, for callbacks and for a run that continues."""
        columns = self.columns[data.actor]
        for present, last in zip(self._state.last_obs, (data.last_obs, data.last_original_obs), strict=True):
            if present is None or last is None:
                continue
            if isinstance(present, dict):
                for key, part in present.items():
                    part[columns] = last[key]
            else:
                present[columns] = last
