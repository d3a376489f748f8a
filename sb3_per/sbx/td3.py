"""Twin Delayed DDPG and DDPG of SBX with prioritized experience replay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from sbx import DDPG, TD3

from sb3_per.sbx.jax_loop import Metrics, PrioritizedJaxMixin, UpdateInputs, UpdateResult


class TD3Networks(NamedTuple):
    """Train states of TD3. One holds all critics."""

    critics: Any
    actor: Any


class PERTD3(PrioritizedJaxMixin, TD3):
    """
    Twin Delayed DDPG (TD3, arXiv 1802.09477) of SBX with prioritized experience replay (PER, arXiv 1511.05952).

    Use it in place of ``sbx.TD3``, or of :class:`sb3_per.PERTD3` to train in less time. The critics' loss is weighted, the
    actor's is not. The priority of a transition comes from its absolute TD error: the mean over the critics, or the maximum
    with LAP and PAL.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.TD3``, with the same defaults.

    ::

        model = PERTD3("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    def _networks(self) -> TD3Networks:
        return TD3Networks(self.policy.qf_state, self.policy.actor_state)

    def _set_networks(self, networks: TD3Networks) -> None:
        self.policy.qf_state = networks.critics
        self.policy.actor_state = networks.actor

    def _hyperparameters(self) -> dict[str, Any]:
        return {
            "tau": self.tau,
            "target_policy_noise": self.target_policy_noise,
            "target_noise_clip": self.target_noise_clip,
        }

    @classmethod
    def _target(cls, inputs: UpdateInputs, noise_key: jax.Array, dropout_key: jax.Array) -> jax.Array:
        """
        Compute the targets of the critics, with target policy smoothing.

        :param inputs: networks and batch
        :param noise_key: key for the noise of the next actions
        :param dropout_key: key for dropout in the target networks
        :return: targets, shape (batch_size, 1)
        """
        critics, actor = inputs.networks
        batch = inputs.batch
        clip = inputs.hyperparameters["target_noise_clip"]
        noise = jax.random.normal(noise_key, batch.actions.shape) * inputs.hyperparameters["target_policy_noise"]
        noise = jnp.clip(noise, -clip, clip)
        next_actions = jnp.clip(actor.apply_fn(actor.target_params, batch.next_observations) + noise, -1.0, 1.0)
        # Shape (n_critics, batch_size, 1).
        next_q = critics.apply_fn(critics.target_params, batch.next_observations, next_actions, rngs={"dropout": dropout_key})
        targets: jax.Array = batch.targets(next_q.min(axis=0))
        return targets

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        critics, actor = inputs.networks
        batch = inputs.batch
        key, noise_key, target_key, current_key = jax.random.split(inputs.key, 4)
        target_q = cls._target(inputs, noise_key, target_key)

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        def critic_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            q = critics.apply_fn(params, batch.observations, batch.actions, rngs={"dropout": current_key})
            td_errors = (target_q - q)[:, :, 0].T
            return inputs.options.scheme.jax_loss(0.5 * td_errors**2, td_errors, batch.weights), td_errors

        (loss, td_errors), gradient = jax.value_and_grad(critic_loss, has_aux=True)(critics.params)
        critics = critics.apply_gradients(grads=gradient)
        critics, actor = cls.soft_update(inputs.hyperparameters["tau"], critics, actor)

        # Actor, by SBX's own function, which a user may override.
        def actor_step() -> tuple[TD3Networks, jax.Array, Metrics]:
            new_actor, new_critics, actor_loss, next_key = cls.update_actor(actor, critics, batch.for_actor, key)
            return TD3Networks(new_critics, new_actor), next_key, {"actor_loss": actor_loss}

        networks, key, actor_metrics = inputs.update_actor_if_due(actor_step, skipped=(TD3Networks(critics, actor), key))
        return UpdateResult(networks, key, td_errors, {"critic_loss": loss}, actor_metrics)


class PERDDPG(PERTD3, DDPG):
    """
    Deep Deterministic Policy Gradient (DDPG, arXiv 1509.02971) of SBX with prioritized experience replay (PER, arXiv
    1511.05952).

    It is TD3 with one critic, without delay and without target smoothing. Use it to compare with older results;
    :class:`PERTD3` is more stable.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.DDPG``, with the same defaults.

    ::

        model = PERDDPG("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
        model.learn(10_000)
    """
