"""
Prioritization schemes: what a priority is, and the loss that belongs to it.

The two are one decision: drawing by ``|td|^alpha`` changes the expected gradient exactly as a change of the loss would
(Fujimoto et al. 2020, theorem 1), so a scheme owns both. A scheme knows formulas and their settings. It holds no state of a
run, and knows nothing of storage, networks or algorithms.
"""

import copy
import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch as th
from torch.nn import functional as F

from sb3_per.sampling.kernels import kernel
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.sum_tree import SumTree

# Masses are kept inside these bounds, so that a drawable transition never has mass 0 (epsilon ** alpha can underflow) and no
# sum over a buffer overflows.
_LEAST_MASS = float(np.finfo(np.float64).tiny)
LARGEST_MASS = 1e290

_LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)

DEFAULT_EPSILON = 1e-6
DEFAULT_KAPPA = 1.0

# How the errors of several critics become one; the kernel knows them by their position.
_REDUCTIONS = ("mean", "max", "min")
_MEAN, _MAX = 0, 1

_TENSOR_REDUCTIONS: dict[str, Callable[[th.Tensor], th.Tensor]] = {
    "mean": lambda errors: errors.mean(dim=1),
    "max": lambda errors: errors.amax(dim=1),
    "min": lambda errors: errors.amin(dim=1),
}


@kernel
def _reduce(errors: np.ndarray, reduction: int) -> np.ndarray:
    """One error per row."""
    n_rows, n_critics = errors.shape
    reduced = np.empty(n_rows)
    for i in range(n_rows):
        error = errors[i, 0]
        for j in range(1, n_critics):
            if reduction == _MEAN:
                error += errors[i, j]
            elif reduction == _MAX:
                error = max(error, errors[i, j])
            else:
                error = min(error, errors[i, j])
        reduced[i] = error / n_critics if reduction == _MEAN else error
    return reduced


@kernel
def _importance_weights(masses: np.ndarray, beta: float) -> np.ndarray:
    """(least mass / mass)^beta, as a column."""
    least = masses.min()
    weights = np.empty((masses.size, 1), np.float32)
    for i in range(masses.size):
        ratio = least / masses[i]
        # A power of float32 takes half the time, but its base must not underflow.
        weights[i, 0] = np.float32(ratio) ** np.float32(beta) if ratio > _LEAST_FLOAT32 else ratio**beta
    return weights


