"""
The prioritized replay buffer: SB3 stores and counts; masses, ids and the draw are ours.

- ``add`` checks a step and calls SB3's ``add``, which writes it into SB3's arrays.
- ``sample`` inserts the rows that are new into the tree, lets the sampler draw slots, and reads them from SB3's arrays.
- ``update_priorities`` checks ids and TD errors, finds the slots of the ids, and lets the sampler write their masses.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers import arrays, conversion, copies, inputs
from sb3_per.buffers.append import append_rows
from sb3_per.buffers.demonstrations import Demonstrations, require_terminal_observations
from sb3_per.buffers.frame_setting import frames_by_key
from sb3_per.buffers.n_step import discounted_sums
from sb3_per.buffers.pickles import OLD_PICKLE
from sb3_per.buffers.reminder import MANY_DRAWS, UpdateReminder
from sb3_per.buffers.rows import RowTracker
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import make_settings
from sb3_per.buffers.slots import ReadSteps, map_arrays, read_slots, read_steps
from sb3_per.buffers.state import BufferState, restore_state, state_to_save
from sb3_per.sampling.beta import BetaSchedule
from sb3_per.sampling.sampler import DrawSettings, Sampler
from sb3_per.sampling.subsets import Candidates
from sb3_per.sampling.transition_ids import TransitionIds
from sb3_per.utils.checks import FRACTION, check_argument, integer
from sb3_per.utils.lock import Lock
from sb3_per.utils.origin import is_overridden, require_unchanged
from sb3_per.utils.parents import overrides

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")

_CPU = th.device("cpu")

# Of SB3's own buffer. A user may replace them in SB3's class, too.
_SB3_METHODS = tuple(getattr(BaseBuffer, name) for name in ("to_torch", "_normalize_obs", "_normalize_reward"))


@overrides("_get_samples")
class PrioritizedReplayBuffer(ReplayBuffer):
    """
    Replay buffer that draws transitions in proportion to their priority (Schaul et al. 2016, arXiv 1511.05952).

    New transitions get the largest priority seen so far, so that each is likely to be replayed soon. After that, a priority
    follows the TD errors given to :meth:`update_priorities`. Random numbers come from NumPy's global generator, as in SB3.

    ::

        buffer = PrioritizedReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, beta_start=0.4)
        buffer.add(obs, next_obs, action, reward, done, infos)  # as in SB3
        batch = buffer.sample(256)
        ...  # a gradient step on the loss times batch.weights, which gives td_errors
        buffer.update_priorities(batch.indices, td_errors)

    The arrays, ``pos`` and ``full`` are SB3's own attributes, written by SB3's code. You may change the arrays in place or
    assign others. If you change ``pos``, ``full`` or ``buffer_size`` by hand, all transitions are new at the next call.
    Several threads may share a buffer; to copy or pickle it meanwhile, hold ``buffer.lock``.

    :param buffer_size: number of transitions, over all environments
    :param observation_space: of the environment
    :param action_space: of the environment
    :param device: of the batches
    :param n_envs: number of environments
    :param optimize_memory_usage: SB3's
    :param handle_timeout_termination: SB3's
    :param settings: of prioritization, see :class:`~sb3_per.buffers.settings.BufferSettings`: ``scheme``, ``alpha``,
        ``beta_start``, ``beta_end``, or ``beta`` for both, ``beta_anneal_steps``, ``epsilon``, ``kappa``,
        ``td_error_reduction``, ``stratified``, ``actor_batch``, ``initial_priority``, ``recency``, ``recency_min``,
        ``age_decay``, ``unique``, ``n_steps``, ``gamma``, ``frames``, ``storage_folder``, ``demonstration_fraction``,
        ``demonstration_fraction_end``
    :raises ValueError: for a value that is not allowed, before memory is allocated
    :raises TypeError: for an unknown setting; the message names the nearest
    :raises NotImplementedError: for settings that do not go together
    :raises OSError: if the disk of ``storage_folder`` has no room
    """

    #: arguments of this kind of buffer beside SB3's and the settings
    extra_arguments: ClassVar[tuple[str, ...]] = ()
    #: attributes with objects that :meth:`make_parts` makes, and that stay if somebody assigns arrays of another size
    lasting_parts: ClassVar[tuple[str, ...]] = (
        "lock",
        "beta_schedule",
        "demonstrations",
        "update_reminder",
        "draw_record",
        "row_tracker",
    )
    #: those that are made again then
    sized_parts: ClassVar[tuple[str, ...]] = ("numbering", "scheme", "priority_sampler")
    #: class of the part that counts rows and inserts them into the tree
    tracker_class: ClassVar[type[RowTracker[Any]]] = RowTracker
    #: whether all rows can be drawn
    draws_all_rows: ClassVar[bool] = True
    #: whether reads follow an episode although ``n_steps`` is 1
    follows_episodes: ClassVar[bool] = False
    #: name of this kind of buffer in files. A user's class stores what its base class of this package stores
    kind_in_files: ClassVar[str] = "transitions"
    #: types of the arrays by row that :meth:`state_to_save` may return
    row_state: ClassVar[dict[str, type[np.generic]]] = {"values": np.float64, "ranks": np.int64}

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **settings: Any,
    ):
        self._construct(
            settings,
            buffer_size,
            observation_space,
            action_space,
            device=device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )

    def _construct(
        self,
        settings: dict[str, Any],
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        n_envs: int,
        optimize_memory_usage: bool,
        **of_sb3: Any,
    ) -> None:
        """
        Check arguments, let SB3's constructor make the arrays, and make the parts.

        :param settings: of prioritization, by name
        :param of_sb3: further arguments of SB3's constructor
        """
        self._check_arguments(buffer_size, observation_space, action_space, n_envs, optimize_memory_usage, settings)
        super().__init__(
            # One row, which `place_arrays` replaces.
            n_envs if self.settings.places_arrays else buffer_size,
            observation_space,
            action_space,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            **of_sb3,
        )
        if self.settings.places_arrays:
            arrays.place_arrays(self, self.settings, max(buffer_size // n_envs, 1))
        self.make_parts()

    def _check_arguments(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        n_envs: int,
        optimize_memory_usage: bool,
        settings: dict[str, Any],
    ) -> None:
        """Check the arguments of the constructor before SB3's constructor allocates memory."""
        require_unchanged(type(self), "sample", "_get_samples", "_get_real_samples", "_get_virtual_samples")
        check_argument("buffer_size", buffer_size, integer())
        check_argument("n_envs", n_envs, integer())
        self.use_settings(settings, optimize_memory_usage)
        inputs.require_nonempty(observation_space=observation_space, action_space=action_space)
        frames_by_key(self.settings.frames, observation_space)

    def use_settings(self, given: dict[str, Any], optimize_memory_usage: bool) -> None:
        """
        Check settings and keep them. The parts of the buffer follow them after :meth:`make_parts`.

        :param given: settings of prioritization by name
        :param optimize_memory_usage: SB3's
        :raises ValueError: for a value that is not allowed
        :raises TypeError: for an unknown setting; the message names the nearest
        :raises NotImplementedError: for settings that do not go together
        """
        #: settings of prioritization
        self.settings = make_settings(type(self), given)
        self._check_combinations(optimize_memory_usage)

    def _check_combinations(self, optimize_memory_usage: bool) -> None:
        """Refuse combinations that this kind of buffer does not support."""
        if optimize_memory_usage and self.settings.frames is not None:
            raise NotImplementedError(
                f"frames={self.settings.frames} with optimize_memory_usage=True is not supported: frames store all "
                "observations once already"
            )
        if optimize_memory_usage and isinstance(self, DictReplayBuffer):
            raise NotImplementedError(
                "optimize_memory_usage=True with Dict observations is not supported: SB3 does not have it"
            )
        if self.settings.demonstration_fraction > 0.0:
            require_terminal_observations(optimize_memory_usage)

    def make_parts(self, draw_settings: DrawSettings | None = None) -> None:
        """
        Make what SB3's buffers do not have, for arrays that are empty. What can change is named in :attr:`lasting_parts` or
        :attr:`sized_parts`: copies have parts of their own.

        :param draw_settings: in place of those of the buffer's settings
        """
        settings = self.settings
        #: held by all methods that read or change transitions
        self.lock = Lock()
        #: shapes of a step, see :func:`~sb3_per.buffers.inputs.is_plain_step`
        self.step_shapes = inputs.step_shapes(self)
        #: which transition is in which slot
        self.numbering = TransitionIds(self.buffer_size, self.n_envs, self.optimize_memory_usage)
        #: the prioritization scheme
        self.scheme = settings.make_scheme()
        #: the mass of each slot
        self.priority_sampler = Sampler(
            self.scheme, self.numbering, draw_settings or settings.draw_settings, self.draws_all_rows
        )
        #: the exponent of the weights
        self.beta_schedule = BetaSchedule(settings.beta_start, settings.beta_end, settings.beta_anneal_steps)
        #: transitions that stay, and their share of a batch
        self.demonstrations = Demonstrations(settings.demonstration_fraction, settings.demonstration_fraction_end)
        #: warns if nobody updates priorities
        self.update_reminder = UpdateReminder()
        #: counts the draws while a :class:`~sb3_per.PriorityMonitor` watches; ``None`` otherwise
        self.draw_record: Any = None
        #: keeps ids and tree in step with the rows that SB3 writes
        self.row_tracker = self.tracker_class()
        # Rows and slots that `sample` reads, for `_get_samples`, which SB3 calls with rows alone.
        self._drawn: tuple[np.ndarray, np.ndarray] | None = None

    # ---- write

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        td_errors: np.ndarray | th.Tensor | None = None,
    ) -> None:
        """
        Store one step of every environment, see SB3.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: ends of episodes, shape (n_envs,)
        :param infos: one dictionary per environment
        :param td_errors: of these transitions, shape (n_envs,) or (n_envs, n_critics), which become their priorities but do
            not raise ``max_priority``. Needs ``initial_priority="td_error"``
        :raises ValueError: for another shape, values that are not numbers, or a reward that is NaN or infinite; nothing is
            stored then
        """
        if not inputs.is_plain_step(self.step_shapes, obs, next_obs, action, reward, done, infos):
            obs, next_obs, action, reward, done, infos = inputs.checked_step(self, obs, next_obs, action, reward, done, infos)
        given_values = None if td_errors is None else self._evaluate(td_errors)
        with self.lock:
            tracker = self.row_tracker
            if tracker.is_adding or not self.numbering.agree(self.pos, self.full):
                tracker.catch_up(self)
            if given_values is not None or tracker.given_values is not None:
                tracker.keep_given_values(self, given_values, self.pos)
            if not self.draws_all_rows:
                self._before_row()
            # The next draw or update gives the row its mass: one write of many slots is cheaper than many writes of one.
            tracker.is_adding = True
            if tracker.clears_timeouts:
                self.timeouts[self.pos] = 0
            try:
                super().add(obs, next_obs, action, reward, done, infos)
            except (TypeError, ValueError):
                # Somebody has assigned an array of another shape: name what does not fit it.
                inputs.checked_step(self, obs, next_obs, action, reward, done, infos)
                raise
            self.numbering.next_step += 1
            tracker.is_adding = False

    def extend(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Any,
        masses: np.ndarray | None = None,
    ) -> None:
        """
        Store several steps of all environments: check all of them, then :meth:`add` one after the other.

        :param obs: observations, shape (n, n_envs, ...), a dictionary of them, or one entry per step
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n, n_envs, action_dim)
        :param reward: rewards, shape (n, n_envs)
        :param done: ends of episodes, shape (n, n_envs)
        :param infos: for each step, one dictionary per environment
        :param masses: tree values, shape (n, n_envs): the :attr:`masses` of the transitions, without the factor of
            ``age_decay``; with ``scheme="rank"`` their priorities, in units of TD errors. ``None``: that of ``max_priority``
        :raises ValueError: if the numbers of steps differ, or for a reward that is NaN or infinite, a mass that is not
            allowed, or any masses with a scheme that draws uniformly, before anything is stored
        :raises NotImplementedError: for ``masses`` in a class with its own :meth:`add`
        """
        shape = (len(reward), self.n_envs)
        infos, _ = inputs.checked_infos(self, shape, infos)
        rows = (*inputs.checked_rows(self, shape, obs, next_obs, action, reward, done), infos)
        if masses is not None:
            if self.scheme.draws_uniformly:
                raise ValueError(f"masses have no meaning with {self.scheme}, which draws uniformly: leave them out")
            if is_overridden(self, "add"):
                raise NotImplementedError(f"extend() with masses cannot call add(), which {type(self).__name__} overrides")
            masses = inputs.checked_masses(masses, shape, self.scheme.largest_mass)
        with self.lock:
            for i in range(shape[0]):
                self.add(*(map_arrays(lambda array: array[i], part) for part in rows))  # noqa: B023 - called at once
                if masses is not None:
                    self.row_tracker.keep_given_values(self, masses[i], self.pos - 1)

    def append_rows(
        self,
        obs: Any,
        next_obs: Any,
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: np.ndarray,
        td_errors: np.ndarray | None = None,
    ) -> None:
        """
        Append successive steps of one environment, which need not follow the newest row. The last step becomes a truncation
        unless it ends an episode, so no n-step return runs from these steps into the next ones.

        :param obs: observations, shape (n, ...), or a dictionary of them
        :param next_obs: next observations in the same form, terminal observations included
        :param actions: actions, shape (n, action_dim)
        :param rewards: rewards, shape (n,)
        :param dones: ends of episodes, shape (n,)
        :param timeouts: which of these ends are truncations, shape (n,)
        :param td_errors: of these transitions, shape (n,) or (n, n_critics), which become their priorities but do not raise
            ``max_priority``; ``None``: they get the largest priority. Unlike in :meth:`add`, they count with any
            ``initial_priority``, because actors decide for themselves whether they send TD errors
        :raises ValueError: for a buffer of several environments, another shape, values that are not numbers, a reward that is
            NaN or infinite, or TD errors with a scheme that draws uniformly; nothing is stored then
        :raises NotImplementedError: with ``optimize_memory_usage``, and with HER and sequences
        """
        append_rows(self, obs, next_obs, actions, rewards, dones, timeouts, td_errors)

    def _evaluate(self, td_errors: Any) -> np.ndarray:
        """
        Turn the TD errors of a new row into tree values.

        :param td_errors: shape (n_envs,) or (n_envs, n_critics)
        :return: float64 of shape (n_envs,)
        :raises ValueError: with another ``initial_priority`` than ``"td_error"``, for another shape, NaN or infinity
        """
        errors = inputs.abs_td_errors(td_errors, (self.n_envs,))
        if self.settings.initial_priority != "td_error":
            raise ValueError(
                f"td_errors of new transitions need initial_priority='td_error', not {self.settings.initial_priority!r}"
            )
        return self.priority_sampler.evaluate(errors)[0]

    def _before_row(self) -> None:
        """Prepare for the next row, before SB3 writes it. Called where not all rows can be drawn."""

    def reset(self) -> None:
        """Forget all transitions except demonstrations. Ids continue, so that older ids are stale."""
        with self.lock:
            super().reset()
            self.row_tracker.catch_up(self)

    def end_episodes(self, envs: np.ndarray | None = None) -> None:
        """
        End the episodes under way, because the next steps do not follow the newest ones, e.g. after a reset in mid-episode.
        The newest steps become truncations, and no n-step window goes beyond them. Without ``handle_timeout_termination`` a
        truncation of n-step returns is a termination, as in SB3; so is that of a single step with ``optimize_memory_usage``,
        because the next observation is that of the next episode.

        :param envs: environments whose episodes end, different integers of shape (k,); ``None``: all of them
        """
        envs = np.arange(self.n_envs) if envs is None else np.asarray(envs)
        with self.lock:
            if self.size() == 0:
                return
            is_truncation = self.handle_timeout_termination
            if not (is_truncation or self.n_steps > 1 or self.follows_episodes):
                if not self.draws_all_rows:  # HER: SB3 has a mark of its own
                    return
                # A flag that changes no target of a single step, for a buffer with n-step returns that takes these rows over.
                is_truncation = not self.optimize_memory_usage
                self.row_tracker.clears_timeouts |= is_truncation
            cut = envs[self.dones[self.pos - 1, envs] == 0]
            if is_truncation:
                self.timeouts[self.pos - 1, cut] = 1  # first: after an interrupt in between, no step is a termination
            self.dones[self.pos - 1, cut] = 1

    def insert_new_rows(self) -> None:
        """Bring the tree up to date with the rows that were written since the last call. Draws and updates begin with it."""
        tracker = self.row_tracker
        if tracker.is_adding or self.buffer_size != self.numbering.n_rows or not self.numbering.agree(self.pos, self.full):
            tracker.catch_up(self)
        if tracker.inserted_until != self.numbering.next_step:
            tracker.insert(self)

    # ---- draw

    def sample(  # type: ignore[override]
        self,
        batch_size: int,
        env: VecNormalize | None = None,
        series_progress: float | None = None,
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions with probability P(i) = mass_i / total, with replacement; settings change that.

        :param batch_size: number of transitions
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param series_progress: k / K if this is the k-th of K draws in a row, for ``recency``; ``None``: a random number
        :return: exactly ``batch_size`` transitions, with their weights and ids
        :raises ValueError: for a batch size that is no integer or below 1, or if no transition can be drawn, or with
            ``unique`` not so many
        """
        if type(batch_size) is not int or batch_size < 1:  # this costs nothing in the usual case
            check_argument("batch_size", batch_size, integer())
        with self.lock:
            self.insert_new_rows()
            if self.demonstrations.take_part:
                drawn = self.demonstrations.draw(self, batch_size, series_progress, env)
                data, ids, relative_probabilities, is_demonstration = drawn
            else:
                slots, relative_probabilities = self.draw_slots(batch_size, series_progress)
                data = self.read_drawn(slots, env)
                ids = self.numbering.in_slots(slots)
                is_demonstration = None
            weights = self.scheme.weights(relative_probabilities, self.beta_schedule.value)
            batch = PrioritizedReplayBufferSamples(*data, self.tensor_maker()(weights), ids)
            if is_demonstration is not None:
                batch.is_demonstration = is_demonstration
            self._note_draw(batch, weights)
        return batch

    def _note_draw(self, batch: PrioritizedReplayBufferSamples, weights: np.ndarray) -> None:
        """Take note of a draw: for beta, for those who watch, and for the reminder."""
        if self.settings.beta_anneal_steps is not None:
            self.beta_schedule.count_draw()
        if self.draw_record is not None:
            is_experience = slice(None) if batch.is_demonstration is None else ~batch.is_demonstration
            self.draw_record.add(batch.indices[is_experience], weights[is_experience], self.numbering.next_id)
        if self.scheme.alpha > 0.0 and not self.scheme.draws_uniformly:
            reminder = self.update_reminder
            reminder.n_draws += 1
            if reminder.n_draws == MANY_DRAWS:
                reminder.warn()

    def draw_candidates(self) -> Candidates:
        """Return the slots that can be drawn."""
        return self.numbering

    def can_draw(self) -> bool:
        """Tell whether any transition can be drawn, demonstrations apart."""
        with self.lock:
            self.insert_new_rows()
            return self.draw_candidates().n > 0

    def draw_slots(self, batch_size: int, series_progress: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots by mass, after :meth:`insert_new_rows`.

        :param batch_size: number of slots
        :param series_progress: see :meth:`sample`
        :return: slots, int64, and their N P, the probability P of each times the number N of candidates, with ``recency``
            those of the subset (how many times as likely it is as in a uniform draw of them); float64, both of shape
            (batch_size,)
        :raises ValueError: if no transition can be drawn
        """
        # Where all rows can be drawn, the numbering knows the candidates, and a call is saved.
        candidates = self.numbering if self.draws_all_rows else self.draw_candidates()
        if candidates.n == 0:
            raise self._empty_error()
        if self.priority_sampler.draws_as_sb3:  # uniform, not stratified
            return self._draw_without_masses(batch_size), np.ones(batch_size)
        return self.priority_sampler.draw(batch_size, candidates, series_progress)

    def _draw_without_masses(self, batch_size: int) -> np.ndarray:
        """Draw slots uniformly, with the random numbers of SB3's buffer of the same kind: here rows, then environments."""
        if self.optimize_memory_usage and self.full:
            rows = (np.random.randint(1, self.buffer_size, size=batch_size) + self.pos) % self.buffer_size
        else:
            rows = np.random.randint(0, self.buffer_size if self.full else self.pos, size=batch_size)
        return np.asarray(rows * self.n_envs + np.random.randint(0, high=self.n_envs, size=batch_size))

    def _empty_error(self) -> Exception:
        """Say why nothing can be drawn."""
        return ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {self.size()})")

    def read_drawn(self, slots: np.ndarray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        Read drawn slots by SB3's method, which a user's class may override.

        :param slots: int64 of shape (batch_size,)
        :param env: associated VecNormalize
        :return: SB3's batch
        """
        rows = slots if self.n_envs == 1 else slots // self.n_envs
        self._drawn = rows, slots
        try:
            return self._get_samples(rows, env)
        finally:
            self._drawn = None

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        Read rows, see SB3. The environment of each row is the one that :meth:`sample` has drawn. For other rows than those
        it is a random one, as in SB3.

        :param batch_inds: rows, integers of shape (batch_size,)
        :param env: associated VecNormalize
        :return: SB3's batch, with n-step returns if ``n_steps`` is above 1
        """
        drawn = self._drawn
        if drawn is not None and (drawn[0] is batch_inds or np.array_equal(drawn[0], batch_inds)):
            slots = drawn[1]
        else:
            rows = np.arange(self.buffer_size)[np.asarray(batch_inds)]  # NumPy checks them; negative ones count from the end
            slots = rows * self.n_envs + np.random.randint(0, high=self.n_envs, size=len(rows))
        return self.batch_of(read_steps(self, slots, self.settings.n_steps), env)

    def batch_of(self, steps: ReadSteps, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        Normalize what was read, add up n-step returns, and make tensors.

        :param steps: as they are stored
        :param env: associated VecNormalize
        :return: SB3's batch
        """
        to_tensor = self.tensor_maker()
        rewards = self._normalize_reward(steps.rewards, env)
        discounts = None
        if steps.lengths is not None:
            rewards, factors = discounted_sums(rewards, steps.lengths, self.gamma)
            discounts = to_tensor(factors)
        obs = self._normalize_obs(steps.observations, env)
        next_obs = self._normalize_obs(steps.next_observations, env)
        return ReplayBufferSamples(
            map_arrays(to_tensor, obs),
            to_tensor(steps.actions),
            map_arrays(to_tensor, next_obs),
            to_tensor(steps.terminations),
            to_tensor(rewards),
            discounts,
        )

    def tensor_maker(self) -> Callable[[np.ndarray], th.Tensor]:
        """
        Choose how arrays of a batch become tensors: without SB3's copy, which takes three times as long, unless a user's
        method makes the tensors, or may hold the arrays.
        """
        methods = type(self).to_torch, self._normalize_obs, self._normalize_reward
        if methods != _SB3_METHODS or "to_torch" in vars(self):
            return self.to_torch
        if self.device == _CPU:
            return th.from_numpy
        return functools.partial(self.to_torch, copy=False)

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Draw observations uniformly, e.g. for an actor; with HER, as many have a new goal as in a batch.

        :param batch_size: number of observations
        :param env: associated VecNormalize
        :return: tensor of shape (batch_size, ...), or a dictionary of them
        :raises ValueError: for a batch size that is no integer or below 1, or if no transition can be drawn
        """
        check_argument("batch_size", batch_size, integer())
        with self.lock:
            self.insert_new_rows()
            if self.demonstrations.take_part:
                obs = self.demonstrations.draw_observations(self, batch_size)
            else:
                obs = self.draw_observations(batch_size)
            return map_arrays(self.tensor_maker(), self._normalize_obs(obs, env))

    def draw_observations(self, n: int) -> Any:
        """
        Draw observations uniformly, after :meth:`insert_new_rows`.

        :param n: number of observations
        :return: array of shape (n, ...), or a dictionary of them
        :raises ValueError: if no transition can be drawn
        """
        candidates = self.draw_candidates()
        if candidates.n == 0:
            raise self._empty_error()
        slots = self.priority_sampler.draw_uniformly(n, candidates)
        return read_slots(self.observations, slots)

    # ---- update

    def update_priorities(self, indices: np.ndarray, td_errors: np.ndarray | th.Tensor) -> int:
        """
        Set the priorities of transitions from their newest TD errors, unweighted. Of repeated ids the last one counts;
        ids whose transition was overwritten in the meantime are skipped.

        :param indices: transition ids from :meth:`sample`, integers of shape (batch_size,)
        :param td_errors: signed or absolute TD errors in units of the value function, a NumPy array or a tensor on
            any device, shape (batch_size,), (batch_size, 1) or (batch_size, n_critics)
        :return: how many were written, i.e. were neither stale nor, with ``optimize_memory_usage``, incomplete
        :raises IndexError: for an id that was never issued
        :raises ValueError: for TD errors of the wrong shape, or NaN or infinite. Nothing is changed in either case.
        """
        ids = inputs.checked_ids(indices)
        errors = inputs.abs_td_errors(td_errors, ids.shape)
        with self.lock:
            self.insert_new_rows()
            if self.demonstrations.take_part:
                n_written = self.demonstrations.update(self, ids, errors)
            else:
                found = self.find_and_evaluate(ids, errors)
                self.priority_sampler.update(*found)
                n_written = len(found[0])
            self.update_reminder.n_draws = 0
        return n_written

    def find_and_evaluate(self, ids: np.ndarray, abs_td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """
        Find the slots of ids, without those that are stale or cannot be drawn, and compute their priorities. Nothing changes.

        :param ids: transition ids, int64 of shape (n,)
        :param abs_td_errors: ``|td|``, float64 of shape (n, n_critics)
        :return: slots, int64, and their tree values, float64, both of shape (m,), and the largest priority
        :raises IndexError: for an id that was never issued
        :raises ValueError: for a priority that is not allowed, from a user's scheme
        """
        slots, is_held = self.numbering.find(ids)
        if is_held is not None:
            slots = slots[is_held]
            abs_td_errors = abs_td_errors[is_held]
        if len(slots) == 0:  # a scheme need not work with nothing
            return slots, np.empty(0), 0.0
        return slots, *self.priority_sampler.evaluate(abs_td_errors)

    @property
    def beta(self) -> float:
        """Current importance-sampling exponent, in [0, 1]; it never decreases unless you set it."""
        return self.beta_schedule.value

    @beta.setter
    def beta(self, value: float) -> None:
        check_argument("beta", value, FRACTION)
        self.beta_schedule.value = float(value)

    def update_beta(self, progress_remaining: float) -> None:
        """
        Anneal beta with training progress, unless ``beta_anneal_steps`` is set, and the share of demonstrations.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules
        """
        self.beta_schedule.follow(progress_remaining)
        self.demonstrations.share.follow(progress_remaining)

    # ---- demonstrations

    def add_demonstrations(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: Any
    ) -> None:
        """
        Store transitions that stay: :meth:`add` never overwrites them, ``buffer_size`` does not count them, and :meth:`reset`
        keeps them. ``demonstration_fraction`` is their share of each batch.

        The steps of each of the k columns are successive steps of one environment; k need not be ``n_envs``. Where a column
        ends in mid-episode, its last step becomes a truncation.

        :param obs: observations, shape (n, k, ...), a dictionary of them, or one entry per step
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n, k, action_dim); those of a Box scaled to [-1, 1] with ``model.policy.scale_action``
        :param reward: rewards, shape (n, k)
        :param done: ends of episodes, shape (n, k)
        :param infos: for each step, one dictionary per column; SB3's ``TimeLimit.truncated`` marks truncations
        :raises ValueError: for another shape, values that are not numbers, a reward that is NaN or infinite, or actions that
            are not scaled; nothing is stored then
        :raises NotImplementedError: with ``optimize_memory_usage``, and in a class that overrides :meth:`add` alone
        """
        if is_overridden(self, "add") and not is_overridden(self, "add_demonstrations"):
            raise NotImplementedError(
                f"{type(self).__name__} overrides add(), and add_demonstrations() does not call it: override "
                "add_demonstrations() too, e.g. change its arguments and call super().add_demonstrations()"
            )
        with self.lock:
            self.demonstrations.add(self, obs, next_obs, action, reward, done, infos)

    def add_demonstrations_from(self, other: ReplayBuffer) -> None:
        """
        Store all transitions of another buffer as demonstrations, its own demonstrations too, see :meth:`add_demonstrations`.
        With HER, their goals stay as they were. Actions that were recorded with other bounds are scaled anew.

        :param other: prioritized or SB3's, with the same observation and action space. The bounds of a Box of actions may
            differ, if every action is inside of those of this buffer
        :raises TypeError: for anything but a buffer
        :raises ValueError: for a buffer with other spaces or ``optimize_memory_usage``, with actions outside [-1, 1] or
            outside of the new bounds, with a reward that is NaN or infinite, or an empty one
        :raises NotImplementedError: with ``optimize_memory_usage``
        """
        with self.lock:
            self.demonstrations.add_from(self, other)

    @contextmanager
    def only_demonstrations(self) -> Iterator[None]:
        """Draw whole batches of demonstrations within a ``with`` block."""
        with self.demonstrations.alone():
            yield

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of all parts: attributes with objects of this package."""
        return *self.lasting_parts, *self.sized_parts

    @property
    def mass_owner(self) -> str:
        """What a mass belongs to. Masses move between two buffers only if this is the same."""
        return "transition"

    def describe_for_files(self) -> dict[str, Any]:
        """
        Describe what the buffer holds, to tell whether its files fit another one.

        :return: facts that JSON can hold
        :raises ValueError: for contents that files cannot hold
        """
        return {
            "kind": self.kind_in_files,
            "n_envs": self.n_envs,
            "optimize_memory_usage": bool(self.optimize_memory_usage),
            "sequences": None,
            "buffer_size": self.buffer_size,
            "frames": self.settings.frames,
        }

    def unknown_to_sb3(self) -> list[str]:
        """List what the buffer holds, and no class of SB3 does, for a warning."""
        return [f"{len(self.demonstrations)} demonstrations"] if len(self.demonstrations) else []

    # ---- save and load

    def state_to_save(self) -> BufferState:
        """
        Collect what may change after a step is stored, apart from SB3's flags.

        :return: numbers and arrays, of which some are views: copy them before the buffer changes
        """
        return state_to_save(self)

    def restore_state(self, state: BufferState, keeps_masses: bool, is_whole: bool) -> None:
        """
        Restore a state, after :meth:`RowTracker.stand_at`. Discard the buffer after an error.

        :param state: of a buffer of the same kind, with the rows that are in the arrays
        :param keeps_masses: whether the masses belong to the same scheme and to the same things; otherwise all are new
        :param is_whole: whether these are all rows of that buffer; otherwise the older ones are missing
        :raises ValueError: if the state contradicts itself
        """
        restore_state(self, state, keeps_masses, is_whole)

    def empty_twin(self, n_rows: int) -> "PrioritizedReplayBuffer":
        """
        Make an empty buffer of one environment for demonstrations.

        :param n_rows: number of its rows
        :return: a buffer that stores and reads as this one does; a user's class keeps its methods and attributes
        """
        return copies.empty_twin(self, n_rows)

    def read_demonstrations(
        self, twin: "PrioritizedReplayBuffer", slots: np.ndarray, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        """
        Read drawn demonstrations, as :meth:`read_drawn` reads the other transitions.

        :param twin: buffer with the demonstrations, from :meth:`empty_twin`
        :param slots: of this buffer, int64 of shape (n,)
        :param env: associated VecNormalize
        :return: SB3's batch
        """
        twin.device = self.device  # SB3 changes that of a loaded buffer
        return twin.read_drawn(slots, env)

    # ---- what SB3 and users read

    def __repr__(self) -> str:
        """Say what the buffer holds, and how it draws."""
        n_held = self.size() * self.n_envs
        facts = [f"{n_held:,} of {self.numbering.capacity:,} transitions", f"n_envs={self.n_envs}", repr(self.scheme)]
        facts += [f"{name}={getattr(self, name)}" for name in ("n_steps", *self.extra_arguments)]
        if self.frames is not None:
            facts.append(f"frames={self.frames}")
        if (folder := arrays.folder_of(self)) is not None:
            facts.append(f"storage_folder={folder}")
        if len(self.demonstrations):
            facts.append(f"{len(self.demonstrations):,} demonstrations")
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def max_priority(self) -> float:
        """Largest priority seen so far, in units of the TD error (before the exponent); 1.0 at first."""
        return self.priority_sampler.max_priority

    @property
    def n_steps(self) -> int:
        """Number of steps of the n-step return."""
        return self.settings.n_steps

    @property
    def frames(self) -> int | dict[str, int] | None:
        """Number of frames in a stack, where each frame is stored once, see ``frames`` of the settings."""
        return self.settings.frames

    @property
    def frames_per_transition(self) -> float:
        """
        Frames stored per transition: little above 1 where observations are stacks, up to twice the number of frames in a
        stack where they are not. Of several keys with frames, the mean.

        :raises AttributeError: without ``frames``
        """
        return arrays.frames_held(self) / max(self.size() * self.n_envs, 1)

    @property
    def gamma(self) -> float:
        """Discount factor of the n-step return."""
        return self.settings.gamma

    @property
    def masses(self) -> np.ndarray:
        """
        Unnormalized sampling mass of every slot, e.g. ``(|td| + epsilon)^alpha``; 0 for a slot that cannot be drawn.
        With ``age_decay`` they may have a common factor. A copy, float64 of shape (buffer_size, n_envs).
        """
        with self.lock:
            self.insert_new_rows()
            return self.priority_sampler.masses().reshape(self.buffer_size, self.n_envs)

    @property
    def priorities(self) -> np.ndarray:
        """The :attr:`masses`, under the name that most libraries give them. They are not in the unit of ``max_priority``."""
        return self.masses

    @property
    def transition_ids(self) -> np.ndarray:
        """Id of the transition in every slot, -1 for an empty one. int64 of shape (buffer_size, n_envs)."""
        with self.lock:
            self.row_tracker.catch_up(self)
            ids = self.numbering.in_slots(np.arange(self.numbering.capacity))
            return np.where(ids >= self.numbering.first_step * self.n_envs, ids, -1).reshape(self.buffer_size, self.n_envs)

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **settings: Any) -> "PrioritizedReplayBuffer":
        """
        Turn an SB3 buffer into a prioritized one that shares its arrays. Every transition has the largest priority.

        Give a prioritized buffer to change its settings: settings that are not named stay, and so do ids and beta. Priorities
        stay unless the scheme or one of its settings changes. Another ``scheme`` brings its own settings.

        :param buffer: of the kind of storage of this class; not to be used any more
        :param settings: of prioritization; storage arguments are those of the buffer
        :return: the prioritized buffer
        :raises ValueError: for a buffer of another kind, or with a reward that is NaN or infinite; for a setting of the scheme
            alone, if the scheme is an object of your own, which has its settings
        """
        return conversion.from_replay_buffer(cls, buffer, settings)

    def to_replay_buffer(self) -> ReplayBuffer:
        """
        Make a buffer of SB3 with the same arrays, for stock algorithms: ``ReplayBuffer``, ``DictReplayBuffer`` or
        ``HerReplayBuffer``, and ``NStepReplayBuffer`` for ``n_steps > 1``. Its pickle loads without this package.

        :return: the buffer; do not use this one any more
        :warns UserWarning: if something is left out that SB3's class does not hold: demonstrations, or n-step returns of Dict
            observations
        """
        with self.lock:
            self.insert_new_rows()
            return conversion.to_replay_buffer(self)

    def __copy__(self: BufferT) -> BufferT:
        """Copy the position, ids and masses; demonstrations too. Arrays are shared, as in a shallow copy of SB3's buffers."""
        made = copies.bare_copy(self)
        # In one call, since parts refer to each other.
        vars(made).update(copy.deepcopy({name: vars(self)[name] for name in self.part_names}))
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "row_tracker" not in state:
            raise ValueError(OLD_PICKLE)
        vars(self).update(state)


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` (Schaul et al. 2016, arXiv 1511.05952) for Dict observation spaces. n-step returns work
    here too, unlike in SB3. With ``"MultiInputPolicy"`` the algorithms choose it themselves.

    ::

        buffer = PrioritizedDictReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, n_steps=3)

    The arguments are those of :class:`PrioritizedReplayBuffer`.

    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """

    kind_in_files = "dict transitions"
