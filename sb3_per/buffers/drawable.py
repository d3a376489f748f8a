"""
Which transitions of the ring can be drawn, and the mass that a new one gets. It knows the tree, and nothing of draws.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.columns import Columns, Move
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.ring import TransitionRing, is_count
from sb3_per.schemes import LAP, LARGEST_MASS, PriorityScheme, RankBased
from sb3_per.trees.rank_tree import RankTree

INITIAL_PRIORITIES = ("max", "mean", "td_error")

# After how many updates the mean absolute reward is computed anew, as in MR.Q (arXiv 2501.16142).
KAPPA_INTERVAL = 250


class DrawableRing(TransitionRing):
    """
    A ring whose transitions have sampling masses.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param scheme: what a mass is
    :param initial_priority: of a new transition: ``"max"``, ``"mean"`` or ``"td_error"``
    :param max_priority_interval: after how many updates ``max_priority`` becomes the largest in the buffer; ``None``: never
    :param kwargs: SB3's keyword arguments and those of :class:`~sb3_per.buffers.ring.TransitionRing`
    :raises ValueError: for a setting outside of its range, or one that the scheme has no use for
    """

    def __init__(
        self,
        *args: Any,
        scheme: PriorityScheme,
        initial_priority: str = "max",
        max_priority_interval: int | None = None,
        **kwargs: Any,
    ):
        if initial_priority not in INITIAL_PRIORITIES:
            raise ValueError(f"initial_priority must be one of {INITIAL_PRIORITIES}, not {initial_priority!r}")
        if initial_priority != "max" and scheme.draws_uniformly:
            raise ValueError(f"initial_priority={initial_priority!r} has no effect with {scheme}, which draws uniformly")
        if initial_priority == "mean" and isinstance(scheme, RankBased):
            raise ValueError(f"initial_priority='mean' has no meaning with {scheme}: ranks have no mean priority")
        if max_priority_interval is not None:
            if not is_count(max_priority_interval):
                raise ValueError(
                    f"max_priority_interval must be None or an integer of at least 1, not {max_priority_interval!r}"
                )
            if not scheme.has_inverse:
                raise ValueError(
                    f"max_priority_interval={max_priority_interval} has no effect with {scheme}: priorities cannot be read "
                    "off its masses"
                )
        super().__init__(*args, **kwargs)
        self.scheme = scheme
        self.initial_priority = initial_priority
        self.max_priority_interval = max_priority_interval
        # Calls of `update_priorities`, if somebody asks; and at how many of them kappa="auto" is computed next.
        self._n_updates = 0
        self._next_kappa = 0.0 if self._kappa_is_auto else np.inf
        self._counts_updates = max_priority_interval is not None or self._kappa_is_auto
        # While kappa="auto" has no unit, the largest |td| of an update; `None` from then on, and for other schemes.
        self._largest_without_unit: float | None = 0.0 if self._kappa_is_auto else None
        #: largest priority seen so far, in units of the TD error (before the exponent)
        self.max_priority = 1.0
        # `max_priority` and the mass that a new transition gets for it.
        self._mass_of_max: tuple[float, float] | None = None
        # Ids and masses, by leaf, of transitions that came with a mass; from the first one on. With kappa="auto", a TD error
        # is kept as -|td|: only the kappa of the next draw makes a mass of it.
        self._given_masses: tuple[np.ndarray, np.ndarray] | None = None
        # It is told of new steps when it is used, of all since then at once: `_n_admitted` are those that it knows.
        self._tree = scheme.make_tree(self._capacity)
        # Changes nothing, but has numba loaded: the first kernel of a process waits for that, and the first draw need not.
        self._tree.fill(0, 0, 0.0)

    @property
    def priorities(self) -> np.ndarray:
        """
        Unnormalised sampling mass of every slot, e.g. ``(|td| + epsilon)^alpha``; 0 for a slot that cannot be drawn.
        A copy, float64 of shape (buffer_size, n_envs).
        """
        with self._lock:
            self._settle()
            masses: np.ndarray = self._tree[:].reshape(self.buffer_size, self.n_envs)
            return masses

    def _can_be_drawn(self, ids: np.ndarray) -> np.ndarray:
        """
        The one place that decides it; the masses in the tree follow, in :meth:`_admit`.

        :param ids: transition ids
        :return: which of them are in the buffer as a whole, and ready
        """
        return ids >= self._oldest_id if self._apart is None else self._apart.are_whole(ids)

    # Whether some of the transitions that are in the buffer as a whole cannot be drawn.
    _some_are_not_ready = False

    @property
    def _n_drawable(self) -> int:
        """How many can be drawn."""
        return self._next_id - self._oldest_id if self._apart is None else self._apart.n_whole

    def _drawable_leaves(self, n_newest: int) -> Callable[[np.ndarray], np.ndarray]:
        """
        :param n_newest: how many of the newest transitions that can be drawn
        :return: the leaves of those with given numbers, from 0, the oldest
        """
        if self._apart is not None:
            return self._apart.newest(n_newest)
        first = self._next_id - n_newest
        return lambda numbers: (first + numbers) % self._capacity

    def _settle(self) -> None:
        """Tell the tree of the steps that came since it was told last. A draw behind it reads the state, and changes none."""
        self._count_foreign_steps()
        if self._n_admitted != self._n_added:
            self._admit_new()

    def _admit_new(self) -> None:
        """:meth:`_admit`; before the first draw of all, for the unit of kappa="auto" is not known, and this one a guess."""
        if self._next_kappa == 0:
            self._refresh_kappa()
        self._admit()

    def _admit(self) -> None:
        """Let the newest steps be drawn, with the mass that they came with, or that of ``max_priority``."""
        if self._apart is not None:
            self._admit_columns(self._apart)
            return
        oldest, end = self._oldest_id, self._next_id
        first = max(self._n_admitted * self.n_envs, oldest)
        if self._given_masses is None:
            self._fill(first, end, self._mass_of_new())
        else:
            self._give_masses(np.arange(first, end) % self._capacity)
        if self.optimize_memory_usage:
            # What is still held, but not as a whole.
            self._fill(end - self.size() * self.n_envs, oldest, 0.0)
        self._n_admitted = self._n_added

    def _admit_columns(self, columns: Columns) -> None:
        """Let the newest steps of each column be drawn, see :meth:`_admit`."""
        self._give_masses(columns.leaves_between(np.maximum(columns.admitted, columns.oldest), columns.added))
        if self.optimize_memory_usage:
            self._tree.update(columns.leaves_between(columns.first, columns.oldest), 0.0)
        self._stand(columns.with_admitted(columns.added))

    def _readmit(self) -> None:
        """Have all transitions admitted anew, to an empty tree: their masses have another unit."""
        if self._apart is not None:
            self._stand(self._apart.with_admitted(np.full(self.n_envs, self._n_before_ring)))
        else:
            self._n_admitted = self._n_before_ring

    def _fill(self, first: int, end: int, mass: float) -> None:
        """Set the masses of the transitions from one id to another, which are not more than the ring holds."""
        capacity = self._capacity
        first_leaf, n_leaves = first % capacity, end - first
        if first_leaf + n_leaves > capacity:
            n_leaves = first_leaf + n_leaves - capacity
            self._tree.fill(first_leaf, capacity - 1, mass)
            first_leaf = 0
        if n_leaves > 0:
            self._tree.fill(first_leaf, first_leaf + n_leaves - 1, mass)

    def _give_masses(self, leaves: np.ndarray) -> None:
        """Set the masses of new transitions, shape (n,)."""
        masses = np.full(len(leaves), self._mass_of_new())
        if self._given_masses is not None:
            given_ids, given_masses = self._given_masses
            is_given = given_ids[leaves] == self._ids_at(leaves)
            masses[is_given] = self._masses_given(given_masses[leaves[is_given]])
        self._tree.update(leaves, masses)

    def _masses_given(self, given: np.ndarray) -> np.ndarray:
        """Masses of what was given, which may be TD errors."""
        if self._kappa_is_auto:
            is_error = given <= 0.0
            given[is_error] = self.scheme.mass(self.scheme.priority(-given[is_error]))
        return given

    def _mass_of_new(self) -> float:
        if self.initial_priority == "mean" and self._tree.total > 0.0:
            return self._tree.total / self._n_with_mass
        if self._mass_of_max is None or self._mass_of_max[0] != self.max_priority:
            mass = float(self.scheme.mass_of_new(self.max_priority))
            if not self._tree.takes(mass):
                raise ValueError(f"{self.scheme}.mass_of_new() gave {mass}: it must be finite and at least 0")
            self._mass_of_max = (self.max_priority, mass)
        return self._mass_of_max[1]

    @property
    def _n_with_mass(self) -> int:
        """Number of leaves that the tree has a mass for."""
        if self._apart is not None:
            return self._apart.n_with_mass
        n_steps = min(self._n_admitted - self._n_before_ring, self.buffer_size - self.optimize_memory_usage)
        return n_steps * self.n_envs

    def _count_update(self) -> None:
        """What is due after so many updates, for those who have asked."""
        self._n_updates += 1
        if self.max_priority_interval is not None and self._n_updates % self.max_priority_interval == 0:
            mass = float(self._tree[:].max())
            self.max_priority = self.scheme.priority_of(mass)
            self._mass_of_max = (self.max_priority, mass)  # to the bit: no power of a root

    @property
    def _kappa_is_auto(self) -> bool:
        return getattr(self.scheme, "kappa_is_auto", False)

    def _refresh_kappa(self, env: VecNormalize | None = None, is_draw: bool = False) -> None:
        """
        ``kappa="auto"``: the mean absolute reward of the buffer, as the learner sees it.

        :param env: associated VecNormalize
        :param is_draw: whether the learner sees them now; otherwise nobody knows of a VecNormalize, and the unit stays open
        :raises ValueError: if the mean is not finite; nothing is changed then
        """
        assert isinstance(self.scheme, LAP)
        self._count_foreign_steps()
        if self._n_slots_held == 0:
            return
        rewards = self.rewards[: self.size()]
        if self._apart is not None:
            # A column fills its rows from the first one on.
            rewards = self.rewards[np.arange(self.buffer_size)[:, None] < self._apart.added - self._apart.first]
        is_finite = np.isfinite(rewards)
        if is_finite.any():
            rewards = self._normalize_reward(rewards[is_finite], env)
        mean = float(np.abs(rewards, dtype=np.float64).mean())
        if not mean < np.inf:
            bad = rewards[~np.isfinite(rewards)][0]
            raise ValueError(
                f"kappa='auto' needs a finite mean of the absolute rewards, not {mean}: "
                f"{'after VecNormalize, a' if is_finite.any() else 'none is finite, and a'} reward is {bad}. Mend the reward "
                "of the environment, or set kappa to a number"
            )
        if mean > 0.0:  # else there is no unit yet
            self.scheme.kappa = mean
            if self._largest_without_unit is None:
                self.max_priority = max(self.max_priority, mean)
            else:
                # Nothing had a unit until now but TD errors; without one, the maximum is the least priority.
                self.max_priority = float(self.scheme.priority(np.array([self._largest_without_unit]))[0])
                self._tree.clear()
                self._readmit()
                if is_draw:
                    self._largest_without_unit = None
        if is_draw:
            self._next_kappa = self._n_updates + KAPPA_INTERVAL

    def _note_without_unit(self, leaves: np.ndarray, abs_td_errors: np.ndarray) -> None:
        """
        Keep what an update has told until kappa="auto" has a unit.

        :param leaves: of transitions, shape (n,)
        :param abs_td_errors: reduced, of each
        """
        if self._largest_without_unit is not None:
            self._note_masses(self._ids_at(leaves), -abs_td_errors)
            self._largest_without_unit = max(self._largest_without_unit, float(abs_td_errors.max()))

    def _masses_of(self, td_errors: np.ndarray | th.Tensor, n: int) -> np.ndarray:
        if self.initial_priority != "td_error":
            raise ValueError(f"td_errors with add() need initial_priority='td_error', not {self.initial_priority!r}")
        errors = np.abs(as_matrix(td_errors, n), dtype=np.float64)
        if not np.isfinite(errors).all():
            raise ValueError(f"td_errors must be finite, not {errors[~np.isfinite(errors)][0]}")
        reduced = self.scheme.reduce(errors)
        if self._kappa_is_auto:
            return -reduced
        masses = self.scheme.mass(self.scheme.priority(reduced))
        for mass in (masses.min(), masses.max()):
            if not self._tree.takes(mass):
                raise ValueError(f"{self.scheme}.mass() gave {mass} for td_errors: it must be finite and at least 0")
        return masses

    def _begin_ring(self) -> None:
        super()._begin_ring()
        self._n_admitted = self._n_added
        self._tree.clear()

    # ---- all of it, for files

    def _extract(self) -> Contents:
        contents = super()._extract()
        contents.numbers.update(
            n_admitted=self._n_admitted,
            n_updates=self._n_updates,
            next_kappa=None if np.isinf(self._next_kappa) else self._next_kappa,
            kappa=getattr(self.scheme, "kappa", None),
            largest_without_unit=self._largest_without_unit,
            max_priority=self.max_priority,
            mass_of_max=None if np.isinf(self._mass_of_max or [0.0]).any() else self._mass_of_max,
        )
        first, end = contents.first, contents.end
        if isinstance(self._tree, RankTree):
            leaves, contents.arrays["ranked_priorities"] = self._tree.ranked()
            contents.arrays["ranked_transitions"] = (leaves - first * self.n_envs) % self._capacity
        else:
            masses = self._tree.masses.reshape(self.buffer_size, self.n_envs)
            contents.columns["masses"] = self._in_order(masses, first, end)
        if self._given_masses is not None:
            ids, given = self._given_masses
            is_given = (ids >= 0) & (ids == self._ids_at(np.arange(self._capacity)))
            contents.arrays.update(given_ids=ids[is_given], given_masses=given[is_given])
        return contents

    def _allocate(self) -> None:
        super()._allocate()
        # The scheme too: kappa="auto" changes it.
        self.scheme = copy.copy(self.scheme)
        self._tree = self.scheme.make_tree(self._capacity)
        self._given_masses = None

    def _moved(self, contents: Contents, move: Move) -> None:
        first, n_steps = contents.first, contents.end - contents.first
        super()._moved(contents, move)
        arrays, n_envs, begin = contents.arrays, self.n_envs, contents.first
        if "masses" in arrays:
            masses = np.zeros((contents.end - begin, n_envs))
            move.put(contents.array("masses", "f", n_steps, n_envs), first, masses)
            arrays["masses"] = masses
        if "ranked_transitions" in arrays:
            steps, envs = np.divmod(contents.array("ranked_transitions", "i", None), n_envs)
            if len(steps) and not 0 <= steps.min() <= steps.max() < n_steps:
                raise ValueError("Transitions that are not there have ranks")
            rows = move.rows_of(first + steps, envs)
            arrays["ranked_transitions"] = (rows * n_envs + envs)[rows >= 0]
            arrays["ranked_priorities"] = contents.array("ranked_priorities", "f", len(rows))[rows >= 0]
        if "given_ids" in arrays:
            steps, envs = np.divmod(contents.array("given_ids", "i", None).astype(np.int64), n_envs)
            arrays["given_ids"] = (begin + steps - move.first[envs]) * n_envs + envs

    def _restore(self, contents: Contents, keeps_masses: bool = True) -> None:
        """
        See :class:`~sb3_per.buffers.ring.TransitionRing`.

        :param contents: of a buffer of any size
        :param keeps_masses: whether it is of the same scheme; otherwise all transitions get the largest priority
        :raises ValueError: if it contradicts itself; this buffer is of no use then
        """
        super()._restore(contents)
        numbers = contents.numbers
        self.max_priority = _checked(numbers["max_priority"], "max_priority")
        self._n_updates = checked_count(numbers["n_updates"], "n_updates")
        self._mass_of_max, self._next_kappa = None, 0.0 if self._kappa_is_auto else np.inf
        self._largest_without_unit = 0.0 if self._kappa_is_auto else None
        if not keeps_masses:
            self._readmit()
            return
        if self._kappa_is_auto:
            self._restore_kappa(numbers)
        if numbers["mass_of_max"] is not None:
            of_max = float(numbers["mass_of_max"][0]), float(numbers["mass_of_max"][1])
            self._mass_of_max = of_max if self._tree.takes(of_max[1]) else None
        end, n_held = self._end, self._n_rows_held
        shift, n_dropped = end - contents.end, contents.end - contents.first - n_held
        n_admitted = int(numbers["n_admitted"])
        # -1: there is something to be admitted beside the newest steps.
        if n_admitted >= 0:
            n_admitted = max(min(n_admitted, contents.end) + shift, self._n_before_ring)
        if "column_steps" not in contents.arrays:
            self._n_admitted = n_admitted
        first_id = (end - n_held) * self.n_envs
        n_steps = contents.end - contents.first
        if isinstance(self._tree, RankTree):
            ranked = contents.array("ranked_transitions", "i", None)
            priorities = contents.array("ranked_priorities", "f", len(ranked))
            if len(ranked) and not 0 <= ranked.min() <= ranked.max() < n_steps * self.n_envs:
                raise ValueError("Transitions that are not there have ranks")
            transitions = ranked - n_dropped * self.n_envs
            is_kept = (transitions >= 0) & (transitions < n_held * self.n_envs)
            leaves = (first_id + transitions[is_kept]) % self._capacity
            self._tree.rank(leaves, priorities[is_kept])
        else:
            masses = contents.array("masses", "f", n_steps, self.n_envs)[n_dropped:]
            for rows in self._row_slices(end - n_held, end):
                part, masses = masses[: rows.stop - rows.start], masses[rows.stop - rows.start :]
                self._tree.update(np.arange(rows.start * self.n_envs, rows.stop * self.n_envs), part.reshape(-1))
            if not self._tree.total < np.inf:
                raise ValueError("The sum of all masses is infinite")
        if "given_ids" in contents.arrays:
            self._restore_given_masses(contents, shift)
        if contents.buffer_size != self.buffer_size and self.optimize_memory_usage:
            # What is not there any more, or not as a whole.
            is_gone = ~self._can_be_drawn(self._ids_at(np.arange(self._capacity)))
            self._tree.update(np.flatnonzero(is_gone & (self._tree.masses > 0.0)), 0.0)

    def _restore_kappa(self, numbers: dict[str, Any]) -> None:
        largest = numbers.get("largest_without_unit")
        if largest is not None and not 0.0 <= float(largest) < np.inf:
            raise ValueError(f"largest_without_unit must be finite and at least 0, not {largest}")
        self._largest_without_unit = None if largest is None else float(largest)
        if numbers["next_kappa"]:
            self.scheme.kappa = _checked(numbers["kappa"], "kappa")  # type: ignore[attr-defined]
            self._next_kappa = _checked(numbers["next_kappa"], "next_kappa")

    def _restore_given_masses(self, contents: Contents, shift: int) -> None:
        """Of transitions that are there; a step of the contents is ``shift`` more here."""
        given = contents.array("given_masses", "f", None)
        magnitudes = np.abs(given) if self._kappa_is_auto else given
        if not (self._tree.takes(magnitudes.min(initial=0.0)) and self._tree.takes(magnitudes.max(initial=0.0))):
            raise ValueError("A mass is none")
        ids = contents.array("given_ids", "i", len(given)) + shift * self.n_envs
        is_kept = (ids >= 0) & (ids == self._ids_at(ids % self._capacity))
        self._given_masses = np.full(self._capacity, -1), np.zeros(self._capacity)
        self._given_masses[0][ids[is_kept] % self._capacity] = ids[is_kept]
        self._given_masses[1][ids[is_kept] % self._capacity] = given[is_kept]

    def extend(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Iterable[list[dict[str, Any]]],
        masses: np.ndarray | None = None,
    ) -> None:
        """
        Store several steps, e.g. demonstrations, or what an actor has collected.

        :param obs: observations, shape (n, n_envs, ...), a dictionary of them, or one entry per step
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n, n_envs, action_dim)
        :param reward: rewards, shape (n, n_envs)
        :param done: ends of episodes, shape (n, n_envs)
        :param infos: for each step, one dictionary per environment
        :param masses: sampling masses, in the unit of :attr:`priorities` (rank: of the priorities), shape (n, n_envs);
            ``None``: that of ``max_priority``
        :raises ValueError: if the numbers of steps differ, for a step that :meth:`add` refuses, and for a mass that is none or
            above 1e290, before anything is stored
        """
        steps = list(zip(_steps(obs), _steps(next_obs), action, reward, done, infos, strict=True))
        if masses is not None:
            masses = np.asarray(masses, dtype=np.float64)
            if masses.shape != (len(steps), self.n_envs):
                raise ValueError(f"masses of shape {masses.shape} do not fit {len(steps)} steps of {self.n_envs} environments")
            # Ranks are not added up.
            largest = np.inf if isinstance(self._tree, RankTree) else LARGEST_MASS
            bad = masses[~((masses > 0.0) & (masses <= largest))]
            if bad.size:
                raise ValueError(f"A mass must be above 0 and at most {largest}, so that their sum is finite, not {bad[0]}")
        checked = [self._checked_step(*step) for step in steps]  # all of them, before the first one is stored
        with self._lock:
            for i, step in enumerate(checked):
                self.add(*step[:6])
                if masses is not None:
                    self._note_masses(self._newest_ids(), masses[i])

    def _note_masses(self, ids: np.ndarray, masses: np.ndarray) -> None:
        if self._given_masses is None:
            self._given_masses = np.full(self._capacity, -1), np.zeros(self._capacity)
        leaves = ids % self._capacity
        self._given_masses[0][leaves] = ids
        self._given_masses[1][leaves] = masses


def _checked(value: Any, name: str) -> float:
    if not 0.0 < float(value) < np.inf:
        raise ValueError(f"{name} must be above 0 and finite, not {value}")
    return float(value)


def checked_count(value: Any, name: str) -> int:
    """
    :param value: of a file
    :param name: in the error
    :return: the value
    :raises ValueError: if it is no count, or one that no run reaches
    """
    if not (isinstance(value, int) and 0 <= value < 2**60):
        raise ValueError(f"{name} must be a count, not {value}")
    return value


def _steps(obs: Any) -> Iterable[Any]:
    """Observations of one step after the other."""
    if isinstance(obs, dict):
        return (dict(zip(obs, step, strict=True)) for step in zip(*obs.values(), strict=True))
    return obs  # type: ignore[no-any-return]


def as_matrix(td_errors: np.ndarray | th.Tensor, batch_size: int) -> np.ndarray:
    """
    :param td_errors: shape (batch_size,), (batch_size, 1) or (batch_size, n_critics)
    :param batch_size: number of ids that they belong to
    :return: the same, contiguous, float32 or float64 of shape (batch_size, n_critics)
    :raises ValueError: for another shape, or what is no number
    """
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach() if td_errors.requires_grad else td_errors
        td_errors = td_errors if td_errors.is_cpu else td_errors.cpu()
        if td_errors.dtype is not th.float32:
            td_errors = td_errors.to(th.float64)  # NumPy does not have all types of torch
        td_errors = td_errors.numpy()
    try:
        array = np.asarray(td_errors)
        if array.dtype.char not in "fd" or not array.flags.carray:
            array = np.array(array, dtype=np.float64, order="C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"td_errors must be numbers: {error}") from error
    matrix = array[:, None] if array.ndim == 1 else array
    if matrix.ndim != 2 or len(matrix) != batch_size or matrix.shape[1] == 0:
        raise ValueError(f"td_errors of shape {array.shape} do not fit {batch_size} transition ids")
    return matrix
