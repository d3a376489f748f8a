"""Twin Delayed DDPG and DDPG of SBX with prioritized experience replay."""

from typing import Any

import jax
import jax.numpy as jnp
from sbx import DDPG, TD3

from sb3_per.sbx.base import Losses, Metrics, Networks, PrioritizedJaxMixin, Step


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

    network_names = ("policy.qf_state", "policy.actor_state")
    n_target_states = 2
    number_names = ("tau", "target_policy_noise", "target_noise_clip")

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        key, noise_key, target_key, current_key = jax.random.split(step.key, 4)
        (critic, actor), batch, settings = step.networks, step.batch, step.settings
        # Target policy smoothing.
        noise = jax.random.normal(noise_key, batch.actions.shape) * settings["target_policy_noise"]
        noise = jnp.clip(noise, -settings["target_noise_clip"], settings["target_noise_clip"])
        next_actions = jnp.clip(actor.apply_fn(actor.target_params, batch.next_observations) + noise, -1.0, 1.0)
        # Shape (n_critics, batch_size, 1).
        next_q = critic.apply_fn(critic.target_params, batch.next_observations, next_actions, rngs={"dropout": target_key})
        target_q = batch.targets(next_q.min(axis=0))
        q = critic.apply_fn(params[0], batch.observations, batch.actions, rngs={"dropout": current_key})
        td_errors = (target_q - q)[:, :, 0].T
        return Losses(0.5 * td_errors**2, td_errors, key, {})

    @classmethod
    def _update_actor(cls, step: Step) -> tuple[Networks, jax.Array, Metrics]:
        critic, actor = step.networks
        actor, critic, loss, key = cls.update_actor(actor, critic, step.batch.for_actor, step.key)
        return (critic, actor), key, {"actor_loss": loss}


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
