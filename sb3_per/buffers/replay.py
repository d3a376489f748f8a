"""
Prioritized replay: who is drawn from the ring, with which weight, and what an update changes.

It knows neither formulas of priorities (``schemes``) nor algorithms.
"""

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.draw_record import DrawRecord
from sb3_per.buffers.drawable import DrawableRing
from sb3_per.buffers.ring import TransitionRing, is_count
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.schemes import DEFAULT_EPSILON, DEFAULT_KAPPA, PriorityScheme, Uniform, make_scheme
from sb3_per.trees.kernels import kernel
from sb3_per.trees.sum_tree import as_batch

# Version of the pickled state. One that is not known is refused.
_STATE_VERSION = 1

# After so many draws in a row without an update, somebody draws by priorities that nobody updates.
_MANY_DRAWS = 10

# Settings that belong to the scheme, and make another one of it if they change.
SCHEME_SETTINGS = ("scheme", "alpha", "epsilon", "kappa", "td_error_reduction")


class PrioritizedReplayBuffer(DrawableRing):
    """
    Replay buffer that draws transitions in proportion to their priority (Schaul et al. 2016, arXiv 1511.05952).

    New transitions get the largest priority seen so far, so that each is likely to be replayed soon; after that, a
    priority follows the TD errors that :meth:`update_priorities` is given. Random numbers come from NumPy's global generator,
    as in SB3. All of SB3's arguments stay as they are, followed by the keywords below.

    Threads may share a buffer: adding, sampling, updating priorities, resetting, reading :attr:`priorities` and
    :attr:`transition_ids` happen one after the other, each as a whole. Settings and SB3's arrays are not guarded.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param scheme: ``"proportional"``, ``"rank"``, ``"lap"``, ``"pal"``, ``"uniform"``, or a
        :class:`~sb3_per.schemes.PriorityScheme` object
    :param alpha: prioritization exponent, at least 0; 0 draws uniformly. ``None``: the scheme's default (0.6, rank 0.7,
        LAP and PAL 0.4)
    :param beta_start: importance-sampling exponent at the start, in [0, 1]
    :param beta_end: importance-sampling exponent at the end, in [``beta_start``, 1]
    :param beta_anneal_steps: ``None``: linear in training progress, ``beta_end`` at the end of ``learn()``;
        an int: linear over that many calls of :meth:`sample`
    :param epsilon: added to ``|td|``, in units of the value function, above 0 (proportional)
    :param kappa: Huber threshold and least priority of LAP and PAL, in units of the value function, above 0
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``.
        ``None``: the scheme's default (``"mean"``, LAP and PAL ``"max"``)
    :param stratified: one draw from each of ``batch_size`` equal slices of the total. ``False``: independent draws; with the
        uniform scheme these are SB3's own, for the same seed the same transitions
    :param n_steps: number of steps of the n-step return, computed when sampling; 1 is the ordinary TD target
    :param gamma: discount factor of the n-step return
    :param kwargs: SB3's keyword arguments
    :raises ValueError: for a setting outside of its range, before any memory is allocated
    """

    def __init__(
        self,
        *args: Any,
        scheme: str | PriorityScheme = "proportional",
        alpha: float | None = None,
        beta_start: float = 0.4,
        beta_end: float = 1.0,
        beta_anneal_steps: int | None = None,
        epsilon: float = DEFAULT_EPSILON,
        kappa: float = DEFAULT_KAPPA,
        td_error_reduction: str | None = None,
        stratified: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,
        **kwargs: Any,
    ):
        for name, beta in (("beta_start", beta_start), ("beta_end", beta_end)):
            if not 0.0 <= beta <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], not {beta}")
        if beta_end < beta_start:
            raise ValueError(f"beta never decreases: beta_end={beta_end} is below beta_start={beta_start}")
        if beta_anneal_steps is not None and not is_count(beta_anneal_steps):
            raise ValueError(f"beta_anneal_steps must be None or an integer of at least 1, not {beta_anneal_steps!r}")
        scheme = make_scheme(scheme, alpha, epsilon, kappa, td_error_reduction)

        super().__init__(*args, scheme=scheme, n_steps=n_steps, gamma=gamma, **kwargs)

        self.beta_start = beta_start
        self.beta_end = beta_end
        self.beta_anneal_steps = beta_anneal_steps
        self.stratified = stratified
        #: the current importance-sampling exponent; never decreases
        self.beta = beta_start
        #: counts the draws, if it is asked to, see :class:`~sb3_per.monitor.PriorityMonitor`
        self.draw_record: DrawRecord | None = None
        # Calls of `sample`, for `beta_anneal_steps`.
        self._n_sampled = 0

    def __getstate__(self) -> dict[str, Any]:
        inherited = getattr(super(), "__getstate__", None)  # HER leaves its environment out
        return {**(inherited() if inherited else vars(self)), "state_version": _STATE_VERSION}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        version = state.pop("state_version", 0)
        if version != _STATE_VERSION:
            raise ValueError(
                f"This {type(self).__name__} was pickled with version {version} of its state, and this release of sb3_per "
                f"reads version {_STATE_VERSION}"
            )
        inherited = getattr(super(), "__setstate__", None)
        inherited(state) if inherited else vars(self).update(state)

    # ---- from one kind or setting to another

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **kwargs: Any) -> "PrioritizedReplayBuffer":
        """
        Turn a plain SB3 buffer into a prioritized one that shares its arrays; every transition has the largest priority.

        A prioritized buffer can be given as well, to change its settings: those that are not named stay, and so do ids and
        beta; priorities stay unless the scheme or one of its settings changes.

        :param buffer: of the kind of storage of this class; not to be used any more
        :param kwargs: the prioritized settings; where they speak of storage, that of the buffer counts
        :return: the prioritized buffer
        :raises ValueError: for a buffer of another kind
        """
        if not cls._stores(buffer):
            raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
        storage_settings = "observation_space action_space device n_envs optimize_memory_usage handle_timeout_termination"
        settings = {**cls._settings_of(buffer, kwargs), **kwargs}
        settings.update({name: getattr(buffer, name) for name in storage_settings.split()})
        # Built with a single row: the arrays come from the other buffer.
        prioritized = cls(buffer_size=buffer.n_envs, **settings)
        # SB3's NStepReplayBuffer has `n_steps` and `gamma` as well; the settings asked for here count.
        own = {*cls._keywords(), "_mass_of_max", "_tree"}
        vars(prioritized).update({name: value for name, value in vars(buffer).items() if name not in own})
        if isinstance(buffer, PrioritizedReplayBuffer) and repr(buffer.scheme) == repr(prioritized.scheme):
            prioritized._tree, prioritized._mass_of_max = buffer._tree, buffer._mass_of_max
        else:
            prioritized._tree = prioritized.scheme.make_tree(prioritized._capacity)
            prioritized._readmit()
        prioritized.beta = max(prioritized.beta, prioritized.beta_start)
        prioritized._settle()
        return prioritized

    @classmethod
    def _stores(cls, buffer: ReplayBuffer) -> bool:
        """Whether the other buffer is of the same kind of storage."""
        return not isinstance(buffer, DictReplayBuffer)

    @classmethod
    def _keywords(cls) -> set[str]:
        """Names of the settings that SB3's buffers do not have."""
        parameters = [p for c in cls.__mro__ if issubclass(c, TransitionRing) for p in _parameters(c)]
        return {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}

    @classmethod
    def _settings_of(cls, buffer: ReplayBuffer, changed: Iterable[str]) -> dict[str, Any]:
        """
        :param buffer: any buffer
        :param changed: names of settings that will be replaced
        :return: prioritized settings of the buffer; of the scheme all or, where one of them will be replaced, none
        """
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return {}
        names = cls._keywords().difference(SCHEME_SETTINGS[1:])
        if not set(changed).isdisjoint(SCHEME_SETTINGS):
            names.discard("scheme")
        return {name: getattr(buffer, name) for name in names if hasattr(buffer, name)}

    # ---- draw and update

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions with probability P(i) = mass_i / total, with replacement.

        :param batch_size: number of transitions
        :param env: associated VecNormalize, to normalize the observations and rewards
        :return: exactly ``batch_size`` transitions, with their weights and ids
        :raises ValueError: for a batch size below 1, or if no transition can be drawn
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        with self._lock:
            self._settle()
            if self._tree.total == 0.0:
                raise ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {self.size()})")
            leaves, masses = self._draw(batch_size)
            if self.scheme.importance_sampling:
                weights = self.scheme.weights(masses, self.beta)
            else:
                weights = np.ones((batch_size, 1), np.float32)
            samples = self._gather(leaves, weights, env)
            if self.draw_record is not None:
                self.draw_record.add(samples.indices, weights, self._next_id)
            if self.beta_anneal_steps is not None:
                self._n_sampled += 1
                self._anneal_beta(self._n_sampled / self.beta_anneal_steps)
            if self._lock.n_unanswered >= 0:
                self._lock.n_unanswered += 1
                if self._lock.n_unanswered == _MANY_DRAWS:
                    self._complain()
        return samples

    def _draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """
        :param batch_size: number of transitions
        :return: leaves, int64, in the order of the batch, and their masses, float64, both of shape (batch_size,)
        """
        if self.stratified or not self._draws_as_stock:
            return self._tree.draw(np.random.random_sample(batch_size), self.stratified)
        return self._stock_draw(batch_size), np.ones(batch_size)

    @property
    def _draws_as_stock(self) -> bool:
        return not self.stratified and isinstance(self.scheme, Uniform)

    def _stock_draw(self, batch_size: int) -> np.ndarray:
        """SB3's draw, with the same random numbers."""
        if self.optimize_memory_usage and self.full:
            rows = (np.random.randint(1, self.buffer_size, size=batch_size) + self.pos) % self.buffer_size
        else:
            rows = np.random.randint(0, self.size(), size=batch_size)
        leaves: np.ndarray = rows * self.n_envs + np.random.randint(0, high=self.n_envs, size=batch_size)
        return leaves

    def _complain(self) -> None:
        self._lock.n_unanswered = -1
        if self.scheme.alpha > 0.0:
            warnings.warn(
                f"{_MANY_DRAWS} batches were drawn by priority and update_priorities() was not called. A stock algorithm "
                "neither weights its loss nor updates priorities, and learns from a biased draw: use the class of sb3_per in "
                'its place (PERSAC for SAC, PERDQN for DQN, ...), or scheme="uniform"'
            )

    def update_priorities(self, indices: np.ndarray, td_errors: np.ndarray | th.Tensor) -> int:
        """
        Set the priorities of transitions from their newest TD errors, unweighted. Of repeated ids the last one counts;
        ids whose transition was overwritten in the meantime are skipped.

        :param indices: transition ids from :meth:`sample`, integers of shape (batch_size,)
        :param td_errors: signed or absolute TD errors in units of the value function, a NumPy array or a tensor on
            any device, shape (batch_size,), (batch_size, 1) or (batch_size, n_critics)
        :return: how many were written, i.e. were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for TD errors of the wrong shape, or NaN or infinite. Nothing is changed in either case.
        """
        ids = np.asarray(indices)
        if ids.ndim != 1:
            raise ValueError(f"Transition ids have shape (batch_size,), not {ids.shape}")
        if ids.dtype.kind not in "iu" and ids.size:
            raise IndexError(f"Transition ids are integers, not {ids.dtype}: {ids[0]}")
        errors = as_matrix(td_errors, len(ids))
        ids = as_batch(ids, np.int64)
        with self._lock:
            self._count_foreign_steps()
            abs_td_errors = np.empty(errors.shape)
            leaves = np.empty_like(ids)
            n_held, bad = _read_update(
                ids, self._oldest_id, self._next_id, self._lap_start, self._capacity, errors, leaves, abs_td_errors
            )
            if bad >= 0:
                if not 0 <= ids[bad] < self._next_id:
                    raise IndexError(f"Transition id {ids[bad]} was never issued: ids are in [0, {self._next_id})")
                value = errors[bad][~np.isfinite(errors[bad])][0]
                raise ValueError(f"td_errors must be finite, not {value} (transition id {ids[bad]})")

            if self._n_admitted != self._n_added:
                self._admit()  # before `max_priority` changes
            if n_held < len(ids) or self._some_are_not_ready:
                drawable = self._can_be_drawn(ids)
                leaves, abs_td_errors = leaves[drawable], abs_td_errors[drawable]
            if len(leaves) > 0:
                priority = self.scheme.priority(self.scheme.reduce(abs_td_errors))
                largest = float(priority[priority.argmax()])  # faster than `max`
                if not largest < np.inf:
                    raise ValueError(f"{self.scheme}.priority() gave {largest}: it must be finite")
                self._tree.update(leaves, self.scheme.mass(priority))
                self.max_priority = max(self.max_priority, largest)
            if self._lock.n_unanswered > 0:
                self._lock.n_unanswered = 0
        return len(leaves)

    def update_beta(self, progress_remaining: float) -> None:
        """
        Anneal beta with training progress; without effect if ``beta_anneal_steps`` is set.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules
        """
        if self.beta_anneal_steps is None:
            self._anneal_beta(1.0 - progress_remaining)

    def _anneal_beta(self, fraction: float) -> None:
        """Linear from ``beta_start`` to ``beta_end``, but never below what was reached, e.g. before a resumed run."""
        scheduled = self.beta_start + fraction * (self.beta_end - self.beta_start) if fraction < 1.0 else self.beta_end
        self.beta = max(self.beta, scheduled)


