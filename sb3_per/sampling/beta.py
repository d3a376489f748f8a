"""The exponent beta of importance-sampling weights, which is annealed (Schaul et al. 2016, section 3.4)."""

from typing import Any


class BetaSchedule:
    """
    Raise beta from a start to an end, by training progress or by the number of draws.

    :param start: exponent at the start
    :param end: exponent at the end
    :param anneal_steps: number of draws from start to end; ``None``: beta follows the training progress
    """

    def __init__(self, start: float, end: float, anneal_steps: int | None):
        # A saved beta is compared with this one by type, so 0 and 1 become floats.
        self.start = float(start)
        self.end = float(end)
        self.anneal_steps = anneal_steps
        #: current exponent; never decreases
        self.value = self.start
        #: number of draws, counted for ``anneal_steps``
        self.n_draws = 0

    def count_draw(self) -> None:
        """Anneal beta by one draw, with ``anneal_steps``."""
        if self.anneal_steps is not None:
            self.n_draws += 1
            self._anneal(self.n_draws / self.anneal_steps)

    def follow(self, progress_remaining: float) -> None:
        """
        Anneal beta with training progress, unless ``anneal_steps`` is set.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules
        """
        if self.anneal_steps is None:
            self._anneal(1.0 - progress_remaining)

    def go_on_from(self, beta: float) -> None:
        """
        Go on where another schedule was. Its end may have been above the end of this one, which a user has lowered since.

        :param beta: its exponent; one below the present exponent changes nothing
        """
        self.value = max(self.value, min(beta, self.end))
        self.n_draws = max(self.n_draws, self._draws_until_now())

    def _draws_until_now(self) -> int:
        """Number of draws that raise beta from the start to the present exponent; 0 without ``anneal_steps``."""
        if self.anneal_steps is None or self.end <= self.start:
            return 0
        return round((self.value - self.start) / (self.end - self.start) * self.anneal_steps)

    def _anneal(self, fraction: float) -> None:
        """Interpolate from start to end. beta never decreases, e.g. in a resumed run."""
        if fraction >= 1.0:
            target = self.end
        else:
            target = self.start + fraction * (self.end - self.start)
        self.value = max(self.value, target)  # in this order, NaN changes nothing

    def state(self) -> dict[str, Any]:
        """Return beta, and the number of draws out of how many, see :meth:`load`."""
        return {"beta": self.value, "n_draws": self.n_draws, "anneal_steps": self.anneal_steps}

    def load(self, state: dict[str, Any]) -> None:
        """
        Restore a state, within the range of this schedule. If the other one had another length, beta goes on where it was.

        :param state: from :meth:`state`
        :raises ValueError: if it is not such a state
        """
        beta = state["beta"]
        n_draws = state["n_draws"]
        if not 0.0 <= beta <= 1.0 or not isinstance(n_draws, int) or not 0 <= n_draws < 2**60:
            raise ValueError(f"beta must be in [0, 1], not {beta}, after a number of draws, not {n_draws}")
        self.value = max(self.start, min(float(beta), self.end))
        if state.get("anneal_steps", self.anneal_steps) == self.anneal_steps:
            self.n_draws = n_draws
        else:
            self.n_draws = self._draws_until_now()
