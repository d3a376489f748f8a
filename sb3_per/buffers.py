"""
Prioritized replay buffers: storage stays Stable-Baselines3's, drawing is ours.

One tree covers all parallel environments. Three numbers name a transition, each derived from the others:

- row, env: its place in SB3's arrays of shape (buffer_size, n_envs, ...)
- leaf = row * n_envs + env: its place in the tree, and in the arrays flattened to (capacity, ...)
- id = step * n_envs + env: its insertion number, never reset by wrap-around; leaf = id modulo capacity

The buffers know neither formulas of priorities (``schemes``) nor algorithms.
"""

import copy
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.kernels import kernel, prefetch
from sb3_per.schemes import DEFAULT_EPSILON, DEFAULT_KAPPA, PriorityScheme, make_scheme
from sb3_per.sum_tree import as_batch


class PrioritizedReplayBufferSamples(NamedTuple):
    """
    A batch: the fields of SB3's ``ReplayBufferSamples`` in its order, and what prioritized replay adds.

    ``observations`` and ``next_observations`` are dictionaries of tensors for Dict observation spaces; ``discounts`` is
    ``None`` unless ``n_steps > 1``, as in SB3.
    """

    observations: Any
    actions: th.Tensor
    next_observations: Any
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    #: importance-sampling weights, float32 of shape (batch_size, 1), the largest exactly 1
    weights: th.Tensor
    #: transition ids for ``update_priorities``, int64 of shape (batch_size,)
    indices: np.ndarray


class DrawRecord:
    """
    How often each transition was drawn, and the newest batches. A few microseconds per batch; 12 bytes per slot.

    :param capacity: number of slots, over all environments
    :param n_batches: how many batches are kept
    """

    def __init__(self, capacity: int, n_batches: int = 100):
        #: ids, weights, and the id that a new transition would have got, of the newest batches
        self.batches: deque[tuple[np.ndarray, th.Tensor, int]] = deque(maxlen=n_batches)
        self._counts = np.zeros(capacity, dtype=np.int32)
        # The transition that a count is of: what takes its slot starts anew, without anything to do when it is added.
        self._counted_ids = np.full(capacity, -1)

    def add(self, ids: np.ndarray, weights: th.Tensor, next_id: int) -> None:
        """
        :param ids: of the drawn transitions, int64 of shape (batch_size,)
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :param next_id: of the transition that is added next
        """
        _count(ids, self._counts, self._counted_ids)
        self.batches.append((ids, weights, next_id))

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """
        :param ids: of transitions that are in the buffer, of any shape
        :return: how often each was drawn, in the same shape
        """
        leaves = ids % len(self._counts)
        return np.where(self._counted_ids[leaves] == ids, self._counts[leaves], 0)


@kernel
def _count(ids: np.ndarray, counts: np.ndarray, counted_ids: np.ndarray) -> None:
    for i in range(ids.size):
        leaf = ids[i] % counts.size
        if counted_ids[leaf] != ids[i]:
            counted_ids[leaf] = ids[i]
            counts[leaf] = 0
        counts[leaf] += 1


