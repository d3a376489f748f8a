"""Quantile Regression DQN with prioritized experience replay."""

import torch as th
from sb3_contrib import QRDQN

from sb3_per.algorithms.torch_loop import PrioritizedOffPolicyMixin, minimize, quantile_huber_losses, td_target
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERQRDQN(PrioritizedOffPolicyMixin, QRDQN):
    """
    Quantile Regression DQN (QR-DQN, arXiv 1710.10044) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for discrete actions, to learn the distribution of returns and not only its mean.

    The quantile Huber loss is weighted. The priority of a transition comes from the absolute difference of expected values,
    ``|mean of the target quantiles - mean of the current quantiles|``, because a quantile loss stays above 0 after learning.
    LAP and PAL are refused, because they replace the loss of a scalar TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end`` and others. All other arguments are those of ``sb3_contrib.QRDQN``, with the same
    defaults.

    ::

        model = PERQRDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="rank", beta_start=0.5))
        model.learn(10_000)
    """

    takes_actions = "discrete"
    class_for_other_actions = "PERSAC"
    has_scalar_td_loss = False
    has_actor = False

    def _optimizers(self) -> th.optim.Optimizer:
        return self.policy.optimizer

    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute the target quantiles. The caller records no gradients.

        :param batch: drawn transitions
        :return: targets, shape (batch_size, n_quantiles)
        """
        next_quantiles = self.quantile_net_target(batch.next_observations)  # (batch_size, n_quantiles, n_actions)
        next_actions = next_quantiles.mean(dim=1).argmax(dim=1)
        return td_target(batch, self.gamma, _quantiles_of(next_quantiles, next_actions))

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            targets = self._target(batch)
        actions = batch.actions.long().squeeze(dim=1)
        quantiles = _quantiles_of(self.quantile_net(batch.observations), actions)
        losses = quantile_huber_losses(quantiles, targets).sum(dim=1).mean(dim=1, keepdim=True)
        td_errors = targets.mean(dim=1) - quantiles.mean(dim=1)
        return losses, td_errors.unsqueeze(dim=1)

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        # sb3-contrib updates the target network in `_on_step`.
        losses, td_errors = self._critic_losses(batch)
        loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}


def _quantiles_of(quantiles: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """
    Select the quantiles of actions.

    :param quantiles: quantiles of all actions, shape (batch_size, n_quantiles, n_actions)
    :param actions: integers of shape (batch_size,)
    :return: shape (batch_size, n_quantiles)
    """
    index = actions.view(-1, 1, 1).expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(dim=2, index=index).squeeze(dim=2)