class PriorityScheme:
    """
    Base of all schemes, and the protocol of your own: override :meth:`priority`, and what else differs.

    From a TD error to a draw: ``|td|`` of every critic -> :meth:`reduce` -> :meth:`priority` -> :meth:`mass` -> tree.
    From a draw to an update: mass -> :meth:`weights` -> :meth:`loss`. A scheme object goes into the buffer as
    ``replay_buffer_kwargs=dict(scheme=MyScheme(alpha=0.5))``; it is saved with the model, so it must be picklable.

    :param alpha: prioritization exponent, at least 0; 0 draws uniformly
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative or non-finite alpha, or an unknown reduction
    """

    #: Whether batches carry importance-sampling weights; if not, all weights are 1.
    importance_sampling: ClassVar[bool] = True

    #: Whether all masses are equal, whatever the errors.
    draws_uniformly: ClassVar[bool] = False

    #: Whether :meth:`loss` is another than the algorithm's own; it needs scalar TD errors then.
    replaces_loss: ClassVar[bool] = False

    def __init__(self, alpha: float, td_error_reduction: str = "mean"):
        if not 0.0 <= as_number("alpha", alpha) < np.inf:
            raise ValueError(f"alpha must be finite and at least 0, not {alpha}")
        if td_error_reduction not in _REDUCTIONS:
            raise ValueError(f"td_error_reduction must be one of {sorted(_REDUCTIONS)}, not {td_error_reduction!r}")
        self.alpha = alpha
        self.td_error_reduction = td_error_reduction
        # Priorities outside of these bounds have masses outside of theirs.
        with np.errstate(all="ignore"):
            bounds = np.power([_LEAST_MASS, LARGEST_MASS], 1.0 / max(alpha, 1e-3))
        self._least, self._largest = np.maximum(bounds, _LEAST_MASS)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({settings})"

    @property
    def settings(self) -> dict[str, Any]:
        """What the constructor was told, by name."""
        return {name: value for name, value in vars(self).items() if name[0] != "_"}

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
        :raises ValueError: for another shape
        """
        if abs_td_errors.ndim != 2 or abs_td_errors.shape[1] == 0:
            raise ValueError(f"|td| has shape (batch_size, n_critics), not {abs_td_errors.shape}")
        reduced: np.ndarray = _reduce(abs_td_errors, _REDUCTIONS.index(self.td_error_reduction))
        return reduced

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        :param abs_td_errors: reduced ``|td|``, float64 of shape (batch_size,)
        :return: p, before the exponent, in the same units; ``max_priority`` of a buffer is the largest of these
        """
        raise NotImplementedError

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """
        :param priority: p, of any shape
        :return: p^alpha, the unnormalised probability of being drawn, float64; always above 0 and finite.
            What :meth:`make_tree` takes
        """
        bounded = np.maximum(priority, self._least)
        if self._largest < np.inf:
            bounded = np.minimum(bounded, self._largest)
        mass: np.ndarray = np.power(bounded, self.alpha)
        return mass

    def mass_of_new(self, max_priority: float) -> np.ndarray | float:
        """
        :param max_priority: the largest priority seen so far
        :return: mass of a transition that has no TD error yet, not below any other
        """
        return self.mass(max_priority)

    @property
    def has_inverse(self) -> bool:
        """Whether :meth:`priority_of` is the inverse of :meth:`mass`: not if that was replaced, or gives 1 for all."""
        own = type(self)
        is_default = own.mass is PriorityScheme.mass and own.mass_of_new is PriorityScheme.mass_of_new
        return self.alpha > 0.0 and (is_default or own.priority_of is not PriorityScheme.priority_of)

    def priority_of(self, mass: float) -> float:
        """
        :param mass: of a transition
        :return: its priority, the inverse of :meth:`mass`, at most the largest float
        """
        with np.errstate(over="ignore"):
            return float(min(np.power(mass, 1.0 / self.alpha), np.finfo(np.float64).max))

    def weights(self, masses: np.ndarray, beta: float) -> np.ndarray:
        """
        Importance-sampling weights (N * P(i))^-beta, divided by the largest of the batch (Schaul et al. 2016, section 3.4).

        With P(i) = p_i / total, both N and the total cancel in the division, and (p_min / p_i)^beta is left.

        :param masses: masses of the drawn transitions, float64 of shape (batch_size,)
        :param beta: exponent in [0, 1]
        :return: weights in (0, 1], the largest exactly 1, float32 of shape (batch_size, 1)
        """
        weights: np.ndarray = _importance_weights(masses, float(beta))
        return weights

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """
        The algorithm's own loss, weighted: mean over the batch of w_i * sum over critics of the loss.

        :param losses: the algorithm's own unreduced loss, shape (batch_size, n_critics)
        :param td_errors: signed TD errors, target minus estimate, with gradient, shape (batch_size, n_critics)
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :return: the scalar to minimise
        """
        if losses.shape[1] > 1:
            losses = losses.sum(dim=1, keepdim=True)
        return (weights * losses).mean()


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
        self.epsilon = _positive("epsilon", epsilon)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """``p = |td| + epsilon``, see :meth:`PriorityScheme.priority`."""
        return abs_td_errors + self.epsilon


