"""Soft Actor-Critic with prioritized experience replay. TQC shares its gradient step."""

from typing import Any

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update

from sb3_per.algorithms.base import GradientStep, PrioritizedOffPolicyMixin
from sb3_per.algorithms.optimizers import minimise
from sb3_per.buffers import PrioritizedReplayBufferSamples


class EntropyRegularizedMixin(PrioritizedOffPolicyMixin):
    """
    Update an algorithm with a stochastic actor and an entropy coefficient: SAC, TQC or CrossQ.

    SAC and TQC share :meth:`_gradient_step`, CrossQ has its own. SAC and CrossQ share :meth:`_policy_value`.
    """

    # Attributes of the stock algorithm.
    actor: Any
    critic: Any
    critic_target: Any
    batch_norm_stats: Any
    batch_norm_stats_target: Any
    target_update_interval: Any
    log_ent_coef: Any
    ent_coef_tensor: th.Tensor
    ent_coef_optimizer: Any
    target_entropy: Any

    def _optimizers(self) -> list[th.optim.Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        return optimizers

    def _policy_value(self, observations: Any, actions: th.Tensor) -> th.Tensor:
        """
        Compute the value that the actor maximises: the least estimate of the critics.

        :param observations: observations that the actor learns from
        :param actions: actions of the current policy there, with gradient
        :return: values, shape (batch_size, 1)
        """
        return th.cat(self.critic(observations, actions), dim=1).min(dim=1, keepdim=True).values

    def _current_actions(self, observations: Any) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose actions with the current policy.

        :param observations: observations that the actor learns from
        :return: actions of the current policy there, and their log-probability, shape (batch_size, 1), both with gradient
        """
        actions, log_prob = self.actor.action_log_prob(observations)
        return actions, log_prob.reshape(-1, 1)

    def _gradient_step(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> GradientStep:
        if self.use_sde:
            # log_std has changed since the last gradient step.
            self.actor.reset_noise()
        observations, weights = self._actor_batch(batch)
        actions_pi, log_prob = self._current_actions(observations)
        critic_loss, td_errors = self._value_loss(batch)
        minimise(critic_loss, self.critic.optimizer)

        metrics = self._update_actor(observations, weights, actions_pi, log_prob)
        if gradient_step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return td_errors, {**metrics, "critic_loss": critic_loss}

    def _update_actor(
        self, observations: Any, weights: th.Tensor | float, actions: th.Tensor, log_prob: th.Tensor
    ) -> dict[str, th.Tensor]:
        """
        Update the entropy coefficient, unless it is fixed (arXiv 1812.05905, equation 18), and the actor.

        :param observations: observations that the actor learns from
        :param weights: their weights
        :param actions: actions of the current policy there
        :param log_prob: log-probability of these actions, shape (batch_size, 1)
        :return: metrics to log
        """
        ent_coef = self._current_ent_coef()
        metrics = {"ent_coef": ent_coef}
        if self.ent_coef_optimizer is not None:
            ent_coef_loss = -(weights * (self.log_ent_coef * (log_prob + self.target_entropy).detach())).mean()
            minimise(ent_coef_loss, self.ent_coef_optimizer)
            metrics["ent_coef_loss"] = ent_coef_loss
        actor_loss = (weights * (ent_coef * log_prob - self._policy_value(observations, actions))).mean()
        minimise(actor_loss, self.actor.optimizer)
        return {**metrics, "actor_loss": actor_loss}

    def _next_actions(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose the next actions of the target.

        :param batch: drawn transitions
        :return: actions of the current policy at the next observations, and the entropy coefficient times their
            log-probability, shape (batch_size, 1)
        """
        next_actions, next_log_prob = self._current_actions(batch.next_observations)
        return next_actions, self._current_ent_coef() * next_log_prob

    def _current_ent_coef(self) -> th.Tensor:
        """Return the entropy coefficient, a scalar without gradient."""
        return self.ent_coef_tensor if self.log_ent_coef is None else th.exp(self.log_ent_coef.detach())


class PERSAC(EntropyRegularizedMixin, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions, in place of ``stable_baselines3.SAC``, where rewards or important states are rare. Where
    rewards are dense, compare with ``scheme="uniform"``, which makes SAC's own update.

    The critics' loss is weighted. The losses of the actor and of the entropy coefficient are not, unless ``actor_batch`` is
    ``"weighted"``. The priority of a transition comes from its absolute TD error, mean over the twin critics.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``actor_batch`` and others. All other arguments are those of
    ``stable_baselines3.SAC``, with the same defaults.

    ::

        model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)
    """

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_actions, entropy_cost = self._next_actions(batch)
            next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
            target_q = self._td_target(batch, next_q.min(dim=1, keepdim=True).values - entropy_cost)
        # Not of concatenated estimates: their gradient would come back strided and be summed in another order than SAC's.
        td_errors = th.cat([target_q - q for q in self.critic(batch.observations, batch.actions)], dim=1)
        return 0.5 * td_errors.square(), td_errors
