"""Quantile Regression DQN with prioritized experience replay."""

import torch as th
from sb3_contrib import QRDQN

from sb3_per.algorithms.dqn import DeepQMixin
from sb3_per.algorithms.losses import pairwise_quantile_huber_loss
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERQRDQN(DeepQMixin, QRDQN):
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

    has_scalar_td_loss = False

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_quantiles = self.quantile_net_target(batch.next_observations)  # (batch_size, n_quantiles, n_actions)
            next_actions = next_quantiles.mean(dim=1).argmax(dim=1)
            targets = self._td_target(batch, _of_actions(next_quantiles, next_actions))
        quantiles = _of_actions(self.quantile_net(batch.observations), batch.actions.long().squeeze(dim=1))
        losses = pairwise_quantile_huber_loss(quantiles, targets).sum(dim=1).mean(dim=1, keepdim=True)
        return losses, (targets.mean(dim=1) - quantiles.mean(dim=1)).unsqueeze(dim=1)


def _of_actions(quantiles: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """
    Select the quantiles of actions.

    :param quantiles: quantiles of all actions, shape (batch_size, n_quantiles, n_actions)
    :param actions: integers of shape (batch_size,)
    :return: shape (batch_size, n_quantiles)
    """
    return quantiles.gather(dim=2, index=actions.view(-1, 1, 1).expand(-1, quantiles.shape[1], 1)).squeeze(dim=2)
