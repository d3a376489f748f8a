"""Soft Actor-Critic with prioritized experience replay."""

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update

from sb3_per.algorithms.torch_loop import (
    PrioritizedOffPolicyMixin,
    entropy_coefficient,
    minimize,
    optimizers_with_entropy,
    td_target,
    update_entropy_and_actor,
)
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERSAC(PrioritizedOffPolicyMixin, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions, in place of ``stable_baselines3.SAC``, where success is rare and many environments run in
    parallel. There, draws without weights (``beta=0``) gained most. Elsewhere, compare with
    ``scheme="uniform"``, which makes SAC's own update.

    The critics' loss is weighted. The losses of the actor and of the entropy coefficient are not. The priority of a transition
    comes from its absolute TD error, mean over the twin critics.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``stable_baselines3.SAC``, with the same defaults.

    ::

        model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    _optimizers = optimizers_with_entropy

    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute the targets of the critics: r + gamma (min Q'(s', a') - ent_coef log pi(a'|s')), arXiv 1812.05905, equations 2,
        3 and 6. The caller records no gradients.

        :param batch: drawn transitions
        :return: targets, shape (batch_size, 1)
        """
        next_actions, next_log_prob = self.actor.action_log_prob(batch.next_observations)
        next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
        next_values = next_q.min(dim=1, keepdim=True).values - entropy_coefficient(self) * next_log_prob.reshape(-1, 1)
        return td_target(batch, self.gamma, next_values)

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            target_q = self._target(batch)
        # One critic after the other: the gradient of concatenated estimates would be summed in another order than SAC's. TD
        # errors have a gradient for schemes whose loss is one of TD errors, such as LAP.
        td_errors = th.cat([target_q - q for q in self.critic(batch.observations, batch.actions)], dim=1)
        return 0.5 * td_errors.square(), td_errors

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        if self.use_sde:
            self.actor.reset_noise()  # log_std has changed since the last gradient step
        # As in SAC, draw these actions before the next actions of the target: the order decides the random numbers.
        observations = self._actor_observations(batch)
        actions, log_prob = self.actor.action_log_prob(observations)
        log_prob = log_prob.reshape(-1, 1)
        ent_coef = entropy_coefficient(self)

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        losses, td_errors = self._critic_losses(batch)
        critic_loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(critic_loss, self.critic.optimizer)
        metrics = {"ent_coef": ent_coef, "critic_loss": critic_loss}

        # Entropy coefficient and actor, which maximizes the smallest value.
        q = th.cat(self.critic(observations, actions), dim=1).min(dim=1, keepdim=True).values
        metrics.update(update_entropy_and_actor(self, ent_coef, log_prob, q))

        # Target networks.
        if gradient_step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)  # copies them, as SAC does
        return td_errors, metrics
