"""
Prioritization schemes: the formula of the priority, and the loss that belongs to it.

A scheme owns both, because a draw by ``|td|^alpha`` changes the expected gradient exactly as another loss does (Fujimoto et
al. 2020, theorem 1). A scheme holds settings, and no state of a run.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from torch.nn import functional as F

from sb3_per.sampling.mass_tree import LEAST_MASS, MassTree
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.sum_tree import SumTree
from sb3_per.utils.checks import ABOVE_0, AT_LEAST_0, check_argument, words
from sb3_per.utils.compiled import kernel
from sb3_per.utils.origin import is_user_defined

# Largest mass, so that the sum over a buffer never overflows.
LARGEST_MASS = 1e290

_LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)

DEFAULT_EPSILON = 1e-6
DEFAULT_KAPPA = 1.0

#: Settings of a buffer that go to the constructor of the scheme, if it takes them, and their defaults. ``None``: the scheme's.
SCHEME_ARGUMENTS: dict[str, Any] = {
    "alpha": None,
    "epsilon": DEFAULT_EPSILON,
    "kappa": DEFAULT_KAPPA,
    "td_error_reduction": None,
}

# Reductions over the critics. The kernel takes the position of the name.
_REDUCTIONS = ("mean", "max", "min")
_TENSOR_REDUCTIONS: dict[str, Callable[..., th.Tensor]] = {"mean": th.mean, "max": th.amax, "min": th.amin}


@kernel
def _reduce(errors: np.ndarray, reduction: int, reduced: np.ndarray) -> None:
    """Reduce every row to one error. It takes half of NumPy's time."""
    n_critics = errors.shape[1]
    for i in range(reduced.size):
        result = errors[i, 0]
        for j in range(1, n_critics):
            if reduction == 0:
                result += errors[i, j]
            else:
                result = max(result, errors[i, j]) if reduction == 1 else min(result, errors[i, j])
        reduced[i] = result / n_critics if reduction == 0 else result


@kernel
def _importance_weights(relative_probabilities: np.ndarray, beta: float, weights: np.ndarray) -> None:
    """Compute (least N P / N P)^beta, float32 of shape (batch_size, 1)."""
    least = relative_probabilities.min()
    for i in range(relative_probabilities.size):
        ratio = least / relative_probabilities[i]
        # A power of float32 takes half of the time, but its base must not underflow.
        weights[i, 0] = np.float32(ratio) ** np.float32(beta) if ratio > _LEAST_FLOAT32 else ratio**beta


