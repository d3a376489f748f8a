"""Prioritized hindsight experience replay."""

import copy
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.adding import Step
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.dict import PrioritizedDictReplayBuffer
from sb3_per.buffers.drawable import as_matrix
from sb3_per.buffers.frames import GOALS
from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.buffers.ring import flat, rows
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.signatures import arguments_of, extends_signature

if TYPE_CHECKING:
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
    from typing_extensions import Unpack

    from sb3_per.buffers.settings import PrioritizedHerKwargs

    def _init(
        self: Any,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        env: VecEnv,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **kwargs: Unpack[PrioritizedHerKwargs],
    ) -> None: ...
else:
    _init = HerReplayBuffer.__init__


class PrioritizedHerReplayBuffer(PrioritizedDictReplayBuffer, HerReplayBuffer):  # type: ignore[misc]
    """
    Hindsight experience replay (HER, arXiv 1707.01495) with prioritized draws.

    As in SB3, only transitions of finished episodes that are still complete can be drawn: all others have mass 0. Part of each
    batch is virtual, with a goal that was reached later; as in SB3 the real transitions come first, and the ids are
    in the order of the rows. Which transitions become virtual is independent of their priority.

    For environments with goals that are rarely reached: observations are a Dict with ``observation``, ``achieved_goal`` and
    ``desired_goal``, and the environment has ``compute_reward``. ``learning_starts`` must be longer than an episode.

    ::

        model = PERDQN(
            "MultiInputPolicy",
            env,
            replay_buffer_class=PrioritizedHerReplayBuffer,
            replay_buffer_kwargs=dict(n_sampled_goal=4, goal_selection_strategy="future", scheme="lap"),
        )

    :param args: SB3's arguments, see ``stable_baselines3.HerReplayBuffer``
    :param update_from_virtual: whether the TD error of a virtual transition becomes the priority of the real one behind
        it. ``False``: only real ones count; ``update_priorities`` must be given whole batches as they were drawn then
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations, and for
        ``recency``
    :raises ValueError: if achieved goals cannot be written into ``desired_goal``: another shape, or a type that loses them;
        and for an environment without goals
    """

    # Those of unfinished episodes.
    _some_are_not_ready = True

    @extends_signature(_init, PrioritizedReplayBuffer.__init__)
    def __init__(self, *args: Any, update_from_virtual: bool = True, **kwargs: Any):
        arguments = arguments_of(type(self), HerReplayBuffer, args, kwargs)
        _require_goals_to_fit(arguments["observation_space"])
        env = arguments.get("env")
        if isinstance(env, VecEnv) and not env.has_attr("compute_reward"):
            raise ValueError("Hindsight (HER) needs an environment with goals, and this one has no compute_reward()")
        if kwargs.get("recency", 1.0) != 1.0:
            raise NotImplementedError(
                f"recency={kwargs['recency']} with hindsight is not supported: the newest transitions are of episodes that "
                "are not over, and cannot be drawn"
            )
        # Leaves of episodes that were finished since the tree was told last.
        self._finished: list[np.ndarray] = []
        super().__init__(*args, **kwargs)
        self.update_from_virtual = update_from_virtual

    @classmethod
    def from_replay_buffer(cls, buffer: ReplayBuffer, **kwargs: Any) -> PrioritizedReplayBuffer:
        """See :meth:`PrioritizedReplayBuffer.from_replay_buffer`; the goals and the environment are those of the buffer."""
        env = getattr(buffer, "env", None)
        return super().from_replay_buffer(buffer, **{**kwargs, "env": env})

    @classmethod
    def _stores(cls, buffer: ReplayBuffer) -> bool:
        return isinstance(buffer, HerReplayBuffer)

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None, position: float | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw transitions of finished episodes, see :meth:`PrioritizedReplayBuffer.sample`.

        :param batch_size: number of transitions, real and virtual
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param position: without influence
        :return: exactly ``batch_size`` transitions, the real ones first
        :raises RuntimeError: before the end of the first episode
        :raises ValueError: if the environment's ``compute_reward`` does not give one reward for each goal
        """
        with self._lock:
            if batch_size > 0 and not self.ep_length.any():
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
        errors = as_matrix(td_errors, len(indices))
        return super().update_priorities(indices[:n_real], errors[:n_real])

    def _require_columns(self) -> None:
        raise NotImplementedError(
            "Environments that add on their own are not supported with hindsight (HER): SB3 keeps the episodes of all of them "
            "by one cursor"
        )

    # ---- which transitions can be drawn

    def reset(self) -> None:
        """Forget all transitions and episodes."""
        with self._lock:
            super().reset()
            self.ep_length[:] = 0
            self._current_ep_start[:] = 0

    def _checked_step(self, *args: Any, **kwargs: Any) -> Step:
        step = super()._checked_step(*args, **kwargs)
        infos = step[5]
        if self.copy_info_dict:
            row = np.empty((1, self.n_envs), object)
            try:
                row[0] = infos
            except ValueError:
                row = np.array([None])
            if not all(isinstance(info, dict) for info in row.flat):
                raise ValueError(f"infos must be a list of {self.n_envs} dictionaries, not {reprlib.repr(infos)}")
        return step

    def _write_step(self, *step: Any) -> None:
        self._count_foreign_steps()
        for env_idx in np.flatnonzero(self.ep_length[self.pos]):
            # SB3 is about to give up the rest of the episode that is overwritten.
            episode_end = self.ep_start[self.pos, env_idx] + self.ep_length[self.pos, env_idx]
            self._tree.update(self._leaves_of_episode(self.pos, episode_end, int(env_idx)), 0.0)
        HerReplayBuffer.add(self, *step[:-1])
        self._n_added += 1

    def end_episodes(self) -> None:
        """See :meth:`~sb3_per.buffers.ring.TransitionRing.end_episodes`; the episodes can be drawn then."""
        with self._lock:
            super().end_episodes()
            for env_idx in np.flatnonzero(self._current_ep_start != self.pos):
                self._compute_episode_length(int(env_idx))

    def _compute_episode_length(self, env_idx: int) -> None:
        start, end = self._current_ep_start[env_idx], self.pos
        super()._compute_episode_length(env_idx)
        if end < start:
            end += self.buffer_size
        self._finished.append(self._leaves_of_episode(start, end, env_idx))
        self._n_admitted = -1  # also if it is finished without a step: truncated

    def _leaves_of_episode(self, start: int, end: int, env_idx: int) -> np.ndarray:
        leaves: np.ndarray = (np.arange(start, end) % self.buffer_size) * self.n_envs + env_idx
        return leaves

    @property
    def _n_drawable(self) -> int:
        return int(np.count_nonzero(self.ep_length))

    @property
    def _n_with_mass(self) -> int:
        return int(np.count_nonzero(self._tree[:]))

    def _drawable_leaves(self, n_newest: int) -> Callable[[np.ndarray], np.ndarray]:
        # All of them: emphasizing the newest is refused.
        return np.flatnonzero(self.ep_length).__getitem__

    def _can_be_drawn(self, ids: np.ndarray) -> np.ndarray:
        drawable: np.ndarray = super()._can_be_drawn(ids) & (rows(self.ep_length, ids % self._capacity) > 0)
        return drawable

    def _admit(self) -> None:
        """Let the episodes be drawn that were finished since the last time."""
        for leaves in self._finished:
            # Part of an episode may have been overwritten since.
            self._give_masses(leaves[flat(self.ep_length)[leaves] > 0])
        self._finished.clear()
        self._n_admitted = self._n_added

    def _readmit(self) -> None:
        super()._readmit()
        self._finished = [np.flatnonzero(self.ep_length)]
        self._n_admitted = -1

    def _count_foreign_steps(self) -> bool:
        is_foreign = super()._count_foreign_steps()
        if is_foreign:
            if self.size() > 0:  # SB3's `add` may have been interrupted before it noted the end of an episode
                for env_idx in np.flatnonzero((self.dones[self.pos - 1] != 0) & (self._current_ep_start != self.pos)):
                    self._compute_episode_length(int(env_idx))
            is_finished, has_mass = flat(self.ep_length) > 0, self._tree[:] > 0.0
            self._tree.update(np.flatnonzero(has_mass & ~is_finished), 0.0)
            self._finished.append(np.flatnonzero(is_finished & ~has_mass))
        return is_foreign

    def _begin_ring(self) -> None:
        super()._begin_ring()
        self._finished.clear()

    def _stock_draw(self, batch_size: int) -> np.ndarray:
        return np.random.choice(np.flatnonzero(self.ep_length), size=batch_size, replace=True)

    # ---- all of it, for files

    def _rows(self) -> dict[str, np.ndarray]:
        # Without `copy_info_dict`, SB3's are empty dictionaries all along.
        return {**super()._rows(), **({"infos": self.infos} if self.copy_info_dict else {})}

    def _columns(self) -> dict[str, np.ndarray]:
        return {**super()._columns(), "ep_length": self.ep_length}

    def _extract(self) -> Contents:
        contents = super()._extract()
        held = np.arange(contents.first, contents.end)
        # How far back, not in which row: that depends on the size.
        since_start = (held[:, None] - self.ep_start[held % self.buffer_size]) % self.buffer_size
        finished: list[np.ndarray] = []
        n_finished = 0
        for leaves in reversed(self._finished):
            if n_finished > 2 * self._capacity:
                break  # if nobody draws, they become ever more, and those before have been overwritten
            finished.append(self._ids_at(leaves))
            n_finished += len(leaves)
        finished.reverse()
        contents.arrays.update(
            steps_since_start=since_start.astype(np.int32),
            steps_under_way=(contents.end - self._current_ep_start) % self.buffer_size,
            finished_ids=np.concatenate([*finished, np.empty(0, np.int64)]),
            finished_lengths=np.array([len(ids) for ids in finished], np.int64),
        )
        return contents

    def _allocate(self) -> None:
        super()._allocate()
        self.ep_start, self.ep_length = (np.zeros(self.ep_length.shape, np.int64) for _ in range(2))
        self._current_ep_start = np.zeros_like(self._current_ep_start)
        self._finished = []
        if self.copy_info_dict:
            self.infos = np.full_like(self.infos, {})  # one for all: SB3 replaces it, and never writes to it

    def _restore(self, contents: Contents, keeps_masses: bool = True) -> None:
        n, n_held = contents.end - contents.first, self.size()
        held = np.arange(self._n_added - n_held, self._n_added)
        since_start = contents.array("steps_since_start", "i", n, self.n_envs)[n - n_held :].astype(np.int64)
        under_way = contents.array("steps_under_way", "i", self.n_envs)
        lengths = self.ep_length[held % self.buffer_size]
        n_behind = np.arange(n_held, 0, -1)[:, None]
        is_outside = (since_start >= lengths) | (lengths - since_start > n_behind) | (lengths > contents.buffer_size)
        if (is_outside & (lengths > 0)).any() or since_start.min(initial=0) < 0 or lengths.min(initial=0) < 0:
            raise ValueError("A transition is not in its own episode")
        if contents.buffer_size != self.buffer_size:
            # Of an episode whose beginning is not there, nothing can be drawn; the one under way begins where it is.
            is_cut = since_start > np.arange(n_held)[:, None]
            since_start[is_cut] = np.broadcast_to(np.arange(n_held)[:, None], is_cut.shape)[is_cut]
            lengths[is_cut] = 0
            under_way = np.minimum(under_way, n_held)
        self.ep_length[held % self.buffer_size] = lengths
        self.ep_start[held % self.buffer_size] = (held[:, None] - since_start) % self.buffer_size
        self._current_ep_start = (self._n_added - under_way) % self.buffer_size
        super()._restore(contents, keeps_masses)
        if not keeps_masses:
            return
        if contents.buffer_size != self.buffer_size:
            self._tree.update(np.flatnonzero((flat(self.ep_length) == 0) & (self._tree.masses > 0.0)), 0.0)
        ids = contents.array("finished_ids", "i", None) + (self._n_added - contents.end) * self.n_envs
        finished_lengths = contents.array("finished_lengths", "i", None)
        if finished_lengths.min(initial=0) < 0 or finished_lengths.sum() != len(ids):
            raise ValueError(f"Episodes of {finished_lengths.sum()} transitions, of which {len(ids)} are there")
        ends = np.cumsum(finished_lengths)
        for finished in np.split(ids, ends)[: len(ends)]:
            is_held = (finished >= held.min(initial=self._n_added) * self.n_envs) & (finished < self._next_id)
            self._finished.append(finished[is_held] % self._capacity)

    # ---- virtual transitions

    def _n_virtual(self, batch_size: int) -> int:
        return int(self.her_ratio * batch_size)

    def _draw(self, batch_size: int, position: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        leaves, masses = super()._draw(batch_size, position)
        if self._draws_as_stock:
            # The first ones are virtual, and stand last in the batch.
            order = np.roll(np.arange(batch_size), -self._n_virtual(batch_size))
        else:
            # Stratified draws are sorted by age: without shuffling, it would be the old transitions that are never relabelled.
            order = np.random.permutation(len(leaves))
        return leaves[order], masses[order]

    def _relabel(self, obs: Any, next_obs: Any, rewards: np.ndarray, windows: np.ndarray, lengths: np.ndarray | None) -> None:
        """Give the last transitions of the batch, the virtual ones, a goal of their episode and the rewards for it."""
        first = len(windows) - self._n_virtual(len(windows))
        if first == len(windows):
            return
        windows = windows[first:]
        goals = self._relabel_observations(obs, windows[:, 0])
        next_obs["desired_goal"][first:] = goals

        # Only the steps that count: what lies behind the end of a window may not be of the same episode.
        n_steps = np.ones(len(windows), dtype=np.int64) if lengths is None else lengths[first:]
        counts = np.arange(windows.shape[1]) < n_steps[:, None]
        rewards[first:][counts] = self._rewards_for(windows[counts], np.repeat(goals, n_steps, axis=0))

    def _relabel_observations(self, obs: Any, virtual_leaves: np.ndarray) -> np.ndarray:
        """
        :param obs: gathered observations; the last ones get new goals
        :param virtual_leaves: of those
        :return: the goals
        """
        goals: np.ndarray = self._sample_goals(*np.divmod(virtual_leaves, self.n_envs))
        obs["desired_goal"][len(obs["desired_goal"]) - len(goals) :] = goals
        return goals

    def _gather_observations(self, leaves: np.ndarray) -> Any:
        leaves = np.random.permutation(leaves)
        obs = super()._gather_observations(leaves)
        n_virtual = self._n_virtual(len(leaves))
        if n_virtual > 0:
            self._relabel_observations(obs, leaves[len(leaves) - n_virtual :])
        return obs

    def _rewards_for(self, leaves: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """
        :param leaves: of transitions, shape (n,)
        :param goals: one for each, shape (n, ...)
        :return: what the environment would have paid, shape (n,)
        """
        assert self.env is not None, "HER needs its environment to compute rewards: call set_env() first"
        infos: Any = copy.deepcopy(rows(self.infos, leaves)) if self.copy_info_dict else [{} for _ in leaves]
        achieved_goals = rows(self.next_observations["achieved_goal"], leaves)
        rewards = np.asarray(self.env.env_method("compute_reward", achieved_goals, goals, infos, indices=[0])[0])
        n = len(leaves)
        if rewards.shape not in ((n,), (n, 1)):
            raise ValueError(
                f"compute_reward() of the environment returned shape {rewards.shape} for {n} goals: HER gives it arrays of "
                f"shape ({n}, ...), and it must return one reward for each row, shape ({n},)"
            )
        return rewards.reshape(n)


def _require_goals_to_fit(observation_space: spaces.Space) -> None:
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    missing = [name for name in ("observation", *GOALS) if name not in parts]
    if missing:
        raise ValueError(
            "Hindsight (HER) needs an environment with goals: observations are a Dict with 'observation', 'achieved_goal' and "
            f"'desired_goal', and it has compute_reward(). Missing: {', '.join(map(repr, missing))} in {observation_space}"
        )
    achieved, desired = parts["achieved_goal"], parts["desired_goal"]
    source, target = np.dtype(achieved.dtype), np.dtype(desired.dtype)
    # Rounding a float is what SB3 does everywhere.
    if not np.can_cast(source, target, "safe") and not source.kind == target.kind == "f":
        raise ValueError(
            f"An achieved goal becomes a desired goal, and {source} (achieved_goal) does not fit {target} (desired_goal): "
            "give both spaces the same type"
        )
    if achieved.shape != desired.shape:
        raise ValueError(
            f"An achieved goal becomes a desired goal, and shape {achieved.shape} (achieved_goal) does not fit shape "
            f"{desired.shape} (desired_goal)"
        )