class PrioritizedReplayBuffer(ReplayBuffer):
    """
    Replay buffer that draws transitions in proportion to their priority (Schaul et al. 2016, arXiv 1511.05952).

    New transitions get the largest priority seen so far, so that each is likely to be replayed soon; after that, a
    priority follows the TD errors that :meth:`update_priorities` is given. Random numbers come from NumPy's global generator,
    as in SB3. All of SB3's arguments stay as they are, followed by these:

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
    :param stratified: one draw from each of ``batch_size`` equal slices of the total
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
        if beta_anneal_steps is not None and not _is_count(beta_anneal_steps):
            raise ValueError(f"beta_anneal_steps must be None or an integer of at least 1, not {beta_anneal_steps!r}")
        if not _is_count(n_steps):
            raise ValueError(f"n_steps must be an integer of at least 1, not {n_steps!r}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {gamma}")
        self.scheme = make_scheme(scheme, alpha, epsilon, kappa, td_error_reduction)

        super().__init__(*args, **kwargs)

        self.beta_start = beta_start
        self.beta_end = beta_end
        self.beta_anneal_steps = beta_anneal_steps
        self.stratified = stratified
        self.n_steps = n_steps
        self.gamma = gamma
        #: the current importance-sampling exponent; never decreases
        self.beta = beta_start
        #: largest priority seen so far, in units of the TD error (before the exponent)
        self.max_priority = 1.0
        #: counts the draws, if it is asked to, see :class:`~sb3_per.monitor.PriorityMonitor`
        self.draw_record: DrawRecord | None = None
        # Calls of `sample`, for `beta_anneal_steps`.
        self._n_sampled = 0
        # `max_priority` and the mass that a new transition gets for it.
        self._mass_of_max = (1.0, float(self.scheme.mass_of_new(1.0)))
        # Steps added, which gives the id of every slot, and how many of them the tree knows: it is told when it is used, of
        # all steps since then at once.
        self._n_added = 0
        self._n_admitted = 0
        self._tree = self.scheme.make_tree(self._capacity)
        # Changes nothing, but has numba loaded: the first kernel of a process waits for that, and the first draw need not.
        self._tree.fill(0, 0, 0.0)

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **kwargs: Any) -> "PrioritizedReplayBuffer":
        """
        Turn a plain SB3 buffer into a prioritized one that shares its arrays; every transition has the largest priority.

        :param buffer: the plain buffer, of the kind of storage of this class; not to be used any more
        :param kwargs: the prioritized settings; where they speak of storage, that of the plain buffer counts
        :return: the prioritized buffer
        """
        storage_settings = "observation_space action_space device n_envs optimize_memory_usage handle_timeout_termination"
        kwargs.update({name: getattr(buffer, name) for name in storage_settings.split()})
        # Built with a single row: the arrays come from the plain buffer.
        prioritized = cls(buffer_size=buffer.n_envs, **kwargs)
        # SB3's NStepReplayBuffer has these two as well; the settings asked for here count.
        storage = {name: value for name, value in vars(buffer).items() if name not in ("n_steps", "gamma")}
        vars(prioritized).update(storage)
        prioritized._tree = prioritized.scheme.make_tree(prioritized._capacity)
        prioritized._adopt_storage()
        return prioritized

    @property
    def priorities(self) -> np.ndarray:
        """
        Unnormalised sampling mass of every slot, e.g. ``(|td| + epsilon)^alpha``; 0 for a slot that cannot be drawn.
        A copy, float64 of shape (buffer_size, n_envs).
        """
        if self._n_admitted != self._n_added:
            self._admit()
        masses: np.ndarray = self._tree[:].reshape(self.buffer_size, self.n_envs)
        return masses

    @property
    def transition_ids(self) -> np.ndarray:
        """Id of the transition in every slot, -1 where there is none. int64 of shape (buffer_size, n_envs)."""
        return self._ids_at(np.arange(self._capacity)).reshape(self.buffer_size, self.n_envs)

    def _ids_at(self, leaves: np.ndarray) -> np.ndarray:
        """
        :param leaves: of any shape
        :return: ids of the transitions there, -1 where there is none, in the same shape
        """
        behind_cursor = leaves >= self.pos * self.n_envs
        return np.where(
            behind_cursor, leaves + self._lap_start - self._capacity if self.full else -1, leaves + self._lap_start
        )

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Store one step of every environment, see SB3; it gets the mass of ``max_priority``.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: end of an episode, shape (n_envs,)
        :param infos: one dictionary per environment
        """
        super().add(obs, next_obs, action, reward, done, infos)
        self._n_added += 1  # only now: a failed `add` has changed nothing

    def _admit(self) -> None:
        """Let the steps be drawn that were added since the last time, with the mass of ``max_priority``."""
        n_held = min(self._n_added - self._n_admitted, self.buffer_size)
        first = (self._n_added - n_held) % self.buffer_size
        n_until_end = min(n_held, self.buffer_size - first)
        self._fill_rows(first, n_until_end, self._mass_of_new())
        if n_until_end < n_held:
            self._fill_rows(0, n_held - n_until_end, self._mass_of_new())
        if self.optimize_memory_usage and self.full:
            # The newest next observation lies over the oldest observation.
            self._fill_rows(self.pos, 1, 0.0)
        self._n_admitted = self._n_added

    def _fill_rows(self, first: int, n_rows: int, mass: float) -> None:
        self._tree.fill(first * self.n_envs, (first + n_rows) * self.n_envs - 1, mass)

    def _mass_of_new(self) -> float:
        if self._mass_of_max[0] != self.max_priority:
            self._mass_of_max = (self.max_priority, float(self.scheme.mass_of_new(self.max_priority)))
        return self._mass_of_max[1]

    def reset(self) -> None:
        """Forget all transitions; ids go on, so that ids from before are stale. ``beta`` and ``max_priority`` stay."""
        super().reset()
        # On to the next multiple, where ids and slots agree again.
        self._n_added = -(-self._n_added // self.buffer_size) * self.buffer_size
        self._n_admitted = self._n_added
        self._tree.clear()

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
        if self._n_admitted != self._n_added:
            self._admit()
        if self._tree.total == 0.0:
            self._adopt_storage()
        leaves, masses = self._tree.draw(np.random.random_sample(batch_size), self.stratified)
        if self.scheme.importance_sampling:
            weights = self.scheme.weights(masses, self.beta)
        else:
            weights = np.ones((batch_size, 1), np.float32)
        samples = self._gather(leaves, weights, env)
        if self.draw_record is not None:
            self.draw_record.add(samples.indices, samples.weights, self._next_id)
        if self.beta_anneal_steps is not None:
            self._n_sampled += 1
            self._anneal_beta(self._n_sampled / self.beta_anneal_steps)
        return samples

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
        errors = _as_matrix(td_errors, len(ids))
        ids = as_batch(ids, np.int64)

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
        drawable = self._are_drawable(ids, leaves, n_held)
        if drawable is not None:
            leaves, abs_td_errors = leaves[drawable], abs_td_errors[drawable]
        if len(leaves) > 0:
            priority = self.scheme.priority(self.scheme.reduce(abs_td_errors))
            self._tree.update(leaves, self.scheme.mass(priority))
            self.max_priority = max(self.max_priority, float(priority[priority.argmax()]))  # faster than `max`
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

    @property
    def _capacity(self) -> int:
        """Number of slots, over all environments."""
        return self.buffer_size * self.n_envs

    @property
    def _next_id(self) -> int:
        return self._n_added * self.n_envs

    @property
    def _lap_start(self) -> int:
        """Id that belongs to leaf 0 in this lap of the ring."""
        return (self._n_added - self.pos) * self.n_envs

    @property
    def _oldest_id(self) -> int:
        """Id of the oldest transition that can be drawn."""
        n_steps_held = self.size()
        if self.optimize_memory_usage and self.full:
            n_steps_held -= 1
        return self._next_id - n_steps_held * self.n_envs

    def _are_drawable(self, ids: np.ndarray, leaves: np.ndarray, n_held: int) -> np.ndarray | None:
        """
        :param ids: transition ids
        :param leaves: their leaves, where they are not stale
        :param n_held: how many are not stale
        :return: which can be drawn; ``None``: all
        """
        return None if n_held == len(ids) else ids >= self._oldest_id

    def _drawable_leaves(self) -> np.ndarray:
        return np.arange(self._oldest_id, self._next_id) % self._capacity

    def _adopt_storage(self) -> None:
        """
        Give every stored transition the largest priority.

        For transitions that came into the arrays without :meth:`add`: a plain SB3 buffer, or arrays filled by hand.
        """
        n_laps = max(self._n_added // self.buffer_size, int(self.full))
        self._n_added = self._n_admitted = n_laps * self.buffer_size + self.pos
        self._tree.clear()
        self._tree.update(self._drawable_leaves(), self._mass_of_new())
        if self._tree.total == 0.0:
            raise ValueError(f"Cannot sample from an empty buffer: no transition can be drawn (size {self.size()})")

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """SB3's hook: the rows are given, the environment of each is drawn here; nothing is prioritized, the weights are 1."""
        env_indices = np.random.randint(0, high=self.n_envs, size=len(batch_inds))
        return self._gather(batch_inds * self.n_envs + env_indices, np.ones((len(batch_inds), 1), np.float32), env)

    def _gather(self, leaves: np.ndarray, weights: np.ndarray, env: VecNormalize | None) -> PrioritizedReplayBufferSamples:
        """
        :param leaves: int64 of shape (batch_size,)
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the transitions in these leaves
        """
        if self.n_steps == 1:
            windows, lengths, last = leaves[:, None], None, leaves
        else:
            windows, lengths = self._windows(leaves)
            last = (leaves + (lengths - 1) * self.n_envs) % self._capacity
        ids, rewards, dones = _read_batch(
            windows, last, self.rewards, self.dones, self.timeouts, self.pos * self.n_envs, self._lap_start
        )

        obs = self._map_obs(_rows, self.observations, leaves)
        if self.optimize_memory_usage:
            next_obs = self._map_obs(_rows, self.observations, (last + self.n_envs) % self._capacity)
        else:
            next_obs = self._map_obs(_rows, self.next_observations, last)
        self._relabel(obs, next_obs, rewards, windows, lengths)
        if env is not None:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
            rewards = self._normalize_reward(rewards, env)
        discounts = None
        if lengths is not None:
            rewards, discounts = self._n_step_returns(rewards, lengths)

        # Nothing is copied: all arrays are the batch's own. On the CPU the shortest way, a third of what SB3's takes.
        to_torch = th.from_numpy if self.device.type == "cpu" else functools.partial(self.to_torch, copy=False)
        return PrioritizedReplayBufferSamples(
            self._map_obs(to_torch, obs),
            to_torch(_rows(self.actions, leaves)),
            self._map_obs(to_torch, next_obs),
            to_torch(dones),
            to_torch(rewards),
            None if discounts is None else to_torch(discounts),
            to_torch(weights),
            ids,
        )

    def _map_obs(self, function: Callable[..., Any], obs: Any, *args: Any) -> Any:
        """Apply a function to each array of observations."""
        return function(obs, *args)

    def _relabel(self, obs: Any, next_obs: Any, rewards: np.ndarray, windows: np.ndarray, lengths: np.ndarray | None) -> None:
        """
        Change a batch before it is normalized; here, as it was stored.

        :param obs: gathered observations
        :param next_obs: gathered observations at the ends of the windows
        :param rewards: float32 of shape (batch_size, n_steps)
        :param windows: leaves of the transitions behind the rewards, shape (batch_size, n_steps)
        :param lengths: how many steps of each window count, shape (batch_size,); ``None``: all
        """

    def _windows(self, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Windows of the n-step returns; each ends early at a termination, a truncation and the newest transition.

        :param leaves: first transitions of the windows, shape (batch_size,)
        :return: leaves of all steps, shape (batch_size, n_steps), and how many of them count, from 1, shape (batch_size,)
        """
        windows = (leaves[:, None] + np.arange(self.n_steps) * self.n_envs) % self._capacity
        ended = (_rows(self.dones, windows) != 0) | (_rows(self.timeouts, windows) != 0)
        ended[:, -1] = True
        n_steps_behind = (self.pos - 1 - leaves // self.n_envs) % self.buffer_size
        return windows, np.minimum(ended.argmax(axis=1), n_steps_behind) + 1

    def _n_step_returns(self, rewards: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        :param rewards: normalized one by one, float32 of shape (batch_size, n_steps)
        :param lengths: how many of them count, shape (batch_size,)
        :return: discounted sums, and the discount of the value behind them, gamma^length; float32 of shape (batch_size, 1)
        """
        steps = np.arange(self.n_steps)
        discounted = rewards * self.gamma ** steps.astype(np.float32) * (steps < lengths[:, None])
        discounts = self.gamma ** lengths.astype(np.float32)
        return discounted.sum(axis=1, keepdims=True), discounts.reshape(-1, 1)


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` for Dict observation spaces. n-step returns work here as well, unlike in SB3.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """

    def __init__(self, *args: Any, optimize_memory_usage: bool = False, **kwargs: Any):
        if optimize_memory_usage:
            raise NotImplementedError("optimize_memory_usage=True is not supported for Dict observation spaces")
        super().__init__(*args, **kwargs)

    def _map_obs(self, function: Callable[..., Any], obs: Any, *args: Any) -> Any:
        return {key: function(array, *args) for key, array in obs.items()}


class PrioritizedHerReplayBuffer(PrioritizedDictReplayBuffer, HerReplayBuffer):  # type: ignore[misc]
    """
    Hindsight experience replay (HER, arXiv 1707.01495) with prioritized draws.

    As in SB3, only transitions of finished episodes that are still complete can be drawn: all others have mass 0. Part of each
    batch is virtual, with a goal that was reached later; as in SB3 the real transitions come first, and the ids are
    in the order of the rows. Which transitions become virtual is independent of their priority.

    :param args: SB3's arguments, see ``stable_baselines3.HerReplayBuffer``
    :param update_from_virtual: whether the TD error of a virtual transition becomes the priority of the real one behind
        it. ``False``: only real ones count; ``update_priorities`` must be given whole batches as they were drawn then
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """

    def __init__(self, *args: Any, update_from_virtual: bool = True, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.update_from_virtual = update_from_virtual

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **kwargs: Any) -> PrioritizedReplayBuffer:
        """See :meth:`PrioritizedReplayBuffer.from_replay_buffer`; the goals and the environment are those of the buffer."""
        assert isinstance(buffer, HerReplayBuffer), f"{type(buffer).__name__} is not a HerReplayBuffer"
        return super().from_replay_buffer(buffer, **{**kwargs, "env": buffer.env})

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions of finished episodes, see :meth:`PrioritizedReplayBuffer.sample`.

        :param batch_size: number of transitions, real and virtual
        :param env: associated VecNormalize, to normalize the observations and rewards
        :return: exactly ``batch_size`` transitions, the real ones first
        :raises RuntimeError: before the end of the first episode
        """
        if self._tree.total == 0.0 and batch_size > 0 and not self.ep_length.any():
            HerReplayBuffer.sample(self, batch_size, env)  # raises SB3's own error
        return super().sample(batch_size, env)

    def update_priorities(self, indices: np.ndarray, td_errors: np.ndarray | th.Tensor) -> int:
        """
        See :meth:`PrioritizedReplayBuffer.update_priorities`.

        :param indices: transition ids from :meth:`sample`
        :param td_errors: signed or absolute TD errors
        :return: how many were written
        """
        if self.update_from_virtual:
            return super().update_priorities(indices, td_errors)
        n_real = len(indices) - self._n_virtual(len(indices))
        errors = _as_matrix(td_errors, len(indices))
        return super().update_priorities(indices[:n_real], errors[:n_real])

    def reset(self) -> None:
        """Forget all transitions and episodes."""
        super().reset()
        self.ep_length[:] = 0
        self._current_ep_start[:] = 0

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store one step of every environment, see SB3. It can be drawn when its episode is finished."""
        for env_idx in np.flatnonzero(self.ep_length[self.pos]):
            # SB3 is about to give up the rest of the episode that is overwritten.
            episode_end = self.ep_start[self.pos, env_idx] + self.ep_length[self.pos, env_idx]
            self._tree.update(self._leaves_of_episode(self.pos, episode_end, int(env_idx)), 0.0)
        super().add(*args, **kwargs)

    def _admit(self) -> None:
        """Not before the end of the episode."""
        self._n_admitted = self._n_added

    def _compute_episode_length(self, env_idx: int) -> None:
        start, end = self._current_ep_start[env_idx], self.pos
        super()._compute_episode_length(env_idx)
        if end < start:
            end += self.buffer_size
        leaves = self._leaves_of_episode(start, end, env_idx)
        self._tree.update(leaves, self._mass_of_new())

    def _leaves_of_episode(self, start: int, end: int, env_idx: int) -> np.ndarray:
        leaves: np.ndarray = (np.arange(start, end) % self.buffer_size) * self.n_envs + env_idx
        return leaves

    def _are_drawable(self, ids: np.ndarray, leaves: np.ndarray, n_held: int) -> np.ndarray | None:
        drawable: np.ndarray = (ids >= self._oldest_id) & (_rows(self.ep_length, leaves) > 0)
        return drawable

    def _drawable_leaves(self) -> np.ndarray:
        return np.flatnonzero(self.ep_length)

    def _n_virtual(self, batch_size: int) -> int:
        return int(self.her_ratio * batch_size)

    def _gather(self, leaves: np.ndarray, weights: np.ndarray, env: VecNormalize | None) -> PrioritizedReplayBufferSamples:
        # Stratified draws are sorted by age: without shuffling, it would be the old transitions that are never relabelled.
        order = np.random.permutation(len(leaves))
        return super()._gather(leaves[order], weights[order], env)

    def _relabel(self, obs: Any, next_obs: Any, rewards: np.ndarray, windows: np.ndarray, lengths: np.ndarray | None) -> None:
        """Give the last transitions of the batch, the virtual ones, a goal of their episode and the rewards for it."""
        first = len(windows) - self._n_virtual(len(windows))
        if first == len(windows):
            return
        windows = windows[first:]
        rows, env_indices = np.divmod(windows[:, 0], self.n_envs)
        goals = self._sample_goals(rows, env_indices)
        obs["desired_goal"][first:] = next_obs["desired_goal"][first:] = goals

        assert self.env is not None, "HER needs its environment to compute rewards: call set_env() first"
        # Only the steps that count: what lies behind the end of a window may not be of the same episode.
        n_steps = np.ones(len(windows), dtype=np.int64) if lengths is None else lengths[first:]
        counts = np.arange(windows.shape[1]) < n_steps[:, None]
        leaves = windows[counts]
        infos: Any = copy.deepcopy(_rows(self.infos, leaves)) if self.copy_info_dict else [{} for _ in leaves]
        relabelled = self.env.env_method(
            "compute_reward",
            _rows(self.next_observations["achieved_goal"], leaves),
            np.repeat(goals, n_steps, axis=0),
            infos,
            indices=[0],
        )
        rewards[first:][counts] = relabelled[0]


def _rows(stored: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """
    :param stored: one of SB3's arrays, shape (buffer_size, n_envs, ...)
    :param leaves: integers of any shape
    :return: a copy of these slots. ``take`` from the flat view is several times faster than ``stored[rows, envs]``
    """
    return stored.reshape(-1, *stored.shape[2:]).take(leaves, axis=0)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def _as_matrix(td_errors: np.ndarray | th.Tensor, batch_size: int) -> np.ndarray:
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


@kernel
def _read_batch(
    windows: np.ndarray,
    last: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    cursor: int,
    lap_start: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param windows: leaves of the steps of each transition, shape (batch_size, n_steps)
    :param last: leaf of the last step that counts, shape (batch_size,)
    :param rewards: SB3's array, as the following two, shape (buffer_size, n_envs)
    :param dones: ends of episodes
    :param timeouts: those of them that are no terminations: the value of the next observation counts
    :param cursor: leaf that is written next
    :param lap_start: id of leaf 0 in this lap
    :return: ids, shape (batch_size,); rewards, shape (batch_size, n_steps); terminations, shape (batch_size, 1)
    """
    batch_size, n_steps = windows.shape
    rewards, dones, timeouts = rewards.reshape(-1), dones.reshape(-1), timeouts.reshape(-1)
    ids = np.empty(batch_size, np.int64)
    batch_rewards = np.empty((batch_size, n_steps), rewards.dtype)
    batch_dones = np.empty((batch_size, 1), dones.dtype)
    for i in range(batch_size):
        prefetch(dones, np.uint64(last[i]))
        prefetch(rewards, np.uint64(windows[i, 0]))
    for i in range(batch_size):
        # From the cursor on, the transitions are of the previous lap.
        ids[i] = windows[i, 0] + lap_start - (rewards.size if windows[i, 0] >= cursor else 0)
        done = dones[last[i]]
        batch_dones[i, 0] = done if done == 0 else done * (1 - timeouts[last[i]])  # few are done: a cache miss saved
        for j in range(n_steps):
            batch_rewards[i, j] = rewards[windows[i, j]]
    return ids, batch_rewards, batch_dones
