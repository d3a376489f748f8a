"""A set of transitions: write, draw, read, update. Each kind of buffer has its own, and demonstrations are one, too."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th

from sb3_per.sampling.candidates import Candidates
from sb3_per.sampling.mass_tree import NothingToDrawError
from sb3_per.sampling.sampler import Sampler
from sb3_per.storage.n_step import NStepReturns, ReturnWindows
from sb3_per.storage.ring import Ring, first_id_of_lap, id_in_slot, lap_start, row_of_step
from sb3_per.storage.storage import Steps, Storage
from sb3_per.utils.compiled import kernel, prefetch

# Types of TD errors that kernels take.
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Drawn(NamedTuple):
    """Slots of a batch."""

    #: int64 of shape (batch_size,); in a mixture, experience first
    slots: np.ndarray
    #: N P of each: how many times as likely as in a uniform draw, float64 of shape (batch_size,)
    relative_probabilities: np.ndarray
    #: number of rows of experience; the rest are demonstrations. Where there is one set alone, all rows
    n_experience: int


class RawBatch(NamedTuple):
    """A batch before it is normalized and becomes tensors."""

    #: shape (batch_size, ...), or a dictionary of such arrays
    observations: Any
    #: shape (batch_size, action_dim)
    actions: np.ndarray
    #: after the last step that counts, in the form of the observations
    next_observations: Any
    #: whether the last step that counts is a termination, float32 of shape (batch_size, 1)
    terminations: np.ndarray
    #: of the steps of each n-step return, float32 of shape (batch_size, n_steps)
    rewards: np.ndarray
    #: how many of these steps count, int64 of shape (batch_size,); ``None`` where every return is a single step
    lengths: np.ndarray | None
    #: transition ids, int64 of shape (batch_size,)
    ids: np.ndarray


class DrawSource(Protocol):
    """What a buffer draws from: a set of transitions, or a mixture of two."""

    def draw(self, batch_size: int, series_progress: float | None = None) -> Drawn:
        """Draw slots by mass."""

    def read(self, drawn: Drawn) -> Any:
        """Read drawn slots: a :class:`RawBatch`; of sequences a :class:`~sb3_per.buffers.window_set.WindowBatch`."""

    def update(self, ids: np.ndarray, td_errors: np.ndarray) -> int:
        """Set priorities, and return how many ids were not stale."""

    def draw_observations(self, n: int) -> Any:
        """Draw observations uniformly, for an actor."""


class CompleteTransitions(Candidates):
    """All complete transitions of the ring."""

    mass_owner = "transition"
    are_all_complete = True

    @property
    def n(self) -> int:
        """Number of complete transitions."""
        return self.ring.n_complete

    def slots(self) -> np.ndarray:
        """See :meth:`Candidates.slots`."""
        return self.ring.complete_slots()

    def newest(self, positions: np.ndarray, n: int) -> np.ndarray:
        """See :meth:`~sb3_per.storage.ring.Ring.newest`."""
        return self.ring.newest(positions, n)

    def start_of_newest(self, n: int) -> int | None:
        """See :meth:`Candidates.start_of_newest`."""
        if not self.ring.all_at_same_step:
            return None
        return (self.ring.next_id - n) % self.ring.capacity

    def draw_as_sb3(self, n: int) -> np.ndarray:
        """SB3's draw: rows, then environments."""
        ring = self.ring
        if not ring.all_at_same_step:
            return ring.newest(np.random.randint(0, ring.n_complete, size=n), ring.n_complete)
        if ring.shares_next_obs and ring.full:
            rows = (np.random.randint(1, ring.n_rows, size=n) + ring.pos) % ring.n_rows
        else:
            rows = np.random.randint(0, ring.n_rows_used, size=n)
        return np.asarray(rows * ring.n_envs + np.random.randint(0, high=ring.n_envs, size=n))


