"""Prioritized hindsight experience replay."""

import copy
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.mixture import Demonstrations, LinearShare
from sb3_per.buffers.replay import PrioritizedDictReplayBuffer
from sb3_per.buffers.settings import HER_ARGUMENTS
from sb3_per.buffers.transition_set import Drawn, TransitionSet
from sb3_per.sampling.candidates import NO_SLOTS, Marked
from sb3_per.sampling.sampler import Sampler
from sb3_per.storage.frame_setting import GOALS
from sb3_per.storage.n_step import NStepReturns, ReturnWindows
from sb3_per.storage.nested import flat
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Steps, Storage

if TYPE_CHECKING:
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy


class FinishedEpisodes(Marked):
    """
    Candidates with HER: transitions of finished episodes that are still complete.

    :param ring: all environments stand at the same step
    :param storage: of the steps, which knows the ends of episodes
    """

    mass_owner = "transition"

    def __init__(self, ring: Ring, storage: Storage):
        shape = (ring.n_rows, ring.n_envs)
        self.storage = storage
        #: SB3's: first row of the episode of each transition
        self.ep_start = np.zeros(shape, np.int64)
        #: SB3's: length of this episode if it is finished, 0 otherwise
        self.ep_length = np.zeros(shape, np.int64)
        #: SB3's: first row of the episode under way, shape (n_envs,)
        self.current_ep_start = np.zeros(ring.n_envs, np.int64)
        super().__init__(ring, self.ep_length)
        # Number of steps that belong to an episode, and number of those after which episodes were finished.
        self._n_begun = 0
        self._n_ended = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the episodes."""
        return self.ep_start.nbytes + self.ep_length.nbytes

    # ---- which episodes are finished

    @property
    def is_behind(self) -> bool:
        """Whether the ring has counted steps that belong to no episode yet."""
        return self._n_ended < self.ring.max_next_step

    def follow_ring(self) -> tuple[np.ndarray, np.ndarray]:
        """
        Bring episodes up to date with the steps that the ring has counted: drop the finished episodes whose first transition
        was overwritten, and finish those that end. After an interrupt, the next call does what is left.

        :return: slots that can no longer be drawn, and slots that can be drawn from now on, int64 of shape (n,)
        """
        ring = self.ring
        dropped = [NO_SLOTS]
        finished = [NO_SLOTS]
        while self._n_ended < ring.max_next_step:
            row = self._n_ended % ring.n_rows
            if self._n_begun == self._n_ended:
                dropped += [self._drop(row, int(env)) for env in np.flatnonzero(self.ep_length[row])]
                self.ep_start[row] = self.current_ep_start
                self._n_begun += 1
            finished += [self._finish(int(env), row + 1) for env in np.flatnonzero(self.storage.dones[row])]
            self._n_ended += 1
        new = np.concatenate(finished)
        return np.concatenate(dropped), new[self.are_marked(new)]  # part of an episode may have been overwritten since

    def reopen_last_step(self) -> None:
        """Look at the newest steps once more in :meth:`follow_ring`, because ends of episodes are about to be written."""
        if self._n_ended > self.ring.first_step:
            self._n_ended -= 1

    def _finish(self, env: int, end: int) -> np.ndarray:
        """
        Finish the current episode, so that its transitions can be drawn. If it has no step, nothing changes.

        :param env: environment whose episode ends
        :param end: row after its last step
        :return: slots of the episode
        """
        start = int(self.current_ep_start[env])
        slots = self._slots(start, (end - start) % self.ring.n_rows, env)
        self._mark(slots, len(slots))
        self.current_ep_start[env] = end % self.ring.n_rows
        return slots

    def _drop(self, row: int, env: int) -> np.ndarray:
        """Stop drawing the transitions of a finished episode from this row on, and return their slots."""
        end = int(self.ep_start[row, env] + self.ep_length[row, env])
        slots = self._slots(row, end - row, env)
        self._mark(slots, 0)
        return slots

    def _slots(self, row: int, n_steps: int, env: int) -> np.ndarray:
        return np.arange(row, row + n_steps) % self.ring.n_rows * self.ring.n_envs + env

    def start_over(self) -> None:
        """The ends of episodes say what belongs together of the steps that are there already."""
        self.ep_length[:] = 0
        self.current_ep_start[:] = 0
        self._n_marked = 0
        self._note_steps(self.ring.first_step)
        self.follow_ring()

    def _note_steps(self, n_steps: int) -> None:
        """Take note that episodes are up to date with so many steps of the ring."""
        self._first_step = self.ring.first_step
        self._n_begun = n_steps
        self._n_ended = n_steps

    def draw_as_sb3(self, n: int) -> np.ndarray:
        """SB3's draw."""
        return np.random.choice(np.flatnonzero(self.ep_length), size=n, replace=True)

    # ---- saving

    def state(self) -> dict[str, Any]:
        """Episodes, see :meth:`Candidates.state`."""
        n = self.ring.n_rows_used
        return {
            "ep_start": self.ep_start[:n],
            "ep_length": self.ep_length[:n],
            "current_ep_start": self.current_ep_start,
        }

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :meth:`Candidates.load`."""
        self.ring.require_same_step()
        n = self.ring.n_rows_used
        start = state["ep_start"]
        length = state["ep_length"]
        current = state["current_ep_start"]
        self._require_inside(start, (n, self.ring.n_envs))
        self._require_inside(length, (n, self.ring.n_envs))
        self._require_inside(current, (self.ring.n_envs,))
        self._require_own_episode(start, length)
        self._require_open_episode(start, length, current)
        self.ep_start[:n] = start
        self.ep_length[:n] = length
        self.current_ep_start[:] = current
        self._n_marked = int(np.count_nonzero(self.ep_length))
        self._note_steps(self.ring.max_next_step)

    def _require_inside(self, rows: np.ndarray, shape: tuple[int, ...]) -> None:
        """Check the shape and range of rows or lengths."""
        if rows.shape != shape or not 0 <= rows.min(initial=0) <= rows.max(initial=0) <= self.ring.n_rows:
            raise ValueError("an episode is outside of the ring")

    def _steps_left(self, n: int) -> np.ndarray:
        """Number of steps from each of the first n rows to the newest step, its own included, shape (n, 1)."""
        rows = np.arange(n)[:, None]
        return (self.ring.max_next_step - 1 - rows) % self.ring.n_rows + 1

    def _require_own_episode(self, start: np.ndarray, length: np.ndarray) -> None:
        """Check that each transition of a finished episode lies within it, and the episode within the ring."""
        rows = np.arange(len(start))[:, None]
        since_start = (rows - start) % self.ring.n_rows
        is_outside = (since_start >= length) | (length - since_start > self._steps_left(len(start)))
        if ((length > 0) & is_outside).any():
            raise ValueError("a transition is not in its own episode")

    def _require_open_episode(self, start: np.ndarray, length: np.ndarray, current: np.ndarray) -> None:
        """Check that the newest transitions belong to the episode under way."""
        n_under_way = (self.ring.max_next_step - current) % self.ring.n_rows
        is_newest = self._steps_left(len(start)) <= n_under_way
        if (is_newest & ((length > 0) | (start != current))).any() or n_under_way.max() > len(start):
            raise ValueError("a transition is not in its own episode")

    def copy_rows(self, other: "FinishedEpisodes", rows: np.ndarray, other_rows: np.ndarray) -> None:
        """See :meth:`Candidates.copy_rows`."""
        ring = self.ring
        old = other.ring
        numbers = np.arange(len(rows))[:, None]
        since_start = (other_rows[:, None] - other.ep_start[other_rows]) % old.n_rows
        # Of an episode whose beginning is not there, nothing can be drawn.
        is_cut = since_start > numbers
        self.ep_length[rows] = np.where(is_cut, 0, other.ep_length[other_rows])
        self.ep_start[rows] = (rows[:, None] - np.where(is_cut, numbers, since_start)) % ring.n_rows
        n_under_way = np.minimum((old.pos - other.current_ep_start) % old.n_rows, len(rows))
        self.current_ep_start[:] = (ring.pos - n_under_way) % ring.n_rows
        self._n_marked = int(np.count_nonzero(self.ep_length))
        self._note_steps(ring.max_next_step)


class HindsightSet(TransitionSet):
    """
    Transitions with HER: those of finished episodes can be drawn, and some of them get a goal that was reached later.

    :param ring: which transition is in which slot
    :param storage: what is in a slot
    :param sampler: the mass of a slot
    :param n_step_returns: windows of the returns
    :param episodes: the candidates of the sampler
    :param goals: SB3's buffer, which draws goals and asks the environment for rewards
    """

    def __init__(
        self,
        ring: Ring,
        storage: Storage,
        sampler: Sampler,
        n_step_returns: NStepReturns,
        episodes: FinishedEpisodes,
        goals: "PrioritizedHerReplayBuffer",
    ):
        super().__init__(ring, storage, sampler, n_step_returns)
        self.episodes = episodes
        self.goals = goals
        #: masses that transitions came with, by slot, until their episode is finished; NaN for none. Made when first needed
        self.waiting_tree_values: np.ndarray | None = None

    def with_goals_of(self, goals: "PrioritizedHerReplayBuffer") -> "HindsightSet":
        """
        Make a set of the same parts for another buffer, e.g. after it was copied.

        :param goals: the buffer
        :return: the set; this one, if it belongs to this buffer
        """
        if goals is self.goals:
            return self
        other = HindsightSet(self.ring, self.storage, self.sampler, self.n_step_returns, self.episodes, goals)
        other.waiting_tree_values = self.waiting_tree_values
        return other

    # ---- write

    def write_row(self, steps: Steps, tree_values: np.ndarray | None = None) -> None:
        """Write a step, see :meth:`TransitionSet.write_row`. Its transition can be drawn once its episode has ended."""
        self._update_candidates()  # what an interrupt has left, before the row is overwritten
        row = self.ring.pos
        self.storage.write_row(row, steps)
        self._keep_tree_values(self.ring.slots_of_row(row), tree_values)
        self.ring.advance_all()
        self._update_candidates()

    def _keep_tree_values(self, slots: np.ndarray, tree_values: np.ndarray | None) -> None:
        """Keep the masses or priorities that transitions came with, until their episode is finished."""
        if self.waiting_tree_values is None:
            if tree_values is None:
                return
            self.waiting_tree_values = np.full(self.ring.capacity, np.nan)
        self.waiting_tree_values[slots] = np.nan if tree_values is None else tree_values

    def _update_candidates(self) -> None:
        """Tell the sampler which transitions can be drawn after new steps."""
        if self.episodes.are_from_before_reset:
            self.sampler.clear()  # an interrupt came right after the ring was emptied
        if not self.episodes.is_behind:
            return
        with self.sampler.changing_candidates():
            dropped, finished = self.episodes.follow_ring()
            self.sampler.remove(dropped)
            self.sampler.insert_new(finished)
            self._insert_waiting(finished)

    def _insert_waiting(self, slots: np.ndarray) -> None:
        """Give finished transitions the masses that they came with."""
        if self.waiting_tree_values is None:
            return
        tree_values = self.waiting_tree_values[slots]
        has_own = ~np.isnan(tree_values)
        self.sampler.insert(slots[has_own], tree_values[has_own])

    def end_episodes(self, envs: np.ndarray) -> None:
        """See :meth:`TransitionSet.end_episodes`. The transitions of these episodes can be drawn then."""
        self._update_candidates()
        self.episodes.reopen_last_step()
        super().end_episodes(envs)
        self._update_candidates()

    # ---- draw and read

    def empty_error(self) -> Exception:
        """Say why nothing can be drawn, by an error of the type that SB3 raises."""
        n_envs = self.ring.n_envs
        steps = "the length of an episode" if n_envs == 1 else f"{n_envs} (environments) times the length of an episode"
        return RuntimeError(
            "Unable to sample before the end of the first episode: hindsight (HER) needs finished episodes. Set "
            f"learning_starts to more than {steps}"
        )

    def n_virtual(self, batch_size: int) -> int:
        """Number of rows of a batch that get another goal. They come last."""
        return int(self.goals.her_ratio * batch_size)

    def draw(self, batch_size: int, series_progress: float | None = None) -> Drawn:
        """See :meth:`TransitionSet.draw`. The order is independent of age."""
        self._update_candidates()
        slots, relative_probabilities, _ = super().draw(batch_size, series_progress)
        if self.sampler.draws_as_sb3:
            # The first ones are virtual, and come last in the batch.
            order = np.roll(np.arange(batch_size), -self.n_virtual(batch_size))
        else:
            # Stratified draws are sorted by slot: without shuffling, those of low slots would never be relabelled.
            order = np.random.permutation(batch_size)
        return Drawn(slots[order], relative_probabilities[order], n_experience=batch_size)

    def relabel(self, observations: Any, next_observations: Any, rewards: np.ndarray, windows: ReturnWindows) -> None:
        """Give the last transitions of the batch, the virtual ones, a goal of their episode and the rewards for it."""
        n = self.n_virtual(len(rewards))
        if n == 0:
            return
        first = len(rewards) - n
        slots = windows.slots[first:]
        goals = self._relabel_observations(observations, slots[:, 0])
        next_observations["desired_goal"][first:] = goals
        lengths = np.ones(n, np.int64)
        if windows.lengths is not None:
            lengths = windows.lengths[first:]
        # Only the steps that count: a step after the end of a window may belong to another episode.
        counts = np.arange(slots.shape[1]) < lengths[:, None]
        rewards[first:][counts] = self.goals.rewards_for(slots[counts], np.repeat(goals, lengths, axis=0))

    def _relabel_observations(self, observations: Any, virtual_slots: np.ndarray) -> np.ndarray:
        """
        Give the last observations of a batch a new goal.

        :param observations: of a batch
        :param virtual_slots: slots of these last observations
        :return: the new goals
        """
        goals = self.goals.goals_for(virtual_slots)
        first = len(observations["desired_goal"]) - len(virtual_slots)
        observations["desired_goal"][first:] = goals
        return goals

    def draw_observations(self, n: int) -> Any:
        """See :meth:`TransitionSet.draw_observations`. As many have a new goal as in a batch."""
        if not self.can_draw():
            raise self.empty_error()
        slots = np.random.permutation(self.sampler.draw_uniformly(n))
        observations = self.storage.read_observations(slots)
        self._relabel_observations(observations, slots[n - self.n_virtual(n) :])
        return observations

    # ---- update

    def update(self, ids: np.ndarray, td_errors: np.ndarray) -> int:
        """See :meth:`TransitionSet.update`. With ``update_from_virtual=False``, the real rows alone, which come first."""
        if self.goals.update_from_virtual:
            return super().update(ids, td_errors)
        self.checked_update(ids, td_errors)  # of all rows
        n_real = len(ids) - self.n_virtual(len(ids))
        return super().update(ids[:n_real], td_errors[:n_real])

    # ---- saving

    def state(self) -> dict[str, Any]:
        """See :meth:`TransitionSet.state`."""
        self._update_candidates()
        state = super().state()
        if self.waiting_tree_values is not None:
            n_slots = self.ring.n_rows_used * self.ring.n_envs
            state["waiting_masses"] = self.waiting_tree_values[:n_slots]
        return state

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :meth:`TransitionSet.load`."""
        super().load(state, keeps_masses)
        if keeps_masses and "waiting_masses" in state:
            tree_values = np.asarray(state["waiting_masses"])
            if ((tree_values < 0.0) | (tree_values > self.sampler.largest_tree_value)).any():  # NaN: none
                raise ValueError("a mass is negative or infinite")
            self._keep_tree_values(np.arange(len(tree_values)), tree_values)

    def copy_newest(self, other: TransitionSet, keeps_masses: bool) -> None:
        """See :meth:`TransitionSet.copy_newest`. Masses go on waiting for the end of their episode."""
        assert isinstance(other, HindsightSet)
        super().copy_newest(other, keeps_masses)
        if keeps_masses and other.waiting_tree_values is not None:
            n_rows = self.ring.max_next_step - self.ring.first_step
            rows = (self.ring.pos - n_rows + np.arange(n_rows)) % self.ring.n_rows
            other_rows = (other.ring.pos - n_rows + np.arange(n_rows)) % other.ring.n_rows
            waiting = other.waiting_tree_values.reshape(other.ring.n_rows, -1)[other_rows]
            self.waiting_tree_values = np.full(self.ring.capacity, np.nan)
            self.waiting_tree_values.reshape(self.ring.n_rows, -1)[rows] = waiting

    def clear(self) -> None:
        """See :meth:`TransitionSet.clear`."""
        self.waiting_tree_values = None
        super().clear()

    def adopt_rows(self, n_present: int) -> None:
        """See :meth:`TransitionSet.adopt_rows`."""
        self.waiting_tree_values = None
        super().adopt_rows(n_present)

    def masses(self) -> np.ndarray:
        """See :meth:`TransitionSet.masses`."""
        self._update_candidates()
        return super().masses()

    def can_draw(self) -> bool:
        """See :meth:`TransitionSet.can_draw`."""
        self._update_candidates()
        return super().can_draw()