class PriorityScheme:
    """
    Base class of all schemes. For your own scheme, override :meth:`priority`, and whatever else differs.

    From a TD error to a draw: ``|td|`` of every critic -> :meth:`reduce` -> :meth:`priority` -> :meth:`mass` -> tree.
    From a draw to an update: N P -> :meth:`weights` -> :meth:`loss`.

    ====================================== ===========================================================================
    your own scheme                        members
    ====================================== ===========================================================================
    must override                          ``priority``
    may override for another draw          ``reduce``, ``mass``, ``new_mass``, ``make_tree``
    may override for another update        ``weights``, ``loss`` with ``jax_loss`` (and ``replaces_loss = True``)
    may set                                ``importance_sampling``, ``draws_uniformly``
    leave as they are                      ``ranks_priorities``, ``may_draw_as_sb3``, ``largest_mass``, ``settings``
    ====================================== ===========================================================================

    Keep each argument of the constructor in a public attribute of the same name. All public attributes are settings: they show
    in ``repr``, and a saved mass is used again only where they are equal. Begin the names of all others with an underscore.
    Settings stay as they are: for another ``alpha``, make another buffer by
    ``from_replay_buffer(buffer, scheme=MyScheme(alpha=...))``.

    Pass a scheme to the buffer by ``replay_buffer_kwargs=dict(scheme=MyScheme(alpha=0.5))``. It is saved with the model, so it
    must be picklable.

    :param alpha: prioritization exponent, at least 0; 0 draws uniformly
    :param td_error_reduction: reduction over the critics: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative or non-finite alpha, or an unknown reduction
    """

    #: Whether batches carry importance-sampling weights; if not, all weights are 1.
    importance_sampling: bool = True

    #: Whether all masses are equal, whatever the TD errors.
    draws_uniformly: bool = False

    #: Whether unstratified draws may be those of SB3's own buffer, with the same random numbers.
    may_draw_as_sb3: bool = False

    #: Whether only the order of the priorities counts, as in :class:`RankBased`. :meth:`mass` gives the tree priorities then.
    ranks_priorities: bool = False

    #: Largest mass that a transition may come with.
    largest_mass: float = LARGEST_MASS

    #: Whether :meth:`loss` replaces the algorithm's own loss. It needs scalar TD errors then.
    replaces_loss: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that writes `loss` and inherits `jax_loss`, e.g. from LAP: what it inherits belongs to another loss.
        if _level_of(cls, "loss") < _level_of(cls, "jax_loss"):
            cls.jax_loss = _missing_jax_loss  # type: ignore[method-assign]

    def __init__(self, alpha: float, td_error_reduction: str = "mean"):
        check_argument("alpha", alpha, AT_LEAST_0)
        check_argument("td_error_reduction", td_error_reduction, words(*_REDUCTIONS))
        self.alpha = float(alpha)
        self.td_error_reduction = td_error_reduction
        self._least, self._largest = _priority_bounds(alpha)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({settings})"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name: the public attributes."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def equals(self, other: "PriorityScheme") -> bool:
        """
        Tell whether another scheme gives the same priorities.

        :param other: another scheme
        :return: whether it has the same class and settings
        """
        return (
            type(self) is type(other)
            and self.settings.keys() == other.settings.keys()
            and all(np.array_equal(value, other.settings[name]) for name, value in self.settings.items())
        )

    @property
    def is_user_defined(self) -> bool:
        """Whether a user has written it, so that what it gives must be checked."""
        return is_user_defined(type(self))

    @property
    def has_user_defined_tree(self) -> bool:
        """Whether a user has written its tree."""
        return is_user_defined(type(self).make_tree)

    @property
    def unused_settings(self) -> list[str]:
        """Names of the buffer's settings that have no effect with this scheme."""
        taken = inspect.signature(type(self)).parameters
        unused = [name for name in SCHEME_ARGUMENTS if name not in taken]
        if not self.importance_sampling:
            unused += ["beta_start", "beta_end", "beta_anneal_steps"]
        if self.draws_uniformly:
            unused.append("initial_priority")
        return unused

    def make_tree(self, capacity: int) -> MassTree:
        """
        Make the tree for the masses.

        :param capacity: number of slots
        :return: tree that holds the masses and draws from them
        """
        return SumTree(capacity)

    def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        Reduce the errors of several critics to one.

        :param abs_td_errors: ``|td|``, float64 array of shape (batch_size, n_critics), in units of the value function
        :return: one error per transition, shape (batch_size,)
        :raises ValueError: for another shape
        """
        if abs_td_errors.ndim != 2 or abs_td_errors.shape[1] == 0:
            raise ValueError(f"abs_td_errors must have shape (batch_size, n_critics), not {abs_td_errors.shape}")
        if abs_td_errors.shape[1] == 1:
            return abs_td_errors[:, 0]
        reduced = np.empty(len(abs_td_errors))
        _reduce(abs_td_errors, _REDUCTIONS.index(self.td_error_reduction), reduced)
        return reduced

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        Compute the priority p.

        :param abs_td_errors: reduced ``|td|``, float64 array of shape (batch_size,)
        :return: priorities above 0, in the same unit and shape; ``max_priority`` of a buffer is the largest of them
        """
        raise NotImplementedError(f"{type(self).__name__} must implement priority(), which turns TD errors into priorities")

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """
        Compute the mass p^alpha, the unnormalized probability of being drawn. A mass that would underflow or overflow is
        limited.

        :param priority: priority p, of any shape
        :return: float64 in the same shape, above 0 and at most ``largest_mass``
        """
        bounded = np.maximum(priority, self._least)
        if self._largest == np.inf:  # with an alpha below 0.94, no priority has too large a mass
            return np.power(bounded, self.alpha)
        # The bounds of the priority prevent warnings, but they are rounded.
        masses = np.power(np.minimum(bounded, self._largest), self.alpha)
        return np.clip(masses, LEAST_MASS, LARGEST_MASS)

    def new_mass(self, max_priority: float) -> np.ndarray | float:
        """
        Choose the mass of new transitions. Override it in a scheme whose priority has a bound.

        :param max_priority: largest priority so far, which may come from a buffer with another scheme
        :return: mass of a transition that has no TD error yet. If it is at least that of any other, it is drawn soon
        """
        return self.mass(max_priority)

    def weights(self, relative_probabilities: np.ndarray, beta: float) -> np.ndarray:
        """
        Compute importance-sampling weights (N * P(i))^-beta, divided by the largest of the batch (Schaul et al. 2016, 3.4).

        :param relative_probabilities: N P of the drawn transitions, the probability P of each times the number N of
            candidates, above 0, float64 of shape (batch_size,). A common factor cancels in the division
        :param beta: exponent in [0, 1]
        :return: weights in [0, 1], the largest exactly 1, float32 of shape (batch_size, 1); 0 only where float32 has no
            smaller number. All are 1 without ``importance_sampling``
        """
        if not self.importance_sampling:
            return np.ones((len(relative_probabilities), 1), np.float32)
        weights = np.empty((len(relative_probabilities), 1), np.float32)
        _importance_weights(relative_probabilities, float(beta), weights)
        return weights

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """
        Weight the algorithm's own loss: mean over the batch of w_i * sum over critics of the loss.

        :param losses: the algorithm's own unreduced loss, shape (batch_size, n_critics)
        :param td_errors: signed TD errors, target minus estimate, with gradient, shape (batch_size, n_critics)
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :return: scalar to minimize
        """
        if losses.shape[1] > 1:
            losses = losses.sum(dim=1, keepdim=True)
        return (weights * losses).mean()

    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        """
        Compute :meth:`loss` of JAX arrays, for :mod:`sb3_per.sbx`. A scheme with a loss of its own implements both: if it
        overrides :meth:`loss` alone, this method raises ``NotImplementedError``.

        :param losses: the algorithm's own unreduced loss, shape (batch_size, n_critics)
        :param td_errors: signed TD errors, target minus estimate, with gradient, shape (batch_size, n_critics)
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :return: scalar to minimize
        """
        return (weights * losses.sum(axis=1, keepdims=True)).mean()


