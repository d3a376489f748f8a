"""
Demonstrations: transitions that stay, and are part of every batch. They are a second, small buffer of the same class.

RLPD (Ball et al. 2023, arXiv 2302.02948) draws half of every batch from offline data. DQfD (Hester et al. 2018, arXiv
1704.03732) keeps demonstrations for ever.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers import inputs
from sb3_per.buffers.action_scaling import can_be_rescaled, is_scaled, require_inside, require_scaled, scaled, unscaled
from sb3_per.buffers.arrays import StoredRows
from sb3_per.buffers.slots import join_tensors, map_arrays

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

#: Id of the first demonstration. Ids of experience stay far below.
FIRST_ID = 2**62


class LinearShare:
    """
    Share of the demonstrations in a batch, which falls linearly with training progress.

    :param start: share at the start, in [0, 1]
    :param end: share at the end; ``None``: it stays
    """

    def __init__(self, start: float, end: float | None):
        self.start = start
        self.end = end
        #: largest training progress so far, from 0 to 1
        self.progress = 0.0

    @property
    def value(self) -> float:
        """Current share, in [0, 1]."""
        if self.end is None:
            return self.start
        return self.start + self.progress * (self.end - self.start)

    def follow(self, progress_remaining: float) -> None:
        """
        Move the share with training progress. It never goes back, e.g. in a resumed run.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules; below 0 if the last
            steps of several environments go beyond the end
        """
        self.progress = max(self.progress, 1.0 - max(progress_remaining, 0.0))


class Demonstrations:
    """
    The demonstrations of a buffer, and their share of a batch. Methods take the prioritized buffer with the experience, whose
    module imports this one.

    :param fraction: share of a batch at the start
    :param fraction_end: share at the end; ``None``: it stays
    """

    def __init__(self, fraction: float, fraction_end: float | None):
        self.share = LinearShare(fraction, fraction_end)
        #: buffer of one environment that holds them; ``None``: there are none
        self.buffer: PrioritizedReplayBuffer | None = None
        # Whether whole batches are demonstrations.
        self._fill_batches = False
        # Whether no batch was drawn since demonstrations were added.
        self._have_just_come = False
        self._follow_changes()

    def _follow_changes(self) -> None:
        """Note whether draws and updates have to ask for demonstrations. An attribute costs a buffer without them no call."""
        #: whether there are demonstrations, or batches must contain some
        self.take_part = self.buffer is not None or self.are_drawn

    def __len__(self) -> int:
        """Number of demonstrations."""
        return 0 if self.buffer is None else self.buffer.pos

    @property
    def are_drawn(self) -> bool:
        """Whether batches may contain demonstrations."""
        return self._fill_batches or self.share.start > 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Draw whole batches of demonstrations within a ``with`` block."""
        try:
            self._fill_batches = True
            self._follow_changes()
            yield
        finally:
            self._fill_batches = False
            self._follow_changes()

    # ---- write

    def add(
        self, experience: "PrioritizedReplayBuffer", obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any
    ) -> None:
        """See :meth:`PrioritizedReplayBuffer.add_demonstrations`."""
        require_terminal_observations(experience.optimize_memory_usage)
        shape = np.shape(reward)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"rewards of demonstrations must have shape (n, k), not {shape}: n successive steps of each of k "
                "environments, both at least 1. For the steps of one environment k is 1: give each array as array[:, None]"
            )
        _, timeouts = inputs.checked_infos(experience, shape, infos)
        rows = inputs.checked_rows(experience, shape, obs, next_obs, action, reward, done)
        obs, next_obs, actions, rewards, dones = rows
        require_scaled(actions, experience.action_space)
        self._write(experience, list(_by_environment(StoredRows(obs, next_obs, actions, rewards, dones, timeouts))))

    def add_from(self, experience: "PrioritizedReplayBuffer", other: ReplayBuffer) -> None:
        """See :meth:`PrioritizedReplayBuffer.add_demonstrations_from`."""
        require_terminal_observations(experience.optimize_memory_usage)
        _require_demonstrations_in(other, experience.observation_space, experience.action_space)
        columns = list(_columns_of(other))
        of_other = getattr(other, "demonstrations", None)  # a buffer of SB3 has none
        if other is not experience and isinstance(of_other, Demonstrations):
            columns += _columns_of(of_other.buffer)
        if not columns:
            raise ValueError("The other buffer is empty: it holds no transition to demonstrate anything")
        actions = np.concatenate([column.actions for column in columns])
        if other.action_space == experience.action_space:
            require_scaled(actions, experience.action_space)
        else:
            require_inside(unscaled(actions, other.action_space), experience.action_space)
            columns = [
                column._replace(actions=_rescaled(column.actions, other.action_space, experience.action_space))
                for column in columns
            ]
        self._write(experience, columns)

    def _write(self, experience: "PrioritizedReplayBuffer", columns: list[StoredRows]) -> None:
        """Store successive steps of environments. The last step of each ends an episode. They count once all are written."""
        end = len(self) + sum(len(column.rewards) for column in columns)
        buffer = self._with_room(experience, end)
        row = len(self)
        for column in columns:
            rows = np.arange(row, row + len(column.rewards))
            row += len(rows)
            column.write_to(buffer, rows)
            if not experience.handle_timeout_termination:
                buffer.timeouts[rows] = 0
            if not buffer.dones[row - 1, 0]:
                buffer.dones[row - 1, 0] = 1
                buffer.timeouts[row - 1, 0] = 1
        self._have_just_come = True
        self.hold(buffer)
        # In one statement, because an interrupt may come between two. They never fill their buffer.
        buffer.pos = buffer.numbering.next_step = end

    def _with_room(self, experience: "PrioritizedReplayBuffer", n: int) -> "PrioritizedReplayBuffer":
        """Return the buffer if n rows fit, or a larger one: its size at least doubles, so adding takes linear time."""
        old = self.buffer
        if old is not None and n < old.buffer_size:
            return old
        larger_size = max(n + 1, 2 * len(self))
        if old is None:
            return experience.empty_twin(larger_size)
        return self._with_rows_of(old, experience, larger_size, keeps_masses=True)

    def _with_rows_of(
        self, old: "PrioritizedReplayBuffer", experience: "PrioritizedReplayBuffer", size: int, keeps_masses: bool
    ) -> "PrioritizedReplayBuffer":
        """Make a buffer of another size, or with other settings, that holds the same demonstrations."""
        made = experience.empty_twin(size)
        rows = np.arange(old.pos)
        StoredRows.of(old, rows).write_to(made, rows)
        made.row_tracker.continue_from(made, old, keeps_masses)
        return made

    def hold(self, buffer: "PrioritizedReplayBuffer") -> None:
        """
        Hold the transitions of another buffer.

        :param buffer: from ``empty_twin``
        """
        self.buffer = buffer
        self._follow_changes()

    def continue_from(self, other: "Demonstrations", experience: "PrioritizedReplayBuffer", keeps_masses: bool) -> None:
        """
        Continue with the demonstrations of another buffer.

        :param other: not to be used any more
        :param experience: the buffer with the experience
        :param keeps_masses: whether it has the same scheme; otherwise every demonstration is a new one
        """
        self.share.progress = other.share.progress
        if other.buffer is not None:
            self.hold(self._with_rows_of(other.buffer, experience, other.buffer.buffer_size, keeps_masses))

    # ---- draw

    def draw(
        self,
        experience: "PrioritizedReplayBuffer",
        batch_size: int,
        series_progress: float | None,
        env: VecNormalize | None,
    ) -> tuple[ReplayBufferSamples, np.ndarray, np.ndarray, np.ndarray | None]:
        """
        Draw and read both parts of a batch, experience first.

        :param experience: the buffer
        :param batch_size: number of transitions
        :param series_progress: see :meth:`PrioritizedReplayBuffer.sample`
        :param env: associated VecNormalize
        :return: the batch; transition ids; N P, the probability P of each times the number N of candidates, counted over both
            parts (with ``recency`` those of the subset); and which rows are demonstrations, bool of shape (batch_size,),
            ``None`` where none are ever drawn
        :raises ValueError: if nothing can be drawn, or there are no demonstrations where a share of them is wanted
        """
        n = self._n_experience_in(experience, batch_size)
        if n == batch_size:
            slots, relative_probabilities = experience.draw_slots(batch_size, series_progress)
            is_demonstration = np.zeros(batch_size, np.bool_) if self.are_drawn else None
            return (
                experience.read_drawn(slots, env),
                experience.numbering.in_slots(slots),
                relative_probabilities,
                is_demonstration,
            )
        assert self.buffer is not None
        self.buffer.insert_new_rows()
        if n > 0:
            slots, of_experience = experience.draw_slots(n, series_progress)
        demonstrated, of_demonstrations = self.buffer.draw_slots(batch_size - n)
        # N P over both: n P of a part alone, times its share of the batch, times N / n.
        share = (batch_size - n) / batch_size
        n_candidates = experience.draw_candidates().n
        n_all = n_candidates + len(self)
        of_demonstrations = of_demonstrations * (share * n_all / len(self))
        data = experience.read_demonstrations(self.buffer, demonstrated, env)
        ids = self.buffer.numbering.in_slots(demonstrated) + FIRST_ID
        if n == 0:
            return data, ids, of_demonstrations, np.ones(batch_size, np.bool_)
        of_experience = of_experience * ((1.0 - share) * n_all / max(n_candidates, 1))
        return (
            ReplayBufferSamples(*map(join_tensors, experience.read_drawn(slots, env), data)),
            np.concatenate((experience.numbering.in_slots(slots), ids)),
            np.concatenate((of_experience, of_demonstrations)),
            np.arange(batch_size) >= n,
        )

    def _n_experience_in(self, experience: "PrioritizedReplayBuffer", batch_size: int) -> int:
        """
        Count the transitions of experience in the next batch.

        :raises ValueError: if there are no demonstrations where a share of them is wanted
        """
        if self._have_just_come and not self.are_drawn:
            warnings.warn(
                f"The buffer has {len(self)} demonstrations, and demonstration_fraction=0.0 draws none of them: set their "
                "share, e.g. replay_buffer_kwargs=dict(demonstration_fraction=0.25)"
            )
        self._have_just_come = False
        share = 1.0 if self._fill_batches else self.share.value
        if not self.are_drawn:
            return batch_size
        if len(self) == 0:
            if share > 0.0:
                raise ValueError(
                    f"demonstration_fraction={self.share.start} needs demonstrations, and the buffer has none. Add some "
                    "first: buffer.add_demonstrations(...), buffer.add_demonstrations_from(other_buffer), or "
                    "from_minari(dataset, buffer, demonstrations=True)"
                )
            return batch_size
        if experience.draw_candidates().n == 0:
            return 0
        return batch_size - round(share * batch_size)

    def draw_observations(self, experience: "PrioritizedReplayBuffer", n: int) -> Any:
        """
        Draw observations uniformly from each part.

        :param experience: the buffer
        :param n: number of observations
        :return: array of shape (n, ...), or a dictionary of them
        """
        n_experience = self._n_experience_in(experience, n)
        if n_experience == n:
            return experience.draw_observations(n)
        assert self.buffer is not None
        self.buffer.insert_new_rows()
        if n_experience == 0:
            return self.buffer.draw_observations(n)
        obs = experience.draw_observations(n_experience)
        return map_arrays(lambda *parts: np.concatenate(parts), obs, self.buffer.draw_observations(n - n_experience))

    # ---- update

    def update(self, experience: "PrioritizedReplayBuffer", ids: np.ndarray, abs_td_errors: np.ndarray) -> int:
        """
        Set the priorities of both parts. Both are checked before either is written.

        :param experience: the buffer
        :param ids: transition ids, int64 of shape (n,)
        :param abs_td_errors: ``|td|``, float64 of shape (n, n_critics)
        :return: how many ids were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for a priority that is not allowed, from a user's scheme
        """
        if self.buffer is None:  # no id is that of a demonstration
            is_demonstration = np.zeros(len(ids), bool)
        else:
            is_demonstration = ids >= FIRST_ID
        found = experience.find_and_evaluate(ids[~is_demonstration], abs_td_errors[~is_demonstration])
        n_written = len(found[0])
        if is_demonstration.any():
            n_written += self._update_own(ids[is_demonstration] - FIRST_ID, abs_td_errors[is_demonstration])
        experience.priority_sampler.update(*found)
        return n_written

    def _update_own(self, ids: np.ndarray, abs_td_errors: np.ndarray) -> int:
        """Set the priorities of demonstrations. Messages name the ids that the caller knows."""
        assert self.buffer is not None
        self.buffer.insert_new_rows()
        try:
            found = self.buffer.find_and_evaluate(ids, abs_td_errors)
        except IndexError as error:
            raise IndexError(f"Ids of demonstrations count from {FIRST_ID} on. {error}") from None
        self.buffer.priority_sampler.update(*found)
        return len(found[0])


