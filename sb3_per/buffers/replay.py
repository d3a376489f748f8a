"""
Prioritized replay: who is drawn from the ring, with which weight, and what an update changes.

It knows neither formulas of priorities (``schemes``) nor algorithms.
"""

import functools
import inspect
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.columns import Columns
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.draw_record import DrawRecord
from sb3_per.buffers.drawable import as_matrix, checked_count
from sb3_per.buffers.drawing import DrawingRing
from sb3_per.buffers.frames import frames_by_key
from sb3_per.buffers.ring import TransitionRing
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import (
    ACTOR_BATCHES,
    WEIGHT_NORMALIZATIONS,
    PrioritizedKwargs,
    already_told,
    is_count,
    require_known,
    require_numbers,
    require_storage,
    warn_of_ignored,
)
from sb3_per.buffers.update_kernel import read_update
from sb3_per.schemes import DEFAULT_EPSILON, DEFAULT_KAPPA, PriorityScheme, make_scheme
from sb3_per.signatures import arguments_of, extends_signature, parameters_of
from sb3_per.trees.sum_tree import as_batch, spread

# Version of the pickled state. One that is not known is refused.
_STATE_VERSION = 1

# What a buffer whose masses are those of another one takes from it.
_OF_MASSES = ("_tree", "_mass_of_max", "_next_kappa", "_largest_without_unit")

# After so many draws in a row without an update, somebody draws by priorities that nobody updates.
_MANY_DRAWS = 10

# Settings that belong to the scheme, and make another one of it if they change.
SCHEME_SETTINGS = ("scheme", "alpha", "epsilon", "kappa", "td_error_reduction")

if TYPE_CHECKING:
    from gymnasium import spaces
    from typing_extensions import Unpack

    # What a type checker and an editor see of the constructor, which itself hands SB3's arguments on, whatever they are.
    def _init(
        self: Any,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **kwargs: Unpack[PrioritizedKwargs],
    ) -> None: ...
else:
    _init = ReplayBuffer.__init__