def _level_of(cls: type, name: str) -> int:
    """Find the position, among a class and its bases, of the one whose method counts."""
    return next(level for level, base in enumerate(cls.__mro__) if name in vars(base))


def _missing_jax_loss(self: PriorityScheme, losses: Any, td_errors: Any, weights: Any) -> Any:
    """Stand for the :meth:`PriorityScheme.jax_loss` that a scheme lacks."""
    raise NotImplementedError(
        f"{type(self).__name__} has a loss() for PyTorch and no jax_loss(). Write jax_loss() beside it, or use the class of "
        "sb3_per"
    )


class Proportional(PriorityScheme):
    """
    Proportional prioritization: ``p = |td| + epsilon``, P(i) = p_i^alpha / sum_k p_k^alpha (Schaul et al. 2016, equation 1).

    :param alpha: prioritization exponent, at least 0
    :param epsilon: added to ``|td|``, so that a transition without error can be drawn again; above 0
    :param td_error_reduction: reduction over the critics: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, epsilon <= 0, or an unknown reduction
    """

    def __init__(self, alpha: float = 0.6, epsilon: float = DEFAULT_EPSILON, td_error_reduction: str = "mean"):
        super().__init__(alpha, td_error_reduction)
        check_argument("epsilon", epsilon, ABOVE_0)
        self.epsilon = float(epsilon)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """``p = |td| + epsilon``, see :meth:`PriorityScheme.priority`."""
        return abs_td_errors + self.epsilon