class TransitionSet:
    """
    Transitions in a ring, with a storage, and a sampler.

    A kind of buffer may override these methods, and calls the inherited ones in them:

    - :meth:`write_row` and :meth:`end_episodes`, called by ``add`` and ``end_episodes`` of the buffer: to keep its own record
      of steps, and to tell the sampler which slots can be drawn
    - :meth:`draw`, called by ``sample``: to change the order of the batch, or what can be drawn
    - :meth:`read`, called by ``sample``; :meth:`relabel` within it: to change goals and rewards
    - :meth:`update`, called by ``update_priorities``: to leave some transitions out
    - :meth:`empty_error`: to say why nothing can be drawn

    :param ring: which transition is in which slot
    :param storage: what is in a slot
    :param sampler: the mass of a slot
    :param n_step_returns: windows of the returns
    """

    def __init__(self, ring: Ring, storage: Storage, sampler: Sampler, n_step_returns: NStepReturns):
        self.ring = ring
        self.storage = storage
        self.sampler = sampler
        self.n_step_returns = n_step_returns
        #: number of updates whose transition was overwritten or can no longer be drawn, over the life of this set
        self.n_stale_updates = 0

    # ---- write

    def write_row(self, steps: Steps, tree_values: np.ndarray | None = None) -> None:
        """
        Write one step of every environment. If the storage has no room for it, nothing has changed.

        :param steps: checked, of shape (n_envs, ...)
        :param tree_values: of the transitions, masses or with ranks priorities, shape (n_envs,); ``None``: that of a new one
        """
        ring = self.ring
        # The next draw or update gives a row its mass, see `Sampler`, but for a row that brings its own, for environments at
        # different steps, which have no common row, and after an interrupt.
        can_wait = tree_values is None and ring.all_at_same_step and not self.sampler.is_outdated
        if can_wait:
            self.storage.write_row(ring.pos, steps)
            ring.advance_all()
        else:
            self.write(ring.all_envs, steps.with_time_axis(), tree_values)

    def write(self, envs: np.ndarray, steps: Steps, tree_values: np.ndarray | None = None) -> None:
        """
        Write T successive steps of k environments; the others stay where they are. If the storage has no room for them,
        nothing has changed.

        :param envs: different integers of shape (k,)
        :param steps: checked, of shape (T, k, ...)
        :param tree_values: as in :meth:`write_row`, shape (T, k), or (k,) for T = 1
        """
        n_new = len(steps.rewards)
        rows = self.ring.rows_of_next(envs, n_new)
        slots = (rows * self.ring.n_envs + envs).reshape(-1)
        with self.sampler.changing_candidates():
            self.storage.write(rows, envs, steps)
            self.sampler.remove(slots)  # after an interrupt, the new transitions must not have the masses of the old ones
            self.ring.advance(envs, n_new)
            self._insert(slots, None if tree_values is None else tree_values.reshape(-1))

    def _insert(self, slots: np.ndarray, tree_values: np.ndarray | None) -> None:
        """Tell the sampler of slots that were written, and of those whose observation the newest steps have overwritten."""
        if tree_values is None:
            self.sampler.insert_new(slots)
        else:
            self.sampler.insert(slots, tree_values)
        if self.ring.shares_next_obs:
            self.sampler.remove(self.ring.incomplete_slots())

    def end_episodes(self, envs: np.ndarray) -> None:
        """
        Make the newest steps of some environments truncations.

        :param envs: different integers of shape (k,)
        """
        ring = self.ring
        envs = envs[ring.next_steps[envs] > ring.first_step]
        rows = (ring.next_steps[envs] - 1) % ring.n_rows
        is_open = self.storage.dones[rows, envs] == 0
        self.storage.truncate(rows[is_open], envs[is_open])

    def clear(self) -> None:
        """Forget all transitions. Ids continue, so that older ids are stale."""
        self.sampler.mark_outdated()
        self.ring.clear()
        self.sampler.clear()
        self.storage.clear()

    def adopt_rows(self, n_present: int) -> None:
        """
        Forget all transitions, and take rows that were written by hand for new ones.

        :param n_present: number of steps of every environment, from row 0 on; if there are more than rows, the ring is full,
            and step ``n_present`` overwrites the oldest row
        """
        self.sampler.mark_outdated()
        self.ring.clear(n_present)
        self.sampler.clear()
        self.storage.set_next_row(self.ring.pos)

    # ---- draw and read

    def masses(self) -> np.ndarray:
        """Return the sampling mass of every slot, a copy of shape (capacity,)."""
        return self.sampler.masses()

    def can_draw(self) -> bool:
        """Whether any transition can be drawn."""
        return self.sampler.can_draw()

    def draw(self, batch_size: int, series_progress: float | None = None) -> Drawn:
        """
        Draw slots by mass, see :meth:`~sb3_per.sampling.sampler.Sampler.draw`.

        :param batch_size: number of slots
        :param series_progress: k / K of the k-th of K draws in a row, for ``recency``; ``None``: a random number
        :return: the slots
        :raises ValueError: if no transition can be drawn
        """
        try:
            slots, relative_probabilities = self.sampler.draw(batch_size, series_progress)
        except NothingToDrawError:
            raise self.empty_error() from None
        return Drawn(slots, relative_probabilities, batch_size)

    def empty_error(self) -> Exception:
        """Say why nothing can be drawn."""
        n = int((self.ring.next_steps - self.ring.oldest_held).min())
        return ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {n})")

    def read(self, drawn: Drawn) -> Any:
        """
        Read drawn slots.

        :param drawn: slots that hold transitions
        :return: the batch, :class:`RawBatch` in most kinds of buffers
        """
        slots = drawn.slots
        if self.n_step_returns.n_steps == 1:
            windows = ReturnWindows(slots[:, None], None, slots)
        else:
            windows = self.n_step_returns.windows(slots, self.ring, self.storage)
        ids, rewards, terminations = self.read_step_values(windows.slots, windows.last_slots)
        observations = self.storage.read_observations(slots)
        next_observations = self.storage.read_observations(windows.last_slots, is_next=True)
        self.relabel(observations, next_observations, rewards, windows)
        actions = self.storage.read_actions(slots)
        return RawBatch(observations, actions, next_observations, terminations, rewards, windows.lengths, ids)

    def read_step_values(self, step_slots: np.ndarray, last_slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Read ids, rewards and terminations.

        :param step_slots: slots of the steps of each transition, int64 of shape (batch_size, n_steps)
        :param last_slots: slot of the last step that counts, int64 of shape (batch_size,)
        :return: ids, int64 of shape (batch_size,); rewards, shape (batch_size, n_steps); and terminations of the last steps,
            float32 of shape (batch_size, 1)
        """
        storage = self.storage
        ring = self.ring
        ids = np.empty(len(last_slots), np.int64)
        terminations = np.empty((len(last_slots), 1), np.float32)
        rewards = np.empty(step_slots.shape, storage.rewards.dtype)
        gather_step_values(
            step_slots,
            last_slots,
            storage.rewards,
            storage.dones,
            storage.timeouts,
            ring.max_next_step * ring.n_envs,  # next_id
            ids,
            rewards,
            terminations,
        )
        if not ring.all_at_same_step:  # the ids of the kernel hold only if they are
            ids = ring.ids_at(step_slots[:, 0])
        return ids, rewards, terminations

    def relabel(self, observations: Any, next_observations: Any, rewards: np.ndarray, windows: ReturnWindows) -> None:
        """
        Change a batch in place before it is normalized. Hindsight gives part of it other goals; here nothing changes.

        :param observations: of the batch
        :param next_observations: of the batch
        :param rewards: shape (batch_size, n_steps)
        :param windows: steps of the batch
        """

    def draw_observations(self, n: int) -> Any:
        """
        Draw observations uniformly, for an actor.

        :param n: number of observations
        :return: array of shape (n, ...), or a dictionary of them
        :raises ValueError: if no transition can be drawn
        """
        if not self.can_draw():
            raise self.empty_error()
        return self.storage.read_observations(self.sampler.draw_uniformly(n))

    # ---- update

    def update(self, ids: np.ndarray, td_errors: np.ndarray) -> int:
        """
        Set priorities.

        :param ids: transition ids, int64 of shape (n,)
        :param td_errors: signed or absolute TD errors, shape (n, n_critics)
        :return: how many ids were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for a TD error that is NaN or infinite. Nothing has changed in either case
        """
        slots, tree_values, largest_priority = self.checked_update(ids, td_errors)
        self.sampler.update(slots, tree_values, largest_priority)
        self.n_stale_updates += len(ids) - len(slots)
        return len(slots)

    def checked_update(self, ids: np.ndarray, td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """
        Find the slots of ids without those that are stale or cannot be drawn, and compute their priorities. Nothing changes.

        :param ids: as in :meth:`update`
        :param td_errors: as in :meth:`update`
        :return: slots, int64, and their tree values, float64, both of shape (m,), and the largest priority
        :raises IndexError: for an id that was never issued
        :raises ValueError: for a TD error that is NaN or infinite, or a priority that is not allowed
        """
        ring = self.ring
        slots = np.empty_like(ids)
        abs_td_errors = np.empty(td_errors.shape)
        n, bad = locate_and_check(
            ids,
            ring.min_next_step,
            ring.leads,
            ring.first_step,
            ring.n_rows,
            ring.shares_next_obs,
            td_errors,
            slots,
            abs_td_errors,
        )
        if bad >= 0:
            raise self._bad_update(int(ids[bad]), td_errors[bad])
        if n < len(ids):  # some are stale
            slots = slots[:n]
            abs_td_errors = abs_td_errors[:n]
        if not self.sampler.candidates.are_all_complete:
            slots, abs_td_errors = self.sampler.candidates.only_candidates(slots, abs_td_errors)
        if len(slots) == 0:  # a scheme need not work with nothing
            return slots, np.empty(0), 0.0
        return slots, *self.sampler.evaluate(abs_td_errors)

    def _bad_update(self, transition_id: int, td_errors: np.ndarray) -> Exception:
        """Say what is wrong with an id or its TD errors."""
        if not self.ring.was_issued(transition_id):
            return IndexError(f"Transition id {transition_id} was never issued: {self.ring.issued_ids(transition_id)}")
        bad = td_errors[~np.isfinite(td_errors)][0]
        return ValueError(f"td_errors must be finite, not {bad} (transition id {transition_id})")

    # ---- saving

    def state(self) -> dict[str, Any]:
        """
        Return all that is not in the storage. The keys are those of saved files, where the candidates are ``"eligible"``, next
        steps ``"added"``, and the first step ``"begin"``.

        :return: numbers and arrays, in dictionaries. Arrays by slot end at the last slot that holds anything
        """
        n_slots = self.ring.n_rows_used * self.ring.n_envs
        return {
            "ring": self.ring.state(),
            "eligible": self.sampler.candidates.state(),
            "sampler": self.sampler.state(n_slots),
        }

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """
        Restore a state. Every slot that can be drawn and has no mass gets that of a new transition.

        :param state: from :meth:`state` of a set of the same kind and capacity, whose storage is there already
        :param keeps_masses: whether it is of the same scheme; otherwise all transitions are new
        :raises ValueError: if the state contradicts itself. Discard the set after this error
        """
        self.ring.load(state["ring"])
        self.sampler.candidates.load(state.get("eligible", {}), keeps_masses)
        self.sampler.load(state["sampler"], keeps_masses)

    def copy_newest(self, other: "TransitionSet", keeps_masses: bool) -> None:
        """
        Fill an empty set with the newest complete steps of another one that fit, for each environment. They get new ids.

        :param other: of the same kind, of any size and layout
        :param keeps_masses: whether it has the same scheme; otherwise every transition has the mass of a new one
        """
        ring, old = self.ring, other.ring
        tree_values = other.sampler.tree_values()
        ring.begin_after(old.max_next_step)
        new_slots = []
        old_slots = []
        for envs, steps in old.in_order(np.maximum(old.oldest_complete, old.next_steps - ring.n_rows)):
            slots = old.slots_of_steps(steps, envs)
            rows = ring.rows_of_next(envs, len(steps))
            self.storage.write(rows, envs, other.storage.read_steps(slots))
            ring.advance(envs, len(steps))
            new_slots.append((rows * ring.n_envs + envs).reshape(-1))
            old_slots.append(slots.reshape(-1))
        n_rows = int((ring.next_steps - ring.first_step).min())
        rows = np.arange(ring.max_next_step - n_rows, ring.max_next_step) % ring.n_rows
        old_rows = np.arange(old.max_next_step - n_rows, old.max_next_step) % old.n_rows
        self.sampler.candidates.copy_rows(other.sampler.candidates, rows, old_rows)
        no_slots = np.empty(0, np.int64)
        slots = np.concatenate([no_slots, *new_slots])
        known = tree_values[np.concatenate([no_slots, *old_slots])] if keeps_masses else np.zeros(len(slots))
        self.sampler.load_tree_values(slots, known)
        self.sampler.load_max_priority(other.sampler.max_priority)


# ---- what an update is given


def checked_ids(indices: Any) -> np.ndarray:
    """
    Check transition ids.

    :param indices: transition ids
    :return: the same, int64 of shape (batch_size,), contiguous and writable, because kernels take only such arrays
    :raises ValueError: for another shape
    :raises IndexError: for anything but integers
    """
    ids = np.asarray(indices)
    if ids.ndim == 1 and ids.dtype == np.int64 and ids.flags.carray:
        return ids
    if ids.ndim != 1:
        raise ValueError(f"Transition ids have shape (batch_size,), not {ids.shape}")
    if ids.dtype.kind not in "iu" and ids.size:
        raise IndexError(f"Transition ids are integers, not {ids.dtype}: {ids[0]}")
    return np.array(ids, dtype=np.int64, order="C")


def td_error_matrix(td_errors: np.ndarray | th.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """
    Make a matrix of TD errors, with one row for each step.

    :param td_errors: of ``shape``, or (*shape, n_critics)
    :param shape: shape of the steps that they belong to
    :return: the same, contiguous, float32 or float64 of shape (n, n_critics), where n is the number of steps
    :raises ValueError: for another shape
    """
    if isinstance(td_errors, th.Tensor):
        if td_errors.requires_grad:
            td_errors = td_errors.detach()
        if not td_errors.is_cpu:
            td_errors = td_errors.cpu()
        if td_errors.dtype is not th.float32:
            td_errors = td_errors.to(th.float64)  # NumPy does not have all types of torch
        array = td_errors.contiguous().numpy()
    else:
        array = _as_floats(td_errors)
    if array.shape == shape:
        return array.reshape(-1, 1)
    if array.shape[:-1] != shape or array.shape[-1] == 0:
        with_critics = ", ".join((*map(str, shape), "n_critics"))
        raise ValueError(f"td_errors have shape {array.shape}, and must have shape {shape} or ({with_critics})")
    if array.ndim == 2:
        return array
    return array.reshape(-1, array.shape[-1])


def _as_floats(td_errors: Any) -> np.ndarray:
    """Make a contiguous array of float32 or float64, in any shape, without a copy if it is one already."""
    try:
        array = np.asarray(td_errors)
        if array.dtype not in _FLOATS or not array.flags.carray:
            array = np.array(array, dtype=np.float64, order="C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"td_errors must be numbers: {error}") from error
    return array


def checked_abs_td_errors(td_errors: np.ndarray | th.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """
    Return the absolute values of TD errors, and check that they are finite.

    :param td_errors: see :func:`td_error_matrix`
    :param shape: see :func:`td_error_matrix`
    :return: ``|td|``, float64 of shape (n, n_critics)
    :raises ValueError: for another shape, NaN or infinity
    """
    errors: np.ndarray = np.abs(td_error_matrix(td_errors, shape), dtype=np.float64)
    require_finite(errors)
    return errors


def require_finite(td_errors: np.ndarray) -> None:
    """
    Check that TD errors are finite.

    :param td_errors: of any shape
    :raises ValueError: with the first one that is NaN or infinite
    """
    if not np.isfinite(td_errors).all():
        raise ValueError(f"td_errors must be finite, not {td_errors[~np.isfinite(td_errors)][0]}")


# ---- kernels, which write to arrays that the caller makes: numba takes longer to return one


@kernel
def gather_step_values(
    step_slots: np.ndarray,
    last_slots: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    next_id: int,
    ids: np.ndarray,
    batch_rewards: np.ndarray,
    terminations: np.ndarray,
) -> None:
    """
    Read ids, rewards and terminations.

    :param step_slots: slots of the steps of each transition, shape (batch_size, n_steps)
    :param last_slots: slot of the last step that counts, shape (batch_size,)
    :param rewards: of all slots, as the following two, shape (n_rows, n_envs)
    :param dones: ends of episodes
    :param timeouts: which of them are truncations, where the value of the next observation counts
    :param next_id: number above all ids of the ring
    :param ids: written, int64 of shape (batch_size,): ids if all environments stand at the same step
    :param batch_rewards: written, shape (batch_size, n_steps)
    :param terminations: written, float32 of shape (batch_size, 1)
    """
    batch_size, n_steps = step_slots.shape
    rewards = rewards.reshape(-1)  # views by slot
    dones = dones.reshape(-1)
    timeouts = timeouts.reshape(-1)
    first_id = first_id_of_lap(next_id, rewards.size)
    for i in range(batch_size):
        prefetch(dones, np.uint64(last_slots[i]))
        prefetch(rewards, np.uint64(step_slots[i, 0]))
    for i in range(batch_size):
        ids[i] = id_in_slot(step_slots[i, 0], first_id, next_id, rewards.size)
        done = dones[last_slots[i]]
        # Few are done, and to read no timeout of the others saves a cache miss.
        terminations[i, 0] = done if done == 0 else done * (1 - timeouts[last_slots[i]])
        for j in range(n_steps):
            batch_rewards[i, j] = rewards[step_slots[i, j]]


@kernel
def locate_and_check(
    ids: np.ndarray,
    min_next_step: int,
    leads: np.ndarray,
    first_step: int,
    n_rows: int,
    shares_next_obs: bool,
    td_errors: np.ndarray,
    slots: np.ndarray,
    abs_td_errors: np.ndarray,
) -> tuple[int, int]:
    """
    Find the transitions of an update, and check the TD errors. Those that are not stale come first in the results.

    :param ids: of transitions, int64 of shape (batch_size,)
    :param min_next_step: least next step of an environment
    :param leads: how far each environment is ahead of it, shape (n_envs,)
    :param first_step: first step since the ring was last emptied
    :param n_rows: rows of the ring
    :param shares_next_obs: whether the oldest row of a full ring is incomplete
    :param td_errors: shape (batch_size, n_critics)
    :param slots: written, int64 of shape (batch_size,)
    :param abs_td_errors: written, float64 in the shape of ``td_errors``
    :return: how many ids are not stale; and the position of the first bad id or TD error, -1 if there is none
    """
    n_envs = leads.size
    next_steps = min_next_step + leads
    # By environment; `Ring.oldest_complete` has the same rule.
    laps = np.empty(n_envs, np.int64)
    oldest = np.empty(n_envs, np.int64)
    for e in range(n_envs):
        laps[e] = lap_start(next_steps[e], n_rows)
        oldest[e] = first_step
        if next_steps[e] - first_step >= n_rows:
            oldest[e] = next_steps[e] - n_rows + shares_next_obs
    n_found = 0
    for i in range(ids.size):
        step = ids[i] if n_envs == 1 else ids[i] // n_envs
        env = ids[i] - step * n_envs
        if not (ids[i] >= 0 and step < next_steps[env]):
            return n_found, i
        for j in range(td_errors.shape[1]):
            abs_td_errors[n_found, j] = abs(td_errors[i, j])
            if not abs_td_errors[n_found, j] < np.inf:
                return n_found, i
        if step >= oldest[env]:
            slots[n_found] = row_of_step(step, laps[env], n_rows) * n_envs + env
            n_found += 1
    return n_found, -1
