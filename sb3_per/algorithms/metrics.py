"""Numbers for the log: lists with an entry for each gradient step. The log shows their means over a call of ``train``."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th

from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sampling.shuffled import Shuffled

#: Numbers of the gradient steps of a call of ``train``, by name. A list is shorter if only some steps have the number.
Recorded = defaultdict[str, list[float]]


def record(recorded: Recorded, values: Mapping[str, Any]) -> None:
    """
    Add the numbers of one gradient step. Call it after the priorities are updated: that has waited for a GPU already.

    :param recorded: numbers of the steps before
    :param values: scalars of PyTorch or NumPy by name
    """
    for name, value in values.items():
        recorded[name].append(value.item())


def weight_metrics(weights: Any) -> dict[str, Any]:
    """
    Summarize the importance-sampling weights of a batch for the log.

    :param weights: ``batch_size`` numbers, an array of NumPy or JAX, or a tensor
    :return: metrics by name. The effective sample size is Kish's, (sum w)^2 / sum w^2, as a fraction of the batch; it is 1 if
        all weights are equal
    """
    flat = weights.reshape(-1)
    total = flat.sum()
    n = len(flat)
    return {"per/mean_weight": total / n, "per/effective_sample_size": total * total / (flat @ flat) / n}


def demonstration_metrics(is_demonstration: np.ndarray, td_errors: Any, scheme: PriorityScheme) -> dict[str, np.floating]:
    """
    Summarize the demonstrations in a batch for the log.

    :param is_demonstration: which transitions are demonstrations, bool of shape (batch_size,)
    :param td_errors: signed TD errors, an array or a tensor on any device, shape (batch_size, n_critics)
    :param scheme: prioritization scheme
    :return: share of the demonstrations, mean ``|td|`` of them and of the rest, and mean priority p of the demonstrations, by
        name; without the numbers of a part that the batch lacks, and without priorities that are :class:`Shuffled`
    """
    values = td_errors.detach().cpu().numpy() if isinstance(td_errors, th.Tensor) else td_errors
    errors = np.abs(values, dtype=np.float64).reshape(len(is_demonstration), -1)
    demonstration_errors = errors[is_demonstration]
    experience_errors = errors[~is_demonstration]
    metrics = {"demonstrations/share": is_demonstration.mean()}
    if len(demonstration_errors):
        metrics["demonstrations/td_error"] = demonstration_errors.mean()
        if not isinstance(scheme, Shuffled):  # it would draw again: random numbers of the run, and other priorities
            metrics["demonstrations/mean_priority"] = np.mean(scheme.priority(scheme.reduce(demonstration_errors)))
    if len(experience_errors):
        metrics["demonstrations/td_error_of_experience"] = experience_errors.mean()
    return metrics