class RankBased(PriorityScheme):
    """
    Rank-based prioritization: P(i) is proportional to rank(i)^-alpha, with rank 1 for the largest ``|td|`` (Schaul et al.
    2016, section 3.3). The scale of the errors and outliers have no effect. Ranks are exact. New transitions rank first. The
    tree takes priorities, and applies the exponent to the ranks.

    :param alpha: prioritization exponent, at least 0
    :param td_error_reduction: reduction over the critics: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, or an unknown reduction
    """

    ranks_priorities = True
    largest_mass = np.inf

    def __init__(self, alpha: float = 0.7, td_error_reduction: str = "mean"):
        super().__init__(alpha, td_error_reduction)

    def make_tree(self, capacity: int) -> MassTree:
        """Make a tree that ranks priorities, see :meth:`PriorityScheme.make_tree`."""
        return RankTree(capacity, self.alpha)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """``p = |td| + 1e-6``, which is never 0. Errors whose difference the sum rounds away rank alike."""
        return abs_td_errors + DEFAULT_EPSILON

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """Return the priority: the tree ranks it, and makes the mass of the rank."""
        return np.asarray(priority)

    def new_mass(self, max_priority: float) -> np.ndarray | float:
        """Return infinity: new transitions rank first."""
        return np.inf


class LAP(PriorityScheme):
    """
    Loss-adjusted prioritization (Fujimoto et al. 2020, equation 11): mass ``max(|td|^alpha, kappa^alpha)``, a Huber loss with
    threshold kappa, and no importance-sampling weights. Errors up to kappa, where the Huber loss is quadratic, do not change
    the draw.

    :param alpha: prioritization exponent, at least 0
    :param kappa: threshold of the Huber loss and least priority, in units of the value function, above 0
    :param td_error_reduction: reduction over the critics: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, kappa <= 0, or an unknown reduction
    """

    importance_sampling = False
    replaces_loss = True

    def __init__(self, alpha: float = 0.4, kappa: float = DEFAULT_KAPPA, td_error_reduction: str = "max"):
        super().__init__(alpha, td_error_reduction)
        check_argument("kappa", kappa, ABOVE_0)
        self.kappa = float(kappa)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """p = ``max(|td|, kappa)``, see :meth:`PriorityScheme.priority`."""
        return np.maximum(abs_td_errors, self.kappa)

    def new_mass(self, max_priority: float) -> np.ndarray | float:
        """Return the mass of the larger of ``max_priority``, which begins at 1, and kappa, the least priority."""
        return self.mass(max(max_priority, self.kappa))

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """Huber loss, summed over the critics, see :meth:`PriorityScheme.loss`."""
        huber = F.huber_loss(td_errors, th.zeros_like(td_errors), reduction="none", delta=self.kappa)
        return huber.sum(dim=1).mean()

    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        """Huber loss, summed over the critics, see :meth:`PriorityScheme.jax_loss`."""
        import jax.numpy as jnp

        sizes = jnp.abs(td_errors)
        huber = jnp.where(sizes < self.kappa, 0.5 * td_errors**2, self.kappa * (sizes - 0.5 * self.kappa))
        return huber.sum(axis=1).mean()


class Uniform(PriorityScheme):
    """
    Uniform draws and the algorithm's own loss, as in the stock classes, with the metrics and buffers of this package.

    :param td_error_reduction: reduction over the critics for ``max_priority``: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for an unknown reduction
    """

    importance_sampling = False
    draws_uniformly = True
    may_draw_as_sb3 = True

    def __init__(self, td_error_reduction: str = "mean"):
        super().__init__(alpha=0.0, td_error_reduction=td_error_reduction)

    @property
    def unused_settings(self) -> list[str]:
        """See :attr:`PriorityScheme.unused_settings`. The reduction changes ``max_priority`` alone, which is only logged."""
        return [*super().unused_settings, "td_error_reduction"]

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """p = ``|td|``, for ``max_priority``; it does not change the draw."""
        return abs_td_errors