def _columns_of(buffer: ReplayBuffer | None) -> Iterator[StoredRows]:
    """Read the successive steps of each environment of a buffer, from old to new; ``None``: there is none."""
    if buffer is None:
        return
    first = buffer.pos if buffer.full else 0
    yield from _by_environment(StoredRows.of(buffer, (first + np.arange(buffer.size())) % buffer.buffer_size))


def _by_environment(steps: StoredRows) -> Iterator[StoredRows]:
    """Divide rows into the successive steps of each environment."""
    n_rows, n_envs = steps.rewards.shape
    for env in range(n_envs if n_rows else 0):
        yield steps.select((slice(None), slice(env, env + 1)))


def _rescaled(actions: np.ndarray, recorded: spaces.Space, space: spaces.Space) -> np.ndarray:
    """Scale actions anew that were recorded with other bounds."""
    return scaled(unscaled(actions, recorded), space).reshape(actions.shape)


def require_terminal_observations(optimize_memory_usage: bool) -> None:
    """
    Check that a buffer can hold demonstrations.

    :param optimize_memory_usage: SB3's
    :raises NotImplementedError: with ``optimize_memory_usage``
    """
    if optimize_memory_usage:
        raise NotImplementedError(
            "Learning from demonstrations with optimize_memory_usage=True is not supported: the observation after the "
            "last step of an episode is not stored"
        )


