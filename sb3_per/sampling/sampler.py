"""Keep one sampling mass per slot: insert, draw, update."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sb3_per.sampling.age_draw import AgeDraw
from sb3_per.sampling.aged_tree import AgedTree
from sb3_per.sampling.candidates import Candidates
from sb3_per.sampling.mass_tree import LEAST_MASS, MassTree, NothingToDrawError
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sampling.subsets import draw_from, draw_without_repeats, newest_subset
from sb3_per.sampling.sum_tree import prefix_sums_of
from sb3_per.utils.checks import ABOVE_0, FRACTION, check_argument


@dataclass(frozen=True)
class DrawSettings:
    """
    How slots are drawn by their masses, whatever the scheme.

    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :param unique: whether a batch holds no slot twice
    :param recency: factor in (0, 1]: emphasizes recent experience (ERE, Wang & Ross 2019, arXiv 1906.04009); 1: off
    :param recency_min: least number of transitions to draw from with ``recency``
    :param age_decay: c of :class:`~sb3_per.sampling.aged_tree.AgedTree`; 0: age has no influence
    """

    # `BufferSettings` takes its defaults from here.
    stratified: bool = True
    unique: bool = False
    recency: float = 1.0
    recency_min: int = 5000
    age_decay: float = 0.0

    def for_demonstrations(self) -> "DrawSettings":
        """The same for demonstrations, none of which is newer than others."""
        return replace(self, recency=1.0, age_decay=0.0)


class Sampler:
    """
    Draws slots in proportion to their mass p^alpha (Schaul et al. 2016, equation 1).

    A slot gets its mass when it becomes a candidate. Whoever writes changes ring and tree together, in a ``with`` block of
    :meth:`changing_candidates`: with :meth:`insert_new`, :meth:`insert` and :meth:`remove`.

    Rows of all environments are the exception, unless the tree is outdated. The ring alone counts them, and they enter the
    tree before the next draw or update: one write of many slots is cheaper than many writes of one.

    So the tree is in one of three states, and :meth:`catch_up`, which draws and updates begin with, leads back to the first:

    ================================= ======================================================= ===============================
    state                             the slots with a mass are                               ``catch_up``
    ================================= ======================================================= ===============================
    current                           the candidates                                          does nothing
    rows wait                         the candidates without the newest rows                  inserts these rows
    outdated, e.g. by an interrupt    perhaps others                                          compares tree and candidates
    ================================= ======================================================= ===============================

    :param scheme: prioritization scheme, which turns TD errors into priorities and masses
    :param candidates: say which slots can be drawn
    :param settings: of the draw
    """

    def __init__(self, scheme: PriorityScheme, candidates: Candidates, settings: DrawSettings):
        self.scheme = scheme
        self.candidates = candidates
        self.draw_settings = settings
        self.tree = tree_for(scheme, candidates, settings.age_decay)
        # Changes nothing, but loads the kernel before the first step.
        self.tree.write(np.zeros(1, np.int64), np.zeros(1))
        self._has_user_defined_scheme = scheme.is_user_defined
        # Whether each slot is drawn from the whole tree, whatever else is in the batch.
        self._draws_from_whole_tree = settings.recency == 1.0 and not settings.unique
        is_plain = self._draws_from_whole_tree and not settings.stratified and not self.tree.depends_on_age
        #: whether draws are those of SB3's own buffer, with the same random numbers
        self.draws_as_sb3 = scheme.may_draw_as_sb3 and is_plain
        #: largest value that the tree takes: of a mass, or of a priority that is ranked
        self.largest_tree_value = np.inf if scheme.ranks_priorities else scheme.largest_mass
        #: largest priority seen so far, in units of the TD error (before the exponent)
        self.max_priority = 1.0
        #: whether the slots with a mass may be others than the candidates, apart from the rows that wait
        self.is_outdated = False
        # The ring's next step when the tree was last brought up to date. Later rows wait.
        self._known_until = candidates.ring.max_next_step

    @property
    def nbytes(self) -> int:
        """Bytes of the tree, and of what says which slots can be drawn."""
        return self.tree.nbytes + self.candidates.nbytes

    # ---- which slots have a mass

    @contextmanager
    def changing_candidates(self) -> Iterator[None]:
        """Change candidates and tree together, in a ``with`` block. After an interrupt, the tree follows at the next call."""
        self.mark_outdated()
        yield  # without `finally`: after an error, too, the next call compares tree and candidates
        self._mark_up_to_date()

    def mark_outdated(self) -> None:
        """Let the next call compare the tree with the candidates, because these are about to change."""
        self.catch_up()  # the rows that wait are the newest ones of the ring as it stands now
        self.is_outdated = True

    def _mark_up_to_date(self) -> None:
        """Take note that the tree has exactly the candidates."""
        self._known_until = self.candidates.ring.max_next_step
        self.is_outdated = False  # last, for interrupts

    def insert_new(self, slots: np.ndarray) -> None:
        """
        Give slots that can be drawn from now on the mass of ``max_priority``, or the first rank.

        :param slots: int64 of shape (n,)
        :raises ValueError: for a mass that is not allowed, from a user's scheme
        """
        if len(slots) == 0:
            return
        scheme = self.scheme
        new = np.inf if scheme.ranks_priorities else scheme.new_mass(self.max_priority)
        if not LEAST_MASS <= new <= self.largest_tree_value:
            raise ValueError(f"{scheme}.new_mass() gave {new}: it must be above 0 and at most {self.largest_tree_value}")
        self.tree.insert(slots, np.full(len(slots), new, np.float64))

    def insert(self, slots: np.ndarray, tree_values: np.ndarray) -> None:
        """
        Give slots that can be drawn from now on masses that their transitions bring. They do not raise ``max_priority``.

        :param slots: int64 of shape (n,)
        :param tree_values: masses, or with ranks priorities, float64 of shape (n,)
        """
        if len(slots):
            self.tree.insert(slots, tree_values)

    def remove(self, slots: np.ndarray) -> None:
        """
        Set the mass of slots to 0, because they can no longer be drawn.

        :param slots: int64 of shape (n,)
        """
        if len(slots):
            self.tree.write(slots, np.zeros(len(slots)))

    def catch_up(self) -> None:
        """Bring the tree up to date: with the rows that wait, or after an interrupt with everything."""
        ring = self.candidates.ring
        if self.is_outdated:
            self._compare_with_candidates()
        elif ring.max_next_step > self._known_until and self.candidates.are_all_complete:
            self.insert_new(ring.slots_of_newest_rows(ring.max_next_step - self._known_until))
            if ring.shares_next_obs:
                self.remove(ring.incomplete_slots())
            self._known_until = ring.max_next_step  # last, so that after an interrupt the rows are written once more

    def _compare_with_candidates(self) -> None:
        """Give each slot that can be drawn and has no mass that of a new transition, and take it from those that cannot."""
        drawable = self.candidates.slots()
        tree_values = self.tree.values()
        gone = np.flatnonzero(~self._can_be_drawn() & (tree_values > 0.0))
        new = drawable[tree_values[drawable] == 0.0]
        self.remove(gone)
        self.insert_new(new)
        self._mark_up_to_date()

    def _can_be_drawn(self) -> np.ndarray:
        """Tell which slots can be drawn, bool of shape (capacity,)."""
        can_be_drawn = np.zeros(self.tree.capacity, np.bool_)
        can_be_drawn[self.candidates.slots()] = True
        return can_be_drawn

    def clear(self) -> None:
        """Take all masses away, after the ring was emptied. What it holds then is new. ``max_priority`` stays."""
        self.is_outdated = True
        self.candidates.start_over()
        self.tree.clear()

    def masses(self) -> np.ndarray:
        """Return the masses of all slots, a copy."""
        self.catch_up()
        return self.tree.masses_at(np.arange(self.tree.capacity))

    # ---- draw

    def can_draw(self) -> bool:
        """Whether any slot can be drawn, new ones included."""
        self.catch_up()
        return self.tree.total > 0.0

    def draw(self, batch_size: int, series_progress: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots by mass.

        :param batch_size: number of slots
        :param series_progress: k / K of the k-th of K draws in a row, for ``recency``; ``None``: a random number
        :return: slots, int64, and their N P, by which importance-sampling weights correct the draw, float64, both of shape
            (batch_size,)
        :raises NothingToDrawError: if no slot can be drawn
        :raises ValueError: with ``unique``, if fewer slots than ``batch_size`` can be drawn
        """
        self.catch_up()
        n = self.candidates.n
        if n == 0:
            raise NothingToDrawError("No slot can be drawn")
        if self.draws_as_sb3:  # uniform, not stratified: with SB3's random numbers
            return self.candidates.draw_as_sb3(batch_size), np.ones(batch_size)
        if self._draws_from_whole_tree:  # the usual case
            return self.tree.draw(np.random.random_sample(batch_size), self.draw_settings.stratified, n)
        # With `recency` or `unique`.
        subset = newest_subset(self.tree, self.candidates, self._n_newest(series_progress, batch_size))
        if self.draw_settings.unique:
            slots = draw_without_repeats(subset, self.tree, self.candidates, batch_size, self.draw_settings.stratified)
        else:
            slots = draw_from(subset, batch_size, self.draw_settings.stratified)
        return slots, subset.relative_probabilities(slots)

    def _n_newest(self, series_progress: float | None, batch_size: int) -> int:
        """Count the newest transitions to draw from (ERE): the fewer, the later in a series of draws."""
        n = self.candidates.n
        if self.draw_settings.recency == 1.0:
            return n
        if series_progress is None:
            series_progress = np.random.random_sample()
        check_argument("series_progress", series_progress, FRACTION)
        # c_k = max(N eta^(1000 k / K), c_min), Wang & Ross 2019, equation 1.
        n_newest = max(int(n * self.draw_settings.recency ** (1000.0 * series_progress)), self.draw_settings.recency_min)
        if self.draw_settings.unique:
            n_newest = max(n_newest, batch_size)
        return min(n_newest, n)

    def draw_uniformly(self, batch_size: int) -> np.ndarray:
        """
        Draw slots that are equally likely.

        :param batch_size: number of slots
        :return: slots, int64 of shape (batch_size,)
        """
        n = self.candidates.n
        fractions = prefix_sums_of(np.random.random_sample(batch_size), 1.0, self.draw_settings.stratified)
        positions = np.minimum((fractions * n).astype(np.int64), n - 1)
        return self.candidates.newest(positions, n)

    # ---- update

    def update(self, slots: np.ndarray, tree_values: np.ndarray, largest_priority: float) -> None:
        """
        Set priorities. Of repeated slots the last one counts.

        :param slots: slots that can be drawn, int64 of shape (n,)
        :param tree_values: from :meth:`evaluate`, as the next one, shape (n,)
        :param largest_priority: of these slots
        """
        if len(slots) == 0:
            return
        self.catch_up()  # before `max_priority` changes
        # Before the tree: after an interrupt in between, new transitions still have the largest mass.
        self.max_priority = max(self.max_priority, largest_priority)
        self.tree.write(slots, tree_values)

    def evaluate(self, abs_td_errors: np.ndarray) -> tuple[np.ndarray, float]:
        """
        Turn TD errors into priorities, and these into what the tree takes, and check both. Nothing changes.

        :param abs_td_errors: ``|td|``, float64 of shape (n, n_critics)
        :return: tree values, masses or with ranks priorities: a float64 array of shape (n,), whatever a user's scheme returns;
            and the largest priority
        :raises ValueError: for a priority that is NaN or infinite, or another number of priorities or masses; for a mass of a
            user's scheme that is not above 0, or above its ``largest_mass``
        """
        scheme = self.scheme
        priorities = scheme.priority(scheme.reduce(abs_td_errors))
        if self._has_user_defined_scheme:
            priorities = self._checked_priorities(priorities, len(abs_td_errors))
        largest_priority = 0.0
        if len(priorities):
            largest_priority = float(priorities[priorities.argmax()])  # a NaN, if there is one; three times as fast as `max`
        if not largest_priority < np.inf:
            raise ValueError(f"{scheme}.priority() gave {largest_priority}: it must be finite")
        if scheme.ranks_priorities:
            return priorities, largest_priority
        masses = scheme.mass(priorities)
        if self._has_user_defined_scheme:
            masses = self._checked_masses(masses, len(priorities))
        return masses, largest_priority

    def _checked_priorities(self, priorities: Any, n: int) -> np.ndarray:
        """
        Check what a user's scheme gives, but for infinity and NaN, which the caller refuses.

        :param priorities: from its ``priority()``
        :param n: number of transitions
        :return: the same, float64 of shape (n,), contiguous
        """
        scheme = self.scheme
        priorities = np.asarray(priorities, np.float64, order="C")
        if priorities.shape != (n,):
            raise ValueError(
                f"{scheme}.priority() gave shape {priorities.shape}: it must give one priority for each of {n} transitions"
            )
        least = priorities.min(initial=np.inf)
        # `mass` may make a mass of a priority of 0; a tree of ranks could not draw it.
        if least < 0.0 or (least == 0.0 and scheme.ranks_priorities):
            raise ValueError(f"{scheme}.priority() gave {least}: it must be above 0")
        return priorities

    def _checked_masses(self, masses: Any, n: int) -> np.ndarray:
        """
        Check what a user's scheme gives.

        :param masses: from its ``mass()``
        :param n: number of priorities
        :return: the same, float64 of shape (n,), contiguous
        """
        scheme = self.scheme
        masses = np.asarray(masses, np.float64, order="C")
        if masses.shape != (n,):
            raise ValueError(f"{scheme}.mass() gave shape {masses.shape} for {n} priorities")
        is_allowed = (masses >= LEAST_MASS) & (masses <= scheme.largest_mass)
        if not is_allowed.all():
            raise ValueError(
                f"{scheme}.mass() gave {masses[~is_allowed][0]}: it must be above 0 and at most {scheme.largest_mass}"
            )
        return masses

    # ---- saving

    def state(self, n_slots: int) -> dict[str, Any]:
        """
        Return everything that draws depend on.

        :param n_slots: number of slots, from 0 on, that may hold a transition
        :return: numbers and arrays, see :meth:`load`
        """
        self.catch_up()
        return {"max_priority": self.max_priority, **self.tree.state(n_slots)}

    def tree_values(self) -> np.ndarray:
        """Return the tree value of every slot, its mass or with ranks its priority: float64 of shape (capacity,)."""
        self.catch_up()
        return self.tree.values()

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """
        Restore a state in a new sampler, whose ring and candidates are restored already.

        :param state: from :meth:`state` of a sampler with the same capacity
        :param keeps_masses: whether it has the same scheme; otherwise every transition gets the mass of a new one
        :raises ValueError: if it is not such a state. Discard the sampler after this error
        """
        self.load_max_priority(state["max_priority"])
        self.is_outdated = True
        if not keeps_masses:
            return
        self.tree.load(state)
        if (self.tree.values()[~self._can_be_drawn()] > 0.0).any():
            raise ValueError("a slot that cannot be drawn has a mass")

    def load_tree_values(self, slots: np.ndarray, tree_values: np.ndarray) -> None:
        """
        Give slots of a new sampler masses, where they can be drawn. All others get the mass of a new transition.

        :param slots: in the order in which they were written, int64 of shape (n,)
        :param tree_values: of these slots in the sampler that they come from, see :meth:`tree_values`; 0: none
        """
        self.is_outdated = True
        is_known = self._can_be_drawn()[slots] & (tree_values > 0.0)
        self.insert(slots[is_known], tree_values[is_known])

    def load_max_priority(self, max_priority: float) -> None:
        """
        Restore the largest priority, which belongs to no slot.

        :param max_priority: of a sampler of any capacity
        :raises ValueError: for a number that is not above 0
        """
        check_argument("max_priority", max_priority, ABOVE_0)
        self.max_priority = float(max_priority)


def tree_for(scheme: PriorityScheme, candidates: Candidates, age_decay: float) -> MassTree:
    """
    Make the tree that a scheme and the influence of age need.

    :param scheme: prioritization scheme
    :param candidates: say which slots can be drawn
    :param age_decay: c of :class:`~sb3_per.sampling.aged_tree.AgedTree`; 0: age has no influence
    :return: an empty tree
    """
    ring = candidates.ring
    if age_decay / ring.capacity == 0.0:  # the rate of a slot, which may underflow
        return scheme.make_tree(ring.capacity)
    if scheme.draws_uniformly and candidates.are_all_complete:
        return AgeDraw(age_decay, ring)
    return AgedTree(age_decay, ring)