class PAL(LAP):
    """
    Prioritized approximation loss (Fujimoto et al. 2020, equation 14): the uniform twin of :class:`LAP`. Uniform draws with a
    loss whose expected gradient is that of LAP.

    :param alpha: exponent of the loss, at least 0
    :param kappa: threshold of the loss, in units of the value function, above 0
    :param td_error_reduction: reduction over the critics in lambda: ``"mean"``, ``"max"`` or ``"min"``
    :raises ValueError: for a negative alpha, kappa <= 0, or an unknown reduction
    """

    draws_uniformly = True

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """Return 1 for every transition: the draw is uniform."""
        return np.ones(np.shape(priority))

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """
        1 / lambda times 0.5 kappa^alpha td^2 for errors up to kappa, and ``kappa |td|^(1 + alpha) / (1 + alpha)`` above,
        summed over the critics. lambda is the mean of ``max(|td|^alpha, kappa^alpha)`` over the batch, without gradient.
        """
        abs_td_errors = td_errors.abs()
        near = 0.5 * self.kappa**self.alpha * td_errors.square()
        # `where` does not choose the power where |td| is 0, but its gradient would be NaN there without the clamp.
        far = self.kappa * abs_td_errors.clamp(min=self.kappa).pow(1.0 + self.alpha) / (1.0 + self.alpha)
        reduced = _TENSOR_REDUCTIONS[self.td_error_reduction](abs_td_errors.detach(), dim=1)
        scale = reduced.clamp(min=self.kappa).pow(self.alpha).mean()
        return th.where(abs_td_errors <= self.kappa, near, far).sum(dim=1).mean() / scale

    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        """See :meth:`loss`."""
        import jax
        import jax.numpy as jnp

        sizes = jnp.abs(td_errors)
        beyond = 1.0 + self.alpha
        near = 0.5 * self.kappa**self.alpha * td_errors**2
        # As above, the gradient of the power would be NaN at 0.
        far = self.kappa * jnp.maximum(sizes, self.kappa) ** beyond / beyond
        reduced = getattr(jax.lax.stop_gradient(sizes), self.td_error_reduction)(axis=1)
        scale = (jnp.maximum(reduced, self.kappa) ** self.alpha).mean()
        return jnp.where(sizes <= self.kappa, near, far).sum(axis=1).mean() / scale


#: All schemes of this package by name, which is also their name in files.
SCHEMES: dict[str, type[Any]] = {
    "proportional": Proportional,
    "rank": RankBased,
    "lap": LAP,
    "pal": PAL,
    "uniform": Uniform,
}


# Names that other libraries use.
_OTHER_NAMES = {"per": "proportional", "prioritized": "proportional"}


def schemes_with(setting: str) -> list[str]:
    """
    List the schemes with which a setting of the buffer has an effect.

    :param setting: name of the setting
    :return: names of the schemes
    """
    return [name for name, scheme_class in SCHEMES.items() if setting not in scheme_class().unused_settings]


def _priority_bounds(alpha: float) -> np.ndarray:
    """
    Find the bounds of a priority, so that its mass p^alpha neither underflows nor overflows.

    :param alpha: exponent. With an alpha near 0 there is no bound in the range of float64
    :return: least and largest priority
    """
    with np.errstate(all="ignore"):
        bounds = np.power([LEAST_MASS, LARGEST_MASS], 1.0 / max(alpha, 1e-3))
    return np.maximum(bounds, LEAST_MASS)


