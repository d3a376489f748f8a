"""Deep Q-Network of SBX with prioritized experience replay."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from sbx import DQN

from sb3_per.algorithms.signatures import shows_arguments_of
from sb3_per.sbx.jax_loop import Options, PrioritizedJaxMixin, UpdateInputs, UpdateResult
from sb3_per.utils.checks import FLAG, check_argument


@dataclass(frozen=True)
class DQNOptions(Options):
    """
    Options of DQN.

    :param double_q: whether the online network chooses the next action
    """

    double_q: bool


# SBX's DQN has the arguments of `train` in another order than all others; SB3 gives them by name.
class PERDQN(PrioritizedJaxMixin, DQN):  # type: ignore[misc]
    """
    Deep Q-Network (DQN, arXiv 1312.5602) of SBX with prioritized experience replay (PER, arXiv 1511.05952), and optionally
    Double Q-learning (arXiv 1509.06461).

    Use it in place of ``sbx.DQN``, or of :class:`sb3_per.PERDQN` to train in less time. The loss is DQN's Huber loss times the
    importance-sampling weight. The priority of a transition comes from its absolute TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`.

    ::

        model = PERDQN("MlpPolicy", "CartPole-v1", double_q=True, replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)

    :param args: arguments of ``sbx.DQN``, with the same defaults
    :param double_q: the online network chooses the next action, the target network values it
    :param kwargs: keyword arguments of ``sbx.DQN``
    """

    takes_actions = "discrete"
    class_for_other_actions = "PERSAC"
    has_actor = False
    actor_states = ()

    @shows_arguments_of(DQN.__init__)
    def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any):
        self.double_q = double_q
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        check_argument("double_q", self.double_q, FLAG)  # `load` may have set it, too
        super()._setup_model()

    def _networks(self) -> tuple[Any]:
        return (self.policy.qf_state,)

    def _set_networks(self, networks: tuple[Any]) -> None:
        (self.policy.qf_state,) = networks

    def _options(self) -> DQNOptions:
        return DQNOptions(self.replay_buffer.scheme, self.policy_delay, self.double_q)

    @classmethod
    def _target(cls, inputs: UpdateInputs) -> jax.Array:
        """
        Compute the targets of the Q-network.

        :param inputs: networks and batch
        :return: targets, shape (batch_size, 1)
        """
        (critic,) = inputs.networks
        batch = inputs.batch
        next_q = critic.apply_fn(critic.target_params, batch.next_observations)
        choosing_q = next_q
        if inputs.options.double_q:
            choosing_q = critic.apply_fn(critic.params, batch.next_observations)
        next_actions = choosing_q.argmax(axis=1, keepdims=True)
        targets: jax.Array = batch.targets(jnp.take_along_axis(next_q, next_actions, axis=1))
        return targets

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        # SBX updates the target network in `_on_step`.
        (critic,) = inputs.networks
        batch = inputs.batch
        target_q = cls._target(inputs)

        def critic_loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q = jnp.take_along_axis(critic.apply_fn(params, batch.observations), batch.actions, axis=1)
            td_errors = target_q - q
            loss = inputs.options.scheme.jax_loss(optax.huber_loss(q, target_q), td_errors, batch.weights)
            return loss, (td_errors, q.mean())

        (loss, (td_errors, mean_q)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(critic.params)
        critic = critic.apply_gradients(grads=gradient)
        return UpdateResult((critic,), inputs.key, td_errors, {"critic_loss": loss, "qf_mean_value": mean_q}, {})
