"""Truncated Quantile Critics of SBX with prioritized experience replay."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from sbx import TQC

from sb3_per.sbx.jax_loop import Options, UpdateInputs, UpdateResult
from sb3_per.sbx.sac import LearnsEntropy


class TQCNetworks(NamedTuple):
    """Train states of TQC."""

    critic_1: Any
    critic_2: Any
    actor: Any
    entropy: Any


@dataclass(frozen=True)
class TQCOptions(Options):
    """
    Options of TQC.

    :param n_target_quantiles: number of quantiles of both critics that the target keeps
    """

    n_target_quantiles: int


class PERTQC(LearnsEntropy, TQC):
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

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"
    has_scalar_td_loss = False
    critic_states = ("qf1_state", "qf2_state")

    def _networks(self) -> TQCNetworks:
        return TQCNetworks(self.policy.qf1_state, self.policy.qf2_state, self.policy.actor_state, self.ent_coef_state)

    def _set_networks(self, networks: TQCNetworks) -> None:
        self.policy.qf1_state = networks.critic_1
        self.policy.qf2_state = networks.critic_2
        self.policy.actor_state = networks.actor
        self.ent_coef_state = networks.entropy

    def _hyperparameters(self) -> dict[str, Any]:
        return {"tau": self.tau, "target_entropy": self.target_entropy}

    def _options(self) -> TQCOptions:
        return TQCOptions(self.replay_buffer.scheme, self.policy_delay, self.policy.n_target_quantiles)

    @classmethod
    def _target(cls, inputs: UpdateInputs, noise_key: jax.Array, dropout_keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        """
        Compute the target quantiles of the critics.

        :param inputs: networks and batch
        :param noise_key: key for the next actions
        :param dropout_keys: keys for dropout in the two target networks
        :return: targets, shape (batch_size, n_target_quantiles)
        """
        critic_1, critic_2, actor, entropy = inputs.networks
        batch = inputs.batch
        distribution = actor.apply_fn(actor.params, batch.next_observations)
        next_actions = distribution.sample(seed=noise_key)
        next_log_prob = distribution.log_prob(next_actions)[:, None]
        ent_coef = entropy.apply_fn({"params": entropy.params})

        def next_quantiles(critic: Any, dropout_key: jax.Array) -> jax.Array:
            quantiles: jax.Array = critic.apply_fn(
                critic.target_params, batch.next_observations, next_actions, rngs={"dropout": dropout_key}
            )
            return quantiles

        # Pool the critics and drop the largest quantiles, against overestimation.
        pooled = jnp.concatenate(
            [next_quantiles(critic_1, dropout_keys[0]), next_quantiles(critic_2, dropout_keys[1])], axis=1
        )
        kept = jnp.sort(pooled)[:, : inputs.options.n_target_quantiles]
        targets: jax.Array = batch.targets(kept - ent_coef * next_log_prob)
        return targets

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        critic_1, critic_2, actor, entropy = inputs.networks
        batch = inputs.batch
        key, noise_key, target_key_1, target_key_2 = jax.random.split(inputs.key, 4)
        key, current_key_1, current_key_2 = jax.random.split(key, 3)
        targets = cls._target(inputs, noise_key, (target_key_1, target_key_2))
        ent_coef = entropy.apply_fn({"params": entropy.params})

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        def critic_loss(params: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
            taken = (batch.observations, batch.actions)
            quantiles_1 = critic_1.apply_fn(params[0], *taken, rngs={"dropout": current_key_1})
            quantiles_2 = critic_2.apply_fn(params[1], *taken, rngs={"dropout": current_key_2})
            losses = [mean_quantile_huber_losses(quantiles, targets) for quantiles in (quantiles_1, quantiles_2)]
            td_errors = [targets.mean(axis=1) - quantiles.mean(axis=1) for quantiles in (quantiles_1, quantiles_2)]
            both_td_errors = jnp.stack(td_errors, axis=1)
            return inputs.options.scheme.jax_loss(jnp.stack(losses, axis=1), both_td_errors, batch.weights), both_td_errors

        params = (critic_1.params, critic_2.params)
        (loss, td_errors), (gradient_1, gradient_2) = jax.value_and_grad(critic_loss, has_aux=True)(params)
        critic_1 = critic_1.apply_gradients(grads=gradient_1)
        critic_2 = critic_2.apply_gradients(grads=gradient_2)
        critic_1, critic_2 = cls.soft_update(inputs.hyperparameters["tau"], critic_1, critic_2)

        networks = TQCNetworks(critic_1, critic_2, actor, entropy)
        networks, key, actor_metrics = cls._update_actor_if_due(inputs, networks, key)
        return UpdateResult(networks, key, td_errors, {"critic_loss": loss, "ent_coef": ent_coef}, actor_metrics)


def mean_quantile_huber_losses(quantiles: jax.Array, targets: jax.Array) -> jax.Array:
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