def make_scheme(scheme: str | PriorityScheme = "proportional", **settings: Any) -> PriorityScheme:
    """
    Make a scheme object from settings. Each scheme takes only the settings that its constructor has.

    :param scheme: name of a scheme in upper or lower case, or a scheme object, which brings its own settings
    :param settings: of ``SCHEME_ARGUMENTS``; ``None``: the scheme's default
    :return: the scheme object
    :raises ValueError: for an unknown name, a setting that is not allowed, or settings beside a scheme object
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(scheme, PriorityScheme):
        if given:
            raise ValueError(f"Pass settings to the scheme object {scheme}, not beside it: {given}")
        return scheme
    scheme_class = SCHEMES[_name_of(scheme)]
    taken = inspect.signature(scheme_class).parameters
    return scheme_class(**{name: value for name, value in given.items() if name in taken})


def arguments_for(scheme: PriorityScheme) -> dict[str, Any]:
    """
    List the arguments of :func:`make_scheme` that make a scheme once more.

    :param scheme: scheme object
    :return: name and settings, without those that have no effect; of a class that has no name, the object itself
    """
    for name, scheme_class in SCHEMES.items():
        if type(scheme) is scheme_class:
            used = set(scheme.settings).difference(scheme.unused_settings)
            return {"scheme": name, **{setting: scheme.settings[setting] for setting in SCHEME_ARGUMENTS if setting in used}}
    return {"scheme": scheme}


def try_scheme(scheme: PriorityScheme) -> None:
    """
    Try a user's scheme on the TD errors 0 and 1, because these mistakes would show late in a training, or never. Others are
    found by the sampler, at the first draw or update.

    :param scheme: scheme object
    :raises NotImplementedError: without ``priority``
    :raises ValueError: for anything that the methods must not return; the message says what they must
    :warns UserWarning: for a priority of 0
    """
    name = type(scheme).__name__
    if not hasattr(scheme, "td_error_reduction"):
        raise ValueError(f"{name} must call super().__init__(alpha) in its constructor")
    priorities = np.asarray(scheme.priority(np.array([0.0, 1.0])))
    if priorities.shape != (2,):
        raise ValueError(f"{scheme}.priority() gave shape {priorities.shape} for 2 errors: it must give one number for each")
    if not priorities.min() >= 0.0:  # NaN, too
        raise ValueError(f"{scheme}.priority() gave {priorities} for the TD errors [0 1]: a priority must be above 0")
    if priorities.min() == 0.0 and not scheme.draws_uniformly:
        warnings.warn(
            f"{scheme}.priority() gave {priorities} for the TD errors [0 1]: a transition with priority 0 is hardly ever "
            "drawn again. Add a small number, e.g. 1e-6"
        )
    if scheme.draws_uniformly and len(set(np.ravel(scheme.mass(priorities)).tolist())) > 1:
        raise ValueError(
            f"{scheme}.mass() gave {scheme.mass(priorities)}: with draws_uniformly = True, all masses must be equal"
        )
    new_mass = scheme.new_mass(1.0)
    if not LEAST_MASS <= new_mass <= scheme.largest_mass:
        raise ValueError(f"{scheme}.new_mass() gave {new_mass}: it must be above 0 and at most {scheme.largest_mass}")
    weights = np.asarray(scheme.weights(np.array([0.5, 1.0]), 0.5))
    if weights.shape != (2, 1) or weights.dtype != np.float32:
        raise ValueError(
            f"{scheme}.weights() gave {weights.dtype} of shape {weights.shape} for a batch of 2: it must give float32 of "
            "shape (batch_size, 1)"
        )


def _name_of(scheme: Any) -> str:
    """
    Check the name of a scheme.

    :param scheme: given by the user
    :return: name of a scheme, in lower case
    :raises ValueError: if there is no such scheme
    """
    if isinstance(scheme, type) and issubclass(scheme, PriorityScheme):
        raise ValueError(f"scheme must be an object, not the class {scheme.__name__}: make an object, {scheme.__name__}()")
    name = str(scheme).lower()
    if name in SCHEMES:
        return name
    nearest = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, SCHEMES, n=1)
    meant = f": did you mean {nearest[0]!r}?" if nearest else "."
    raise ValueError(f"Unknown scheme {scheme!r}{meant} Choose one of {sorted(SCHEMES)}, or pass a PriorityScheme object")
