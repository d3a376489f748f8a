"""
The prioritized replay buffer: a ring of slots, a storage, a sampler and n-step returns behind SB3's interface.

``add`` checks a step, writes it to the storage and advances the ring. ``sample`` draws slots, reads them and computes weights.
``update_priorities`` locates ids in the ring and updates the sampler.
"""

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import hooks, incoming
from sb3_per.buffers.action_scaling import require_scaled
from sb3_per.buffers.batches import Relabel, joined, located, read_transitions
from sb3_per.buffers.demonstrations import (
    FIRST_ID,
    Demonstrations,
    columns_of,
    require_actions_in,
    require_demonstrations_in,
)
from sb3_per.buffers.eligibility import NO_SLOTS, HeldTransitions, restore, state_of
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.settings import SCHEME_SETTINGS, make_settings, takes_settings
from sb3_per.buffers.stock import (
    arguments_of,
    episodes_of,
    fill_stock,
    new_storage,
    stock_class_of,
    storage_of,
    warn_of_size,
)
from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sampling.weights import ImportanceWeights
from sb3_per.storage.arrays import ARRAY_NAMES, ArrayStorage, StepArrays, tree_map
from sb3_per.storage.frame_setting import frames_by_key
from sb3_per.storage.mapped import Folder, folder_of_copy
from sb3_per.storage.n_step import NStepReturns
from sb3_per.storage.ring import Ring
from sb3_per.storage.store import ObservationStore
from sb3_per.utils.checks import FRACTION, Reasons, integer, refuse, require