class PrioritizedReplayBuffer(DrawingRing):
    """
    Replay buffer that draws transitions in proportion to their priority (Schaul et al. 2016, arXiv 1511.05952).

    New transitions get the largest priority seen so far, so that each is likely to be replayed soon; after that, a
    priority follows the TD errors that :meth:`update_priorities` is given. Random numbers come from NumPy's global generator,
    as in SB3. All of SB3's arguments stay as they are, followed by the keywords below.

    The algorithms of this package make one by themselves, with the keywords in ``replay_buffer_kwargs``. Make one by hand
    for a training loop of your own; a stock algorithm neither weights its loss nor updates priorities.

    ::

        buffer = PrioritizedReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, beta_start=0.4)
        buffer.add(obs, next_obs, action, reward, done, infos)  # as in SB3
        batch = buffer.sample(256)
        ...  # a gradient step on the loss times batch.weights, which gives td_errors
        buffer.update_priorities(batch.indices, td_errors)

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
    :param kappa: Huber threshold and least priority of LAP and PAL, in units of the value function, above 0; ``"auto"``: the
        mean absolute reward of the buffer, refreshed every 250 updates
    :param td_error_reduction: how the errors of several critics become one: ``"mean"``, ``"max"`` or ``"min"``.
        ``None``: the scheme's default (``"mean"``, LAP and PAL ``"max"``)
    :param stratified: one draw from each of ``batch_size`` equal slices of the total. ``False``: independent draws; with the
        uniform scheme these are SB3's own, for the same seed the same transitions
    :param uniform_fraction: share eta of uniform draws, in [0, 1): P = (1 - eta) m / sum m + eta / N; then no (N P)^-beta is
        above eta^-beta. Schemes that draw uniformly ignore it
    :param weight_normalization: weights (N P)^-beta divided by the largest of the batch, ``"max"``, by their mean, ``"mean"``,
        or as they are, ``"none"``
    :param actor_batch: what the actor and the entropy coefficient learn from: ``"prioritized"``, the batch of the critics;
        ``"weighted"``, the same, each sample with the weight 1 / (N P), of mean 1; ``"uniform"``, a uniform batch of its own
    :param initial_priority: of a new transition: ``"max"``, the maximum; ``"mean"``, the mean mass of the buffer;
        ``"td_error"``, the TD error that :meth:`add` was given with it, without one the maximum
    :param max_priority_interval: after so many updates, again and again, ``max_priority`` becomes the largest in the buffer
        (TD7: 250); ``None``: never
    :param recency: in (0, 1]: emphasizing recent experience (Wang & Ross 2019, arXiv 1906.04009): the k-th of K draws in a
        call of ``train()`` sees only the newest max(N recency^(1000 k / K), recency_min) transitions; 1: all. Where K = 1, and
        where :meth:`sample` is called by hand, k / K is a random number
    :param recency_min: see ``recency``, at least 1
    :param unique: no transition twice in a batch: successive draws from what is left
    :param n_steps: number of steps of the n-step return, computed when sampling; 1 is the ordinary TD target
    :param gamma: discount factor of the n-step return
    :param frames: number of frames in a stack: each frame is stored once; for Dict observations a dictionary, e.g.
        ``dict(image=4)``; ``None``: SB3's arrays
    :param kwargs: SB3's keyword arguments
    :raises ValueError: for a setting outside of its range, or that is no number where one belongs, and for a size or a space
        that no transition fits in, before any memory is allocated
    :raises TypeError: for a keyword that there is not, where the message has the nearest, and for one that is missing
    :warns IgnoredSettingWarning: for a setting that has no effect with the scheme
    """

    @extends_signature(_init)
    def __init__(
        self,
        *args: Any,
        scheme: str | PriorityScheme = "proportional",
        alpha: float | None = None,
        beta_start: float = 0.4,
        beta_end: float = 1.0,
        beta_anneal_steps: int | None = None,
        epsilon: float = DEFAULT_EPSILON,
        kappa: float | str = DEFAULT_KAPPA,
        td_error_reduction: str | None = None,
        stratified: bool = True,
        uniform_fraction: float = 0.0,
        weight_normalization: str = "max",
        actor_batch: str = "prioritized",
        initial_priority: str = "max",
        max_priority_interval: int | None = None,
        recency: float = 1.0,
        recency_min: int = 5000,
        unique: bool = False,
        n_steps: int = 1,
        gamma: float = 0.99,
        frames: int | str | dict[str, int] | None = None,
        **kwargs: Any,
    ):
        given = {name: value for name, value in locals().items() if name in PrioritizedKwargs.__annotations__}
        require_known(type(self), PrioritizedReplayBuffer, kwargs)
        require_numbers({**given, **kwargs})
        stock = next(
            c for c in type(self).__mro__ if issubclass(c, ReplayBuffer) and c.__module__.startswith("stable_baselines3")
        )
        require_storage(arguments_of(type(self), stock, args, kwargs))
        for name, beta in (("beta_start", beta_start), ("beta_end", beta_end)):
            if not 0.0 <= beta <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], not {beta}")
        if beta_end < beta_start:
            raise ValueError(f"beta never decreases: beta_end={beta_end} is below beta_start={beta_start}")
        if beta_anneal_steps is not None and not is_count(beta_anneal_steps):
            raise ValueError(f"beta_anneal_steps must be None or an integer of at least 1, not {beta_anneal_steps!r}")
        for name, value, known in (
            ("weight_normalization", weight_normalization, WEIGHT_NORMALIZATIONS),
            ("actor_batch", actor_batch, ACTOR_BATCHES),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, not {value!r}")
        scheme = make_scheme(scheme, alpha, epsilon, kappa, td_error_reduction)
        if weight_normalization != "max" and not scheme.importance_sampling:
            raise ValueError(f"weight_normalization={weight_normalization!r} has no effect with {scheme}: its weights are 1")
        warn_of_ignored(given["scheme"], given, _defaults())

        super().__init__(
            *args,
            scheme=scheme,
            stratified=stratified,
            uniform_fraction=uniform_fraction,
            initial_priority=initial_priority,
            max_priority_interval=max_priority_interval,
            recency=recency,
            recency_min=recency_min,
            unique=unique,
            n_steps=n_steps,
            gamma=gamma,
            frames=frames,
            **kwargs,
        )

        self.beta_start = beta_start
        self.beta_end = beta_end
        self.beta_anneal_steps = beta_anneal_steps
        self.weight_normalization = weight_normalization
        self.actor_batch = actor_batch
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
        with already_told():
            prioritized = cls(buffer_size=buffer.n_envs, **settings)
        warn_of_ignored(settings.get("scheme", "proportional"), kwargs, _defaults())
        if getattr(buffer, "_apart", None) is not None:
            prioritized._require_columns()
        # SB3's NStepReplayBuffer has `n_steps` and `gamma` as well; the settings asked for here count.
        own = {*cls._keywords(), *_OF_MASSES, "_counts_updates"}
        vars(prioritized).update({name: value for name, value in vars(buffer).items() if name not in own})
        prioritized._take_masses_of(buffer)
        prioritized._store_frames(
            {} if prioritized.frames is None else frames_by_key(prioritized.frames, buffer.observation_space)
        )
        prioritized.beta = max(prioritized.beta, prioritized.beta_start)
        prioritized._settle()
        return prioritized

    def _take_masses_of(self, buffer: ReplayBuffer) -> None:
        """
        Of a buffer whose transitions are those of this one: its masses or, where they are of another scheme, none.

        :param buffer: any
        """
        if self._draws_what_is_drawn_from(buffer) and repr(buffer.scheme) == repr(self.scheme):  # type: ignore[attr-defined]
            for name in _OF_MASSES:
                setattr(self, name, getattr(buffer, name))
        else:
            self._tree = self.scheme.make_tree(self._capacity)
            self._given_masses = None
            self._readmit()

    def _draws_what_is_drawn_from(self, buffer: ReplayBuffer) -> bool:
        """Whether a mass of the other buffer is one of the same thing: of a transition, in the same slot."""
        return isinstance(buffer, PrioritizedReplayBuffer) and type(buffer)._unit == self._unit

    # What a mass is of.
    _unit: ClassVar[str] = "transition"

    @classmethod
    def _stores(cls, buffer: ReplayBuffer) -> bool:
        """Whether the other buffer is of the same kind of storage."""
        return not isinstance(buffer, DictReplayBuffer)

    @classmethod
    def _keywords(cls) -> set[str]:
        """Names of the settings that SB3's buffers do not have."""
        parameters = [p for c in cls.__mro__ if issubclass(c, TransitionRing) for p in parameters_of(c)]
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

    # ---- all of it, for files

    def _extract(self) -> Contents:
        contents = super()._extract()
        contents.numbers.update(beta=self.beta, n_sampled=self._n_sampled)
        return contents

    def _allocate(self) -> None:
        super()._allocate()
        if self.draw_record is not None:
            self.draw_record = DrawRecord(self._capacity, self.draw_record.batches.maxlen)

    def _restore(self, contents: Contents, keeps_masses: bool = True) -> None:
        super()._restore(contents, keeps_masses)
        if not 0.0 <= contents.numbers["beta"] <= 1.0:
            raise ValueError(f"beta must be in [0, 1], not {contents.numbers['beta']}")
        self.beta = max(self.beta_start, float(contents.numbers["beta"]))
        self._n_sampled = checked_count(contents.numbers["n_sampled"], "n_sampled")

    # ---- draw and update

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None, position: float | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions with probability P(i) = mass_i / total, with replacement; settings change that.

        :param batch_size: number of transitions
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param position: k / K of the k-th of K draws in a row, for ``recency``; ``None``: a random number
        :return: exactly ``batch_size`` transitions, with their weights and ids
        :raises ValueError: for a batch size below 1, or if no transition can be drawn, or with ``unique`` not so many
        """
        _require_transitions(batch_size)
        with self._lock:
            if self._n_updates >= self._next_kappa:
                self._refresh_kappa(env, is_draw=True)
            self._settle()
            if self._tree.total == 0.0:
                self._refuse_to_draw()
            leaves, weighing = self._draw(batch_size, position)
            weights = self._weights(weighing)
            samples = self._gather(leaves, weights, env)
            if self.actor_batch == "weighted":
                samples.n_p = self._n_p(weighing)
            if self.draw_record is not None:
                self.draw_record.add(samples.indices, weights, self._next_ids(samples.indices))
            if self.beta_anneal_steps is not None:
                self._n_sampled += 1
                self._anneal_beta(self._n_sampled / self.beta_anneal_steps)
            if self._lock.n_unanswered >= 0:
                self._lock.n_unanswered += 1
                if self._lock.n_unanswered == _MANY_DRAWS:
                    self._complain()
        return samples

    def _refuse_to_draw(self) -> NoReturn:
        raise ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {self.size()})")

    def _weights(self, weighing: np.ndarray) -> np.ndarray:
        """
        :param weighing: what the draw gave, in proportion to the probabilities, shape (batch_size,)
        :return: importance-sampling weights, float32 of shape (batch_size, 1)
        """
        if not self.scheme.importance_sampling:
            return np.ones((len(weighing), 1), np.float32)
        weights = self.scheme.weights(weighing, self.beta)
        if self.weight_normalization == "max":
            return weights
        if self.weight_normalization == "mean":
            return np.asarray(weights / weights.mean())
        # A scheme gives 1 to the least probable.
        with np.errstate(over="ignore"):
            unnormalized = weights * self._n_p(weighing.min()) ** -self.beta
        return np.minimum(unnormalized, np.finfo(np.float32).max).astype(np.float32)

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Observations of transitions that are drawn uniformly, and nothing else of them; with hindsight, as many have a new goal
        as in a batch.

        :param batch_size: how many
        :param env: associated VecNormalize
        :return: tensor of shape (batch_size, ...), or a dictionary of them
        :raises ValueError: for a batch size below 1, or if no transition can be drawn
        """
        _require_transitions(batch_size)
        with self._lock:
            self._settle()
            if self._tree.total == 0.0:
                self._refuse_to_draw()
            n_drawable = self._n_drawable
            numbers = (spread(np.random.random_sample(batch_size), 1.0, self.stratified) * n_drawable).astype(np.int64)
            obs = self._gather_observations(self._drawable_leaves(n_drawable)(numbers.clip(max=n_drawable - 1)))
            return self._map_obs(self._to_torch(), self._normalize_obs(obs, env))

    def _gather_observations(self, leaves: np.ndarray) -> Any:
        """Observations of these leaves as an actor is to see them."""
        return self._observations_at(leaves)

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
            if self._apart is None:
                bounds, located, n_stale = (self._oldest_id, self._next_id, self._lap_start), ids, 0
            else:
                bounds, (located, n_stale) = (0, self._capacity, 0), self._located(ids, self._apart)
            n_held, bad = read_update(located, *bounds, self._capacity, errors, leaves, abs_td_errors)
            if bad >= 0:
                if not 0 <= located[bad] < bounds[1]:
                    raise IndexError(f"Transition id {ids[bad]} was never issued: ids are in [0, {self._next_id})")
                value = errors[bad][~np.isfinite(errors[bad])][0]
                raise ValueError(f"td_errors must be finite, not {value} (transition id {ids[bad]})")

            if self._n_admitted != self._n_added:
                self._admit_new()  # before `max_priority` changes
            if n_held - n_stale < len(ids) or self._some_are_not_ready:
                drawable = self._can_be_drawn(ids)
                leaves, abs_td_errors = leaves[drawable], abs_td_errors[drawable]
            if len(leaves) > 0:
                reduced = self.scheme.reduce(abs_td_errors)
                priority = self.scheme.priority(reduced)
                largest = float(priority[priority.argmax()])  # faster than `max`
                if not largest < np.inf:
                    raise ValueError(f"{self.scheme}.priority() gave {largest}: it must be finite")
                self._tree.update(leaves, self.scheme.mass(priority))
                self._note_without_unit(leaves, reduced)
                self.max_priority = max(self.max_priority, largest)
                if self._counts_updates:
                    self._count_update()
            if self._lock.n_unanswered > 0:
                self._lock.n_unanswered = 0
        return len(leaves)

    def _located(self, ids: np.ndarray, columns: Columns) -> tuple[np.ndarray, int]:
        """
        :param ids: int64 of shape (batch_size,)
        :param columns: where they stand
        :return: leaves, 0 for stale ids; and how many are stale
        :raises IndexError: for an id that was never issued
        """
        leaves, n_stale, bad = columns.locate(ids)
        if bad >= 0:
            env = ids[bad] % self.n_envs
            raise IndexError(
                f"Transition id {ids[bad]} was never issued: ids of environment {env} are {env} + {self.n_envs} i, where i is "
                f"in [0, {columns.added[env]})"
            )
        return leaves, n_stale

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


def _require_transitions(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")


@functools.cache
def _defaults() -> dict[str, Any]:
    """Settings that say nothing, by name."""
    own = (p for p in parameters_of(PrioritizedReplayBuffer) if p.kind is inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter.default for parameter in own}
