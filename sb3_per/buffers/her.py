"""Prioritized hindsight experience replay."""

import copy
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.dict import PrioritizedDictReplayBuffer
from sb3_per.buffers.eligibility import NO_SLOTS, MarkedTransitions
from sb3_per.buffers.settings import HER_ARGUMENTS, takes_settings
from sb3_per.storage.arrays import ArrayStorage, flat
from sb3_per.storage.frame_setting import GOALS
from sb3_per.storage.ring import Ring
from sb3_per.utils.checks import Reasons

if TYPE_CHECKING:
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy


class FinishedEpisodes(MarkedTransitions):
    """
    Eligibility with HER: transitions of finished episodes that are still complete, see
    :class:`~sb3_per.sampling.eligibility.Eligibility`.

    It follows the ring, see :meth:`follow_ring`. After an interrupt, the next call does what is left.

    :param ring: position of every environment
    :param storage: of the steps, which knows the ends of episodes
    """

    unit = "transition"

    def __init__(self, ring: Ring, storage: ArrayStorage):
        self.storage = storage
        #: SB3's: first row, and length if it is finished, of the episode of each transition, shape (n_rows, n_envs)
        self.ep_start, self.ep_length = (np.zeros((ring.n_rows, ring.n_envs), np.int64) for _ in range(2))
        #: SB3's: first row of the episode under way, shape (n_envs,)
        self.current_ep_start = np.zeros(ring.n_envs, np.int64)
        super().__init__(ring, self.ep_length)
        # Slots of episodes that were finished, and of those that were dropped, since the sampler was told last.
        self._finished: list[np.ndarray] = []
        self._dropped: list[np.ndarray] = []
        # Number of steps that belong to an episode, and number of those after which episodes were finished.
        self._n_begun = self._n_ended = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the episodes."""
        return self.ep_start.nbytes + self.ep_length.nbytes

    def follow_ring(self) -> None:
        """
        Bring episodes up to date with the steps that the ring has counted: drop the finished episodes whose first transition
        was overwritten, and finish those that end.
        """
        ring = self.ring
        if self._begin != ring.begin:
            self.clear()
        while self._n_ended < ring.most:
            row = self._n_ended % ring.n_rows
            if self._n_begun == self._n_ended:
                for env in np.flatnonzero(self.ep_length[row]):
                    self._drop(row, int(env))
                self.ep_start[row] = self.current_ep_start
                self._n_begun += 1
            for env in np.flatnonzero(self.storage.dones[row]):
                self.finish(int(env), row + 1)
            self._n_ended += 1

    def finish(self, env: int, end: int) -> None:
        """
        Finish the current episode, so that its transitions can be drawn. If it has no step, nothing changes.

        :param env: environment whose episode ends
        :param end: row after its last step
        """
        start = self.current_ep_start[env]
        slots = self._slots(start, (end - start) % self.ring.n_rows, env)
        self._finished.append(slots)  # first: without marks, these slots are not reported
        self._mark(slots, len(slots))
        self.current_ep_start[env] = end % self.ring.n_rows

    def end_episodes(self) -> None:
        """Look at the newest steps once more, which are about to be truncated."""
        self.follow_ring()
        if self._n_ended > self.ring.begin:
            self._n_ended -= 1

    def _drop(self, row: int, env: int) -> None:
        """Stop drawing the transitions of a finished episode from this row on."""
        slots = self._slots(row, self.ep_start[row, env] + self.ep_length[row, env] - row, env)
        self._dropped.append(slots)
        self._mark(slots, 0)

    def _slots(self, row: int, n_steps: int, env: int) -> np.ndarray:
        return np.arange(row, row + n_steps) % self.ring.n_rows * self.ring.n_envs + env

    def _newly_finished(self) -> np.ndarray:
        """Slots that the sampler does not know yet, in the order in which their episodes were finished."""
        slots = np.concatenate([NO_SLOTS, *self._finished])
        return np.asarray(slots[flat(self.ep_length)[slots] > 0])  # part of an episode may have been overwritten since

    def changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Slots of the episodes that were finished, and of those that were dropped."""
        self.follow_ring()
        if not self._finished and not self._dropped:
            return NO_SLOTS, NO_SLOTS
        return self._newly_finished(), np.concatenate([NO_SLOTS, *self._dropped])

    def confirm_changes(self) -> None:
        """All finished episodes are known."""
        self._finished = []
        self._dropped = []

    def forget_changes(self) -> None:
        """Report all finished episodes as new."""
        slots = np.flatnonzero(self.ep_length)
        self._finished = [slots]
        self._dropped = []
        self._n_marked = len(slots)

    def clear(self) -> None:
        """The ring was emptied. The ends of episodes say what belongs together of the steps that are there already."""
        self.ep_length[:] = 0
        self.current_ep_start[:] = 0
        self._n_marked = 0
        self.confirm_changes()
        self._stand(self.ring.begin)

    def _stand(self, n_steps: int) -> None:
        """Take note that episodes are up to date with so many steps of the ring."""
        self._n_begun = n_steps
        self._n_ended = n_steps
        self._begin = self.ring.begin

    def stock_draw(self, n: int) -> np.ndarray:
        """SB3's draw."""
        return np.random.choice(np.flatnonzero(self.ep_length), size=n, replace=True)

    def state(self) -> dict[str, Any]:
        """Episodes, and slots of finished ones that the sampler does not know."""
        n = self.ring.n_rows_used
        return {
            "ep_start": self.ep_start[:n],
            "ep_length": self.ep_length[:n],
            "current_ep_start": self.current_ep_start,
            "finished_slots": self._newly_finished(),
        }

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :class:`~sb3_per.sampling.eligibility.Eligibility`."""
        ring, n = self.ring, self.ring.n_rows_used
        ring.require_even()
        start, length, current = (state[name] for name in ("ep_start", "ep_length", "current_ep_start"))
        for part, shape in ((start, (n, ring.n_envs)), (length, (n, ring.n_envs)), (current, (ring.n_envs,))):
            if part.shape != shape or not 0 <= part.min(initial=0) <= part.max(initial=0) <= ring.n_rows:
                raise ValueError("an episode is outside of the ring")
        since_start = (np.arange(n)[:, None] - start) % ring.n_rows
        n_left = (ring.most - 1 - np.arange(n)[:, None]) % ring.n_rows + 1
        is_wrong = (length > 0) & ((since_start >= length) | (length - since_start > n_left))
        under_way = (ring.most - current) % ring.n_rows
        is_wrong |= (n_left <= under_way) & ((length > 0) | (start != current))
        if is_wrong.any() or under_way.max() > n:
            raise ValueError("a transition is not in its own episode")
        self.ep_start[:n], self.ep_length[:n], self.current_ep_start[:] = start, length, current
        self._stand(ring.most)
        self.forget_changes()
        if not keeps_masses:
            return
        slots = state["finished_slots"]
        if not 0 <= slots.min(initial=0) <= slots.max(initial=0) < ring.capacity:
            raise ValueError("finished_slots are no slots")
        self._finished = [slots] if slots.size else []

    def copy_rows(self, source: "FinishedEpisodes", rows: np.ndarray, old_rows: np.ndarray) -> None:
        """See :class:`~sb3_per.sampling.eligibility.Eligibility`."""
        ring, old, n = self.ring, source.ring, np.arange(len(rows))[:, None]
        since_start = (old_rows[:, None] - source.ep_start[old_rows]) % old.n_rows
        # Of an episode whose beginning is not there, nothing can be drawn.
        is_cut = since_start > n
        self.ep_length[rows] = np.where(is_cut, 0, source.ep_length[old_rows])
        self.ep_start[rows] = (rows[:, None] - np.where(is_cut, n, since_start)) % ring.n_rows
        under_way = np.minimum((old.pos - source.current_ep_start) % old.n_rows, len(rows))
        self.current_ep_start[:] = (ring.pos - under_way) % ring.n_rows
        self._stand(ring.most)
        self.forget_changes()


class PrioritizedHerReplayBuffer(PrioritizedDictReplayBuffer, HerReplayBuffer):  # type: ignore[misc]
    """
    Hindsight experience replay (HER, arXiv 1707.01495) with prioritized draws.

    As in SB3, only transitions of finished episodes that are still complete can be drawn: all others have mass 0. Part of each
    batch is virtual, with a goal that was reached later; as in SB3 the real transitions come first, and the ids are
    in the order of the rows. Which transitions become virtual is independent of their priority. ``sample`` raises
    ``RuntimeError`` before the end of the first episode, as in SB3, and ``ValueError`` if the environment's ``compute_reward``
    does not give one finite reward for each goal.

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
    :param update_from_virtual: whether the TD error of a virtual transition becomes the priority of the real one that it was
        made from. ``False``: only real ones count, and ``update_priorities`` needs whole batches in the order of the draw
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations, and for
        ``recency``
    :raises ValueError: if achieved goals cannot be written into ``desired_goal``: another shape, or a type that loses them;
        and for an environment without goals
    """

    own_arguments = HER_ARGUMENTS
    why_not_separately = "with hindsight (HER): SB3 keeps the episodes of all of them with one cursor"

    @takes_settings
    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        env: VecEnv,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: "GoalSelectionStrategy | str" = "future",
        copy_info_dict: bool = False,
        update_from_virtual: bool = True,
        **settings: Any,
    ):
        if isinstance(env, VecEnv) and not env.has_attr("compute_reward"):
            raise ValueError("Hindsight (HER) needs an environment with goals, and this one has no compute_reward()")
        _require_goals_to_fit(observation_space)
        self._her_arguments = (n_sampled_goal, goal_selection_strategy, copy_info_dict)
        self.env = env
        self.update_from_virtual = update_from_virtual
        stock = (buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage)
        super().__init__(*stock, handle_timeout_termination, **settings)

    def _unsupported(self, optimize_memory_usage: bool, has_demonstrations: bool) -> Reasons:
        recency = self.settings.recency
        reason = recency != 1.0 and "the newest transitions belong to unfinished episodes, and cannot be drawn"
        own = {f"recency={recency} with hindsight": reason}
        return {**own, **super()._unsupported(optimize_memory_usage, has_demonstrations)}

    def _init_stock(self, buffer_size: int, observation_space: Any, action_space: Any, *args: Any) -> None:
        super()._init_stock(buffer_size, observation_space, action_space, self.env, *args, *self._her_arguments)

    def _make_eligibility(self) -> FinishedEpisodes:
        self.episodes = episodes = FinishedEpisodes(self.ring, self.storage)
        # SB3's code works on the same arrays.
        same = {"ep_start": episodes.ep_start, "ep_length": episodes.ep_length, "_current_ep_start": episodes.current_ep_start}
        vars(self).update(same)
        return episodes

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("ep_start", "ep_length", "_current_ep_start") and "episodes" in vars(self):
            raise ValueError(f"{name} cannot be assigned: set pos or full, and the buffer finds the episodes by its dones")
        super().__setattr__(name, value)

    def load(self, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """See :meth:`PrioritizedReplayBuffer.load`."""
        super().load(state, keeps_masses)
        if self.sampler.tree.written()[self.ep_length.ravel() == 0].any():
            raise ValueError("a transition whose episode is not finished has a mass")

    def to_replay_buffer(self) -> HerReplayBuffer:  # noqa: D102 - inherited
        stock: Any = super().to_replay_buffer()
        stock.ep_start = self.ep_start
        stock.ep_length = self.ep_length
        stock._current_ep_start = self._current_ep_start  # noqa: SLF001 - SB3 has no other name for it
        if not self.copy_info_dict:
            stock.infos = np.full((self.buffer_size, self.n_envs), {})
        return stock

    # ---- writing

    def _write(self, *args: Any) -> None:
        self.episodes.follow_ring()  # what an interrupt has left, before the row is overwritten
        super()._write(*args)
        self.episodes.follow_ring()

    def end_episodes(self, envs: np.ndarray | None = None) -> None:
        """See :meth:`PrioritizedReplayBuffer.end_episodes`."""
        with self.lock:
            super().end_episodes(envs)
            self.episodes.follow_ring()

    def truncate_last_trajectory(self) -> None:
        """End the episodes under way, see :meth:`end_episodes`, with a warning if there is any, as in SB3."""
        if (self._current_ep_start != self.pos).any():
            warnings.warn(
                "The newest episodes of the replay buffer have no end, and are truncated. If the environment continues them, "
                "load the buffer with truncate_last_trajectory=False"
            )
            self.end_episodes()

    def _compute_episode_length(self, env_idx: int) -> None:
        """End the episode of an environment after the newest step: SB3's hook."""
        self.episodes.finish(env_idx, self.pos)

    # ---- drawing

    def _refuse_to_draw(self) -> None:
        HerReplayBuffer.sample(self, 1)  # raises SB3's own error

    def _draw_experience(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        slots, n_p = super()._draw_experience(n)
        if self.sampler.is_stock:
            # The first ones are virtual, and come last in the batch.
            order = np.roll(np.arange(n), -self._n_virtual(n))
        else:
            # Stratified draws are sorted by age: without shuffling, the old transitions would never be relabelled.
            order = np.random.permutation(n)
        return slots[order], n_p[order]

    def _update(self, ids: np.ndarray, errors: np.ndarray) -> int:
        n = len(ids) if self.update_from_virtual else len(ids) - self._n_virtual(len(ids))
        return super()._update(ids[:n], errors[:n])

    # ---- virtual transitions

    def _n_virtual(self, batch_size: int) -> int:
        return int(self.her_ratio * batch_size)

    def _relabel(self, obs: Any, next_obs: Any, rewards: np.ndarray, windows: np.ndarray, lengths: np.ndarray | None) -> None:
        """Give the last transitions of the batch, the virtual ones, a goal of their episode and the rewards for it."""
        first = len(windows) - self._n_virtual(len(windows))
        if first == len(windows):
            return
        windows = windows[first:]
        goals = self._relabel_observations(obs, windows[:, 0])
        next_obs["desired_goal"][first:] = goals

        # Only the steps that count: a step after the end of a window may belong to another episode.
        n_steps = np.ones(len(windows), dtype=np.int64) if lengths is None else lengths[first:]
        counts = np.arange(windows.shape[1]) < n_steps[:, None]
        rewards[first:][counts] = self._rewards_for(windows[counts], np.repeat(goals, n_steps, axis=0))

    def _relabel_observations(self, obs: Any, virtual_slots: np.ndarray) -> np.ndarray:
        """
        Give the last observations of a batch a new goal.

        :param obs: observations; the last ones get new goals
        :param virtual_slots: slots of these last observations
        :return: the new goals
        """
        goals: np.ndarray = self._sample_goals(*np.divmod(virtual_slots, self.n_envs))
        obs["desired_goal"][len(obs["desired_goal"]) - len(virtual_slots) :] = goals
        return goals

    def _gather_observations(self, slots: np.ndarray) -> Any:
        slots = np.random.permutation(slots)
        obs = super()._gather_observations(slots)
        self._relabel_observations(obs, slots[len(slots) - self._n_virtual(len(slots)) :])
        return obs

    def _rewards_for(self, slots: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """
        Ask the environment for the rewards of new goals.

        :param slots: of transitions, shape (n,)
        :param goals: one for each, shape (n, ...)
        :return: what the environment would have paid, shape (n,)
        :raises ValueError: for rewards of another shape, or NaN or infinite
        """
        assert self.env is not None, "HER needs its environment to compute rewards: call set_env() first"
        infos: Any = copy.deepcopy(flat(self.infos)[slots]) if self.copy_info_dict else [{} for _ in slots]
        achieved_goals = self.storage.stores["achieved_goal"].read(slots, True)
        rewards = np.asarray(self.env.env_method("compute_reward", achieved_goals, goals, infos, indices=[0])[0])
        n = len(slots)
        if rewards.shape not in ((n,), (n, 1)):
            raise ValueError(
                f"compute_reward() of the environment returned shape {rewards.shape} for {n} goals: HER gives it arrays of "
                f"shape ({n}, ...), and it must return one reward for each row, shape ({n},)"
            )
        if not np.isfinite(rewards).all():
            wrong = rewards[~np.isfinite(rewards)][0]
            raise ValueError(f"compute_reward() of the environment returned {wrong}: rewards of new goals must be finite")
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
    # To round a number to a float is what SB3 does everywhere.
    is_fitting_type = np.can_cast(source, target, "safe") or (target.kind == "f" and source.kind in "iuf")
    if achieved.shape != desired.shape or not is_fitting_type:
        raise ValueError(
            f"An achieved goal becomes a desired goal, and {source} of shape {achieved.shape} (achieved_goal) does not fit "
            f"{target} of shape {desired.shape} (desired_goal): give both spaces the same type and shape"
        )
