"""
The prioritized replay buffer: SB3's interface around a set of transitions.

``add`` checks a step (``inputs.py``) and gives it to the set (``transition_set.py``): the storage writes it, the sampler
counts a new row, the ring moves on.

``sample`` lets the set draw slots (the sampler first inserts the rows that were counted, then the tree draws), computes
weights (the scheme), lets the set read the slots (the storage; ids from the ring), normalizes them and makes tensors.

``update_priorities`` checks ids and TD errors, and lets the set find their slots and the sampler write their masses.

What code for SB3's buffers finds beside these methods is in ``sb3_attributes.py``, and what demonstrations need in
``demonstration_methods.py``: both are base classes.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import conversion, hooks, inputs
from sb3_per.buffers.demonstration_methods import DemonstrationMethods
from sb3_per.buffers.mixture import Demonstrations, LinearShare, Mixture
from sb3_per.buffers.reminder import MANY_DRAWS, UpdateReminder
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import make_settings
from sb3_per.buffers.transition_set import (
    CompleteTransitions,
    Drawn,
    DrawSource,
    RawBatch,
    TransitionSet,
    checked_abs_td_errors,
    checked_ids,
    td_error_matrix,
)
from sb3_per.sampling.beta import BetaSchedule
from sb3_per.sampling.candidates import Candidates
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.storage.frame_setting import frames_by_key
from sb3_per.storage.make import make_storage, warn_of_size
from sb3_per.storage.mapped import Folder
from sb3_per.storage.n_step import NStepReturns
from sb3_per.storage.nested import map_arrays
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Storage
from sb3_per.storage.store import ObservationStore
from sb3_per.utils.checks import FRACTION, check_argument, integer, words

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")

# What the attribute ``device`` may be on a CPU: a user may have set a string.
_CPU = (th.device("cpu"), "cpu")


class PrioritizedReplayBuffer(DemonstrationMethods):
    """
    Replay buffer that draws transitions in proportion to their priority (Schaul et al. 2016, arXiv 1511.05952).

    New transitions get the largest priority seen so far, so that each is likely to be replayed soon. After that, a priority
    follows the TD errors given to :meth:`update_priorities`. Random numbers come from NumPy's global generator, as in SB3.

    The algorithms of this package make a buffer themselves, with the settings in ``replay_buffer_kwargs``. Make one by hand
    for your own training loop; a stock algorithm neither weights its loss nor updates priorities.

    ::

        buffer = PrioritizedReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, beta_start=0.4)
        buffer.add(obs, next_obs, action, reward, done, infos)  # as in SB3
        batch = buffer.sample(256)
        ...  # a gradient step on the loss times batch.weights, which gives td_errors
        buffer.update_priorities(batch.indices, td_errors)

    Rows should come through :meth:`add`, :meth:`add_steps` or :meth:`extend`. SB3's arrays can be changed in place, and others
    of the same shape can be assigned (``buffer.rewards = array``): they are shared, or copied with ``frames`` and in files of
    ``storage_folder``. Setting ``pos`` or ``full`` by hand makes all transitions new. Several threads may share a buffer; to
    copy or pickle it meanwhile, hold ``buffer.lock``.

    :param buffer_size: number of transitions, over all environments
    :param observation_space: of the environment
    :param action_space: of the environment
    :param device: of the batches
    :param n_envs: number of environments
    :param optimize_memory_usage: SB3's; use ``frames`` to store observations once without losing the terminal ones
    :param handle_timeout_termination: SB3's
    :param settings: of prioritization, see :class:`~sb3_per.buffers.settings.BufferSettings`: ``scheme``, ``alpha``,
        ``beta_start``, ``beta_end``, or ``beta`` for both, ``beta_anneal_steps``, ``epsilon``, ``kappa``,
        ``td_error_reduction``, ``stratified``, ``actor_batch``, ``initial_priority``, ``recency``, ``recency_min``,
        ``age_decay``, ``unique``, ``n_steps``, ``gamma``, ``frames``, ``storage_folder``, ``demonstration_fraction``,
        ``demonstration_fraction_end``
    :raises ValueError: for a value that is not allowed, before memory is allocated
    :raises TypeError: for an unknown setting; the message names the nearest
    :raises NotImplementedError: for settings that do not go together
    """

    #: arguments of this kind of buffer beside SB3's and those of :class:`~sb3_per.buffers.settings.BufferSettings`
    extra_arguments: tuple[str, ...] = ()
    #: set a class to keep observations elsewhere than in SB3's arrays, see :class:`~sb3_per.storage.store.ObservationStore`
    store_class: Callable[..., ObservationStore] | None = None
    #: why environments cannot add separately in this kind of buffer; ``None``: they can
    add_steps_refusal: ClassVar[str | None] = None

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
        check_argument("buffer_size", buffer_size, integer())
        check_argument("n_envs", n_envs, integer())
        self.settings = make_settings(type(self), settings)
        inputs.require_nonempty(observation_space=observation_space, action_space=action_space)
        self._check_combinations(optimize_memory_usage)
        if self.settings.demonstration_fraction > 0.0:
            self._check_demonstrations(optimize_memory_usage)
        layout = self._init_with_one_row(
            observation_space, action_space, device, n_envs, optimize_memory_usage, handle_timeout_termination
        )
        layout = dataclasses.replace(
            layout, frames=frames_by_key(self.settings.frames, observation_space), store_class=type(self).store_class
        )
        path = self.settings.storage_folder
        folder = None if path is None else Folder(path)
        self.lock = threading.RLock()
        #: counts the draws while a :class:`~sb3_per.PriorityMonitor` watches; ``None`` otherwise
        self.draw_record: Any = None
        #: warns if nobody updates priorities
        self.update_reminder = UpdateReminder()
        self.start_empty(make_storage(layout, max(buffer_size // n_envs, 1), n_envs, folder))
        warn_of_size(self.storage, self.sampler.nbytes)

    def _check_combinations(self, optimize_memory_usage: bool) -> None:
        """
        Refuse combinations that this kind of buffer does not support.

        :param optimize_memory_usage: SB3's
        :raises NotImplementedError: with the combination and the reason
        """
        frames = self.settings.frames
        if optimize_memory_usage and isinstance(self, DictReplayBuffer):
            raise NotImplementedError(
                "optimize_memory_usage=True with Dict observations is not supported: SB3 does not have it"
            )
        if optimize_memory_usage and frames is not None:
            raise NotImplementedError(
                f"frames={frames} with optimize_memory_usage=True is not supported: frames store all observations once already"
            )

    # ---- parts

    def start_empty(self, storage: Storage) -> None:
        """
        Start with new parts and an empty ring: a new buffer, or one that is about to get the transitions of another.

        :param storage: of the transitions
        """
        settings = self.settings
        experience = self._make_experience(Ring(storage.n_rows, self.n_envs, self.optimize_memory_usage), storage)
        demonstrations = Demonstrations(
            dataclasses.replace(storage.layout, keeps_infos=False),
            storage.folder,
            experience.sampler.scheme,
            experience.n_step_returns,
            settings.draw_settings.for_demonstrations(),
        )
        #: the exponent of the weights
        self.beta_schedule = BetaSchedule(settings.beta_start, settings.beta_end, settings.beta_anneal_steps)
        share = LinearShare(settings.demonstration_fraction, settings.demonstration_fraction_end)
        self.use_parts(experience, demonstrations, share)

    def _make_experience(self, ring: Ring, storage: Storage) -> TransitionSet:
        """Make the set of what :meth:`add` stores. Other kinds of buffers have their own."""
        return TransitionSet(ring, storage, self._make_sampler(CompleteTransitions(ring)), self._make_n_step_returns())

    def _make_sampler(self, candidates: Candidates) -> Sampler:
        return Sampler(self.settings.make_scheme(), candidates, self.settings.draw_settings)

    def _make_n_step_returns(self) -> NStepReturns:
        return NStepReturns(self.settings.n_steps, self.settings.gamma)

    def use_parts(self, experience: TransitionSet, demonstrations: Demonstrations, share: LinearShare) -> None:
        """Take these parts in place of the present ones: new ones, those of another buffer, or those that were unpickled."""
        #: what :meth:`add` stores
        self.experience = experience
        #: what :meth:`add_demonstrations` stores
        self.demonstrations = demonstrations
        #: both, with the share of demonstrations in a batch
        self.mixture = Mixture(experience, demonstrations, share)
        #: the prioritization scheme
        self.scheme: PriorityScheme = experience.sampler.scheme
        #: what is in a slot
        self.storage: Storage = experience.storage
        #: number of rows
        self.buffer_size = self.storage.n_rows
        #: what batches are drawn from: experience, or with demonstrations the mixture
        self.draw_source: DrawSource = self.chosen_draw_source()

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
        steps = inputs.checked_row(self.storage, obs, next_obs, action, reward, done, infos)
        tree_values = None
        if td_errors is not None:
            tree_values = self._evaluate(td_errors, (self.n_envs,), self.settings.initial_priority)
        with self.lock:
            self.experience.write_row(steps, tree_values)

    def add_steps(
        self,
        envs: np.ndarray,
        obs: Any,
        next_obs: Any,
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: np.ndarray,
        td_errors: np.ndarray | th.Tensor | None = None,
        initial_priority: str | None = None,
    ) -> None:
        """
        Store T successive steps of k environments, e.g. what an actor has collected, after what these have added so far. The
        others stay where they are.

        With ``frames``, memory is given back in the order in which frames came: if an environment falls behind, later frames
        of all environments stay until it catches up.

        :param envs: environments that add, different integers of shape (k,)
        :param obs: observations, shape (T, k, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param actions: actions, as the buffer stores them, shape (T, k, action_dim)
        :param rewards: rewards, shape (T, k)
        :param dones: ends of episodes, truncations too, shape (T, k)
        :param timeouts: which of them are truncations, SB3's ``TimeLimit.truncated``, shape (T, k)
        :param td_errors: of these transitions, shape (T, k) or (T, k, n_critics), which become their priorities but do not
            raise ``max_priority``. Needs ``initial_priority="td_error"``
        :param initial_priority: in place of the setting, for these steps; ``None``: the setting
        :raises ValueError: for another shape, unknown or repeated environments, more steps than rows, or rewards or TD errors
            that are NaN or infinite; nothing is stored then
        :raises NotImplementedError: with HER, for sequences, and in a class that overrides :meth:`add` alone
        """
        hooks.require_own(self, "add_steps")
        envs = self._checked_environments(envs)
        shape = inputs.checked_shape(rewards, len(envs), self.buffer_size)
        steps = inputs.checked_steps(self.storage, shape, obs, next_obs, actions, rewards, dones, timeouts=timeouts)
        tree_values = None
        if initial_priority is None:
            initial_priority = self.settings.initial_priority
        check_argument("initial_priority", initial_priority, words("max", "td_error"))
        if td_errors is not None:
            tree_values = self._evaluate(td_errors, shape, initial_priority)
        with self.lock:
            self.experience.write(envs, steps, tree_values)

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
        Store several steps of all environments.

        :param obs: observations, shape (n, n_envs, ...), a dictionary of them, or one entry per step
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n, n_envs, action_dim)
        :param reward: rewards, shape (n, n_envs)
        :param done: ends of episodes, shape (n, n_envs)
        :param infos: for each step, one dictionary per environment
        :param masses: what :attr:`masses` shows (with ranks priorities, in the unit of TD errors; with ``age_decay`` masses
            without the factor of age), shape (n, n_envs); ``None``: that of ``max_priority``
        :raises ValueError: if the numbers of steps differ, or for a reward that is NaN or infinite, a mass that is not
            allowed, or any masses with a scheme that draws uniformly, before anything is stored. A class with its own
            :meth:`add` stores the steps before the first error, as SB3 does
        :raises NotImplementedError: for ``masses`` in a class with its own :meth:`add`
        :raises MemoryError: with ``frames``, if there is no memory for a step; the steps before it are stored
        """
        n_new = len(reward)
        if hooks.is_overridden(self, "add"):
            if masses is not None:
                raise NotImplementedError(f"extend() with masses cannot call add(), which {type(self).__name__} overrides")
            with self.lock:
                super().extend(inputs.in_steps(obs), inputs.in_steps(next_obs), action, reward, done, infos)
            return
        shape = (n_new, self.n_envs)
        steps = inputs.checked_steps(self.storage, shape, obs, next_obs, action, reward, done, infos)
        if masses is not None:
            if self.scheme.draws_uniformly:
                raise ValueError(f"masses have no meaning with {self.scheme}, which draws uniformly: leave them out")
            masses = inputs.checked_masses(masses, shape, self.sampler.largest_tree_value)
        with self.lock:
            for i in range(n_new):
                self.experience.write_row(steps.at(i), None if masses is None else masses[i])

    def _evaluate(self, td_errors: Any, shape: tuple[int, ...], initial_priority: str) -> np.ndarray:
        """
        Turn the TD errors of new transitions into what the tree takes, masses or with ranks priorities.

        :param td_errors: of ``shape``, or (\\*shape, n_critics)
        :param shape: shape of the steps
        :param initial_priority: the setting, or what takes its place
        :return: tree_values, float64 of ``shape``
        :raises ValueError: with another ``initial_priority`` than ``"td_error"``, for another shape, NaN or infinity, and for
            what :meth:`~sb3_per.sampling.sampler.Sampler.evaluate` does not allow
        """
        abs_td_errors = checked_abs_td_errors(td_errors, shape)
        if initial_priority != "td_error":
            raise ValueError(f"td_errors of new transitions need initial_priority='td_error', not {initial_priority!r}")
        tree_values, _ = self.sampler.evaluate(abs_td_errors)
        return tree_values.reshape(shape)

    def end_episodes(self, envs: np.ndarray | None = None) -> None:
        """
        End the episodes under way, because the next steps do not follow the newest ones, e.g. after a reset in mid-episode, or
        after steps of an actor were lost. The newest steps become truncations, and no n-step window goes beyond them.

        :param envs: environments whose episodes end, different integers of shape (k,); ``None``: all of them
        :raises ValueError: for unknown or repeated environments
        :raises NotImplementedError: for some of the environments only, with HER and for sequences
        """
        envs = np.arange(self.n_envs) if envs is None else self._checked_environments(envs)
        with self.lock:
            self.experience.end_episodes(envs)

    def _checked_environments(self, envs: np.ndarray) -> np.ndarray:
        if self.add_steps_refusal is not None:
            raise NotImplementedError(f"Environments that add separately are not supported {self.add_steps_refusal}")
        return inputs.checked_environments(envs, self.n_envs)

    def reset(self) -> None:
        """Forget all transitions except demonstrations. Ids continue, so that older ids are stale."""
        with self.lock:
            self.experience.clear()

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
            # From `experience`, or with demonstrations from `mixture`.
            drawn = self.draw_source.draw(batch_size, series_progress)
            weights = self.scheme.weights(drawn.relative_probabilities, self.beta_schedule.value)
            batch = self._to_batch(self.draw_source.read(drawn), weights, env)
            if self.draw_source is not self.experience:
                # An attribute beside the fields of the tuple, see `samples.py`.
                batch.is_demonstration = self.mixture.are_demonstrations(drawn)
            self._note_draw(batch.indices, weights, drawn.n_experience)
        return batch

    def _note_draw(self, ids: np.ndarray, weights: np.ndarray, n_experience: int) -> None:
        """
        Take note of a draw: for beta, for those who watch, and for the reminder.

        :param ids: of the batch, shape (batch_size,)
        :param weights: of the batch, shape (batch_size, 1)
        :param n_experience: number of the first rows, which are experience: demonstrations are not watched
        """
        if self.settings.beta_anneal_steps is not None:
            self.beta_schedule.count_draw()
        if self.draw_record is not None:
            self.draw_record.add(ids[:n_experience], weights[:n_experience], self.ring.next_steps)
        if self.scheme.alpha > 0.0 and not self.scheme.draws_uniformly:
            reminder = self.update_reminder
            reminder.n_draws += 1
            if reminder.n_draws == MANY_DRAWS:
                reminder.warn()

    def _to_batch(self, raw: RawBatch, weights: np.ndarray, env: VecNormalize | None) -> PrioritizedReplayBufferSamples:
        """
        Normalize transitions, add up their n-step returns, and make tensors.

        :param raw: transitions that were read
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the batch
        """
        obs, next_obs, rewards = raw.observations, raw.next_observations, raw.rewards
        # A user's methods are called without `VecNormalize`, too.
        if env is not None or self._user_changes_batches:
            obs = self._normalize_obs(obs, env)
            next_obs = self._normalize_obs(next_obs, env)
            rewards = self._normalize_reward(rewards, env)
        to_torch = self._tensor_maker()
        discounts = None
        if raw.lengths is not None:
            rewards, factors = self.experience.n_step_returns.discounted(rewards, raw.lengths)
            discounts = to_torch(factors)
        if isinstance(obs, dict):
            observations = map_arrays(to_torch, obs)
            next_observations = map_arrays(to_torch, next_obs)
        else:
            observations = to_torch(obs)
            next_observations = to_torch(next_obs)
        return PrioritizedReplayBufferSamples(
            observations,
            to_torch(raw.actions),
            next_observations,
            to_torch(raw.terminations),
            to_torch(rewards),
            discounts,
            to_torch(weights),
            raw.ids,
        )

    def _tensor_maker(self) -> Callable[[np.ndarray], th.Tensor]:
        """
        Choose how arrays of a batch become tensors. They are not copied unless a user's method may hold them, because SB3's
        copy takes three times as long.
        """
        if self._user_changes_batches:
            return self.to_torch
        if self.device in _CPU:
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
            obs = self._normalize_obs(self.draw_source.draw_observations(batch_size), env)
            return map_arrays(self._tensor_maker(), obs)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        """
        Read given rows, as SB3's method does, for code that calls it. The environment of each row is drawn, and all weights
        are 1. :meth:`sample` does not call it, so it must not be overridden.

        :param batch_inds: rows, integers of shape (batch_size,); negative ones count from the end, as in NumPy
        :param env: associated VecNormalize
        :return: the transitions
        :raises IndexError: for a row outside of the buffer
        """
        rows = np.arange(self.buffer_size)[np.asarray(batch_inds)]  # NumPy checks them
        with self.lock:
            return self.read(rows * self.n_envs + np.random.randint(0, high=self.n_envs, size=len(rows)), env)

    def read(self, slots: np.ndarray, env: VecNormalize | None = None) -> PrioritizedReplayBufferSamples:
        """
        Read given slots, with weights of 1.

        :param slots: that hold transitions, int64 of shape (batch_size,)
        :param env: associated VecNormalize
        :return: the transitions
        """
        drawn = Drawn(slots, np.ones(len(slots)), n_experience=len(slots))
        return self._to_batch(self.experience.read(drawn), np.ones((len(slots), 1), np.float32), env)

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
        ids = checked_ids(indices)
        errors = td_error_matrix(td_errors, ids.shape)
        with self.lock:
            n_written = self.draw_source.update(ids, errors)
            self.update_reminder.n_draws = 0
        return n_written

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
        self.mixture.share.follow(progress_remaining)

    # ---- what SB3 and users read

    def __repr__(self) -> str:
        """Say what the buffer holds, and how it draws."""
        with self.lock:
            n_held = int((self.ring.next_steps - self.ring.oldest_held).sum())
        facts = [f"{n_held:,} of {self.ring.capacity:,} transitions", f"n_envs={self.n_envs}", repr(self.scheme)]
        facts += [f"{name}={getattr(self, name)}" for name in ("n_steps", *self.extra_arguments)]
        if self.frames is not None:
            facts.append(f"frames={self.frames}")
        if self.storage.folder is not None:
            facts.append(f"storage_folder={self.storage.folder.path}")
        if len(self.demonstrations):
            facts.append(f"{len(self.demonstrations):,} demonstrations")
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def max_priority(self) -> float:
        """Largest priority seen so far, in units of the TD error (before the exponent); 1.0 at first."""
        return self.experience.sampler.max_priority

    @property
    def n_steps(self) -> int:
        """Number of steps of the n-step return."""
        return self.settings.n_steps

    @property
    def gamma(self) -> float:
        """Discount factor of the n-step return."""
        return self.settings.gamma

    @property
    def frames(self) -> int | dict[str, int] | None:
        """Number of frames in a stack, where each frame is stored once, see ``frames`` of the settings."""
        return self.settings.frames

    @property
    def masses(self) -> np.ndarray:
        """
        Unnormalized sampling mass of every slot, e.g. ``(|td| + epsilon)^alpha``; 0 for a slot that cannot be drawn.
        A copy, float64 of shape (buffer_size, n_envs).
        """
        with self.lock:
            return self.experience.masses().reshape(self.buffer_size, self.n_envs)

    @property
    def priorities(self) -> np.ndarray:
        """The :attr:`masses`, under the name that most libraries give them. They are not in the unit of ``max_priority``."""
        return self.masses

    @property
    def transition_ids(self) -> np.ndarray:
        """Id of the transition in every slot, -1 for an empty one. int64 of shape (buffer_size, n_envs)."""
        with self.lock:
            return self.ring.ids_at(np.arange(self.ring.capacity)).reshape(self.buffer_size, self.n_envs)

    @property
    def frames_per_transition(self) -> float:
        """
        Frames stored per transition: little above 1 where observations are stacks, up to twice the number of frames in a
        stack where they are not. The largest, for Dict observations; 0 for an empty buffer.

        :raises AttributeError: without ``frames``
        """
        return self.storage.frames_per(self.ring.n_complete)

    # ---- from one kind or setting to another

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
        if any(issubclass(cls, kind) != isinstance(buffer, kind) for kind in (DictReplayBuffer, HerReplayBuffer)):
            raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
        if isinstance(buffer, PrioritizedReplayBuffer):
            return conversion.rebuilt(cls, buffer, settings)
        return conversion.from_sb3(cls, buffer, settings)

    def to_replay_buffer(self) -> ReplayBuffer:
        """
        Make a buffer of SB3 with the same transitions, for stock algorithms: ``ReplayBuffer``, ``DictReplayBuffer`` or
        ``HerReplayBuffer``, and ``NStepReplayBuffer`` for ``n_steps > 1``. Its pickle loads without this package.

        It shares the arrays, so do not use this buffer any more. It gets copies instead with ``frames``, ``storage_folder`` or
        a ``store_class``, and where environments have added different numbers of steps.

        :return: the buffer
        :warns UserWarning: if something is left out that SB3's class does not hold: demonstrations, recurrent states, n-step
            returns of Dict observations, or steps that only some of the environments have
        """
        with self.lock:
            return conversion.to_sb3(self)

    def left_out_of(self, sb3_class: type[ReplayBuffer]) -> list[str]:
        """
        List what a class of SB3 does not hold.

        :param sb3_class: class that :meth:`to_replay_buffer` makes
        :return: what this buffer holds beside it, in words
        """
        left_out = []
        if len(self.demonstrations):
            left_out.append(f"{len(self.demonstrations)} demonstrations")
        if self.n_steps > 1 and sb3_class is not NStepReplayBuffer:
            left_out.append(f"n_steps={self.n_steps}")
        n_held = self.ring.next_steps - self.ring.oldest_held
        n_ahead = int((n_held - n_held.min()).sum())
        if n_ahead:
            left_out.append(f"{n_ahead} old steps of environments that have added more than others")
        return left_out

    def take_over(self: BufferT, other: BufferT) -> None:
        """
        Use the contents of another buffer. This one keeps its lock, because other threads may wait for it.

        :param other: of the same class and settings; not to be used any more
        """
        with self.lock:
            self.settings = other.settings
            self.beta_schedule = other.beta_schedule
            self.use_parts(other.experience, other.demonstrations, other.mixture.share)
            if self.draw_record is not None:
                self.draw_record = self.draw_record.emptied(self.ring.capacity)

    def sets(self) -> list[tuple[str, TransitionSet]]:
        """List the sets of transitions that the buffer owns, each with the prefix of its names in files."""
        sets = [("", self.experience)]
        if self.demonstrations.has_room:
            sets.append(("demonstrations/", self.demonstrations))
        return sets

    def state(self) -> dict[str, Any]:
        """
        Return all that is not in the storage.

        :return: numbers, arrays, and dictionaries of these. Arrays by row end at the last row that holds anything
        """
        # "weights" is the name in files: beta is the exponent of the weights.
        return {**self.experience.state(), "weights": self.beta_schedule.state(), **self.mixture.state()}

    def load(self, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """
        Restore a state.

        :param state: from :meth:`state` of a buffer of the same kind and size, whose storage is there already
        :param keeps_masses: whether it is of the same scheme; otherwise all transitions get the largest priority
        :raises ValueError: if it contradicts itself. Discard the buffer after this error
        """
        self.experience.load(state, keeps_masses)
        self.beta_schedule.load(state["weights"])
        self.mixture.load(state, keeps_masses)
        self.draw_source = self.chosen_draw_source()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock."""
        state = dict(vars(self))
        del state["lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lock = threading.RLock()
        self.use_parts(self.experience, self.demonstrations, self.mixture.share)


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` (Schaul et al. 2016, arXiv 1511.05952) for Dict observation spaces. n-step returns work
    here too, unlike in SB3. With ``"MultiInputPolicy"`` the algorithms choose it themselves.

    ::

        buffer = PrioritizedDictReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, n_steps=3)

    The arguments are those of :class:`PrioritizedReplayBuffer`.

    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """
