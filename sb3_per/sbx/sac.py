"""Soft Actor-Critic of SBX with prioritized experience replay. TQC and CrossQ share parts of its update."""

from typing import Any, ClassVar

import jax
import numpy as np
from sbx import SAC

from sb3_per.sbx.base import Losses, Metrics, Networks, PrioritizedJaxMixin, Step, as_tuple


class EntropyRegularizedMixin(PrioritizedJaxMixin):
    """Update an algorithm with a stochastic actor and an entropy coefficient: SAC, TQC or CrossQ."""

    network_names: ClassVar[tuple[str, ...]] = ("policy.qf_state", "policy.actor_state", "ent_coef_state")
    number_names: ClassVar[tuple[str, ...]] = ("tau", "target_entropy")

    def _update_learning_rates(self) -> None:
        *critics, actor, _ = self._networks()
        # Of the type that an update returns: the compiler tells it from a float.
        rate: Any = np.float32(self.lr_schedule(self._current_progress_remaining))
        of_critics: Any = np.float32(self.initial_qf_learning_rate or rate)
        self._update_learning_rate(actor.opt_state, rate, "learning_rate_actor")
        self._update_learning_rate([critic.opt_state for critic in critics], of_critics, "learning_rate_critic")

    @classmethod
    def _next_actions(cls, step: Step, distribution: Any, key: jax.Array) -> tuple[jax.Array, jax.Array, Metrics]:
        """
        Choose the next actions of the target.

        :param step: networks
        :param distribution: distribution of actions of the current policy at the next observations
        :param key: random key of the noise
        :return: actions; the entropy coefficient times their log-probability, shape (batch_size, 1); and metrics to log
        """
        actions, ent_coef_state = distribution.sample(seed=key), step.networks[-1]
        ent_coef = ent_coef_state.apply_fn({"params": ent_coef_state.params})
        return actions, ent_coef * distribution.log_prob(actions)[:, None], {"ent_coef": ent_coef}

    @classmethod
    def _update_actor(cls, step: Step) -> tuple[Networks, jax.Array, Metrics]:
        *critics, actor, ent_coef = step.networks
        update: Any = cls.update_actor_and_temperature  # type: ignore[attr-defined]
        actor, updated, ent_coef, actor_loss, ent_coef_loss, key = update(
            actor, *critics, ent_coef, step.batch.for_actor, step.settings["target_entropy"], step.key
        )
        return (*as_tuple(updated), actor, ent_coef), key, {"actor_loss": actor_loss, "ent_coef_loss": ent_coef_loss}


class PERSAC(EntropyRegularizedMixin, SAC):
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

    n_target_states = 1

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        key, noise_key, target_key, current_key = jax.random.split(step.key, 4)
        (critic, actor, _), batch = step.networks, step.batch
        distribution = actor.apply_fn(actor.params, batch.next_observations)
        next_actions, entropy_cost, metrics = cls._next_actions(step, distribution, noise_key)
        # Shape (n_critics, batch_size, 1).
        next_q = critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": target_key})
        target_q = batch.targets(next_q.min(axis=0) - entropy_cost)
        q = critic.apply_fn(params[0], batch.observations, batch.actions, rngs={"dropout": current_key})
        td_errors = (target_q - q)[:, :, 0].T
        return Losses(0.5 * td_errors**2, td_errors, key, metrics)
