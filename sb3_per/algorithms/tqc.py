"""Truncated Quantile Critics with prioritized experience replay."""

import torch as th
from sb3_contrib import TQC
from stable_baselines3.common.utils import polyak_update

from sb3_per.algorithms.torch_loop import (
    PrioritizedOffPolicyMixin,
    entropy_coefficient,
    minimize,
    optimizers_with_entropy,
    quantile_huber_losses,
    td_target,
    update_entropy_and_actor,
)
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERTQC(PrioritizedOffPolicyMixin, TQC):
    """
    Truncated Quantile Critics (TQC, arXiv 2005.04269) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions. It is SAC with critics that learn distributions, and drops their largest quantiles against
    overestimation.

    The critics' quantile Huber loss is weighted. The losses of the actor and of the entropy coefficient are not. The priority
    of a transition comes from the absolute difference of expected values, ``|mean of the target quantiles - mean of the
    current quantiles|``, mean over the critics. LAP and PAL are refused, because they replace the loss of a scalar TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``sb3_contrib.TQC``, with the same defaults.

    ::

        model = PERTQC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"
    has_scalar_td_loss = False

    _optimizers = optimizers_with_entropy

    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute the target quantiles of the critics. The caller records no gradients.

        :param batch: drawn transitions
        :return: targets, shape (batch_size, n_target_quantiles)
        """
        next_actions, next_log_prob = self.actor.action_log_prob(batch.next_observations)
        next_quantiles = self.critic_target(batch.next_observations, next_actions).flatten(start_dim=1)
        # Pool the critics and drop the largest quantiles, against overestimation (equation 12).
        n_kept = next_quantiles.shape[1] - self.top_quantiles_to_drop_per_net * self.critic.n_critics
        kept = next_quantiles.sort(dim=1).values[:, :n_kept]
        return td_target(batch, self.gamma, kept - entropy_coefficient(self) * next_log_prob.reshape(-1, 1))

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            targets = self._target(batch).unsqueeze(dim=1)  # the same for all critics
        quantiles = self.critic(batch.observations, batch.actions)  # (batch_size, n_critics, n_quantiles)
        losses = quantile_huber_losses(quantiles, targets).mean(dim=(1, 2, 3)).unsqueeze(dim=1)
        return losses, targets.mean(dim=2) - quantiles.mean(dim=2)

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        if self.use_sde:
            self.actor.reset_noise()  # log_std has changed since the last gradient step
        # As in TQC, draw these actions before the next actions of the target: the order decides the random numbers.
        observations = self._actor_observations(batch)
        actions, log_prob = self.actor.action_log_prob(observations)
        log_prob = log_prob.reshape(-1, 1)
        ent_coef = entropy_coefficient(self)

        # Critics: the scheme takes the weighted mean of their loss over the batch.
        losses, td_errors = self._critic_losses(batch)
        critic_loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(critic_loss, self.critic.optimizer)
        metrics = {"ent_coef": ent_coef, "critic_loss": critic_loss}

        # Entropy coefficient and actor, which maximizes the mean over critics and quantiles.
        q = self.critic(observations, actions).mean(dim=2).mean(dim=1, keepdim=True)
        metrics.update(update_entropy_and_actor(self, ent_coef, log_prob, q))

        # Target networks.
        if gradient_step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return td_errors, metrics
