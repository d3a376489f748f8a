"""Truncated Quantile Critics with prioritized experience replay."""

from typing import Any

import torch as th
from sb3_contrib import TQC

from sb3_per.algorithms.losses import pairwise_quantile_huber_loss
from sb3_per.algorithms.sac import EntropyRegularizedMixin
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERTQC(EntropyRegularizedMixin, TQC):
    """
    Truncated Quantile Critics (TQC, arXiv 2005.04269) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions. It is SAC with critics that learn distributions, and drops their largest quantiles against
    overestimation.

    The critics' quantile Huber loss is weighted. The losses of the actor and of the entropy coefficient are not, unless
    ``actor_batch`` is ``"weighted"``. The priority of a transition comes from the absolute difference of expected values,
    ``|mean of the target quantiles - mean of the current quantiles|``, mean over the critics. LAP and PAL are refused, because
    they replace the loss of a scalar TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``sb3_contrib.TQC``, with the same defaults.

    ::

        model = PERTQC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    has_scalar_td_loss = False

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_actions, entropy_cost = self._next_actions(batch)
            next_quantiles = self.critic_target(batch.next_observations, next_actions).flatten(start_dim=1)
            # Pool the critics and drop the largest quantiles, against overestimation.
            n_kept = next_quantiles.shape[1] - self.top_quantiles_to_drop_per_net * self.critic.n_critics
            kept = next_quantiles.sort(dim=1).values[:, :n_kept]
            targets = self._td_target(batch, kept - entropy_cost).unsqueeze(dim=1)
        quantiles = self.critic(batch.observations, batch.actions)  # (batch_size, n_critics, n_quantiles)
        losses = pairwise_quantile_huber_loss(quantiles, targets).mean(dim=(1, 2, 3)).unsqueeze(dim=1)
        return losses, targets.mean(dim=2) - quantiles.mean(dim=2)

    def _policy_value(self, observations: Any, actions: th.Tensor) -> th.Tensor:
        return th.mean(self.critic(observations, actions), dim=2).mean(dim=1, keepdim=True)