class RankBased(PriorityScheme):
    """
    Rank-based prioritization: P(i) is proportional to rank(i)^-alpha, with rank 1 for the largest ``|td|`` (Schaul et al.
    2016, section 3.3). Insensitive to the scale of the errors and to outliers. Ranks are exact. New transitions rank first.

    :param alpha: prioritization exponent, at least 0
    :param epsilon: added to ``|td|``; without influence on the ranks
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, epsilon <= 0, or an unknown reduction
    """

    def __init__(self, alpha: float = 0.7, epsilon: float = DEFAULT_EPSILON, td_error_reduction: str = "mean"):
        super().__init__(alpha, td_error_reduction)
        self.epsilon = _positive("epsilon", epsilon)

    def make_tree(self, capacity: int) -> SumTree:
        """A tree that turns priorities into ranks, see :meth:`PriorityScheme.make_tree`."""
        return RankTree(capacity, self.alpha)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """``p = |td| + epsilon``, which has the order of ``|td|`` and is never 0."""
        return abs_td_errors + self.epsilon

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """The priority itself: the tree knows the exponent, and needs the order only."""
        return np.asarray(priority, dtype=np.float64)

    def mass_of_new(self, max_priority: float) -> float:
        """Infinity: before all, whatever the scale of the errors."""
        return np.inf


class LAP(PriorityScheme):
    """
    Loss-adjusted prioritization (Fujimoto et al. 2020, equation 11): mass ``max(|td|^alpha, kappa^alpha)``, a Huber loss with
    threshold kappa, and no importance-sampling weights. No transition is drawn for an error below kappa, where
    the Huber loss is quadratic and needs no correction.

    :param alpha: prioritization exponent, at least 0
    :param kappa: threshold of the Huber loss and least priority, in units of the value function, above 0; ``"auto"``: the mean
        absolute reward, which the buffer keeps up to date (arXiv 2501.16142 divides rewards by it)
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, kappa <= 0, or an unknown reduction
    """

    importance_sampling = False
    replaces_loss = True

    def __init__(self, alpha: float = 0.4, kappa: float | str = DEFAULT_KAPPA, td_error_reduction: str = "max"):
        super().__init__(alpha, td_error_reduction)
        self.kappa_is_auto = isinstance(kappa, str) and kappa == "auto"
        self.kappa = DEFAULT_KAPPA if self.kappa_is_auto else _positive("kappa", kappa)

    @property
    def settings(self) -> dict[str, Any]:
        """See :attr:`PriorityScheme.settings`; an automatic kappa is ``"auto"``, whatever its value."""
        settings = super().settings
        if settings.pop("kappa_is_auto"):
            settings["kappa"] = "auto"
        return settings

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """p = ``max(|td|, kappa)``, see :meth:`PriorityScheme.priority`."""
        priority: np.ndarray = np.maximum(abs_td_errors, self.kappa)
        return priority

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """Huber loss, summed over the critics, see :meth:`PriorityScheme.loss`."""
        huber = F.huber_loss(td_errors, th.zeros_like(td_errors), reduction="none", delta=self.kappa)
        return huber.sum(dim=1).mean()


class Uniform(PriorityScheme):
    """
    Uniform draws and the algorithm's own loss: what the stock classes do, with the metrics and the buffers of this package.

    :param td_error_reduction: how the errors of several critics become one, for ``max_priority``
    :raises ValueError: for an unknown reduction
    """

    importance_sampling = False
    draws_uniformly = True

    def __init__(self, td_error_reduction: str = "mean"):
        super().__init__(alpha=0.0, td_error_reduction=td_error_reduction)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """p = ``|td|``, without influence on the draw."""
        return abs_td_errors


