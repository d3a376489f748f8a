"""Hooks for environments that collect transitions themselves, such as the actors of :mod:`sb3_per.distributed`."""

from contextlib import nullcontext
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv


class ActingMixin(OffPolicyAlgorithm):
    """Learn from environments that have a ``learning_loop``, which collects in place of the algorithm."""

    #: Number of priorities that came too late, because their transition was already overwritten. Counted over all calls of
    #: ``train``, not saved.
    n_stale_updates = 0

    def _setup_model(self) -> None:
        super()._setup_model()
        loop = _learning_loop_of(self.env)
        if loop is not None:
            loop.require_supported(self)

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """
        See SB3. Environments with a learning loop act while the model learns, see :func:`sb3_per.distributed.make_actors`.

        :param args: SB3's arguments
        :param kwargs: SB3's keyword arguments
        :return: this model
        """
        loop = _learning_loop_of(self.env)
        with nullcontext() if loop is None else loop.acting_for(self):
            return super().learn(*args, **kwargs)

    def collect_rollouts(self, env: VecEnv, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        See SB3.

        :param env: training environments
        :param args: SB3's arguments
        :param kwargs: SB3's keyword arguments
        :return: SB3's result
        """
        loop = _learning_loop_of(env)
        if loop is None or loop.model is not self:
            return super().collect_rollouts(env, *args, **kwargs)
        rollout: RolloutReturn = loop.collect(*args, **kwargs)
        return rollout

    def dump_logs(self) -> None:
        """Write a line of the log, see SB3."""
        loop = _learning_loop_of(self.env)
        if loop is not None and loop.model is self:
            loop.record_metrics()
        super().dump_logs()


def _learning_loop_of(env: Any) -> Any:
    """
    Find the learning loop of environments.

    :param env: environment of an algorithm, or ``None``
    :return: its learning loop, or ``None``
    """
    return getattr(getattr(env, "unwrapped", None), "learning_loop", None)
