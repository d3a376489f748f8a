"""What stands in the place of the replay buffer where an actor collects, and makes chunks of it."""

from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.ring import flat
from sb3_per.distributed.messages import map_obs
from sb3_per.schemes import Uniform
from sb3_per.trees.sum_tree import SumTree


class _Unused(SumTree):
    """Of a buffer that nothing is drawn from."""

    def fill(self, first: int, last: int, mass: float) -> None:
        """Nothing, and nothing is loaded for it."""


class _NoDraw(Uniform):
    def make_tree(self, capacity: int) -> SumTree:
        return _Unused(capacity)


class _WithoutNumba:
    """Numba takes half a second of a core to load, a fifth of what the start of an actor takes."""

    dones: np.ndarray
    timeouts: np.ndarray
    rewards: np.ndarray

    def _read(self, windows: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        is_termination = flat(self.dones)[last] * (1 - flat(self.timeouts)[last])
        return windows[:, 0], flat(self.rewards)[windows], is_termination[:, None]


class _Recorded(_WithoutNumba, PrioritizedReplayBuffer):
    pass


class _RecordedDict(_WithoutNumba, PrioritizedDictReplayBuffer):  # type: ignore[misc]  # as its parents
    pass


class Recorder:
    """
    Keeps the steps of one call. It is a small buffer of the learner's kind, so that observations, timeouts and n-step windows
    are what they would be there.

    :param n_rows: most steps of a call
    :param n_envs: environments of the actor
    :param observation_space: of the learner
    :param action_space: of the learner
    :param settings: ``n_steps``, ``gamma``, ``handle_timeout_termination``
    """

    def __init__(self, n_rows: int, n_envs: int, observation_space: Any, action_space: Any, settings: dict[str, Any]):
        is_dict = isinstance(observation_space, spaces.Dict)
        self._buffer: PrioritizedReplayBuffer = (_RecordedDict if is_dict else _Recorded)(
            n_rows * n_envs, observation_space, action_space, device="cpu", n_envs=n_envs, scheme=_NoDraw(), **settings
        )
        self._infos: list[tuple[int, int, dict[str, Any]]] = []

    def clear(self) -> None:
        """Begin anew."""
        self._buffer.reset()
        self._infos = []

    def add(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: list[dict]
    ) -> None:
        """
        As SB3's buffers.

        :param obs: shape (n_envs, ...)
        :param next_obs: likewise
        :param action: shape (n_envs, action_dim)
        :param reward: shape (n_envs,)
        :param done: shape (n_envs,)
        :param infos: one dictionary per environment; those that only say that nothing was truncated are not kept
        """
        step = self._buffer.size()
        self._buffer.add(obs, next_obs, action, reward, done, infos)
        self._infos += [(step, env, info) for env, info in enumerate(infos) if info.keys() - _SAYS_NOTHING or done[env]]

    def columns(self) -> dict[str, Any]:
        """
        :return: the steps, by the names that :class:`~sb3_per.distributed.messages.Chunk` has for them; copies
        """
        buffer, n = self._buffer, self._buffer.size()
        # A full ring begins with its first row.
        return {
            "obs": map_obs(lambda part: np.array(part[:n]), buffer.observations),
            "next_obs": map_obs(lambda part: np.array(part[:n]), buffer.next_observations),
            "actions": buffer.actions[:n].copy(),
            "rewards": buffer.rewards[:n].copy(),
            "dones": buffer.dones[:n].copy(),
            "timeouts": buffer.timeouts[:n].copy(),
            "infos": cloudpickle.dumps(self._infos),
        }

    def td_errors(self, model: Any) -> np.ndarray:
        """
        :param model: the algorithm, with the weights of the actor
        :return: of all steps, signed, by the code that the learner has them from, shape (T, n_envs, n_critics)
        """
        buffer = self._buffer
        leaves = np.arange(buffer.size() * buffer.n_envs)
        batch = buffer._gather(leaves, np.ones((len(leaves), 1), np.float32), model._vec_normalize_env)
        errors: np.ndarray = model._td_errors(batch).numpy()
        return errors.reshape(buffer.size(), buffer.n_envs, -1)


_SAYS_NOTHING = {"TimeLimit.truncated"}
