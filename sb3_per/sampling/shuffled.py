"""A control for gains: a scheme that draws as unevenly as another one, but not the same transitions."""

from typing import Any

import numpy as np
import torch as th

from sb3_per.sampling.mass_tree import MassTree
from sb3_per.sampling.schemes import PriorityScheme


class Shuffled(PriorityScheme):
    """
    Another scheme with its priorities shuffled within each batch: the control for a gain. It draws as unevenly, and has the
    same weights and loss, but does not know which transitions to draw.

    :param scheme: scheme whose priorities are shuffled
    """

    def __init__(self, scheme: PriorityScheme):
        super().__init__(scheme.alpha, scheme.td_error_reduction)
        self.scheme = scheme
        self.importance_sampling = scheme.importance_sampling
        self.draws_uniformly = scheme.draws_uniformly
        self.may_draw_as_sb3 = scheme.may_draw_as_sb3
        self.ranks_priorities = scheme.ranks_priorities
        self.replaces_loss = scheme.replaces_loss

    @property
    def settings(self) -> dict[str, Any]:
        """See :attr:`PriorityScheme.settings`."""
        return {"scheme": self.scheme}

    @property
    def largest_mass(self) -> float:  # type: ignore[override]
        """See :attr:`PriorityScheme.largest_mass`."""
        return self.scheme.largest_mass

    @property
    def is_user_defined(self) -> bool:
        """See :attr:`PriorityScheme.is_user_defined`."""
        return self.scheme.is_user_defined

    @property
    def has_user_defined_tree(self) -> bool:
        """See :attr:`PriorityScheme.has_user_defined_tree`."""
        return self.scheme.has_user_defined_tree

    def equals(self, other: PriorityScheme) -> bool:
        """See :meth:`PriorityScheme.equals`."""
        return isinstance(other, Shuffled) and self.scheme.equals(other.scheme)

    def make_tree(self, capacity: int) -> MassTree:
        """See :meth:`PriorityScheme.make_tree`."""
        return self.scheme.make_tree(capacity)

    def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """See :meth:`PriorityScheme.reduce`."""
        return self.scheme.reduce(abs_td_errors)

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        """
        Give each error to another transition of the batch, or to another window: with sequences, :meth:`reduce` is called with
        single steps, and this with windows. See :meth:`PriorityScheme.priority`.
        """
        return self.scheme.priority(np.random.permutation(abs_td_errors))

    def mass(self, priority: np.ndarray | float) -> np.ndarray:
        """See :meth:`PriorityScheme.mass`."""
        return self.scheme.mass(priority)

    def new_mass(self, max_priority: float) -> np.ndarray | float:
        """See :meth:`PriorityScheme.new_mass`."""
        return self.scheme.new_mass(max_priority)

    def weights(self, relative_probabilities: np.ndarray, beta: float) -> np.ndarray:
        """See :meth:`PriorityScheme.weights`."""
        return self.scheme.weights(relative_probabilities, beta)

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """See :meth:`PriorityScheme.loss`."""
        return self.scheme.loss(losses, td_errors, weights)

    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        """See :meth:`PriorityScheme.jax_loss`."""
        return self.scheme.jax_loss(losses, td_errors, weights)