def _parameters(cls: type) -> Iterable[inspect.Parameter]:
    return inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]


def as_matrix(td_errors: np.ndarray | th.Tensor, batch_size: int) -> np.ndarray:
    """
    :param td_errors: shape (batch_size,), (batch_size, 1) or (batch_size, n_critics)
    :param batch_size: number of ids that they belong to
    :return: the same, contiguous, float32 or float64 of shape (batch_size, n_critics)
    :raises ValueError: for another shape
    """
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach() if td_errors.requires_grad else td_errors
        td_errors = td_errors if td_errors.is_cpu else td_errors.cpu()
        if td_errors.dtype is not th.float32:
            td_errors = td_errors.to(th.float64)  # NumPy does not have all types of torch
        td_errors = td_errors.numpy()
    array = np.asarray(td_errors)
    if array.dtype.char not in "fd" or not array.flags.carray:
        array = np.array(array, dtype=np.float64, order="C")
    matrix = array[:, None] if array.ndim == 1 else array
    if matrix.ndim != 2 or len(matrix) != batch_size or matrix.shape[1] == 0:
        raise ValueError(f"td_errors of shape {array.shape} do not fit {batch_size} transition ids")
    return matrix


@kernel
def _read_update(
    ids: np.ndarray,
    oldest_id: int,
    next_id: int,
    lap_start: int,
    capacity: int,
    td_errors: np.ndarray,
    leaves: np.ndarray,
    abs_td_errors: np.ndarray,
) -> tuple[int, int]:
    """
    Fill ``leaves`` and ``abs_td_errors``.

    :return: how many of the ids are not stale; and the position of the first bad id or TD error, -1 if there is none
    """
    n_held = 0
    for i in range(ids.size):
        if not 0 <= ids[i] < next_id:
            return n_held, i
        if ids[i] >= oldest_id:
            n_held += 1
            leaves[i] = ids[i] - lap_start
            if leaves[i] < 0:
                leaves[i] += capacity
        else:
            leaves[i] = 0
        for j in range(td_errors.shape[1]):
            abs_td_errors[i, j] = abs(td_errors[i, j])
            if not abs_td_errors[i, j] < np.inf:
                return n_held, i
    return n_held, -1
