"""The replay buffer of an actor: it keeps the steps of one call."""

from typing import Any

import cloudpickle
import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.distributed.messages import map_obs

# An info with nothing but these keys says nothing, unless an episode ends.
_SAYS_NOTHING = {"TimeLimit.truncated"}


class Recorder:
    """
    Record the steps of one call. A small buffer of the learner's kind stores them, so observations and timeouts have the form
    that the learner stores.

    :param buffer: empty buffer with a row for each step of a call
    """

    def __init__(self, buffer: PrioritizedReplayBuffer):
        self._buffer = buffer
        self._infos: list[tuple[int, int, dict[str, Any]]] = []

    def clear(self) -> None:
        """Forget all steps."""
        self._buffer.reset()
        self._infos = []

    def add(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: list[dict]
    ) -> None:
        """
        Record one step of every environment. The arguments are those of SB3's buffers.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: ends of episodes, shape (n_envs,)
        :param infos: one dictionary per environment
        """
        step = self._buffer.size()
        self._buffer.add(obs, next_obs, action, reward, done, infos)
        self._infos += [(step, env, info) for env, info in enumerate(infos) if info.keys() - _SAYS_NOTHING or done[env]]

    def columns(self) -> dict[str, Any]:
        """
        Return copies of the recorded steps.

        :return: fields of a :class:`~sb3_per.distributed.messages.Chunk`
        """
        buffer, n = self._buffer, self._buffer.size()
        return {
            "obs": map_obs(lambda part: np.array(part[:n]), buffer.observations),
            "next_obs": map_obs(lambda part: np.array(part[:n]), buffer.next_observations),
            "actions": buffer.actions[:n].copy(),
            "rewards": buffer.rewards[:n].copy(),
            "dones": buffer.dones[:n].copy(),
            "timeouts": buffer.timeouts[:n].copy(),
            "infos": cloudpickle.dumps(self._infos),
        }
