"""CrossQ of SBX with prioritized experience replay."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import CrossQ

from sb3_per.sbx.jax_loop import UpdateInputs, UpdateResult
from sb3_per.sbx.sac import LearnsEntropy, SACNetworks


class PERCrossQ(LearnsEntropy, CrossQ):
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

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    def _hyperparameters(self) -> dict[str, Any]:
        return {"target_entropy": self.target_entropy}

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        critics, actor, entropy = inputs.networks
        batch = inputs.batch
        key, noise_key, current_key = jax.random.split(inputs.key, 3)

        variables = {"params": actor.params, "batch_stats": actor.batch_stats}
        distribution = actor.apply_fn(variables, batch.next_observations, train=False)
        next_actions = distribution.sample(seed=noise_key)
        next_log_prob = distribution.log_prob(next_actions)[:, None]
        ent_coef = entropy.apply_fn({"params": entropy.params})
        # There is no target network. Current and next observations pass the critics together, so that batch normalization
        # takes its statistics from both.
        both_observations = jnp.concatenate([batch.observations, batch.next_observations])
        both_actions = jnp.concatenate([batch.actions, next_actions])

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        def critic_loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
            both_q, statistics = critics.apply_fn(
                {"params": params, "batch_stats": critics.batch_stats},
                both_observations,
                both_actions,
                rngs={"dropout": current_key},
                mutable=["batch_stats"],
                train=True,
            )
            q, next_q = jnp.split(both_q, 2, axis=1)
            target_q = jax.lax.stop_gradient(batch.targets(next_q.min(axis=0) - ent_coef * next_log_prob))
            td_errors = (target_q - q)[:, :, 0].T
            return inputs.options.scheme.jax_loss(0.5 * td_errors**2, td_errors, batch.weights), (td_errors, statistics)

        (loss, (td_errors, statistics)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(critics.params)
        critics = critics.apply_gradients(grads=gradient).replace(**statistics)

        networks, key, actor_metrics = cls._update_actor_if_due(inputs, SACNetworks(critics, actor, entropy), key)
        return UpdateResult(networks, key, td_errors, {"critic_loss": loss, "ent_coef": ent_coef}, actor_metrics)
