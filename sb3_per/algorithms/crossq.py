"""CrossQ with prioritized experience replay."""

import torch as th
from sb3_contrib import CrossQ

from sb3_per.algorithms.base import GradientStep
from sb3_per.algorithms.optimizers import minimise
from sb3_per.algorithms.sac import EntropyRegularizedMixin
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERCrossQ(EntropyRegularizedMixin, CrossQ):
    """
    CrossQ (arXiv 1902.05605) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions. It is SAC with batch normalization in place of target networks, and needs fewer steps.

    The critics' loss is weighted. The losses of the actor and of the entropy coefficient are not, unless ``actor_batch`` is
    ``"weighted"``. The priority of a transition comes from its absolute TD error, mean over the twin critics. Statistics of
    batch normalization come from the drawn batch, unweighted.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``sb3_contrib.CrossQ``, with the same defaults.

    ::

        model = PERCrossQ("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            self.actor.set_bn_training_mode(False)
            next_actions, entropy_cost = self._next_actions(batch)

        # There is no target network. Both halves pass the critic together, so that batch normalization sees the mixture of
        # current and next observations.
        all_obs = th.cat([batch.observations, batch.next_observations])
        all_actions = th.cat([batch.actions, next_actions])
        self.critic.set_bn_training_mode(True)
        all_q = th.cat(self.critic(all_obs, all_actions), dim=1)
        self.critic.set_bn_training_mode(False)
        q, next_q = all_q.chunk(2)
        with th.no_grad():
            target_q = self._td_target(batch, next_q.min(dim=1, keepdim=True).values - entropy_cost)
        td_errors = target_q - q
        return 0.5 * td_errors.square(), td_errors

    def _gradient_step(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> GradientStep:
        if self.use_sde:
            self.actor.reset_noise()
        critic_loss, td_errors = self._value_loss(batch)
        minimise(critic_loss, self.critic.optimizer)
        if self._n_updates % self.policy_delay != 0:
            return td_errors, {"critic_loss": critic_loss, "ent_coef": self._current_ent_coef()}

        observations, weights = self._actor_batch(batch)
        self.actor.set_bn_training_mode(True)
        actions_pi, log_prob = self._current_actions(observations)
        self.actor.set_bn_training_mode(False)
        metrics = self._update_actor(observations, weights, actions_pi, log_prob)
        return td_errors, {"critic_loss": critic_loss, **metrics}
