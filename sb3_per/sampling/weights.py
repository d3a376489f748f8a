"""Importance-sampling weights, and the exponent beta that is annealed."""

import numpy as np

from sb3_per.sampling.schemes import PriorityScheme


class ImportanceWeights:
    """
    Weights (N P)^-beta, normalized over the batch (Schaul et al. 2016, section 3.4).

    :param scheme: prioritization scheme, which may have no weights
    :param normalization: ``"max"``: divide by the largest of the batch; ``"mean"``: by the mean; ``"none"``: do not divide
    :param beta_start: exponent at the start
    :param beta_end: exponent at the end
    :param beta_anneal_steps: number of draws from start to end; ``None``: beta follows the training progress
    """

    def __init__(
        self, scheme: PriorityScheme, normalization: str, beta_start: float, beta_end: float, beta_anneal_steps: int | None
    ):
        self.scheme, self.normalization = scheme, normalization
        # A saved beta is compared with this one by type, so 0 and 1 become floats.
        self.beta_start, self.beta_end, self.beta_anneal_steps = float(beta_start), float(beta_end), beta_anneal_steps
        #: current exponent; never decreases
        self.beta = self.beta_start
        #: number of draws, counted for ``beta_anneal_steps``
        self.n_draws = 0

    def __call__(self, n_p: np.ndarray) -> np.ndarray:
        """
        Compute the weights of a batch.

        :param n_p: N P of the drawn transitions, above 0, shape (batch_size,)
        :return: weights, float32 of shape (batch_size, 1)
        """
        if not self.scheme.importance_sampling:
            return np.ones((len(n_p), 1), np.float32)
        weights = self.scheme.weights(n_p, self.beta)
        if self.normalization == "max":
            return weights
        if self.normalization == "mean":
            return np.asarray(weights / weights.mean())
        # The scheme's weights are 1 for the least probable transition.
        with np.errstate(over="ignore"):
            unnormalized = weights * n_p.min() ** -self.beta
        return np.asarray(np.minimum(unnormalized, np.finfo(np.float32).max), np.float32)

    def count_draw(self) -> None:
        """Anneal beta by one draw, with ``beta_anneal_steps``."""
        if self.beta_anneal_steps is not None:
            self.n_draws += 1
            self._anneal(self.n_draws / self.beta_anneal_steps)

    def follow(self, progress_remaining: float) -> None:
        """
        Anneal beta with training progress, unless ``beta_anneal_steps`` is set.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules
        """
        if self.beta_anneal_steps is None:
            self._anneal(1.0 - progress_remaining)

    def _anneal(self, fraction: float) -> None:
        """Interpolate from start to end. beta never decreases, e.g. in a resumed run."""
        start, end = self.beta_start, self.beta_end
        self.beta = max(self.beta, start + fraction * (end - start) if fraction < 1.0 else end)

    def state(self) -> dict[str, float | int]:
        """Return beta and the number of draws, see :meth:`load`."""
        return {"beta": self.beta, "n_draws": self.n_draws}

    def load(self, state: dict[str, float | int]) -> None:
        """
        Restore a state.

        :param state: from :meth:`state`
        :raises ValueError: if it is not such a state
        """
        beta, n_draws = state["beta"], state["n_draws"]
        if not 0.0 <= beta <= 1.0 or not isinstance(n_draws, int) or not 0 <= n_draws < 2**60:
            raise ValueError(f"beta must be in [0, 1], not {beta}, after a number of draws, not {n_draws}")
        self.beta, self.n_draws = max(self.beta_start, float(beta)), n_draws
