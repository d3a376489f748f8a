"""Truncated Quantile Critics of SBX with prioritized experience replay."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import TQC

from sb3_per.sbx.base import Losses, PrioritizedJaxMixin, Step
from sb3_per.sbx.sac import EntropyRegularizedMixin


class PERTQC(EntropyRegularizedMixin, TQC):
    """
    Truncated Quantile Critics (TQC, arXiv 2005.04269) of SBX with prioritized experience replay (PER, arXiv 1511.05952).

    Use it in place of ``sbx.TQC``, or of :class:`sb3_per.PERTQC` to train in less time. The critics' quantile Huber loss is
    weighted. The priority of a transition comes from the absolute difference of expected values, ``|mean of the target
    quantiles - mean of the current quantiles|``, mean over the critics. LAP and PAL are refused, because they replace the loss
    of a scalar TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.TQC``, with the same defaults.

    ::

        model = PERTQC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    has_scalar_td_loss = False
    network_names = ("policy.qf1_state", "policy.qf2_state", "policy.actor_state", "ent_coef_state")
    n_critic_states = 2
    n_target_states = 2
    option_names = (*PrioritizedJaxMixin.option_names, "policy.n_target_quantiles")

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        key, noise_key, *target_keys = jax.random.split(step.key, 4)
        key, *current_keys = jax.random.split(key, 3)
        (*critics, actor, _), batch = step.networks, step.batch
        distribution = actor.apply_fn(actor.params, batch.next_observations)
        next_actions, entropy_cost, metrics = cls._next_actions(step, distribution, noise_key)
        next_quantiles = [
            critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": target_key})
            for critic, target_key in zip(critics, target_keys, strict=True)
        ]
        # Pool the critics and drop the largest quantiles, against overestimation.
        kept = jnp.sort(jnp.concatenate(next_quantiles, axis=1))[:, : step.settings["policy.n_target_quantiles"]]
        targets = jax.lax.stop_gradient(batch.targets(kept - entropy_cost))

        losses, td_errors = [], []
        for critic, parameters, current_key in zip(critics, params, current_keys, strict=True):
            quantiles = critic.apply_fn(parameters, batch.observations, batch.actions, rngs={"dropout": current_key})
            losses.append(quantile_huber_losses(quantiles, targets))
            td_errors.append(targets.mean(axis=1) - quantiles.mean(axis=1))
        return Losses(jnp.stack(losses, axis=1), jnp.stack(td_errors, axis=1), key, metrics)


def quantile_huber_losses(quantiles: jax.Array, targets: jax.Array) -> jax.Array:
    """
    Quantile Huber loss with threshold 1 (arXiv 1710.10044, equation 10), mean over all pairs of an estimate and a target.

    :param quantiles: estimates at the midpoints of equal probabilities, shape (batch_size, n_quantiles)
    :param targets: targets, shape (batch_size, n_target_quantiles)
    :return: losses, shape (batch_size,)
    """
    differences = targets[:, None, :] - quantiles[:, :, None]
    sizes = jnp.abs(differences)
    huber = jnp.where(sizes > 1, sizes - 0.5, differences**2 * 0.5)
    midpoints = (jnp.arange(quantiles.shape[1], dtype=jnp.float32) + 0.5) / quantiles.shape[1]
    return (jnp.abs(midpoints[None, :, None] - (differences < 0).astype(jnp.float32)) * huber).mean(axis=(1, 2))
