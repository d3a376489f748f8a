"""CrossQ with prioritized experience replay."""

from typing import Any

import torch as th
from sb3_contrib import CrossQ

from sb3_per.algorithms.torch_loop import (
    PrioritizedOffPolicyMixin,
    minimize,
    optimizers_with_entropy,
    td_target,
    update_entropy_and_actor,
)
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERCrossQ(PrioritizedOffPolicyMixin, CrossQ):
    """
    CrossQ (arXiv 1902.05605) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions. It is SAC with batch normalization in place of target networks, and needs fewer steps.

    The critics' loss is weighted. The losses of the actor and of the entropy coefficient are not. The priority of a transition
    comes from its absolute TD error, mean over the twin critics. Statistics of batch normalization come from the drawn batch,
    unweighted.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``sb3_contrib.CrossQ``, with the same defaults.

    ::

        model = PERCrossQ("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    log_ent_coef: Any  # the stock class declares the type that it has before the model is set up

    _optimizers = optimizers_with_entropy

    def _entropy_coefficient(self) -> th.Tensor:
        """Return the entropy coefficient, a scalar without gradient. As in CrossQ, a learned one needs no optimizer."""
        return self.ent_coef_tensor if self.log_ent_coef is None else th.exp(self.log_ent_coef.detach())

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            self.actor.set_bn_training_mode(False)
            next_actions, next_log_prob = self.actor.action_log_prob(batch.next_observations)
        # There is no target network. Current and next observations pass the critics together, so that batch normalization
        # takes its statistics from both.
        both_observations = th.cat([batch.observations, batch.next_observations])
        both_actions = th.cat([batch.actions, next_actions])
        self.critic.set_bn_training_mode(True)
        q, next_q = th.cat(self.critic(both_observations, both_actions), dim=1).chunk(2)
        self.critic.set_bn_training_mode(False)
        with th.no_grad():
            next_values = next_q.min(dim=1, keepdim=True).values - self._entropy_coefficient() * next_log_prob.reshape(-1, 1)
            target_q = td_target(batch, self.gamma, next_values)
        td_errors = target_q - q
        return 0.5 * td_errors.square(), td_errors

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        if self.use_sde:
            self.actor.reset_noise()  # log_std has changed since the last gradient step
        ent_coef = self._entropy_coefficient()

        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        losses, td_errors = self._critic_losses(batch)
        critic_loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(critic_loss, self.critic.optimizer)
        metrics = {"ent_coef": ent_coef, "critic_loss": critic_loss}
        if self._n_updates % self.policy_delay != 0:
            return td_errors, metrics

        # Entropy coefficient and actor, less often than the critics.
        observations = self._actor_observations(batch)
        self.actor.set_bn_training_mode(True)
        actions, log_prob = self.actor.action_log_prob(observations)
        self.actor.set_bn_training_mode(False)
        log_prob = log_prob.reshape(-1, 1)
        q = th.cat(self.critic(observations, actions), dim=1).min(dim=1, keepdim=True).values
        metrics.update(update_entropy_and_actor(self, ent_coef, log_prob, q))
        return td_errors, metrics
