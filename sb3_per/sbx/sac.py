"""Soft Actor-Critic of SBX with prioritized experience replay."""

from typing import Any, NamedTuple

import jax
from sbx import SAC

from sb3_per.sbx.jax_loop import Metrics, PrioritizedJaxMixin, UpdateInputs, UpdateResult


class SACNetworks(NamedTuple):
    """Train states of SAC and CrossQ. One holds all critics."""

    critics: Any
    actor: Any
    entropy: Any


class LearnsEntropy(PrioritizedJaxMixin):
    """What SAC, CrossQ and TQC share: the update of actor and entropy coefficient; and the train states of the first two."""

    # The stock class has these.
    ent_coef_state: Any
    target_entropy: Any
    update_actor_and_temperature: Any

    def _networks(self) -> Any:
        return SACNetworks(self.policy.qf_state, self.policy.actor_state, self.ent_coef_state)

    def _set_networks(self, networks: Any) -> None:
        self.policy.qf_state = networks.critics
        self.policy.actor_state = networks.actor
        self.ent_coef_state = networks.entropy

    @classmethod
    def _update_actor_if_due(cls, inputs: UpdateInputs, networks: Any, key: jax.Array) -> Any:
        """
        Update actor and entropy coefficient if it is their turn, by SBX's own function, which a user may override.

        :param inputs: input of the gradient step
        :param networks: train states, with the new critics: first those of the critics, then actor and entropy coefficient
        :param key: random key
        :return: see :meth:`UpdateInputs.update_actor_if_due`
        """
        *critics, actor, entropy = networks

        def update() -> tuple[Any, jax.Array, Metrics]:
            new_actor, new_critics, new_entropy, actor_loss, ent_coef_loss, next_key = cls.update_actor_and_temperature(
                actor, *critics, entropy, inputs.batch.for_actor, inputs.hyperparameters["target_entropy"], key
            )
            if len(critics) == 1:  # SBX returns one train state as it is, and several as a tuple
                new_critics = (new_critics,)
            metrics = {"actor_loss": actor_loss, "ent_coef_loss": ent_coef_loss}
            return type(networks)(*new_critics, new_actor, new_entropy), next_key, metrics

        return inputs.update_actor_if_due(update, skipped=(networks, key))


class PERSAC(LearnsEntropy, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) of SBX with prioritized experience replay (PER, arXiv 1511.05952).

    Use it in place of ``sbx.SAC``, or of :class:`sb3_per.PERSAC` to train in less time. The critics' loss is weighted,
    the losses of actor and entropy coefficient are not. The priority of a transition comes from its absolute TD error,
    mean over the critics.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.SAC``, with the same defaults.

    ::

        model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    def _hyperparameters(self) -> dict[str, Any]:
        return {"tau": self.tau, "target_entropy": self.target_entropy}

    @classmethod
    def _target(cls, inputs: UpdateInputs, noise_key: jax.Array, dropout_key: jax.Array) -> jax.Array:
        """
        Compute the targets of the critics: r + gamma (min Q'(s', a') - ent_coef log pi(a'|s')).

        :param inputs: networks and batch
        :param noise_key: key for the next actions
        :param dropout_key: key for dropout in the target networks
        :return: targets, shape (batch_size, 1)
        """
        critics, actor, entropy = inputs.networks
        batch = inputs.batch
        distribution = actor.apply_fn(actor.params, batch.next_observations)
        next_actions = distribution.sample(seed=noise_key)
        next_log_prob = distribution.log_prob(next_actions)[:, None]
        ent_coef = entropy.apply_fn({"params": entropy.params})
        # Shape (n_critics, batch_size, 1).
        next_q = critics.apply_fn(critics.target_params, batch.next_observations, next_actions, rngs={"dropout": dropout_key})
        targets: jax.Array = batch.targets(next_q.min(axis=0) - ent_coef * next_log_prob)
        return targets

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        critics, actor, entropy = inputs.networks
        batch = inputs.batch
        key, noise_key, target_key, current_key = jax.random.split(inputs.key, 4)
        target_q = cls._target(inputs, noise_key, target_key)
        ent_coef = entropy.apply_fn({"params": entropy.params})

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        def critic_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            q = critics.apply_fn(params, batch.observations, batch.actions, rngs={"dropout": current_key})
            td_errors = (target_q - q)[:, :, 0].T
            return inputs.options.scheme.jax_loss(0.5 * td_errors**2, td_errors, batch.weights), td_errors

        (loss, td_errors), gradient = jax.value_and_grad(critic_loss, has_aux=True)(critics.params)
        critics = critics.apply_gradients(grads=gradient)
        critics = cls.soft_update(inputs.hyperparameters["tau"], critics)

        networks, key, actor_metrics = cls._update_actor_if_due(inputs, SACNetworks(critics, actor, entropy), key)
        return UpdateResult(networks, key, td_errors, {"critic_loss": loss, "ent_coef": ent_coef}, actor_metrics)
