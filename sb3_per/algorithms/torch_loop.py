"""
The training loop for networks in PyTorch, and functions to write an update with.

Write the mixin left of the stock algorithm: ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``. The algorithm implements
``_optimizers``, ``_critic_losses`` and ``_update``.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from torch.nn import functional as F

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.metrics import Recorded, record, weight_metrics
from sb3_per.buffers import PrioritizedReplayBufferSamples

# Optimizers whose steps of all parameters together are rounded otherwise, by up to 6e-8.
_INEXACT_NAMES = ("NAdam", "RAdam", "ASGD", "Adafactor")  # the last one since PyTorch 2.5
_INEXACT_FOREACH = tuple(getattr(th.optim, name) for name in _INEXACT_NAMES if hasattr(th.optim, name))


class PrioritizedOffPolicyMixin(PrioritizedAlgorithm):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    Write it left of the stock algorithm. Constructor, buffer and errors are those of
    :class:`~sb3_per.algorithms.base.PrioritizedAlgorithm`.
    """

    # ---- methods that an algorithm implements

    def _optimizers(self) -> list[th.optim.Optimizer] | th.optim.Optimizer:
        """
        Return the optimizers whose learning rate follows the schedule.

        :return: what the stock algorithm passes to ``_update_learning_rate``: a list of optimizers, or a single one
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement _optimizers(), which returns what its stock class passes to "
            "_update_learning_rate(), e.g. [self.policy.optimizer]"
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
        recorded: Recorded = defaultdict(list)
        with foreach_enabled(optimizers):
            for gradient_step in range(gradient_steps):
                self._n_updates += 1
                batch = self._draw(batch_size, gradient_step, gradient_steps)
                td_errors, metrics = self._update(batch, gradient_step)
                self._update_priorities(batch, td_errors, recorded)
                record(recorded, metrics)
                # In float64: a user's buffer may give tensors of half precision, whose squares would overflow.
                record(recorded, weight_metrics(batch.weights.cpu().double().numpy()))
        self._log(recorded)

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
            return buffer.sample_observations(len(batch.weights), env=self.get_vec_normalize_env())
        return batch.observations


# ---- functions to write an update with


def td_target(batch: PrioritizedReplayBufferSamples, gamma: float, next_values: th.Tensor) -> th.Tensor:
    """
    Compute the targets of the critics: reward + discount * next value, or the reward alone at a terminal state.

    :param batch: drawn transitions; with n-step returns, it has discounts of its own
    :param gamma: discount factor of a single step
    :param next_values: values of the next observations, shape (batch_size, n)
    :return: targets, shape (batch_size, n)
    """
    discounts = gamma if batch.discounts is None else batch.discounts
    return batch.rewards + (1 - batch.dones) * discounts * next_values


def minimize(
    loss: th.Tensor,
    optimizer: th.optim.Optimizer,
    max_grad_norm: float | None = None,
    through: th.optim.Optimizer | None = None,
) -> None:
    """
    Take one step of an optimizer.

    :param loss: scalar
    :param optimizer: optimizer of the parameters to change. If all of them are frozen, nothing happens
    :param max_grad_norm: largest norm of the gradient; ``None``: no clipping
    :param through: optimizer of networks that the loss passes through and does not change, as the actor's loss passes through
        the critics. Their gradient, half of the backward pass, is left out unless this optimizer would keep it
    """
    clears_all = _clears_all_gradients(optimizer)
    trainable: list[th.Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if clears_all:
                parameter.grad = None  # what PyTorch's `zero_grad` does; its hooks take 3% of a gradient step of DQN
            if parameter.requires_grad:
                trainable.append(parameter)
    if not trainable:  # a user may freeze a network
        return
    if not clears_all:
        optimizer.zero_grad()
    is_cleared = through is not None and _clears_all_gradients(through)
    loss.backward(inputs=trainable if is_cleared else None)
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(trainable, max_grad_norm)
    optimizer.step()


def _clears_all_gradients(optimizer: th.optim.Optimizer) -> bool:
    """
    Tell whether ``zero_grad`` is PyTorch's own. A user's may keep gradients, e.g. to add up those of several losses.

    :param optimizer: any optimizer
    """
    return getattr(optimizer.zero_grad, "__func__", None) is th.optim.Optimizer.zero_grad


def optimizers_with_entropy(model: Any) -> list[th.optim.Optimizer]:
    """
    List the optimizers of SAC, TQC or CrossQ.

    :param model: the algorithm
    :return: those of actor and critics, and that of the entropy coefficient if it is learned
    """
    optimizers = [model.actor.optimizer, model.critic.optimizer]
    if model.ent_coef_optimizer is not None:
        optimizers.append(model.ent_coef_optimizer)
    return optimizers


def entropy_coefficient(model: Any) -> th.Tensor:
    """
    Return the entropy coefficient of SAC or TQC: learned or fixed. A script may fix a learned one: it takes the optimizer away
    and sets ``ent_coef_tensor``.

    :param model: the algorithm
    :return: a scalar without gradient
    """
    fixed: th.Tensor | None = getattr(model, "ent_coef_tensor", None)
    # Actors have no optimizers, and the learned coefficient.
    if model.log_ent_coef is None or (model.ent_coef_optimizer is None and fixed is not None):
        assert fixed is not None
        return fixed
    return th.exp(model.log_ent_coef.detach())


def update_entropy_and_actor(model: Any, ent_coef: th.Tensor, log_prob: th.Tensor, q: th.Tensor) -> dict[str, th.Tensor]:
    """
    Update the entropy coefficient of SAC, TQC or CrossQ if it is learned (arXiv 1812.05905, equation 18), and then the actor
    (equation 7).

    :param model: the algorithm
    :param ent_coef: entropy coefficient from before its update, a scalar without gradient
    :param log_prob: log probabilities of the actor's own actions, shape (batch_size, 1)
    :param q: values that the updated critics give these actions, shape (batch_size, 1)
    :return: losses to log
    """
    metrics = {}
    if model.ent_coef_optimizer is not None and model.log_ent_coef is not None:
        ent_coef_loss = -(model.log_ent_coef * (log_prob + model.target_entropy).detach()).mean()
        minimize(ent_coef_loss, model.ent_coef_optimizer)
        metrics["ent_coef_loss"] = ent_coef_loss
    actor_loss = (ent_coef * log_prob - q).mean()
    minimize(actor_loss, model.actor.optimizer, through=model.critic.optimizer)
    metrics["actor_loss"] = actor_loss
    return metrics


def quantile_huber_losses(quantiles: th.Tensor, target_quantiles: th.Tensor) -> th.Tensor:
    """
    Compute the quantile Huber loss of every pair of an estimate and a target, with threshold 1 (arXiv 1710.10044, equation
    10).

    :param quantiles: estimates at the midpoints of equal probabilities, shape (..., n_quantiles)
    :param target_quantiles: targets, shape (..., n_target_quantiles)
    :return: losses of all pairs, shape (..., n_quantiles, n_target_quantiles)
    """
    differences = target_quantiles.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = F.huber_loss(differences, th.zeros_like(differences), reduction="none")
    n_quantiles = quantiles.shape[-1]
    midpoints = (th.arange(n_quantiles, device=quantiles.device) + 0.5) / n_quantiles
    is_overestimate = (differences.detach() < 0).float()
    return (midpoints.unsqueeze(-1) - is_overestimate).abs() * huber


@contextmanager
def foreach_enabled(optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> Iterator[None]:
    """
    Set ``foreach=True`` within a ``with`` block, so that an optimizer steps all of its parameters in a few calls. On a GPU
    that is PyTorch's default; on a CPU it takes less time, too. The results are the same to the bit: optimizers that would
    round otherwise do not change. What a user has set stays.

    :param optimizers: optimizers to change
    :return: context of the steps. After it, the optimizers are as before, so a zip holds those of the stock algorithm
    """
    undecided: list[dict[str, Any]] = []
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        if isinstance(optimizer, _INEXACT_FOREACH):
            continue
        for group in optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                undecided.append(group)
    for group in undecided:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in undecided:
            group["foreach"] = None
