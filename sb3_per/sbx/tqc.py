"""Truncated Quantile Critics of SBX with prioritized experience replay."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from sbx import TQC

from sb3_per.sbx.base import Metrics, Networks
from sb3_per.sbx.batches import Batch
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
    number_names = ("tau", "target_entropy")

    def _networks(self) -> Networks:
        critics = (self.policy.qf1_state, self.policy.qf2_state)
        return {"critics": critics, "actor": self.policy.actor_state, "ent_coef": self.ent_coef_state}

    def _set_networks(self, networks: Networks) -> None:
        self.policy.qf1_state, self.policy.qf2_state = networks["critics"]
        self.policy.actor_state, self.ent_coef_state = networks["actor"], networks["ent_coef"]

    def _options(self) -> Hashable:
        n_kept: int = self.policy.n_target_quantiles
        return n_kept

    @classmethod
    def _split_key(cls, key: jax.Array) -> tuple[jax.Array, Any]:
        key, *first = jax.random.split(key, 4)
        key, *second = jax.random.split(key, 3)
        return key, first + second

    @classmethod
    def _value_losses(
        cls, params: tuple[Any, ...], networks: Networks, batch: Batch, keys: Any, numbers: Metrics, options: Any
    ) -> tuple[jax.Array, jax.Array, tuple[dict[str, Any], ...], Metrics]:
        noise_key, *target_keys = keys[:3]
        next_actions, entropy_cost, ent_coef = cls._next_actions(networks, batch, noise_key)
        critics = networks["critics"]
        next_quantiles = [
            critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": key})
            for critic, key in zip(critics, target_keys, strict=True)
        ]
        # Pool the critics and drop the largest quantiles, against overestimation.
        kept = jnp.sort(jnp.concatenate(next_quantiles, axis=1))[:, :options]
        targets = jax.lax.stop_gradient(batch.targets(kept - entropy_cost))

        losses, td_errors = [], []
        for critic, parameters, key in zip(critics, params, keys[3:], strict=True):
            quantiles = critic.apply_fn(parameters, batch.observations, batch.actions, rngs={"dropout": key})
            losses.append(quantile_huber_losses(quantiles, targets))
            td_errors.append(targets.mean(axis=1) - quantiles.mean(axis=1))
        return jnp.stack(losses, axis=1), jnp.stack(td_errors, axis=1), ({}, {}), {"ent_coef": ent_coef}


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
