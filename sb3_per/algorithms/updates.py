"""Functions that the updates of several algorithms are written with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from torch.nn import functional as F

from sb3_per.buffers import PrioritizedReplayBufferSamples

# Optimizers whose steps of all parameters together are rounded otherwise, by up to 6e-8.
_INEXACT_NAMES = ("NAdam", "RAdam", "ASGD", "Adafactor")  # the last one since PyTorch 2.5
_INEXACT_FOREACH = tuple(getattr(th.optim, name) for name in _INEXACT_NAMES if hasattr(th.optim, name))


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
    loss: th.Tensor, optimizer: th.optim.Optimizer, max_grad_norm: float | None = None, only_own: bool = True
) -> None:
    """
    Take one step of an optimizer.

    :param loss: scalar
    :param optimizer: optimizer of the parameters to change. If all of them are frozen, nothing happens
    :param max_grad_norm: largest norm of the gradient; ``None``: no clipping
    :param only_own: whether to compute the gradient for the parameters of the optimizer alone. The actor's loss passes through
        the critics, whose gradient would take half of the backward pass, and is not used. ``False`` takes less time where the
        loss depends on no other parameters
    """
    trainable: list[th.Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None  # what `optimizer.zero_grad()` does; its hooks take 3% of a gradient step of DQN
            if parameter.requires_grad:
                trainable.append(parameter)
    if not trainable:  # a user may freeze a network
        return
    loss.backward(inputs=trainable if only_own else None)
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(trainable, max_grad_norm)
    optimizer.step()


@contextmanager
def foreach_enabled(optimizers: list[th.optim.Optimizer]) -> Iterator[None]:
    """
    Set ``foreach=True`` within a ``with`` block, so that an optimizer steps all of its parameters in a few calls. On a GPU
    that is PyTorch's default; on a CPU it takes less time, too. The results are the same to the bit: optimizers that would
    round otherwise do not change. What a user has set stays.

    :param optimizers: optimizers to change
    :return: context of the steps. After it, the optimizers are as before, so a zip holds those of the stock algorithm
    """
    undecided: list[dict[str, Any]] = []
    for optimizer in optimizers:
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
    Return the entropy coefficient of SAC, TQC or CrossQ: learned, or fixed by the constructor.

    :param model: the algorithm
    :return: a scalar without gradient
    """
    if model.log_ent_coef is None:
        fixed: th.Tensor = model.ent_coef_tensor
        return fixed
    return th.exp(model.log_ent_coef.detach())


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
