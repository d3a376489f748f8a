"""CrossQ of SBX with prioritized experience replay."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import CrossQ

from sb3_per.sbx.base import Losses, Step
from sb3_per.sbx.sac import EntropyRegularizedMixin


class PERCrossQ(EntropyRegularizedMixin, CrossQ):
    """
    CrossQ (arXiv 1902.05605) of SBX with prioritized experience replay (PER, arXiv 1511.05952).

    Use it in place of ``sbx.CrossQ``, or of :class:`sb3_per.PERCrossQ` to train in less time. The critics' loss is weighted,
    the losses of actor and entropy coefficient are not. The priority of a transition comes from its absolute TD error,
    mean over the critics. Statistics of batch normalization come from the drawn batch, unweighted.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.CrossQ``, with the same defaults.

    ::

        model = PERCrossQ("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    number_names = ("target_entropy",)

    def _update_learning_rates(self) -> None:
        """As in SBX's CrossQ, learning rates stay as they are."""

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        key, noise_key, current_key = jax.random.split(step.key, 3)
        (critic, actor, _), batch = step.networks, step.batch
        variables = {"params": actor.params, "batch_stats": actor.batch_stats}
        distribution = actor.apply_fn(variables, batch.next_observations, train=False)
        next_actions, entropy_cost, metrics = cls._next_actions(step, distribution, noise_key)
        # There is no target network. Both halves pass the critic together, so that batch normalization sees the mixture of
        # current and next observations.
        all_q, updates = critic.apply_fn(
            {"params": params[0], "batch_stats": critic.batch_stats},
            jnp.concatenate([batch.observations, batch.next_observations]),
            jnp.concatenate([batch.actions, next_actions]),
            rngs={"dropout": current_key},
            mutable=["batch_stats"],
            train=True,
        )
        q, next_q = jnp.split(all_q, 2, axis=1)
        target_q = jax.lax.stop_gradient(batch.targets(next_q.min(axis=0) - entropy_cost))
        td_errors = (target_q - q)[:, :, 0].T
        return Losses(0.5 * td_errors**2, td_errors, key, metrics, changes=updates)
