"""Soft Actor-Critic with prioritized experience replay."""

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update

from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.off_policy import PrioritizedOffPolicyMixin


class PERSAC(PrioritizedOffPolicyMixin, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) with prioritized experience replay (arXiv 1511.05952).

    Constructor, policies and options are those of ``stable_baselines3.SAC``; ``replay_buffer_kwargs`` configures the
    prioritized buffer. The critics' loss is weighted, the actor's and the entropy coefficient's are not. The priority of a
    transition comes from the absolute TD error, mean over the twin critics.
    """

    def _optimizers(self) -> list[th.optim.Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer, self.ent_coef_optimizer]
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        if self.use_sde:
            # log_std has changed since the last gradient step.
            self.actor.reset_noise()
        actions_pi, log_prob = self.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)

        ent_coef, metrics = self._update_ent_coef(log_prob)

        with th.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(batch.next_observations)
            next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
            next_value = next_q.min(dim=1, keepdim=True).values - ent_coef * next_log_prob.reshape(-1, 1)
            discounts = self.gamma if batch.discounts is None else batch.discounts
            target_q = batch.rewards + (1 - batch.dones) * discounts * next_value

        q_values = self.critic(batch.observations, batch.actions)
        # Differences first: concatenated estimates would hand their gradient back strided, which is summed in another order.
        td_errors = th.cat([target_q - q for q in q_values], dim=1)
        critic_loss = self.replay_buffer.scheme.loss(0.5 * td_errors.square(), td_errors, batch.weights)
        self.critic.optimizer.zero_grad()
        critic_loss.backward()
        self.critic.optimizer.step()

        q_pi = th.cat(self.critic(batch.observations, actions_pi), dim=1)
        actor_loss = (ent_coef * log_prob - q_pi.min(dim=1, keepdim=True).values).mean()
        self.actor.optimizer.zero_grad()
        actor_loss.backward()
        self.actor.optimizer.step()

        if gradient_step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return td_errors, {**metrics, "critic_loss": critic_loss, "actor_loss": actor_loss}

    def _update_ent_coef(self, log_prob: th.Tensor) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        Entropy coefficient of this gradient step, and its own update if it is learned (arXiv 1812.05905, equation 18).

        :param log_prob: log-probability of the current policy's actions, shape (batch_size, 1)
        :return: the coefficient before the update, and what to log
        """
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {"ent_coef": self.ent_coef_tensor}
        assert isinstance(self.target_entropy, float)  # a string only before the model is set up
        ent_coef = self.log_ent_coef.detach().exp()
        ent_coef_loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
        self.ent_coef_optimizer.zero_grad()
        ent_coef_loss.backward()
        self.ent_coef_optimizer.step()
        return ent_coef, {"ent_coef": ent_coef, "ent_coef_loss": ent_coef_loss}
