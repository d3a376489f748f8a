"""
Prioritization schemes: what a priority is, and the loss that belongs to it.

The two are one decision: drawing by ``|td|^alpha`` changes the expected gradient exactly as a change of the loss would
(Fujimoto et al. 2020, theorem 1), so a scheme owns both. A scheme knows formulas and their settings. It holds no state of a
run, and knows nothing of storage, networks or algorithms.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch as th

from sb3_per.sum_tree import SumTree

# Masses are kept inside these bounds, so that a drawable transition never has mass 0 (epsilon ** alpha can underflow) and no
# sum over a buffer overflows.
_LEAST_MASS = float(np.finfo(np.float64).tiny)
_LARGEST_MASS = 1e290

DEFAULT_EPSILON = 1e-6

_REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "max": np.max, "min": np.min}


class PriorityScheme:
    """
    Base of all schemes, and the protocol of your own: override :meth:`priority`, :meth:`mass`, :meth:`loss` as needed.

    From a TD error to a draw: ``|td|`` of every critic -> :meth:`reduce` -> :meth:`priority` -> :meth:`mass` -> tree.

    :param alpha: prioritization exponent, at least 0; 0 draws uniformly
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative or non-finite alpha, or an unknown reduction
    """

    #: Whether batches carry importance-sampling weights; if not, all weights are 1.
    importance_sampling: ClassVar[bool] = True

    def __init__(self, alpha: float, td_error_reduction: str = "mean"):
        if not 0.0 <= alpha < np.inf:
            raise ValueError(f"alpha must be finite and at least 0, not {alpha}")
        if td_error_reduction not in _REDUCTIONS:
            raise ValueError(f"td_error_reduction must be one of {sorted(_REDUCTIONS)}, not {td_error_reduction!r}")
        self.alpha = alpha
        self.td_error_reduction = td_error_reduction

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"

    def make_tree(self, capacity: int) -> SumTree:
        """
        :param capacity: number of slots
        :return: the structure that holds the masses and draws from them
        """
        return SumTree(capacity)

    def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        :param abs_td_errors: ``|td|``, float64 of shape (batch_size, n_critics), in units of the value function
        :return: one error per transition, shape (batch_size,)
        """
        if abs_td_errors.shape[1] == 1:
            return abs_td_errors[:, 0]
        return _REDUCTIONS[self.td_error_reduction](abs_td_errors, axis=1)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        :param abs_td_errors: reduced ``|td|``, float64 of shape (batch_size,)
        :return: p, before the exponent, in the same units; ``max_priority`` of a buffer is the largest of these
        """
        raise NotImplementedError

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """
        :param priority: p, of any shape
        :return: p^alpha, the unnormalised probability of being drawn, float64; always above 0 and finite
        """
        with np.errstate(over="ignore", under="ignore"):
            return np.clip(np.power(priority, self.alpha, dtype=np.float64), _LEAST_MASS, _LARGEST_MASS)

    def weights(self, masses: np.ndarray, beta: float) -> np.ndarray:
        """
        Importance-sampling weights (N * P(i))^-beta, divided by the largest of the batch (Schaul et al. 2016, section 3.4).

        With P(i) = p_i / total, both N and the total cancel in the division, and (p_min / p_i)^beta is left.

        :param masses: masses of the drawn transitions, float64 of shape (batch_size,)
        :param beta: exponent in [0, 1]
        :return: weights in (0, 1], the largest exactly 1, float64 of shape (batch_size,)
        """
        weights: np.ndarray = np.power(masses.min() / masses, beta)
        return weights

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """
        The algorithm's own loss, weighted: mean over the batch of w_i * sum over critics of the loss.

        :param losses: the algorithm's own unreduced loss, shape (batch_size, n_critics)
        :param td_errors: signed TD errors, target minus estimate, with gradient, shape (batch_size, n_critics)
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :return: the scalar to minimise
        """
        return (weights * losses.sum(dim=1, keepdim=True)).mean()


class Proportional(PriorityScheme):
    """
    Proportional prioritization: ``p = |td| + epsilon``, P(i) = p_i^alpha / sum_k p_k^alpha (Schaul et al. 2016, equation 1).

    :param alpha: prioritization exponent, at least 0
    :param epsilon: added to ``|td|``, so that a transition without error can be drawn again; above 0
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, epsilon <= 0, or an unknown reduction
    """

    def __init__(self, alpha: float = 0.6, epsilon: float = DEFAULT_EPSILON, td_error_reduction: str = "mean"):
        super().__init__(alpha, td_error_reduction)
        if not 0.0 < epsilon < np.inf:
            raise ValueError(f"epsilon must be finite and above 0, not {epsilon}")
        self.epsilon = epsilon

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """``p = |td| + epsilon``, see :meth:`PriorityScheme.priority`."""
        return abs_td_errors + self.epsilon


_SCHEMES: dict[str, Callable[..., PriorityScheme]] = {"proportional": Proportional}


def make_scheme(
    scheme: str | PriorityScheme,
    alpha: float | None = None,
    epsilon: float = DEFAULT_EPSILON,
    td_error_reduction: str | None = None,
) -> PriorityScheme:
    """
    :param scheme: name of a scheme, or a scheme object, which brings its own settings
    :param alpha: prioritization exponent, ``None`` for the scheme's default
    :param epsilon: added to ``|td|`` (proportional)
    :param td_error_reduction: how several critics become one number, ``None`` for the scheme's default
    :return: the scheme object
    :raises ValueError: for an unknown name, for settings out of their range, or for settings beside a scheme object
    """
    given = {"alpha": alpha, "td_error_reduction": td_error_reduction}
    settings = {name: value for name, value in given.items() if value is not None}
    if isinstance(scheme, PriorityScheme):
        if epsilon != DEFAULT_EPSILON:
            settings["epsilon"] = epsilon
        if settings:
            raise ValueError(f"Settings belong into the scheme object {scheme}, not beside it: {settings}")
        return scheme
    if scheme not in _SCHEMES:
        raise ValueError(f"Unknown scheme {scheme!r}: choose one of {sorted(_SCHEMES)}, or pass a PriorityScheme object")
    return _SCHEMES[scheme](epsilon=epsilon, **settings)