def _record_of_episodes(name: str) -> Any:
    """
    Make an attribute of SB3's ``HerReplayBuffer`` that shows what the candidates know.

    :param name: SB3's name; in :class:`FinishedEpisodes` it is public
    :return: a property that cannot be assigned, except by SB3's constructor, before there are candidates
    """

    def shown(self: "PrioritizedHerReplayBuffer") -> Any:
        return getattr(self.experience.episodes, name.lstrip("_"))  # type: ignore[attr-defined]

    def refuse(self: "PrioritizedHerReplayBuffer", value: Any) -> None:
        if self.has_storage:
            raise ValueError(f"{name} cannot be assigned: set pos or full, and the buffer finds the episodes by its dones")

    return property(shown, refuse)


class PrioritizedHerReplayBuffer(PrioritizedDictReplayBuffer, HerReplayBuffer):  # type: ignore[misc]
    """
    Hindsight experience replay (HER, arXiv 1707.01495) with prioritized draws.

    As in SB3, only transitions of finished episodes that are still complete can be drawn: all others have mass 0. Part of each
    batch is virtual, with a goal that was reached later; as in SB3 the real transitions come first, and the ids are
    in the order of the rows. Which transitions become virtual is independent of their priority. ``sample`` raises
    ``RuntimeError`` before the end of the first episode, as in SB3, and ``ValueError`` if the environment's ``compute_reward``
    does not give one finite reward for each goal.

    For environments with goals that are rarely reached: observations are a Dict with ``observation``, ``achieved_goal`` and
    ``desired_goal``, and the environment has ``compute_reward``. ``learning_starts`` must be more than the
    length of an episode times the number of environments.

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

    # SB3's records of episodes, on which its code works.
    ep_start = _record_of_episodes("ep_start")
    ep_length = _record_of_episodes("ep_length")
    _current_ep_start = _record_of_episodes("_current_ep_start")

    extra_arguments = HER_ARGUMENTS
    add_steps_refusal = "with hindsight (HER): SB3 keeps the episodes of all of them with one cursor"

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
            raise ValueError(
                "Hindsight (HER) needs an environment with goals, and this one has no compute_reward(). "
                "Without goals, leave out replay_buffer_class, n_sampled_goal and goal_selection_strategy"
            )
        _require_goals_to_fit(observation_space)
        self._her_arguments = (n_sampled_goal, goal_selection_strategy, copy_info_dict)
        self.env = env
        self.update_from_virtual = update_from_virtual
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **settings,
        )

    def _check_combinations(self, optimize_memory_usage: bool) -> None:
        if self.settings.recency != 1.0:
            raise NotImplementedError(
                f"recency={self.settings.recency} with hindsight is not supported: the newest transitions belong to "
                "unfinished episodes, and cannot be drawn"
            )
        super()._check_combinations(optimize_memory_usage)

    def _init_sb3(self, buffer_size: int, observation_space: Any, action_space: Any, *args: Any) -> None:
        super()._init_sb3(buffer_size, observation_space, action_space, self.env, *args, *self._her_arguments)

    def _make_experience(self, ring: Ring, storage: Storage) -> HindsightSet:
        episodes = FinishedEpisodes(ring, storage)
        return HindsightSet(ring, storage, self._make_sampler(episodes), self._make_n_step_returns(), episodes, self)

    def use_parts(  # noqa: D102 - inherited
        self, experience: Any, demonstrations: Demonstrations, share: LinearShare
    ) -> None:
        super().use_parts(experience.with_goals_of(self), demonstrations, share)

    def __getstate__(self) -> dict[str, Any]:
        """As in SB3, the environment is left out."""
        state = super().__getstate__()
        del state["env"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As in SB3, call :meth:`set_env` afterwards."""
        self.env = None
        super().__setstate__(state)

    def to_replay_buffer(self) -> HerReplayBuffer:  # noqa: D102 - inherited
        sb3_buffer: Any = super().to_replay_buffer()
        sb3_buffer.ep_start = self.ep_start
        sb3_buffer.ep_length = self.ep_length
        sb3_buffer._current_ep_start = self._current_ep_start  # noqa: SLF001 - SB3 has no other name for it
        if not self.copy_info_dict:
            sb3_buffer.infos = np.full((self.buffer_size, self.n_envs), {})
        return sb3_buffer

    # ---- writing

    def truncate_last_trajectory(self) -> None:
        """End the episodes under way, see :meth:`end_episodes`, with a warning if there is any, as in SB3."""
        if (self._current_ep_start != self.pos).any():
            warnings.warn(
                "The last trajectory in the replay buffer will be truncated, because it has no end. If the environment "
                "continues it, pass truncate_last_traj=False to load_replay_buffer"
            )
            self.end_episodes()

    def _compute_episode_length(self, env_idx: int) -> None:
        """End the episode of an environment after the newest step: SB3's hook."""
        with self.lock:
            self.experience.end_episodes(np.array([env_idx]))

    # ---- virtual transitions

    def goals_for(self, slots: np.ndarray) -> np.ndarray:
        """
        Draw a new goal for each of some transitions, by SB3's strategy.

        :param slots: of transitions of finished episodes, shape (n,)
        :return: goals, shape (n, ...)
        """
        rows, envs = np.divmod(slots, self.n_envs)
        return np.asarray(self._sample_goals(rows, envs))

    def rewards_for(self, slots: np.ndarray, goals: np.ndarray) -> np.ndarray:
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
