"""Environments that collect transitions themselves, such as the actors of :mod:`sb3_per.distributed`."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm


class CollectingVecEnv(VecEnv):
    """Environments that collect transitions themselves while an algorithm of this package learns with them."""

    @abstractmethod
    def check_supported(self, model: "PrioritizedAlgorithm") -> None:
        """
        Refuse algorithms and settings that these environments do not support.

        :param model: algorithm that is to learn
        :raises NotImplementedError: for a combination that is not supported
        """

    @abstractmethod
    def acting_for(self, model: "PrioritizedAlgorithm") -> AbstractContextManager[None]:
        """
        Collect for an algorithm while it learns.

        :param model: algorithm that learns
        :return: context of its ``learn``
        """

    @abstractmethod
    def acts_for(self, model: "PrioritizedAlgorithm") -> bool:
        """
        Tell whether an algorithm learns in the context of :meth:`acting_for` now.

        :param model: algorithm that asks
        :return: ``False``: the algorithm steps these environments as any others
        """

    @abstractmethod
    def collect(self, callback: BaseCallback, log_interval: int | None) -> RolloutReturn:
        """
        Take transitions in place of SB3's ``collect_rollouts``, whose other arguments are attributes of the algorithm.

        :param callback: the user's callback
        :param log_interval: episodes from one line of the log to the next
        :return: see SB3
        """


def n_columns(model: "PrioritizedAlgorithm") -> int:
    """
    Count the environments of a model's buffer.

    :param model: the algorithm
    :return: number of environments; 1 if they collect themselves: they append the steps of one after those of another
    """
    return int(model.n_envs) if collecting_env_in(model.env) is None else 1


@contextmanager
def buffer_columns(model: "PrioritizedAlgorithm") -> Iterator[None]:
    """
    Let SB3 make a buffer with as many environments as :func:`n_columns` says within a ``with`` block.

    :param model: algorithm that is being set up
    """
    n_envs = model.n_envs
    model.n_envs = n_columns(model)
    try:
        yield
    finally:
        model.n_envs = n_envs


def collecting_env_in(env: VecEnv | None) -> CollectingVecEnv | None:
    """
    Find the environments in any wrappers that collect themselves.

    :param env: environments of a model
    :return: the innermost ones; ``None`` if the algorithm collects
    """
    if env is not None and isinstance(env.unwrapped, CollectingVecEnv):
        return env.unwrapped
    return None