def _require_demonstrations_in(other: Any, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """
    Check that the transitions of another buffer can become demonstrations.

    :param other: buffer with the transitions
    :param observation_space: observation space that it must have
    :param action_space: action space that it must have, except for the bounds of a Box
    :raises TypeError: for anything but a buffer, e.g. a model
    :raises ValueError: for other spaces, a buffer with ``optimize_memory_usage``, or a reward that is NaN or infinite
    """
    if not isinstance(other, ReplayBuffer):
        hint = ": give model.replay_buffer" if isinstance(other, BaseAlgorithm) else ""
        raise TypeError(f"add_demonstrations_from() takes a replay buffer, not a {type(other).__name__}{hint}")
    if other.observation_space != observation_space:
        raise ValueError(f"The other buffer has observation_space {other.observation_space}, and this one {observation_space}")
    has_other_bounds = can_be_rescaled(other.action_space, action_space) and is_scaled(other.action_space)
    if other.action_space != action_space and not (has_other_bounds and is_scaled(action_space)):
        raise ValueError(f"The other buffer has action_space {other.action_space}, and this one {action_space}")
    if other.optimize_memory_usage:
        raise ValueError(
            "The other buffer has optimize_memory_usage=True, which does not store the last observation of an episode, so its "
            "transitions cannot be demonstrations"
        )
    inputs.require_finite_rewards(other.rewards[: other.size()])
