"""
Prioritized replay for an off-policy algorithm of your own: here DQN with Munchausen rewards (arXiv 2007.14430), which adds the
scaled log-policy to the reward and learns a soft value.

    python examples/own_algorithm.py

A mean return of at least 200 after 30,000 steps; 500 is the largest. The last policy is not always the best one
(docs/benchmarks/recipes.md).
"""

import os
from typing import Any

import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PrioritizedOffPolicyMixin, PrioritizedReplayBufferSamples
from sb3_per.algorithms.torch_loop import minimize, td_target

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

# RL Zoo's for DQN, and 3 steps, for which td_target is there.
settings: dict[str, Any] = dict(
    n_steps=3, learning_rate=2.3e-3, batch_size=64, learning_starts=1_000, target_update_interval=10
)
settings |= dict(train_freq=256, gradient_steps=128, exploration_fraction=0.16, exploration_final_eps=0.04)


class PERMunchausenDQN(PrioritizedOffPolicyMixin, DQN):
    """The mixin brings the loop, the buffer and the checkpoints; the algorithm its optimizers, TD errors and gradient step."""

    has_actor = False  # the critic alone chooses actions
    temperature, scale = 0.03, 0.9

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        actions = batch.actions.long()
        with th.no_grad():
            log_policy = th.log_softmax(self.q_net_target(batch.observations) / self.temperature, dim=1)
            bonus = self.scale * (self.temperature * log_policy.gather(1, actions)).clamp(min=-1.0)
            next_q = self.q_net_target(batch.next_observations)
            soft_value = self.temperature * th.logsumexp(next_q / self.temperature, dim=1, keepdim=True)
            target_q = td_target(batch, self.gamma, soft_value) + bonus
        td_errors = target_q - self.q_net(batch.observations).gather(1, actions)
        return 0.5 * td_errors.square(), td_errors

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        losses, td_errors = self._critic_losses(batch)
        loss = self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)
        minimize(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}


model = PERMunchausenDQN("MlpPolicy", "CartPole-v1", **settings, verbose=1, seed=0)
model.learn(2_000 if os.environ.get("SB3_PER_SHORT") else 30_000, log_interval=20)
mean, std = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), n_eval_episodes=20)
print(f"mean return {mean:.1f} +/- {std:.1f} (500 is the largest)")
