"""Deep Q-Network with prioritized experience replay."""

from typing import Any

import torch as th
from stable_baselines3 import DQN
from torch.nn import functional as F

from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.off_policy import PrioritizedOffPolicyMixin, minimise
from sb3_per.signatures import extends_signature


class DeepQMixin(PrioritizedOffPolicyMixin):
    """What algorithms without an actor have in common (DQN, QR-DQN): their values are all that they learn."""

    # Attribute of the algorithms that this mixin stands left of.
    max_grad_norm: Any

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        loss, td_errors = self._value_loss(batch)
        minimise(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}


class PERDQN(DeepQMixin, DQN):
    """
    Deep Q-Network (DQN) with prioritized experience replay (arXiv 1511.05952), and optionally Double Q-learning.

    Constructor, policies and options are those of ``stable_baselines3.DQN``; ``replay_buffer_kwargs`` configures the
    prioritized buffer. The priority of a transition comes from its absolute TD error.

    :param args: arguments of ``stable_baselines3.DQN``
    :param double_q: the online network chooses the next action, the target network values it (arXiv 1509.06461)
    :param kwargs: keyword arguments of ``stable_baselines3.DQN``
    """

    @extends_signature(DQN.__init__)
    def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any):
        self.double_q = double_q
        super().__init__(*args, **kwargs)

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_q = self.q_net_target(batch.next_observations)
            if self.double_q:
                next_actions = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
                next_value = next_q.gather(dim=1, index=next_actions)
            else:
                next_value = next_q.max(dim=1, keepdim=True).values
            target_q = self._td_target(batch, next_value)
        q = self.q_net(batch.observations).gather(dim=1, index=batch.actions.long())
        return F.smooth_l1_loss(q, target_q, reduction="none"), target_q - q