class PAL(LAP):
    """
    Prioritized approximation loss (Fujimoto et al. 2020, equation 14): the uniform twin of :class:`LAP`. Uniform draws with a
    loss whose expected gradient is that of LAP.

    :param alpha: exponent of the loss, at least 0
    :param kappa: threshold of the loss, in units of the value function, above 0
    :param td_error_reduction: which ``|td|`` of several critics the normalisation takes: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, kappa <= 0, or an unknown reduction
    """

    draws_uniformly = True

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """1 for every transition: the draw is uniform."""
        return np.ones(np.shape(priority))

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """
        1 / lambda times 0.5 kappa^alpha td^2 for errors up to kappa, and ``kappa |td|^(1 + alpha) / (1 + alpha)`` above,
        summed over the critics. lambda is the mean of ``max(|td|^alpha, kappa^alpha)`` over the batch, without gradient.
        """
        abs_td_errors = td_errors.abs()
        near = 0.5 * self.kappa**self.alpha * td_errors.square()
        # Where |td| is small the power is not chosen, and must not bring a NaN into the gradient either.
        far = self.kappa * abs_td_errors.clamp(min=self.kappa).pow(1.0 + self.alpha) / (1.0 + self.alpha)
        reduced = _TENSOR_REDUCTIONS[self.td_error_reduction](abs_td_errors.detach())
        scale = reduced.clamp(min=self.kappa).pow(self.alpha).mean()
        return th.where(abs_td_errors <= self.kappa, near, far).sum(dim=1).mean() / scale


def as_number(name: str, value: Any) -> Any:
    """
    :param name: of a setting
    :param value: of the setting
    :return: the value
    :raises ValueError: if it is no real number: a list, a string, None
    """
    if isinstance(value, Real) or getattr(value, "shape", None) == ():
        return value
    raise ValueError(f"{name} must be a number, not {value!r}")


def _positive(name: str, value: Any) -> float:
    if not 0.0 < as_number(name, value) < np.inf:
        raise ValueError(f"{name} must be finite and above 0, not {value}")
    return value  # type: ignore[no-any-return]


_SCHEMES: dict[str, Callable[..., PriorityScheme]] = {
    "proportional": Proportional,
    "rank": RankBased,
    "lap": LAP,
    "pal": PAL,
    "uniform": Uniform,
}


def make_scheme(
    scheme: str | PriorityScheme = "proportional",
    alpha: float | None = None,
    epsilon: float = DEFAULT_EPSILON,
    kappa: float | str = DEFAULT_KAPPA,
    td_error_reduction: str | None = None,
) -> PriorityScheme:
    """
    :param scheme: name of a scheme, or a scheme object, which brings its own settings
    :param alpha: prioritization exponent, ``None`` for the scheme's default
    :param epsilon: added to ``|td|`` (proportional)
    :param kappa: Huber threshold and least priority (LAP, PAL), or ``"auto"``
    :param td_error_reduction: how several critics become one number, ``None`` for the scheme's default
    :return: the scheme object; of the settings, each scheme takes those that it has
    :raises ValueError: for an unknown name, for settings out of their range, or for settings beside a scheme object
    """
    settings = {"alpha": alpha, "epsilon": epsilon, "kappa": kappa, "td_error_reduction": td_error_reduction}
    if isinstance(scheme, PriorityScheme):
        defaults = inspect.signature(make_scheme).parameters
        given = {name: value for name, value in settings.items() if value != defaults[name].default}
        if given:
            raise ValueError(f"Settings belong into the scheme object {scheme}, not beside it: {given}")
        # An automatic kappa is of one run, and the object may be in the settings of several.
        return copy.copy(scheme) if getattr(scheme, "kappa_is_auto", False) else scheme
    if not isinstance(scheme, str) or scheme not in _SCHEMES:
        raise ValueError(f"Unknown scheme {scheme!r}: choose one of {sorted(_SCHEMES)}, or pass a PriorityScheme object")
    # Also those that the scheme does not take: a bad value is a mistake even where it would have no effect.
    PriorityScheme(0.0 if alpha is None else alpha, td_error_reduction or "mean")
    _positive("epsilon", epsilon)
    if not isinstance(kappa, str) or kappa != "auto":
        _positive("kappa", kappa)
    elif scheme not in ("lap", "pal"):
        raise ValueError(f"kappa='auto' is for the schemes 'lap' and 'pal', which have a kappa, not for {scheme!r}")
    taken = inspect.signature(_SCHEMES[scheme]).parameters
    return _SCHEMES[scheme](**{name: value for name, value in settings.items() if name in taken and value is not None})
