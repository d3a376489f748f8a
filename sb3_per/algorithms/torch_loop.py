"""
The training loop for networks in PyTorch.

Write the mixin left of the stock algorithm: ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``. The algorithm implements
``_optimizers``, ``_critic_losses`` and ``_update``.
"""

from typing import Any

import torch as th

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.metrics import MeanMetrics
from sb3_per.algorithms.updates import foreach_enabled
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PrioritizedOffPolicyMixin(PrioritizedAlgorithm):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    Write it left of the stock algorithm. Constructor, buffer and errors are those of
    :class:`~sb3_per.algorithms.base.PrioritizedAlgorithm`.
    """

    # ---- methods that an algorithm implements

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """List the optimizers of the stock algorithm, whose learning rate follows the schedule."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement _optimizers(), which lists the optimizers whose learning rate follows the "
            "schedule, e.g. [self.policy.optimizer]"
        )

    def _critic_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the losses of the critics. This updates nothing; only random generators and statistics of batch normalization
        may change.

        :param batch: drawn transitions
        :return: the algorithm's own loss without weights, shape (batch_size, n), and signed TD errors, target minus estimate,
            shape (batch_size, n_critics), both with gradient
        """
        raise NotImplementedError(f"{type(self).__name__} must implement _critic_losses(), which returns losses and TD errors")

    def _update(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        Update all networks once.

        :param batch: drawn transitions
        :param gradient_step: number of this step within the current call of :meth:`train`, from 0
        :return: TD errors of :meth:`_critic_losses`, on any device; and scalar tensors to log, e.g. ``{"critic_loss": loss}``.
            The log shows their means over the gradient steps, as ``train/critic_loss``
        """
        raise NotImplementedError(f"{type(self).__name__} must implement _update(), which updates the networks once")

    # ---- the loop

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Repeat: draw a batch, update the networks, update the priorities.

        :param gradient_steps: number of updates
        :param batch_size: number of transitions of an update; ``None``: the ``batch_size`` of the constructor
        """
        # Dropout and batch norm behave differently while training.
        self.policy.set_training_mode(True)
        optimizers = self._optimizers()
        self._update_learning_rate(optimizers)
        metrics = MeanMetrics()
        with foreach_enabled(optimizers):
            for gradient_step in range(gradient_steps):
                self._n_updates += 1
                batch = self._draw(batch_size, gradient_step, gradient_steps)
                td_errors, step_metrics = self._update(batch, gradient_step)
                self._update_priorities(batch, td_errors, metrics)
                metrics.add(step_metrics, batch.weights)
        self._log(metrics)

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute TD errors without an update, with the code of a gradient step. Only random generators change.

        :param batch: transitions, drawn or made by hand
        :return: signed TD errors without gradient, shape (batch_size, n_critics)
        """
        # Training mode and forward passes change modes of layers and statistics of batch normalization: restore both.
        statistics = [(buffer, buffer.clone()) for buffer in self.policy.buffers()]
        modes = [(module, module.training) for module in self.policy.modules()]
        with th.no_grad():
            try:
                self.policy.set_training_mode(True)
                _, td_errors = self._critic_losses(batch)
            finally:
                for buffer, before in statistics:
                    buffer.copy_(before)
                for module, was_training in modes:
                    module.training = was_training
        return td_errors

    def _actor_observations(self, batch: PrioritizedReplayBufferSamples) -> Any:
        """
        Choose the observations that the actor learns from: those of the batch, or with ``actor_batch="uniform"`` as many that
        are drawn uniformly.

        A prioritized batch is full of large TD errors. The critics are wrong there, and so is the gradient that they give the
        actor (arXiv 2209.00532).

        :param batch: batch of the critics
        :return: observations, as many as in the batch
        """
        buffer = self.replay_buffer
        if buffer.settings.actor_batch == "uniform":
            return buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env)
        return batch.observations
