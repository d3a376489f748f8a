"""Deep Q-Network of SBX with prioritized experience replay."""

from typing import Any

import jax.numpy as jnp
import optax
from sbx import DQN

from sb3_per.sbx.base import Losses, PrioritizedJaxMixin, Step


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

    has_actor = False
    option_names = (*PrioritizedJaxMixin.option_names, "double_q")

    def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any):
        self.double_q = double_q
        super().__init__(*args, **kwargs)

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        (critic,), batch = step.networks, step.batch
        next_q = critic.apply_fn(critic.target_params, batch.next_observations)
        choosing_q = critic.apply_fn(critic.params, batch.next_observations) if step.settings["double_q"] else next_q
        next_actions = choosing_q.argmax(axis=1, keepdims=True)
        target_q = batch.targets(jnp.take_along_axis(next_q, next_actions, axis=1))
        q = jnp.take_along_axis(critic.apply_fn(params[0], batch.observations), batch.actions, axis=1)
        return Losses(optax.huber_loss(q, target_q), target_q - q, step.key, {"qf_mean_value": q.mean()})
