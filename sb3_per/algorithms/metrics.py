"""Average metrics over the gradient steps of a call of ``train``, for the log."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th

from sb3_per.sampling.schemes import PriorityScheme

# Number of gradient steps whose scalars wait to be read. Reading each at once would make a GPU finish its step first; keeping
# all would take memory for each step.
_MOST_WAITING = 64


class MeanMetrics:
    """Average the metrics of gradient steps. A metric that only some steps have is averaged over these steps."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        # Of the steps that wait to be read.
        self._values: list[Mapping[str, Any]] = []
        self._weights: list[th.Tensor] = []

    def add(self, values: Mapping[str, Any], weights: th.Tensor | None = None) -> None:
        """
        Add the metrics of one gradient step.

        :param values: scalars of PyTorch or NumPy by name. A name without a slash is logged as ``train/name``
        :param weights: importance-sampling weights of its batch, shape (batch_size, 1); all batches have the same size
        """
        kept = dict(values)
        for name, value in values.items():
            if isinstance(value, th.Tensor):
                kept[name] = value.detach()  # frees the graph of the loss
        self._values.append(kept)
        if weights is not None:
            self._weights.append(weights)
        if len(self._values) == _MOST_WAITING:
            self._read()

    def means(self) -> dict[str, float]:
        """Return the means so far, by name."""
        self._read()
        means = {}
        for name, total in self._totals.items():
            means[name] = total / self._counts[name]
        return means

    def _read(self) -> None:
        """Add the scalars and weights that wait to the totals."""
        if self._weights:
            weights = self._weights[0]
            if len(self._weights) > 1:
                weights = th.cat(self._weights, dim=1)  # for a single transfer from a GPU
            # In float64: a user's buffer may give tensors of half precision, whose squares would overflow.
            for of_batch in weights.cpu().double().numpy().T:
                self._values.append(weight_metrics(of_batch))
        for values in self._values:
            for name, value in values.items():
                logged_name = name if "/" in name else f"train/{name}"
                self._totals[logged_name] += float(value)
                self._counts[logged_name] += 1
        self._values.clear()
        self._weights.clear()


def weight_metrics(weights: Any) -> dict[str, Any]:
    """
    Summarize the importance-sampling weights of a batch for the log.

    :param weights: array with ``batch_size`` numbers, of NumPy or JAX
    :return: metrics by name. The effective sample size is Kish's, (sum w)^2 / sum w^2, as a fraction of the batch; it is 1 if
        all weights are equal
    """
    flat = weights.reshape(-1)
    total = flat.sum()
    effective_size = total * total / (flat @ flat)
    return {"per/mean_weight": total / flat.size, "per/effective_sample_size": effective_size / flat.size}


def demonstration_metrics(is_demonstration: np.ndarray, td_errors: Any, scheme: PriorityScheme) -> dict[str, np.floating]:
    """
    Summarize the demonstrations in a batch for the log.

    :param is_demonstration: which transitions are demonstrations, bool of shape (batch_size,)
    :param td_errors: signed TD errors, an array or a tensor on any device, shape (batch_size, n_critics)
    :param scheme: prioritization scheme
    :return: share of the demonstrations, mean ``|td|`` of them and of the rest, and mean priority p of the demonstrations, by
        name; without the numbers of a part that the batch lacks
    """
    values = td_errors.detach().cpu().numpy() if isinstance(td_errors, th.Tensor) else td_errors
    errors = np.abs(values, dtype=np.float64).reshape(len(is_demonstration), -1)
    demonstration_errors = errors[is_demonstration]
    experience_errors = errors[~is_demonstration]
    metrics = {"demonstrations/share": is_demonstration.mean()}
    if len(demonstration_errors):
        priorities = scheme.priority(scheme.reduce(demonstration_errors))
        metrics["demonstrations/td_error"] = demonstration_errors.mean()
        metrics["demonstrations/mean_priority"] = np.mean(priorities)
    if len(experience_errors):
        metrics["demonstrations/td_error_of_experience"] = experience_errors.mean()
    return metrics
