"""Keep one sampling mass per slot: insert, update, draw."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_per.sampling.aged_tree import AgeDraw, AgedTree
from sb3_per.sampling.draw import draw_from, find_uniformly, newest_of
from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sampling.sum_tree import spread
from sb3_per.utils.checks import ABOVE_0, integer, require

# Number of draws in a row without an update after which a warning is given, once.
_MANY_DRAWS = 10
_NO_UPDATES = f"{_MANY_DRAWS} batches were drawn by priority and update_priorities() was not called. "
_OF_ANY_LEARNER = (
    "A stock algorithm neither weights its loss nor updates priorities, and learns from a biased draw: use the class of "
    'sb3_per in its place (PERSAC for SAC, PERDQN for DQN, ...), or scheme="uniform". In a loop of your own, multiply the '
    "loss by batch.weights, and call update_priorities(batch.indices, td_errors) after each update"
)
_OF_OWN_TRAIN = (
    "{} learns from a biased draw: multiply its loss by batch.weights, and call "
    "self.replay_buffer.update_priorities(batch.indices, td_errors) after each update. Or override _update() in place "
    'of train(), or set scheme="uniform"'
)


@dataclass(eq=False)
class Sampler:
    """
    Draws slots in proportion to their mass p^alpha (Schaul et al. 2016, equation 1).

    The tree is updated lazily. The next draw or update inserts new slots, with the mass that they came with or that of
    ``max_priority``.

    :param scheme: prioritization scheme, which turns TD errors into priorities and masses
    :param eligible: says which slots can be drawn
    :param initial_priority: priority of a new slot: ``"max"``, ``"mean"`` or ``"td_error"``
    :param max_priority_interval: number of updates after which ``max_priority`` becomes the largest in the tree; ``None``:
        never
    :param bonus: added to all priorities, in units of the TD error
    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :param uniform_fraction: share eta of uniform draws, in [0, 1)
    :param unique: whether a batch holds no slot twice
    :param recency: factor in (0, 1]: emphasizes recent experience (ERE, Wang & Ross 2019, arXiv 1906.04009); 1: off
    :param recency_min: least number of transitions to draw from with ``recency``
    :param age_decay: c of :class:`~sb3_per.sampling.aged_tree.AgedTree`; 0: age has no influence
    :param learner: a user's method that draws, for the warning that nobody updates priorities; ``None``: it is not known
    """

    scheme: PriorityScheme
    eligible: Eligibility
    initial_priority: str = "max"
    max_priority_interval: int | None = None
    bonus: float = 0.0
    stratified: bool = True
    uniform_fraction: float = 0.0
    unique: bool = False
    recency: float = 1.0
    recency_min: int = 1
    age_decay: float = 0.0
    learner: str | None = None

    def __post_init__(self) -> None:
        scheme, eligible, capacity = self.scheme, self.eligible, self.eligible.ring.capacity
        self.tree, is_aged = scheme.make_tree(capacity), self.age_decay / capacity > 0.0
        if is_aged:
            is_closed = scheme.draws_uniformly and eligible.are_newest
            self.tree = (AgeDraw if is_closed else AgedTree)(self.age_decay, eligible.ring)
        self.tree.update(0, 0.0)  # changes nothing, but loads the kernel before the first step
        self._eta = 0.0 if scheme.draws_uniformly else self.uniform_fraction
        # Whether each slot is drawn from the whole tree, whatever else is in the batch.
        self._is_plain = self._eta == 0.0 and self.recency == 1.0 and not self.unique
        #: whether draws are those of SB3's own buffer, with the same random numbers
        self.is_stock = scheme.draws_as_stock and not self.stratified and self._is_plain and not is_aged
        #: for ``recency``: k / K if the next draw is the k-th of K in a row; ``None``: a random number
        self.position: float | None = None
        #: number of draws in a row without an update, for one warning: once it was given, updates do not reset the number. Set
        #: it to 0 before updates that follow many draws
        self.n_unanswered = 0
        #: largest priority seen so far, in units of the TD error (before the exponent)
        self.max_priority = 1.0
        self.n_updates = 0
        self._n_known = 0  # slots with a mass, counted for the mean
        #: masses that transitions came with, by slot, until they are in the tree; NaN for none. Allocated when first needed
        self.given: np.ndarray | None = None
        # Where the ring began when the tree was last emptied.
        self._begin = eligible.ring.begin

    @property
    def nbytes(self) -> int:
        """Bytes of the tree, and of what says which transitions can be drawn."""
        return self.tree.nbytes + self.eligible.nbytes

    # ---- drawing

    def can_draw(self) -> bool:
        """Whether any slot can be drawn, new ones included."""
        self.settle()
        return self.tree.total > 0.0

    def draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots by mass, with all settings of the draw. Warn if nobody updates priorities.

        :param batch_size: number of slots, where at least one can be drawn
        :return: slots, int64, and their N P, by which importance-sampling weights correct the draw, float64, both of shape
            (batch_size,)
        :raises ValueError: with ``unique``, if fewer slots than ``batch_size`` can be drawn
        """
        self.n_unanswered += 1
        if self.n_unanswered == _MANY_DRAWS and self.scheme.alpha > 0.0:
            warnings.warn(_NO_UPDATES + (_OF_OWN_TRAIN.format(self.learner) if self.learner else _OF_ANY_LEARNER))
        n = self.eligible.n
        if self.is_stock:
            return self.eligible.stock_draw(batch_size), np.ones(batch_size)
        if self._is_plain:
            return self.tree.draw(np.random.random_sample(batch_size), self.stratified, self.tree.count(n) / self.tree.total)
        if self.recency < 1.0:
            position = np.random.random_sample() if self.position is None else self.position
            n, self.position = min(max(int(n * self.recency ** (1000.0 * position)), self.recency_min), n), None
        distribution = newest_of(self.tree, self.eligible, n, self._eta)
        slots = draw_from(distribution, batch_size, self.stratified, self.unique)
        return slots, distribution.n_p(slots)

    def draw_uniformly(self, batch_size: int) -> np.ndarray:
        """
        Draw slots that are equally likely.

        :param batch_size: number of slots
        :return: slots, int64 of shape (batch_size,)
        """
        fractions = spread(np.random.random_sample(batch_size), 1.0, self.stratified)
        return find_uniformly(self.eligible, self.eligible.n, fractions)

    # ---- new transitions

    def settle(self) -> None:
        """
        Bring the tree up to date with what was added since the last call.

        The changes are confirmed once the tree has them: after an interrupt, the next call makes them again.
        """
        begin = self.eligible.ring.begin
        if begin != self._begin:
            self.tree.clear()
            self._begin = begin
        new, gone = self.eligible.changes()
        if not new.size and not gone.size:
            return
        if gone.size:
            self._remove(gone)
        masses = self._masses_of_new(new)
        self.tree.update(new, masses, are_new=True)
        self.eligible.confirm_changes()
        if self.initial_priority == "mean":
            self._n_known = self.eligible.n

    def _remove(self, slots: np.ndarray) -> None:
        """Set the mass of slots to 0."""
        if self.initial_priority == "mean":
            self._n_known -= int(np.count_nonzero(self.tree[np.unique(slots)]))
        self.tree.update(slots, 0.0)

    def _masses_of_new(self, slots: np.ndarray) -> np.ndarray:
        """Return the mass that each new slot came with; for all others that of ``max_priority``, or the mean."""
        # After an interrupt, the number may lack transitions that the tree has.
        has_mean = self.initial_priority == "mean" and self.tree.total > 0.0 and self._n_known > 0
        mass = self.tree.total / self.tree.count(self._n_known) if has_mean else self.scheme.mass_of_new(self.max_priority)
        masses = np.full(len(slots), mass, np.float64)
        if self.given is not None:
            given = self.given[slots]
            np.copyto(masses, given, where=~np.isnan(given))
        return masses

    def give(self, slots: np.ndarray, masses: np.ndarray | None) -> None:
        """
        Remember masses that transitions come with, until the transitions are inserted.

        :param slots: slots of transitions that were just written, int64 of shape (n,)
        :param masses: float64 of shape (n,); ``None``: the transitions come without
        """
        if self.given is None:
            if masses is None:
                return
            self.given = np.full(len(self.tree), np.nan)
        self.given[slots] = np.nan if masses is None else masses

    def masses_of(self, abs_td_errors: np.ndarray, initial_priority: str | None = None) -> np.ndarray:
        """
        Turn TD errors of new transitions into masses.

        :param abs_td_errors: ``|td|``, float64 of shape (n, n_critics)
        :param initial_priority: in place of the setting; ``None``: the setting
        :return: what :meth:`give` takes, shape (n,)
        :raises ValueError: with another ``initial_priority`` than ``"td_error"``
        """
        initial_priority = initial_priority or self.initial_priority
        if initial_priority != "td_error":
            raise ValueError(f"td_errors with add() need initial_priority='td_error', not {initial_priority!r}")
        masses = self.scheme.mass(self.scheme.priority(self.scheme.reduce(abs_td_errors)))
        largest = self.scheme.largest_mass
        bad = masses[~((masses >= 0.0) & (masses <= largest))]
        if bad.size:
            raise ValueError(f"{self.scheme}.mass() gave {bad[0]} for td_errors: it must be in [0, {largest}]")
        return masses

    def masses(self) -> np.ndarray:
        """Return the masses of all slots, as the next draw sees them: a copy."""
        self.settle()
        return np.asarray(self.tree[:])

    def clear(self) -> None:
        """Forget all slots, after the ring was emptied. ``max_priority`` stays."""
        self.given = None
        self.eligible.clear()
        self.tree.clear()
        self._begin = self.eligible.ring.begin

    # ---- new TD errors

    def update(self, slots: np.ndarray, abs_td_errors: np.ndarray) -> int:
        """
        Set priorities. Of repeated slots the last one counts; slots that cannot be drawn are skipped.

        :param slots: slots of complete transitions, int64 of shape (n,)
        :param abs_td_errors: ``|td|``, finite float64 of shape (n, n_critics)
        :return: number of slots that were written
        """
        if self.n_unanswered < _MANY_DRAWS:
            self.n_unanswered = 0
        self.settle()  # before `max_priority` changes
        is_eligible = self.eligible.among(slots)
        if is_eligible is not None:
            slots, abs_td_errors = slots[is_eligible], abs_td_errors[is_eligible]
        if len(slots) == 0:
            return 0
        priority = self.scheme.priority(self.scheme.reduce(abs_td_errors))
        if self.bonus > 0.0:
            priority = priority + self.bonus
        largest = float(priority[priority.argmax()])  # faster than `max`
        if not largest < np.inf:
            raise ValueError(f"{self.scheme}.priority() gave {largest}: it must be finite")
        largest = max(self.max_priority, largest)
        self.tree.update(slots, self.scheme.mass(priority))
        self.max_priority = largest
        self.n_updates += 1
        if self.max_priority_interval is not None and self.n_updates % self.max_priority_interval == 0:
            # A power of a root may be less by rounding, but no new transition may rank below another.
            self.max_priority = self.scheme.priority_of(float(self.tree.written().max())) * (1.0 + 1e-12)
        return len(slots)

    # ---- saving

    def state(self, n_slots: int) -> dict[str, Any]:
        """
        Return everything that draws depend on.

        :param n_slots: number of slots, from 0 on, that may hold a transition
        :return: numbers and arrays, see :meth:`load`
        """
        given = {} if self.given is None else {"given_masses": self.given[:n_slots]}
        return {"max_priority": self.max_priority, "n_updates": self.n_updates, **self.tree.state(n_slots), **given}

    def given_masses(self) -> np.ndarray:
        """
        Return the masses of all slots, also of those that wait for the tree.

        :return: what :meth:`give` of another sampler with the same scheme takes, by slot: masses (rank: priorities), NaN for
            slots without one
        """
        given = np.full(len(self.tree), np.nan) if self.given is None else self.given.copy()
        written = self.tree.written()
        given[written > 0.0] = written[written > 0.0]
        return given

    def load(self, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """
        Restore a state in a new sampler.

        :param state: from :meth:`state` of a sampler with the same capacity
        :param keeps_masses: whether it has the same scheme; otherwise every transition gets the mass of a new one
        :raises ValueError: if it is not such a state. Discard the sampler after this error
        """
        self.load_numbers(state)
        self._begin = self.eligible.ring.begin
        if not keeps_masses:
            return
        self.tree.load(state)
        self._n_known = int(np.count_nonzero(self.tree.written()))
        if "given_masses" in state:
            given = np.asarray(state["given_masses"])
            if ((given < 0.0) | (given > self.scheme.largest_mass)).any():  # NaN: none was given
                raise ValueError("a mass is negative or infinite")
            self.give(np.arange(len(given)), given)

    def load_numbers(self, state: dict[str, Any]) -> None:
        """
        Restore what does not belong to a slot.

        :param state: from :meth:`state` of a sampler of any capacity
        :raises ValueError: for numbers out of their range
        """
        require("max_priority", state["max_priority"], ABOVE_0)
        require("n_updates", state["n_updates"], integer(0))
        self.max_priority, self.n_updates = float(state["max_priority"]), state["n_updates"]