class PrioritizedReplayBuffer(ReplayBuffer):
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
    ``storage_folder``. Setting ``pos`` or ``full`` by hand makes all transitions new. Several threads may share a buffer.

    :param buffer_size: number of transitions, over all environments
    :param observation_space: of the environment
    :param action_space: of the environment
    :param device: of the batches
    :param n_envs: number of environments
    :param optimize_memory_usage: SB3's; use ``frames`` to store observations once without losing the terminal ones
    :param handle_timeout_termination: SB3's
    :param settings: of prioritization, see :class:`~sb3_per.buffers.settings.PrioritySettings`
    :raises ValueError: for a value that is not allowed, before memory is allocated
    :raises TypeError: for an unknown setting; the message names the nearest
    :raises NotImplementedError: for settings that do not go together
    """

    #: arguments of this kind of buffer beside SB3's and those of :class:`~sb3_per.buffers.settings.PrioritySettings`
    own_arguments: tuple[str, ...] = ()
    #: set a class to keep observations elsewhere than in SB3's arrays, see :class:`~sb3_per.storage.store.ObservationStore`
    store_class: Callable[..., ObservationStore] | None = None
    #: why environments cannot add separately in this kind of buffer; ``None``: they can
    why_not_separately: ClassVar[str | None] = None
    # HER's new goals.
    _relabel: Relabel | None = None

    # Whether a user has replaced a method that turns arrays into batches.
    _has_own_reading = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hooks.require_hooks_are_called(cls)
        cls._has_own_reading = any(hooks.is_overridden_in(cls, name) for name in hooks.READING)

    def __setattr__(self, name: str, value: Any) -> None:
        """Treat a method that is set on this object like one of its class, and use an array in place of one of SB3's."""
        if name in hooks.REFUSED:
            raise AttributeError(hooks.refusal(type(self), name))
        if name in ARRAY_NAMES and "storage" in vars(self):  # SB3's constructor sets them before there is a storage
            self._assign(name, value)
            return
        super().__setattr__(name, value)
        if name in hooks.READING:
            self._has_own_reading = True

    @takes_settings
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
        require("buffer_size", buffer_size, integer())
        require("n_envs", n_envs, integer())
        self.settings = make_settings(type(self), settings)
        incoming.require_values(observation_space=observation_space, action_space=action_space)
        refuse(self._unsupported(optimize_memory_usage, self.settings.demonstration_fraction > 0.0))
        # SB3's constructors allocate all rows: a single one shows the shapes and types.
        stock = (observation_space, action_space, device, n_envs, optimize_memory_usage, handle_timeout_termination)
        self._init_stock(n_envs, *stock)
        one_row = storage_of(self)
        one_row.store_class = self.store_class
        self.make_parts(new_storage(one_row, max(buffer_size // n_envs, 1), self.settings, observation_space))
        warn_of_size(self.storage, self.sampler.nbytes)
        #: counts the draws while a :class:`~sb3_per.PriorityMonitor` watches
        self.draw_record: Any = None

    def _unsupported(self, optimize_memory_usage: bool, has_demonstrations: bool) -> Reasons:
        """List the combinations that this kind of buffer does not support."""
        frames = self.settings.frames
        return {
            "optimize_memory_usage=True with Dict observations": optimize_memory_usage
            and isinstance(self, DictReplayBuffer)
            and "SB3 does not have it",
            f"frames={frames} with optimize_memory_usage=True": optimize_memory_usage
            and frames is not None
            and "frames store all observations once already",
            "Learning from demonstrations with optimize_memory_usage=True": optimize_memory_usage
            and has_demonstrations
            and "the observation after the last step of an episode is not stored",
        }

    def _init_stock(self, *args: Any) -> None:
        """Call SB3's constructor with its arguments."""
        super().__init__(*args)

    def make_parts(self, storage: ArrayStorage) -> None:
        """
        Make new parts, for an empty ring.

        :param storage: of the transitions
        """
        self.lock = threading.RLock()
        self.use_storage(storage)
        self.ring = Ring(storage.n_rows, self.n_envs, int(self.optimize_memory_usage))
        self.returns = NStepReturns(self.settings.n_steps, self.settings.gamma)
        names = "initial_priority max_priority_interval age_decay stratified uniform_fraction unique recency recency_min"
        self.sampler = Sampler(self.settings.make_scheme(), self._make_eligibility(), **self.settings.some(names))
        betas = self.settings.some("beta_start beta_end beta_anneal_steps")
        self.weights = ImportanceWeights(self.scheme, self.settings.weight_normalization, **betas)
        self.demonstrations = Demonstrations(self.settings, self.scheme, self.returns)

    def use_storage(self, storage: ArrayStorage) -> None:
        """
        Put a storage in place of another one. SB3's attributes show its arrays.

        :param storage: of the transitions
        """
        self.storage, self.buffer_size = storage, storage.n_rows
        vars(self).update(storage.arrays())

    def _make_eligibility(self) -> Eligibility:
        return HeldTransitions(self.ring)

    def _assign(self, name: str, value: Any) -> None:
        """Use an array, or a dictionary of them, in place of one of SB3's."""
        with self.lock:
            fitting = self.storage.fitting(name, value)
            if name == "rewards":
                incoming.require_finite_rewards(fitting[: self.size()])
            self.storage.put(name, fitting)
            vars(self).update(self.storage.arrays())

    # ---- from one kind or setting to another

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **settings: Any) -> "PrioritizedReplayBuffer":
        """
        Turn an SB3 buffer into a prioritized one that shares its arrays. Every transition has the largest priority.

        Give a prioritized buffer to change its settings: settings that are not named stay, and so do ids and beta. Priorities
        stay unless the scheme or one of its settings changes.

        :param buffer: of the kind of storage of this class; not to be used any more
        :param settings: of prioritization; storage arguments are those of the buffer
        :return: the prioritized buffer
        :raises ValueError: for a buffer of another kind, or with a reward that is NaN or infinite
        """
        if any(issubclass(cls, kind) != isinstance(buffer, kind) for kind in (DictReplayBuffer, HerReplayBuffer)):
            raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
        if not isinstance(buffer, PrioritizedReplayBuffer):
            incoming.require_finite_rewards(buffer.rewards[: buffer.size()])
        kept = buffer.settings_without(settings, cls) if isinstance(buffer, PrioritizedReplayBuffer) else {}
        wanted: dict[str, Any] = {**kept, **settings, **arguments_of(buffer)}
        path = wanted.pop("storage_folder", None)
        made = cls(buffer.n_envs, **wanted)
        made.settings = dataclasses.replace(made.settings, storage_folder=path)
        frames = frames_by_key(made.settings.frames, made.observation_space)
        ring, storage = _parts_of(buffer)
        if "storage_folder" in settings:
            folder = None if path is None else Folder.shared(path)
        else:
            folder = folder_of_copy(storage.folder)
        made.make_parts(storage.converted(ring, frames, folder, made.store_class))
        if not isinstance(buffer, PrioritizedReplayBuffer):
            made.ring.load(ring.state())
            made.sampler.eligible.load(episodes_of(buffer), False)
            return made
        # Masses are valid only with the same scheme, and where they belong to the same thing.
        keeps_masses = repr(made.scheme) == repr(buffer.scheme) and made.sampler.eligible.unit == buffer.sampler.eligible.unit
        made.demonstrations.copy(buffer.demonstrations, made.storage, keeps_masses)
        made.load(buffer.state(), keeps_masses)
        return made

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
            stock_class = stock_class_of(self, self.n_steps)
            arguments = arguments_of(self)
            if stock_class is NStepReplayBuffer:
                arguments.update(n_steps=self.n_steps, gamma=self.gamma)
            left_out = self._not_in_stock(stock_class)
            if left_out:
                warnings.warn(f"{stock_class.__name__} of SB3 does not hold everything. Left out: {', '.join(left_out)}")
            stock = stock_class(self.n_envs, **arguments)
            fill_stock(stock, self.ring, self.storage)
        return stock

    def _not_in_stock(self, stock_class: type[ReplayBuffer]) -> list[str]:
        """List what SB3's class does not hold, in words."""
        left_out = []
        if len(self.demonstrations):
            left_out.append(f"{len(self.demonstrations)} demonstrations")
        if self.n_steps > 1 and stock_class is not NStepReplayBuffer:
            left_out.append(f"n_steps={self.n_steps}")
        n_held = self.ring.added - self.ring.first
        n_ahead = int((n_held - n_held.min()).sum())
        if n_ahead:
            left_out.append(f"{n_ahead} old steps of environments that have added more than others")
        return left_out

    def settings_without(self, changed: Collection[str], cls: type["PrioritizedReplayBuffer"] | None = None) -> dict[str, Any]:
        """
        List the settings that a change leaves as they are.

        :param changed: names of settings that will be replaced
        :param cls: class that takes them, if it is another one: a buffer of transitions has no sequence length
        :return: settings by name. Of the scheme all, or none if one of its settings is replaced
        """
        found = {name: getattr(self.settings, name) for name in self.settings.names() if name not in SCHEME_SETTINGS}
        if set(changed).isdisjoint(SCHEME_SETTINGS):
            found["scheme"] = self.scheme
        shared = set((cls or type(self)).own_arguments) & set(self.own_arguments)
        return {**found, **{name: getattr(self, name) for name in shared}}

    def state(self) -> dict[str, Any]:
        """
        Return all that is not in the storage.

        :return: numbers, arrays, and dictionaries of these. Arrays by row end at the last row that holds anything
        """
        state = {**state_of(self.sampler), "weights": self.weights.state()}
        return {**state, "demonstrations": self.demonstrations.state()} if len(self.demonstrations) else state

    def load(self, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """
        Restore a state.

        :param state: from :meth:`state` of a buffer of the same kind and size, whose storage is there already
        :param keeps_masses: whether it is of the same scheme; otherwise all transitions get the largest priority
        :raises ValueError: if it contradicts itself. Discard the buffer after this error
        """
        restore(self.sampler, state, keeps_masses)
        self.weights.load(state["weights"])
        if "demonstrations" in state:
            self.demonstrations.load(state["demonstrations"], keeps_masses)

    def __getstate__(self) -> dict[str, Any]:
        inherited = getattr(super(), "__getstate__", None)  # HER leaves its environment out
        state = dict(inherited() if inherited else vars(self))
        for name in ("lock", *self.storage.arrays()):  # the storage brings the arrays
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        inherited = getattr(super(), "__setstate__", None)
        inherited(state) if inherited else vars(self).update(state)
        self.use_storage(self.storage)
        self.lock = threading.RLock()

    # ---- what SB3 and users read

    @property
    def pos(self) -> int:
        """Row that is written next. Where environments stand at different steps, that of the slowest."""
        return self.ring.pos

    @pos.setter
    def pos(self, value: int) -> None:
        if "ring" in vars(self):  # SB3's constructor sets it before there is one
            self._stand_at(value, self.full)

    @property
    def full(self) -> bool:
        """Whether every slot holds a transition."""
        return self.ring.full

    @full.setter
    def full(self, value: bool) -> None:
        if "ring" in vars(self):
            self._stand_at(self.pos, value)

    def _stand_at(self, pos: int, full: bool) -> None:
        """
        Make all rows before ``pos``, or all rows, new transitions, which were written into SB3's arrays by hand.

        :param pos: row that is written next
        :param full: whether all rows hold transitions
        :raises ValueError: for a row outside of the buffer, or a reward that is NaN or infinite; nothing has changed then
        """
        if not 0 <= pos < self.buffer_size:
            raise ValueError(f"pos must be a row in [0, {self.buffer_size}), not {pos}: a full buffer has full=True, too")
        incoming.require_finite_rewards(self.rewards[: self.buffer_size if full else pos])
        with self.lock:
            self.ring.clear(pos + self.buffer_size * bool(full))
            self.sampler.clear()
            self.storage.reorder(pos)

    def __repr__(self) -> str:
        """Say what the buffer holds, and how it draws."""
        n_held = int((self.ring.added - self.ring.first).sum())
        facts = [f"{n_held:,} of {self.ring.capacity:,} transitions", f"n_envs={self.n_envs}", repr(self.scheme)]
        facts += [f"{name}={getattr(self, name)}" for name in ("n_steps", *self.own_arguments)]
        if self.frames is not None:
            facts.append(f"frames={self.frames}")
        if self.storage.folder is not None:
            facts.append(f"storage_folder={self.storage.folder.path}")
        facts += [f"{len(self.demonstrations):,} demonstrations"] * (len(self.demonstrations) > 0)
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def scheme(self) -> PriorityScheme:
        """The prioritization scheme."""
        return self.sampler.scheme

    @property
    def max_priority(self) -> float:
        """Largest priority seen so far, in units of the TD error (before the exponent); 1.0 at first."""
        return self.sampler.max_priority

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
    def priorities(self) -> np.ndarray:
        """
        Unnormalised sampling mass of every slot, e.g. ``(|td| + epsilon)^alpha``; 0 for a slot that cannot be drawn.
        A copy, float64 of shape (buffer_size, n_envs).
        """
        with self.lock:
            return self.sampler.masses().reshape(self.buffer_size, self.n_envs)

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
        return self.storage.frames_per(self.ring.n_whole)

    # ---- writing

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
        :param td_errors: of these transitions, shape (n_envs,) or (n_envs, n_critics), which become their priorities. Needs
            ``initial_priority="td_error"``
        :raises ValueError: for another shape, values that are not numbers, or a reward that is NaN or infinite; nothing is
            stored then
        """
        steps = incoming.checked_steps(self.storage, (self.n_envs,), (obs, next_obs, action, reward, done), infos)
        masses = None if td_errors is None else self.sampler.masses_of(incoming.finite_abs(td_errors, self.n_envs))
        with self.lock:
            self._write(None, 1, steps, masses)

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
        lead = incoming.checked_shape(rewards, len(envs), self.buffer_size)
        steps = incoming.checked_steps(self.storage, lead, (obs, next_obs, actions, rewards, dones), None, timeouts)
        masses = None if td_errors is None else self.sampler.masses_of(incoming.finite_abs(td_errors, *lead), initial_priority)
        with self.lock:
            self._write(envs, lead[0], steps, masses)

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
        :param masses: sampling masses, in the unit of :attr:`priorities` (rank: of the priorities), shape (n, n_envs);
            ``None``: that of ``max_priority``
        :raises ValueError: if the numbers of steps differ, or for a reward that is NaN or infinite, or a mass that is not
            allowed, before anything is stored. A class with its own :meth:`add` stores the steps before the first error, as
            SB3 does
        :raises NotImplementedError: for ``masses`` in a class with its own :meth:`add`
        :raises MemoryError: with ``frames``, if there is no memory for a step; the steps before it are stored
        """
        n = len(reward)
        if hooks.is_overridden(self, "add"):
            if masses is not None:
                raise NotImplementedError(f"extend() with masses cannot call add(), which {type(self).__name__} overrides")
            with self.lock:
                super().extend(incoming.in_steps(obs), incoming.in_steps(next_obs), action, reward, done, infos)
            return
        steps = incoming.checked_steps(self.storage, (n, self.n_envs), (obs, next_obs, action, reward, done), infos)
        if masses is not None:
            masses = incoming.checked_masses(masses, n, self.n_envs, self.scheme.largest_mass)
        with self.lock:
            for i in range(n):
                self._write(None, 1, incoming.part_of(steps, i), None if masses is None else masses[i])

    def _write(self, envs: np.ndarray | None, n_steps: int, steps: StepArrays, masses: np.ndarray | None, *about: Any) -> None:
        """
        Write steps that were checked. If the storage raises an error, nothing has changed; the ring counts them at the end.

        :param envs: environments that they belong to, shape (k,); ``None``: one step of all of them
        :param n_steps: number of steps
        :param steps: arrays of the shapes that are stored
        :param masses: sampling masses of the transitions; ``None``: they have none
        :param about: see :meth:`~sb3_per.sampling.eligibility.Eligibility.before_write`
        """
        ring, sampler = self.ring, self.sampler
        if envs is None and ring.least != ring.most:
            envs, steps = np.arange(self.n_envs), incoming.part_of(steps, None)
        rows, prepared = ring.rows_of_next(envs, n_steps), sampler.eligible.before_write(*about)
        self.storage.write(rows, envs, steps)
        sampler.eligible.after_write(rows, prepared)
        if masses is not None or sampler.given is not None:
            slots = np.asarray(rows) * self.n_envs + (np.arange(self.n_envs) if envs is None else envs)
            sampler.give(slots.reshape(-1), masses)
        ring.advance(envs, n_steps)

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
            envs = envs[self.ring.added[envs] > self.ring.begin]
            rows = (self.ring.added[envs] - 1) % self.buffer_size
            is_open = self.dones[rows, envs] == 0
            self.sampler.eligible.end_episodes()
            self.storage.truncate(rows[is_open], envs[is_open])

    def _checked_environments(self, envs: np.ndarray) -> np.ndarray:
        if self.why_not_separately is not None:
            raise NotImplementedError(f"Environments that add separately are not supported {self.why_not_separately}")
        return incoming.checked_environments(envs, self.n_envs)

    def reset(self) -> None:
        """Forget all transitions except demonstrations. Ids continue, so that older ids are stale."""
        with self.lock:
            self.ring.clear()  # first: the other parts follow it, after an interrupt when they are used next
            self.sampler.clear()
            self.storage.clear()

    # ---- demonstrations

    def add_demonstrations(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Iterable[list[dict[str, Any]]],
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
        :raises NotImplementedError: with sequences and ``optimize_memory_usage``, and in a class that overrides :meth:`add`
            alone
        """
        hooks.require_own(self, "add_demonstrations")
        refuse(self._unsupported(self.optimize_memory_usage, True))
        lead = np.shape(reward)
        if len(lead) != 2 or 0 in lead:
            raise ValueError(
                f"rewards of demonstrations must have shape (n, k), not {lead}: n successive steps of each of k environments, "
                "both at least 1. For the steps of one environment k is 1: give each array as array[:, None]"
            )
        steps = incoming.checked_steps(self.storage, lead, (obs, next_obs, action, reward, done), infos)
        require_scaled(steps[2], self.action_space)
        with self.lock:
            columns = (incoming.part_of(steps, (slice(None), [env])) for env in range(lead[1]))
            self.demonstrations.add(columns, lead[0] * lead[1], self.storage)

    def add_demonstrations_from(self, other: ReplayBuffer) -> None:
        """
        Store all transitions of another buffer as demonstrations, its own demonstrations too, see :meth:`add_demonstrations`.
        With HER, their goals stay as they were. Actions that were recorded with other bounds are scaled anew.

        :param other: prioritized or SB3's, with the same observation and action space. The bounds of a Box of actions may
            differ, if every action is inside of those of this buffer
        :raises TypeError: for anything but a buffer
        :raises ValueError: for a buffer with other spaces, with actions outside [-1, 1] or outside of the new bounds, with a
            reward that is NaN or infinite, or an empty one
        :raises NotImplementedError: with sequences and ``optimize_memory_usage``
        """
        refuse(self._unsupported(self.optimize_memory_usage, True))
        require_demonstrations_in(other, self.observation_space, self.action_space)
        with self.lock:
            parts = [_parts_of(other)]
            if isinstance(other, PrioritizedReplayBuffer) and other is not self:
                parts += other.demonstrations.parts()
            n_steps = sum(ring.n_whole for ring, _ in parts)
            if n_steps == 0:
                raise ValueError("The other buffer is empty: it holds no transition to demonstrate anything")
            require_actions_in(parts, other.action_space, self.action_space)
            self.demonstrations.add(columns_of(parts, other.action_space, self.action_space), n_steps, self.storage)

    # ---- drawing

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None, series_progress: float | None = None, is_ahead: bool = False
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions with probability P(i) = mass_i / total, with replacement; settings change that.

        :param batch_size: number of transitions
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param series_progress: for ``recency``: k / K for the k-th of K draws in a row; ``None``: a random number
        :param is_ahead: whether the priorities of the batch before are not updated yet, because several are drawn in advance
        :return: exactly ``batch_size`` transitions, with their weights and ids
        :raises ValueError: for a batch size below 1, or if no transition can be drawn, or with ``unique`` not so many
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        with self.lock:
            if series_progress is not None:
                self.sampler.position = series_progress
            if is_ahead:
                self.sampler.n_unanswered = 0
                self.demonstrations.sampler.n_unanswered = 0
            slots, n_p = self._draw(batch_size)
            weights = self.weights(n_p)
            samples = self._gather(slots, weights, env)
            if self.settings.actor_batch == "weighted":
                samples.n_p = n_p
            if self.draw_record is not None:
                n = self.demonstrations.n_before(slots)
                self.draw_record.add(samples.indices[:n], weights[:n], self.ring.added)
            self.weights.count_draw()
        return samples

    def _draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots of experience and, after them, the share of the demonstrations.

        :param batch_size: number of slots
        :return: slots, int64, and their N P, float64, both of shape (batch_size,)
        """
        n = self._n_experience_in(batch_size)
        slots, n_p = self._draw_experience(n) if n > 0 else (NO_SLOTS, np.empty(0))
        if n < batch_size:
            slots, n_p = self.demonstrations.added_to(slots, n_p, batch_size, self.sampler.eligible.n)
        return slots, n_p

    def _draw_experience(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots of experience, see :meth:`~sb3_per.sampling.sampler.Sampler.draw`."""
        return self.sampler.draw(n)

    def _n_experience_in(self, batch_size: int) -> int:
        """Count the transitions of experience in the next batch, and check that there are any to draw."""
        can_draw = self.sampler.can_draw()
        n = batch_size - self.demonstrations.n_in(batch_size, can_draw)
        if n > 0 and not can_draw:
            self._refuse_to_draw()
        return n

    def _refuse_to_draw(self) -> None:
        raise ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {self.size()})")

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Draw observations uniformly, e.g. for an actor; with HER, as many have a new goal as in a batch.

        :param batch_size: number of observations
        :param env: associated VecNormalize
        :return: tensor of shape (batch_size, ...), or a dictionary of them
        :raises ValueError: for a batch size below 1, or if no transition can be drawn
        """
        require("batch_size", batch_size, integer())
        with self.lock:
            n = self._n_experience_in(batch_size)
            obs = self._gather_observations(self.sampler.draw_uniformly(n) if n > 0 else NO_SLOTS)
            if n < batch_size:
                obs = joined(obs, self.demonstrations.draw_observations(batch_size - n))
            return tree_map(self._tensor_maker(), self._normalize_obs(obs, env))

    def _gather_observations(self, slots: np.ndarray) -> Any:
        """Observations of these slots as an actor is to see them."""
        return self.storage.read_observations(slots)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        """
        Read given rows: SB3's hook. The environment of each row is drawn here, and all weights are 1.

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
        return self._gather(slots, np.ones((len(slots), 1), np.float32), env)

    def _gather(self, slots: np.ndarray, weights: np.ndarray, env: VecNormalize | None) -> PrioritizedReplayBufferSamples:
        """
        Read a batch.

        :param slots: drawn slots, int64 of shape (batch_size,)
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the transitions in these slots
        """
        are_mixed = self.demonstrations.are_drawn
        n = self.demonstrations.n_before(slots) if are_mixed else len(slots)
        transitions = read_transitions(self.storage, self.ring, self.returns, slots[:n], self._relabel)
        if n < len(slots):
            transitions = tuple(map(joined, transitions, self.demonstrations.read(slots[n:])))
        obs, actions, next_obs, ends, rewards, lengths, ids = transitions
        if env is not None or self._has_own_reading:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
            rewards = self._normalize_reward(rewards, env)
        discounts = None
        if lengths is not None:
            rewards, discounts = self.returns.returns(rewards, lengths)
        tensor = self._tensor_maker()
        tensors = tensor if isinstance(obs, np.ndarray) else functools.partial(tree_map, tensor)
        factors = None if discounts is None else tensor(discounts)
        samples = PrioritizedReplayBufferSamples(
            tensors(obs), tensor(actions), tensors(next_obs), tensor(ends), tensor(rewards), factors, tensor(weights), ids
        )
        if are_mixed:
            samples.is_demonstration = ids >= FIRST_ID
        return samples

    def _tensor_maker(self) -> Callable[[np.ndarray], th.Tensor]:
        """
        Choose how arrays of a batch become tensors. They are not copied unless a user's method may hold them, because SB3's
        copy takes three times as long.
        """
        if self._has_own_reading:
            return self.to_torch
        return th.from_numpy if self.device.type == "cpu" else functools.partial(self.to_torch, copy=False)

    # ---- updating

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
        ids = incoming.checked_ids(indices)
        errors = incoming.as_matrix(td_errors, len(ids))
        with self.lock:
            if not len(self.demonstrations):
                return self._update(ids, errors)
            is_demonstration = ids >= FIRST_ID
            n = len(ids) - int(np.count_nonzero(is_demonstration))
            if np.count_nonzero(is_demonstration[:n]):  # otherwise they come last, as in a batch: slices are faster than masks
                order = np.argsort(is_demonstration, kind="stable")
                ids, errors = ids[order], errors[order]
            # Both parts are checked before either is written.
            of_demonstrations = located(self.demonstrations.ring, ids[n:], errors[n:], FIRST_ID)
            return self._update(ids[:n], errors[:n]) + self.demonstrations.sampler.update(*of_demonstrations)

    def _update(self, ids: np.ndarray, errors: np.ndarray) -> int:
        """
        Set the priorities of experience.

        :param ids: of transitions that are no demonstrations, int64 of shape (n,)
        :param errors: signed or absolute TD errors, shape (n, n_critics)
        :return: how many were written
        """
        return self.sampler.update(*located(self.ring, ids, errors))

    @property
    def beta(self) -> float:
        """Current importance-sampling exponent, in [0, 1]; never decreases."""
        return self.weights.beta

    @beta.setter
    def beta(self, value: float) -> None:
        require("beta", value, FRACTION)
        self.weights.beta = float(value)

    def update_beta(self, progress_remaining: float) -> None:
        """
        Anneal beta with training progress, unless ``beta_anneal_steps`` is set, and the share of demonstrations.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules
        """
        self.weights.follow(progress_remaining)
        self.demonstrations.follow(progress_remaining)


def _parts_of(buffer: ReplayBuffer) -> tuple[Ring, ArrayStorage]:
    """Return the ring and the storage of a buffer; those of an SB3 buffer are made, and the arrays are shared."""
    if isinstance(buffer, PrioritizedReplayBuffer):
        return buffer.ring, buffer.storage
    ring = Ring(buffer.buffer_size, buffer.n_envs, int(buffer.optimize_memory_usage))
    ring.advance(None, buffer.buffer_size * buffer.full + buffer.pos)
    return ring, storage_of(buffer)
