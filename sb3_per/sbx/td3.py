"""Twin Delayed DDPG and DDPG of SBX with prioritized experience replay."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import DDPG, TD3

from sb3_per.sbx.base import Metrics, Networks, PrioritizedJaxMixin, delayed
from sb3_per.sbx.batches import Batch


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

    number_names = ("tau", "target_policy_noise", "target_noise_clip")

    def _networks(self) -> Networks:
        return {"critics": (self.policy.qf_state,), "actor": self.policy.actor_state}

    def _set_networks(self, networks: Networks) -> None:
        (self.policy.qf_state,), self.policy.actor_state = networks["critics"], networks["actor"]

    @classmethod
    def _split_key(cls, key: jax.Array) -> tuple[jax.Array, Any]:
        key, *keys = jax.random.split(key, 4)
        return key, keys

    @classmethod
    def _value_losses(
        cls, params: tuple[Any, ...], networks: Networks, batch: Batch, keys: Any, numbers: Metrics, options: Any
    ) -> tuple[jax.Array, jax.Array, tuple[dict[str, Any], ...], Metrics]:
        noise_key, target_key, current_key = keys
        (critic,), actor = networks["critics"], networks["actor"]
        # Target policy smoothing.
        noise = jax.random.normal(noise_key, batch.actions.shape) * numbers["target_policy_noise"]
        noise = jnp.clip(noise, -numbers["target_noise_clip"], numbers["target_noise_clip"])
        next_actions = jnp.clip(actor.apply_fn(actor.target_params, batch.next_observations) + noise, -1.0, 1.0)
        # Shape (n_critics, batch_size, 1).
        next_q = critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": target_key})
        target_q = batch.targets(next_q.min(axis=0))
        q = critic.apply_fn(params[0], batch.observations, batch.actions, rngs={"dropout": current_key})
        td_errors = (target_q - q)[:, :, 0].T
        return 0.5 * td_errors**2, td_errors, ({},), {}

    @classmethod
    def _update_rest(
        cls, networks: Networks, observations: jax.Array, key: jax.Array, numbers: Metrics, updates_actor: Any
    ) -> tuple[Networks, jax.Array, Metrics]:
        (critic,), actor = networks["critics"], networks["actor"]
        critic, actor = cls.soft_update(numbers["tau"], critic, actor)

        def skip(actor: Any, critic: Any, observations: jax.Array, key: jax.Array) -> Any:
            return actor, critic, jnp.zeros(()), key

        actor, critic, loss, key = delayed(updates_actor, cls.update_actor, skip, actor, critic, observations, key)
        return {"critics": (critic,), "actor": actor}, key, {"actor_loss": loss}


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
