"""Deep Q-Network with prioritized experience replay."""

from typing import Any

import torch as th
from stable_baselines3 import DQN
from torch.nn import functional as F

from sb3_per.algorithms.signatures import shows_arguments_of
from sb3_per.algorithms.torch_loop import PrioritizedOffPolicyMixin, minimize, td_target
from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.utils.checks import FLAG, check_argument


class PERDQN(PrioritizedOffPolicyMixin, DQN):
    """
    Deep Q-Network (DQN, arXiv 1312.5602) with prioritized experience replay (PER, arXiv 1511.05952), and optionally Double
    Q-learning (arXiv 1509.06461).

    Use it for discrete actions, above all where rewards are rare: PER was made for DQN on Atari. With HER
    (``replay_buffer_class=HerReplayBuffer``), the default weights slowed learning down on BitFlipping;
    ``scheme="lap"`` or no weights (``beta=0``) did not.

    The loss is DQN's smooth L1 loss times the importance-sampling weight. The priority of a transition comes from its
    absolute TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``frames`` and others.

    ::

        model = PERDQN("MlpPolicy", "CartPole-v1", double_q=True, replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)

    :param args: arguments of ``stable_baselines3.DQN``, with the same defaults
    :param double_q: the online network chooses the next action, the target network values it
    :param kwargs: keyword arguments of ``stable_baselines3.DQN``
    """

    takes_actions = "discrete"
    class_for_other_actions = "PERSAC"
    has_actor = False

    @shows_arguments_of(DQN.__init__)
    def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any):
        self.double_q = double_q
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        check_argument("double_q", self.double_q, FLAG)  # `load` may have set it, too
        super()._setup_model()

    def _optimizers(self) -> th.optim.Optimizer:
        return self.policy.optimizer

    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute the targets of the Q-network. The caller records no gradients.

        :param batch: drawn transitions
        :return: targets, shape (batch_size, 1)
        """
        next_q = self.q_net_target(batch.next_observations)
        if self.double_q:
            next_actions = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
            next_values = next_q.gather(dim=1, index=next_actions)
        else:
            next_values = next_q.max(dim=1, keepdim=True).values
        return self._target_from(batch, next_values)

    def _target_from(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        """Compute the targets from values of the next observations. The recurrent class may rescale both."""
        return td_target(batch, self.gamma, next_values)

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            target_q = self._target(batch)
        q = self.q_net(batch.observations).gather(dim=1, index=batch.actions.long())
        return F.smooth_l1_loss(q, target_q, reduction="none"), target_q - q

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        # SB3 updates the target network in `_on_step`.
        losses, td_errors = self._critic_losses(batch)
        loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}
