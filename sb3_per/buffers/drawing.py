"""
The draw: by mass, partly uniform, from the newest transitions only, or without repeats. It reads the state of the buffer and
changes nothing.
"""

from typing import Any

import numpy as np

from sb3_per.buffers.drawable import DrawableRing
from sb3_per.buffers.ring import is_count
from sb3_per.schemes import Uniform
from sb3_per.trees.rank_tree import RankTree
from sb3_per.trees.sum_tree import spread

# How often what is missing of a batch without repeats is drawn again, before all that is left is looked at.
_ROUNDS = 4


class DrawingRing(DrawableRing):
    """
    A ring that transitions are drawn from, see :class:`~sb3_per.buffers.replay.PrioritizedReplayBuffer` for the settings.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param stratified: one draw from each of ``batch_size`` equal slices
    :param uniform_fraction: share of uniform draws
    :param unique: no transition twice in a batch
    :param recency: factor by which the number of the newest transitions that are drawn from shrinks, for 1,000 draws
    :param recency_min: least number of them
    :param kwargs: SB3's keyword arguments and those of :class:`~sb3_per.buffers.drawable.DrawableRing`
    :raises ValueError: for a setting outside of its range
    """

    def __init__(
        self,
        *args: Any,
        stratified: bool = True,
        uniform_fraction: float = 0.0,
        unique: bool = False,
        recency: float = 1.0,
        recency_min: int = 5000,
        **kwargs: Any,
    ):
        if not 0.0 <= uniform_fraction < 1.0:
            raise ValueError(f"uniform_fraction must be in [0, 1), not {uniform_fraction}")
        if not 0.0 < recency <= 1.0:
            raise ValueError(f"recency must be in (0, 1], not {recency}")
        if not is_count(recency_min):
            raise ValueError(f"recency_min must be an integer of at least 1, not {recency_min!r}")
        super().__init__(*args, **kwargs)
        self.stratified = stratified
        self.uniform_fraction = uniform_fraction
        self.unique = unique
        self.recency = recency
        self.recency_min = recency_min

    def _draw(self, batch_size: int, position: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """
        :param batch_size: number of transitions
        :param position: k / K of this draw, for ``recency``; ``None``: a random number
        :return: leaves, int64, in the order of the batch, and numbers in proportion to their probabilities, float64, both of
            shape (batch_size,): their masses or, where those do not tell, N P
        """
        if self.uniform_fraction == 0.0 and self.recency == 1.0 and not self.unique:
            if self.stratified or not isinstance(self.scheme, Uniform):
                return self._tree.draw(np.random.random_sample(batch_size), self.stratified)
            return self._stock_draw(batch_size), np.ones(batch_size)
        n_newest = self._n_newest(position)
        if self.unique and n_newest < batch_size:
            raise ValueError(f"A batch of {batch_size} without repeats cannot be drawn from {n_newest} transitions")
        leaves = self._find(np.random.random_sample(batch_size), self.stratified, n_newest)
        if self.unique:
            leaves = self._without_repeats(leaves, n_newest)
        return leaves, self._weighing(leaves, n_newest)

    @property
    def _draws_by_mass(self) -> bool:
        """Whether probabilities are in proportion to the masses in the tree."""
        return (self.uniform_fraction == 0.0 or self.scheme.draws_uniformly) and self.recency == 1.0

    @property
    def _draws_as_stock(self) -> bool:
        return not self.stratified and isinstance(self.scheme, Uniform) and self._draws_by_mass and not self.unique

    def _stock_draw(self, batch_size: int) -> np.ndarray:
        """SB3's draw, with the same random numbers."""
        if self._apart is not None:
            # SB3 has nothing like it.
            n_drawable = self._n_drawable
            return self._drawable_leaves(n_drawable)(np.random.randint(0, n_drawable, size=batch_size))
        if self.optimize_memory_usage and self.full:
            rows = (np.random.randint(1, self.buffer_size, size=batch_size) + self.pos) % self.buffer_size
        else:
            rows = np.random.randint(0, self.size(), size=batch_size)
        leaves: np.ndarray = rows * self.n_envs + np.random.randint(0, high=self.n_envs, size=batch_size)
        return leaves

    # ---- of the newest transitions

    def _n_newest(self, position: float | None) -> int:
        """
        Emphasizing recent experience (ERE, Wang & Ross 2019, arXiv 1906.04009): how many of the newest transitions are drawn
        from, max(N recency^(1000 k / K), recency_min).
        """
        n_drawable = self._n_drawable
        if self.recency == 1.0:
            return n_drawable
        position = float(np.random.random_sample()) if position is None else position
        return min(max(int(n_drawable * self.recency ** (1000.0 * position)), self.recency_min), n_drawable)

    @property
    def _newest_are_neighbours(self) -> bool:
        """
        Whether the newest transitions are neighbours in the tree; if not, a draw with ``recency`` looks at each of them.
        """
        return self._apart is None and not isinstance(self._tree, RankTree)

    def _total_of(self, n_newest: int) -> float:
        """Sum of the masses of the newest transitions."""
        if n_newest == self._n_drawable:
            return self._tree.total
        if self._newest_are_neighbours:
            return self._tree.sum_range((self._next_id - n_newest) % self._capacity, n_newest)
        return float(self._tree[self._drawable_leaves(n_newest)(np.arange(n_newest))].sum())

    # ---- draws

    def _find(self, uniforms: np.ndarray, stratified: bool, n_newest: int) -> np.ndarray:
        """
        :param uniforms: numbers in [0, 1), shape (batch_size,)
        :param stratified: one in each of ``batch_size`` equal slices
        :param n_newest: how many of the newest transitions are drawn from
        :return: leaves, with probability (1 - eta) m / sum m + eta / n
        """
        eta = 0.0 if self.scheme.draws_uniformly else self.uniform_fraction
        fractions = spread(uniforms, 1.0, stratified)
        if eta == 0.0:
            return self._find_by_mass(fractions, n_newest)
        is_uniform = fractions < eta
        leaves = np.empty(len(fractions), np.int64)
        ranks = (fractions[is_uniform] / eta * n_newest).astype(np.int64).clip(max=n_newest - 1)
        leaves[is_uniform] = self._drawable_leaves(n_newest)(ranks)
        leaves[~is_uniform] = self._find_by_mass((fractions[~is_uniform] - eta) / (1.0 - eta), n_newest)
        return leaves

    def _find_by_mass(self, fractions: np.ndarray, n_newest: int) -> np.ndarray:
        """
        :param fractions: of the sum of the masses, in [0, 1), shape (n,)
        :param n_newest: how many of the newest transitions are drawn from
        :return: leaves, shape (n,)
        """
        if n_newest == self._n_drawable:
            return self._tree.find(fractions * self._tree.total)  # type: ignore[no-any-return]
        if not self._newest_are_neighbours:
            candidates = self._drawable_leaves(n_newest)(np.arange(n_newest))
            sums = np.cumsum(self._tree[candidates])
            found = np.searchsorted(sums, fractions * sums[-1], side="right")
            return np.asarray(candidates[found.clip(max=n_newest - 1)])
        return self._tree.find_range(
            fractions * self._total_of(n_newest), (self._next_id - n_newest) % self._capacity, n_newest
        )

    def _weighing(self, leaves: np.ndarray, n_newest: int) -> np.ndarray:
        """
        :param leaves: drawn, of any shape
        :param n_newest: how many of the newest transitions they were drawn from
        :return: their masses or, where probabilities are not in proportion to them, N P
        """
        masses: np.ndarray = self._tree[leaves]
        if self._draws_by_mass:
            return masses
        eta = 0.0 if self.scheme.draws_uniformly else self.uniform_fraction
        return np.asarray((1.0 - eta) * masses * (n_newest / self._total_of(n_newest)) + eta)

    def _n_p(self, weighing: np.ndarray) -> np.ndarray:
        """
        :param weighing: what :meth:`_draw` gave
        :return: N P of the drawn transitions
        """
        return weighing * (self._n_drawable / self._tree.total) if self._draws_by_mass else weighing

    def _without_repeats(self, leaves: np.ndarray, n_newest: int) -> np.ndarray:
        """
        What was drawn twice is drawn again, from what is left: draws from everything, of which only the new ones count, are
        draws from what is left.

        :param leaves: drawn; stratified ones keep their places, independent ones are a sequence
        :param n_newest: how many of the newest transitions are drawn from
        :return: as many, all different
        """
        is_first = _first_occurrences(leaves)
        chosen = leaves[is_first]
        for _ in range(_ROUNDS):
            if len(chosen) == len(leaves):
                break
            more = self._find(np.random.random_sample(len(leaves)), False, n_newest)
            chosen = np.concatenate((chosen, more))
            chosen = chosen[_first_occurrences(chosen)][: len(leaves)]
        if len(chosen) < len(leaves):
            chosen = np.concatenate((chosen, self._successive_draws(len(leaves) - len(chosen), chosen, n_newest)))
        if not self.stratified:
            return np.asarray(chosen)
        result = leaves.copy()
        result[~is_first] = chosen[is_first.sum() :]
        return result

    def _successive_draws(self, n: int, chosen: np.ndarray, n_newest: int) -> np.ndarray:
        """
        Successive draws without replacement as a race: each transition arrives after an exponential time with its probability
        as the rate, and the first to arrive are drawn.

        :param n: how many
        :param chosen: leaves that were drawn already
        :param n_newest: how many of the newest transitions are drawn from
        :return: leaves in the order of the draws
        """
        candidates = self._drawable_leaves(n_newest)(np.arange(n_newest))
        candidates = candidates[~np.isin(candidates, chosen)]
        with np.errstate(divide="ignore"):
            arrivals = np.random.exponential(size=len(candidates)) / self._weighing(candidates, n_newest)
        drawn: np.ndarray = candidates[np.argsort(arrivals, kind="stable")[:n]]
        return drawn


def _first_occurrences(leaves: np.ndarray) -> np.ndarray:
    """Which entries were not there before, bool of the same shape."""
    is_first = np.zeros(len(leaves), dtype=bool)
    is_first[np.unique(leaves, return_index=True)[1]] = True
    return is_first
