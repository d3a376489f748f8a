"""Twin Delayed DDPG and DDPG with prioritized experience replay."""

import torch as th
from stable_baselines3 import DDPG, TD3

from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.off_policy import PrioritizedOffPolicyMixin, frozen, minimise, polyak_update, weighted_mean


class PERTD3(PrioritizedOffPolicyMixin, TD3):
    """
    Twin Delayed DDPG (TD3, arXiv 1802.09477) with prioritized experience replay (arXiv 1511.05952).

    Constructor, policies and options are those of ``stable_baselines3.TD3``; ``replay_buffer_kwargs`` configures the
    prioritized buffer. The critics' loss is weighted, the actor's is not. The priority of a transition comes from the absolute
    TD error, mean over the twin critics. On MuJoCo, plain PER did not help TD3, and LAP and PAL did (Fujimoto et al.
    2020): ``replay_buffer_kwargs=dict(scheme="lap")``.
    """

    has_actor = True

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.actor.optimizer, self.critic.optimizer]

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            # Target policy smoothing.
            noise = th.empty_like(batch.actions).normal_(0, self.target_policy_noise)
            noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
            next_actions = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
            next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
            target_q = self._td_target(batch, next_q.min(dim=1, keepdim=True).values)
        td_errors = th.cat([target_q - q for q in self.critic(batch.observations, batch.actions)], dim=1)
        return td_errors.square(), td_errors

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        critic_loss, td_errors = self._value_loss(batch)
        minimise(critic_loss, self.critic.optimizer)
        if self._n_updates % self.policy_delay != 0:
            return td_errors, {"critic_loss": critic_loss}

        observations, weights = self._actor_batch(batch)
        actions = self.actor(observations)
        with frozen(self.critic.optimizer):
            actor_loss = -weighted_mean(self.critic.q1_forward(observations, actions), weights)
        minimise(actor_loss, self.actor.optimizer)
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        return td_errors, {"critic_loss": critic_loss, "actor_loss": actor_loss}


class PERDDPG(PERTD3, DDPG):
    """
    Deep Deterministic Policy Gradient (DDPG, arXiv 1509.02971) with prioritized experience replay (arXiv 1511.05952).

    Constructor, policies and options are those of ``stable_baselines3.DDPG``, which is TD3 with one critic, without delay
    and without target smoothing; see :class:`PERTD3`.
    """
