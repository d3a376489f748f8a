"""Soft Actor-Critic of SBX with prioritized experience replay. TQC and CrossQ share parts of its update."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import SAC

from sb3_per.sbx.base import Metrics, Networks, PrioritizedJaxMixin, delayed
from sb3_per.sbx.batches import Batch


class EntropyRegularizedMixin(PrioritizedJaxMixin):
    """Update of algorithms with a stochastic actor and an entropy coefficient: SAC, TQC and CrossQ."""

    # Attributes of SBX.
    ent_coef_state: Any

    def _networks(self) -> Networks:
        return {"critics": (self.policy.qf_state,), "actor": self.policy.actor_state, "ent_coef": self.ent_coef_state}

    def _set_networks(self, networks: Networks) -> None:
        (self.policy.qf_state,) = networks["critics"]
        self.policy.actor_state, self.ent_coef_state = networks["actor"], networks["ent_coef"]

    def _update_learning_rates(self) -> None:
        actor, *critics = (state.opt_state for state in (self.policy.actor_state, *self._networks()["critics"]))
        rate = self.lr_schedule(self._current_progress_remaining)
        self._update_learning_rate(actor, rate, "learning_rate_actor")
        self._update_learning_rate(critics, self.initial_qf_learning_rate or rate, "learning_rate_critic")

    @classmethod
    def _split_key(cls, key: jax.Array) -> tuple[jax.Array, Any]:
        key, *keys = jax.random.split(key, 4)
        return key, keys

    @classmethod
    def _next_actions(cls, networks: Networks, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """
        Choose the next actions of the target.

        :param networks: train states by name
        :param batch: drawn transitions
        :param key: random key of the noise
        :return: actions of the current policy at the next observations; the entropy coefficient times their log-probability,
            shape (batch_size, 1); and the entropy coefficient
        """
        actor, ent_coef = networks["actor"], networks["ent_coef"]
        distribution = cls._policy_at(actor, batch.next_observations)
        actions = distribution.sample(seed=key)
        coefficient = ent_coef.apply_fn({"params": ent_coef.params})
        return actions, coefficient * distribution.log_prob(actions)[:, None], coefficient

    @classmethod
    def _policy_at(cls, actor: Any, observations: jax.Array) -> Any:
        """
        Compute the distribution of actions.

        :param actor: train state of the actor
        :param observations: observations
        :return: distribution
        """
        return actor.apply_fn(actor.params, observations)

    @classmethod
    def _update_rest(
        cls, networks: Networks, observations: jax.Array, key: jax.Array, numbers: Metrics, updates_actor: Any
    ) -> tuple[Networks, jax.Array, Metrics]:
        critics = cls._update_targets(networks["critics"], numbers)

        def skip(actor: Any, *rest: Any) -> Any:
            return actor, _as_returned(critics), rest[-4], jnp.zeros(()), jnp.zeros(()), key

        states = (networks["actor"], *critics, networks["ent_coef"])
        update: Any = cls.update_actor_and_temperature  # type: ignore[attr-defined]
        actor, of_critics, ent_coef, actor_loss, ent_coef_loss, key = delayed(
            updates_actor, update, skip, *states, observations, numbers["target_entropy"], key
        )
        critics = of_critics if isinstance(of_critics, tuple) else (of_critics,)
        networks = {"critics": critics, "actor": actor, "ent_coef": ent_coef}
        return networks, key, {"actor_loss": actor_loss, "ent_coef_loss": ent_coef_loss}

    @classmethod
    def _update_targets(cls, critics: tuple[Any, ...], numbers: Metrics) -> tuple[Any, ...]:
        """
        Update the target networks.

        :param critics: train states
        :param numbers: by name
        :return: train states
        """
        updated: Any = cls.soft_update(numbers["tau"], *critics)  # type: ignore[attr-defined]
        return updated if len(critics) > 1 else (updated,)


class PERSAC(EntropyRegularizedMixin, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) of SBX with prioritized experience replay (PER, arXiv 1511.05952).

    Use it in place of ``sbx.SAC``, or of :class:`sb3_per.PERSAC` to train in less time. The critics' loss is weighted,
    those of the actor and of the entropy coefficient are not. The priority of a transition comes from its absolute TD error,
    mean over the critics.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`. All other arguments
    are those of ``sbx.SAC``, with the same defaults.

    ::

        model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
        model.learn(10_000)
    """

    number_names = ("tau", "target_entropy")

    @classmethod
    def _value_losses(
        cls, params: tuple[Any, ...], networks: Networks, batch: Batch, keys: Any, numbers: Metrics, options: Any
    ) -> tuple[jax.Array, jax.Array, tuple[dict[str, Any], ...], Metrics]:
        noise_key, target_key, current_key = keys
        (critic,) = networks["critics"]
        next_actions, entropy_cost, ent_coef = cls._next_actions(networks, batch, noise_key)
        # Shape (n_critics, batch_size, 1).
        next_q = critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": target_key})
        target_q = batch.targets(next_q.min(axis=0) - entropy_cost)
        q = critic.apply_fn(params[0], batch.observations, batch.actions, rngs={"dropout": current_key})
        td_errors = (target_q - q)[:, :, 0].T
        return 0.5 * td_errors**2, td_errors, ({},), {"ent_coef": ent_coef}


def _as_returned(critics: tuple[Any, ...]) -> Any:
    """SBX returns one critic as it is, and several as a tuple."""
    return critics if len(critics) > 1 else critics[0]
