"""
Prioritized replay for an off-policy algorithm of your own: here DQN with Munchausen rewards (arXiv 2007.14430), which adds the
scaled log-policy to the reward and learns a soft value.

    python examples/own_algorithm.py
"""

import torch as th
from stable_baselines3 import DQN

from sb3_per import PrioritizedOffPolicyMixin, PrioritizedReplayBufferSamples
from sb3_per.off_policy import minimise


class PERMunchausenDQN(PrioritizedOffPolicyMixin, DQN):
    """The mixin brings the loop, the buffer and the checkpoints; the algorithm its optimizers, TD errors and gradient step."""

    temperature, scale = 0.03, 0.9

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        actions = batch.actions.long()
        with th.no_grad():
            log_policy = th.log_softmax(self.q_net_target(batch.observations) / self.temperature, dim=1)
            bonus = self.scale * (self.temperature * log_policy.gather(1, actions)).clamp(min=-1.0)
            next_q = self.q_net_target(batch.next_observations)
            soft_value = self.temperature * th.logsumexp(next_q / self.temperature, dim=1, keepdim=True)
            target_q = self._td_target(batch, soft_value) + bonus
        td_errors = target_q - self.q_net(batch.observations).gather(1, actions)
        return 0.5 * td_errors.square(), td_errors

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        loss, td_errors = self._value_loss(batch)
        minimise(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}


model = PERMunchausenDQN("MlpPolicy", "CartPole-v1", learning_rate=1e-3, learning_starts=500, verbose=1)
model.learn(2_000, log_interval=20)
