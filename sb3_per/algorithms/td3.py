"""Twin Delayed DDPG and DDPG with prioritized experience replay."""

import torch as th
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.utils import polyak_update

from sb3_per.algorithms.torch_loop import PrioritizedOffPolicyMixin, minimize, td_target
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PERTD3(PrioritizedOffPolicyMixin, TD3):
    """
    Twin Delayed DDPG (TD3, arXiv 1802.09477) with prioritized experience replay (PER, arXiv 1511.05952).

    Use it for continuous actions with a deterministic actor. Fujimoto et al. (2020, arXiv 2007.06049) report returns above
    those of TD3 with LAP and PAL on four of five MuJoCo tasks after a million steps, and with plain PER on two. In our runs
    of 100,000 steps on HalfCheetah, none of the three could be told from TD3.

    The critics' loss is weighted, the actor's is not. The priority of a transition comes from its absolute TD error: the mean
    over the twin critics, or the maximum with LAP and PAL.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``kappa``, ``actor_batch`` and others. All other arguments are those of ``stable_baselines3.TD3``, with the
    same defaults.

    ::

        model = PERTD3("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap", alpha=0.4, kappa=1.0))
        model.learn(10_000)
    """

    takes_actions = "continuous"
    class_for_other_actions = "PERDQN"

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.actor.optimizer, self.critic.optimizer]

    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute the targets of the critics, with target policy smoothing. The caller records no gradients.

        :param batch: drawn transitions
        :return: targets, shape (batch_size, 1)
        """
        # Target policy smoothing (equation 14).
        noise = th.empty_like(batch.actions).normal_(0, self.target_policy_noise)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        next_actions = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
        # The smaller of two targets, against overestimation (equation 10).
        next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
        return td_target(batch, self.gamma, next_q.min(dim=1, keepdim=True).values)

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            target_q = self._target(batch)
        td_errors = th.cat([target_q - q for q in self.critic(batch.observations, batch.actions)], dim=1)
        return td_errors.square(), td_errors

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        # Critics: the scheme sums the losses over the critics, and takes their weighted mean over the batch.
        losses, td_errors = self._critic_losses(batch)
        critic_loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(critic_loss, self.critic.optimizer)
        if self._n_updates % self.policy_delay != 0:
            return td_errors, {"critic_loss": critic_loss}

        # Actor, less often than the critics.
        observations = self._actor_observations(batch)
        actor_loss = -self.critic.q1_forward(observations, self.actor(observations)).mean()
        minimize(actor_loss, self.actor.optimizer, through=self.critic.optimizer)

        # Target networks.
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        return td_errors, {"critic_loss": critic_loss, "actor_loss": actor_loss}


class PERDDPG(PERTD3, DDPG):
    """
    Deep Deterministic Policy Gradient (DDPG, arXiv 1509.02971) with prioritized experience replay (PER, arXiv 1511.05952).

    It is TD3 with one critic, without delay and without target smoothing. Use it to compare with older results;
    :class:`PERTD3` is more stable.

    The critic's loss is weighted, the actor's is not. The priority of a transition comes from its absolute TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``actor_batch`` and others. All other arguments are those of ``stable_baselines3.DDPG``, with
    the same defaults.

    ::

        model = PERDDPG("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
        model.learn(10_000)
    """
