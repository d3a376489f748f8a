"""Losses that several algorithms share."""

import torch as th
from torch.nn import functional as F


def pairwise_quantile_huber_loss(quantiles: th.Tensor, target_quantiles: th.Tensor) -> th.Tensor:
    """
    Quantile Huber loss of every pair of an estimate and a target, with threshold 1 (arXiv 1710.10044, equation 10).

    :param quantiles: estimates at the midpoints of equal probabilities, shape (..., n_quantiles)
    :param target_quantiles: targets, shape (..., n_target_quantiles)
    :return: losses of all pairs, shape (..., n_quantiles, n_target_quantiles)
    """
    differences = target_quantiles.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = F.huber_loss(differences, th.zeros_like(differences), reduction="none")
    n_quantiles = quantiles.shape[-1]
    midpoints = (th.arange(n_quantiles, device=quantiles.device) + 0.5) / n_quantiles
    return (midpoints.unsqueeze(-1) - (differences.detach() < 0).float()).abs() * huber
