"""
The training loop of the prioritized algorithms of SB3 and sb3-contrib.

Write the mixin left of the stock algorithm: ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``. The algorithm implements
``_optimizers``, ``_value_losses`` and ``_gradient_step``.
"""

from typing import Any

import numpy as np
import torch as th

from sb3_per.algorithms.metrics import MeanMetrics
from sb3_per.algorithms.optimizers import use_fast_steps
from sb3_per.algorithms.shared import PrioritizedReplayMixin
from sb3_per.buffers import PrioritizedReplayBufferSamples

#: TD errors and metrics of an update, see :meth:`PrioritizedOffPolicyMixin._gradient_step`.
GradientStep = tuple[th.Tensor, dict[str, th.Tensor]]


class PrioritizedOffPolicyMixin(PrioritizedReplayMixin):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    The constructor is the stock algorithm's. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, and a buffer class of SB3 is replaced by its prioritized counterpart. ``replay_buffer_kwargs``
    configures the buffer, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`; ``n_steps`` and ``gamma`` reach it too.

    :raises TypeError: for an unknown keyword, or if the stock algorithm stands left of this class
    :raises ValueError: for any other ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` that contradicts the
        one in ``replay_buffer_kwargs``
    """

    # ---- methods that an algorithm implements

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """List the optimizers of the stock algorithm, whose learning rate follows the schedule."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement _optimizers(), which lists the optimizers whose learning rate follows the "
            "schedule, e.g. [self.policy.optimizer]"
        )

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the losses of the value networks. Only random generators and statistics of batch normalization change.

        :param batch: drawn transitions
        :return: the algorithm's own unreduced loss, shape (batch_size, n), and signed unweighted TD errors, target minus
            estimate, shape (batch_size, n_critics), both with gradient
        """
        raise NotImplementedError(f"{type(self).__name__} must implement _value_losses(), which returns losses and TD errors")

    def _gradient_step(self, batch: PrioritizedReplayBufferSamples, gradient_step: int) -> GradientStep:
        """
        Update the networks once. Take the loss of the value networks from :meth:`_value_loss`.

        :param batch: drawn transitions
        :param gradient_step: number of this step within the current call of :meth:`train`, from 0
        :return: signed unweighted TD errors of shape (batch_size, n_critics), on any device; and scalar tensors to log, e.g.
            ``{"critic_loss": loss}``. The log shows their means over the gradient steps
        """
        raise NotImplementedError

    # ---- methods that an algorithm may call

    def _value_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the loss of the value networks, weighted or replaced by the scheme.

        :param batch: drawn transitions
        :return: loss, a scalar, and the TD errors, shape (batch_size, n_critics)
        """
        losses, td_errors = self._value_losses(batch)
        return self.replay_buffer.scheme.loss(losses, td_errors, batch.weights), td_errors

    def _td_target(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        """
        Compute the targets of the value networks.

        :param batch: drawn transitions
        :param next_values: values of the next observations, shape (batch_size, n)
        :return: reward + discount * next value, or the reward alone at a terminal state, shape (batch_size, n)
        """
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_values

    def _actor_batch(self, batch: PrioritizedReplayBufferSamples) -> tuple[Any, th.Tensor | float]:
        """
        Choose the observations that the actor learns from, by the setting ``actor_batch``.

        The batch of the critics is full of large TD errors. The critics are wrong there, and so is their gradient for the
        actor (arXiv 2209.00532).

        :param batch: batch of the critics
        :return: observations, and weights of mean 1, shape (batch_size, 1), or 1.0 if all are equal
        """
        buffer = self.replay_buffer
        if buffer.settings.actor_batch == "uniform":
            return buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env), 1.0
        return batch.observations, 1.0

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute TD errors without an update, with the code of a gradient step. Only random generators change.

        :param batch: transitions, drawn or made by hand
        :return: signed TD errors without gradient, shape (batch_size, n_critics)
        """
        statistics = [(buffer, buffer.clone()) for buffer in self.policy.buffers()]
        with th.no_grad():
            td_errors = self._value_losses(batch)[1]
            for buffer, before in statistics:
                buffer.copy_(before)
        return td_errors

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
        use_fast_steps(optimizers)
        self._begin_training()
        metrics = MeanMetrics()
        for gradient_step in range(gradient_steps):
            self._n_updates += 1
            batch = self._draw(batch_size, gradient_step, gradient_steps)
            td_errors, of_step = self._gradient_step(batch, gradient_step)
            self._write_priorities(batch, td_errors, metrics)
            metrics.add({name: value.detach() for name, value in of_step.items()}, batch.weights)
        self._log_training(metrics)
