"""
The ring of a buffer of sequences: what it notes of each step beside SB3's arrays, and which windows can be drawn.

A window is known by its first step, the **anchor**: every ``sequence_period``-th step of an episode. It alone has mass, in the
same tree; all other leaves have mass 0. Nothing is known here of what a batch looks like, or of what a priority is.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.adding import NUMBERS
from sb3_per.buffers.contents import Contents
from sb3_per.buffers.recurrent_states import RecurrentStates
from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.buffers.ring import is_count, rows
from sb3_per.buffers.windows import (
    IS_UNROLLED_FROM,
    LEAVES_OPEN,
    admit_windows,
    end_of_complete,
    number_by_dones,
    number_next,
)

_shape_of = operator.attrgetter("shape")


def _is_of_numbers(state: np.ndarray | th.Tensor) -> bool:
    return not state.dtype.is_complex if isinstance(state, th.Tensor) else state.dtype.kind in NUMBERS


# What makes a window another one.
_WINDOW_SETTINGS = ("sequence_length", "_period", "burn_in", "n_steps")


class SequenceRing(PrioritizedReplayBuffer):
    """
    A ring of steps that windows begin at, see :class:`~sb3_per.buffers.sequences.PrioritizedSequenceReplayBuffer`.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``
    :param sequence_length: steps of a window that are learned
    :param burn_in: steps before them
    :param sequence_period: every so many steps of an episode a window begins; ``None``: ``sequence_length``
    :param store_state: whether recurrent states are kept
    :param state_shapes: (n_layers, hidden) of each recurrent state
    :param kwargs: SB3's keyword arguments and those of :class:`~sb3_per.buffers.replay.PrioritizedReplayBuffer`
    :raises ValueError: for a setting outside of its range, before any memory is allocated
    """

    # Most transitions are no anchors.
    _some_are_not_ready = True

    _unit: ClassVar[str] = "window"

    def __init__(
        self,
        *args: Any,
        sequence_length: int,
        burn_in: int,
        sequence_period: int | None,
        store_state: bool,
        state_shapes: Sequence[tuple[int, int]],
        **kwargs: Any,
    ):
        if not is_count(sequence_length):
            raise ValueError(f"sequence_length must be an integer of at least 1, not {sequence_length!r}")
        if not is_count(burn_in) and (burn_in != 0 or isinstance(burn_in, (bool, float))):
            raise ValueError(f"burn_in must be an integer of at least 0, not {burn_in!r}")
        if sequence_period is not None and not (is_count(sequence_period) and sequence_period <= sequence_length):
            raise ValueError(
                f"sequence_period must be None or an integer from 1 to sequence_length={sequence_length}, not "
                f"{sequence_period!r}: with a larger one, the steps in between would never be learned"
            )
        shapes = tuple(tuple(shape) for shape in state_shapes)
        if not all(len(shape) == 2 and all(map(is_count, shape)) for shape in shapes):
            raise ValueError(f"state_shapes must be pairs (n_layers, hidden) of integers of at least 1, not {state_shapes!r}")
        super().__init__(*args, **kwargs)
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        self.sequence_period = sequence_period
        self.store_state = store_state
        self.state_shapes = shapes
        # Of one step: shapes of its states, that no episode starts, and the numbers in the row before it.
        self._shapes_of_step = [(n_layers, self.n_envs, hidden) for n_layers, hidden in shapes]
        self._no_starts = np.zeros(self.n_envs, np.bool_)
        self._overwritten = np.zeros(self.n_envs, np.int32)
        self._allocate_windows()

    def _allocate_windows(self) -> None:
        """What SB3's buffers do not have."""
        shape = (self.buffer_size, self.n_envs)
        #: number of each step within its episode, int32 of shape (buffer_size, n_envs)
        self.episode_steps: np.ndarray = np.zeros(shape, np.int32)
        # How many of the steps added have theirs, and SB3's cursor behind the one that was added last.
        self._n_numbered: int = self._n_added
        self._known_cursor: tuple[int, bool] = (self.pos, self.full)
        self._states: RecurrentStates = RecurrentStates(
            *shape, self._period, self.burn_in, self.state_shapes, self.store_state
        )
        # Which steps begin windows that can be drawn, by row and environment, and how many there are.
        self._is_ready: np.ndarray = np.zeros(shape, np.bool_)
        self._n_ready: int = 0
        # The oldest step that they may begin with; and the step of each environment that this is not decided for yet.
        self._oldest_admitted: int = 0
        self._n_looked_at: np.ndarray = np.zeros(self.n_envs, np.int64)

    @property
    def _period(self) -> int:
        """Steps from one anchor to the next."""
        return self.sequence_length if self.sequence_period is None else self.sequence_period

    @property
    def _n_recorded(self) -> int:
        """Steps of a complete window: the last one that is learned, and those of its n-step return."""
        return self.sequence_length + self.n_steps - 1

    # ---- what comes in

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        td_errors: np.ndarray | th.Tensor | None = None,
        episode_starts: np.ndarray | None = None,
        states: Sequence[np.ndarray | th.Tensor] | None = None,
    ) -> None:
        """
        Store one step of every environment, see SB3.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: end of an episode, shape (n_envs,)
        :param infos: one dictionary per environment
        :param td_errors: refused, see the class
        :param episode_starts: whether ``obs`` is the first of an episode, shape (n_envs,). Where one had no end, its last step
            becomes a truncation, as with :meth:`end_episodes`. Behind a ``done``, and where nothing is held, an episode starts
            in any case; ``None``: only there
        :param states: the recurrent states **before** this step, that acting had when it saw ``obs``: one for each of
            ``state_shapes``, of shape (n_layers, n_envs, hidden), as ``th.nn.LSTM`` has them. ``None``: zeros. At the start
            of an episode the state is zero, whatever is given
        :raises ValueError: for what does not fit, or is no number; nothing is changed then
        """
        starts = self._no_starts
        if episode_starts is not None:
            starts = np.asarray(episode_starts, np.bool_)
            if starts.shape != (self.n_envs,):
                raise ValueError(f"episode_starts of shape {starts.shape} do not fit {self.n_envs} environments")
        if states is not None and [*map(_shape_of, states)] != self._shapes_of_step:
            given = [tuple(state.shape) for state in states]
            raise ValueError(
                f"states of shapes {given} do not fit state_shapes={self.state_shapes}: expected {self._shapes_of_step}"
            )
        if states is not None and not all(map(_is_of_numbers, states)):
            raise ValueError(f"states must be arrays of real numbers, not of {[str(state.dtype) for state in states]}")
        if td_errors is not None:
            self._masses_of(td_errors, self.n_envs)  # raises
        checked = self._checked_step(obs, next_obs, action, reward, done, infos)
        with self._lock:
            if (self.pos, self.full) != self._known_cursor:
                self._count_foreign_steps()
            row, step, kept = self.pos, self._n_added, self._states
            # Now: in a ring of a single row, the step before is about to be overwritten.
            found = number_next(
                self.episode_steps,
                self.dones,
                self.timeouts,
                row,
                step == self._n_before_ring,
                starts,
                kept.period,
                kept.burn_in,
                self._overwritten,
            )
            try:
                self._write_step(*checked)
            except BaseException:
                if self._n_added == step:
                    self.episode_steps[row] = self._overwritten
                raise
            self._n_numbered, self._known_cursor = self._n_added, (self.pos, self.full)
            if found:
                if found & LEAVES_OPEN and self.buffer_size > 1:
                    self._truncate(row - 1, starts & (self.dones[row - 1] == 0))
                if found & IS_UNROLLED_FROM:
                    kept.store(row, self.episode_steps[row], states)

    def _count_foreign_steps(self) -> bool:
        is_foreign = super()._count_foreign_steps()
        if self._n_numbered != self._n_added:
            # Also after an interrupt in the middle of `add`.
            self._number_by_dones(self._n_numbered)
        return is_foreign

    def _number_by_dones(self, first: int) -> None:
        """Nobody told where episodes start from this step on, or what the states were."""
        oldest = self._n_added - self.size()
        # What they go on from is there, unless they are a whole lap.
        is_continued = oldest < first or oldest == self._n_before_ring
        first = max(first, oldest)
        number_by_dones(
            self.episode_steps,
            self.dones,
            self.timeouts,
            first,
            self._n_added,
            self._n_before_ring if is_continued else first,
        )
        self._states.clear(first, self._n_added, self.episode_steps)
        self._n_numbered = self._n_added

    def end_episodes(self) -> None:
        """See :meth:`~sb3_per.buffers.ring.TransitionRing.end_episodes`; their last windows can be drawn then."""
        with self._lock:
            super().end_episodes()
            self._n_admitted = -1  # not only new steps are to be admitted

    def _require_columns(self) -> None:
        raise NotImplementedError(
            "Environments that add on their own are not supported with sequences: windows of all of them become complete, and "
            "are given up, by one cursor"
        )

    # ---- which windows can be drawn

    @property
    def _oldest_anchor(self) -> int:
        """
        The oldest step whose window may be drawn. In a full ring its prefix must not be overwritten, nor the state in front
        of that: it shares its slot with up to ``sequence_period`` - 1 rows that come before it.
        """
        oldest = self._n_added - self.size()
        if self.full:
            oldest += self.burn_in + self._period - 1
        return max(oldest, self._oldest_admitted)

    def _can_be_drawn(self, ids: np.ndarray) -> np.ndarray:
        drawable: np.ndarray = super()._can_be_drawn(ids) & rows(self._is_ready, ids % self._capacity)
        return drawable

    @property
    def _n_drawable(self) -> int:
        return self._n_ready

    @property
    def _n_with_mass(self) -> int:
        return self._n_ready

    def _drawable_leaves(self, n_newest: int) -> Callable[[np.ndarray], np.ndarray]:
        # All of them: emphasizing the newest is refused.
        return np.flatnonzero(self._is_ready).__getitem__

    def _admit(self) -> None:
        """Let the windows be drawn that are complete by now, and no more those whose beginning is being overwritten."""
        retired, oldest, capacity = self._oldest_admitted, min(self._oldest_anchor, self._n_added), self._capacity
        leaves, n_gone = admit_windows(
            self._is_ready,
            self._n_looked_at,
            self.episode_steps,
            self.dones,
            self.timeouts,
            retired,
            oldest,
            self._n_added,
            self._period,
            self._n_recorded,
        )
        self._fill(max(retired * self.n_envs, oldest * self.n_envs - capacity), oldest * self.n_envs, 0.0)
        self._n_ready -= n_gone
        if leaves.size:
            self._give_masses(leaves)
        self._n_ready += leaves.size
        self._oldest_admitted, self._n_admitted = oldest, self._n_added

    def _readmit(self) -> None:
        super()._readmit()
        self._forget_windows(self._oldest_admitted)
        self._n_admitted = -1

    def _forget_windows(self, oldest: int) -> None:
        """
        Admit all anew.

        :param oldest: step that no window begins before
        """
        self._is_ready.fill(False)
        self._n_looked_at.fill(oldest)
        self._n_ready, self._oldest_admitted = 0, oldest

    def _begin_ring(self) -> None:
        super()._begin_ring()
        self._n_numbered = self._n_before_ring
        self._forget_windows(self._n_before_ring)

    # ---- from one setting to another

    def _draws_what_is_drawn_from(self, buffer: ReplayBuffer) -> bool:
        return super()._draws_what_is_drawn_from(buffer) and all(
            getattr(buffer, name) == getattr(self, name) for name in _WINDOW_SETTINGS
        )

    def _take_masses_of(self, buffer: ReplayBuffer) -> None:
        if not self._draws_what_is_drawn_from(buffer):
            states = self._states  # those of the other buffer, if it has any
            self._allocate_windows()
            if isinstance(buffer, SequenceRing):
                self.episode_steps, self._n_numbered = buffer.episode_steps, buffer._n_numbered
                self._states = states if self._states.is_like(states) else self._states
                self._oldest_admitted = buffer._oldest_admitted
            else:
                self._number_by_dones(self._n_before_ring)
                self._oldest_admitted = self._n_added - self.size()
        super()._take_masses_of(buffer)

    # ---- all of it, for files

    def _columns(self) -> dict[str, np.ndarray]:
        return {**super()._columns(), "episode_steps": self.episode_steps}

    def _facts(self) -> dict[str, Any]:
        return {
            "sequences": {"period": self._period, "burn_in": self.burn_in, "state_shapes": [*map(list, self.state_shapes)]}
        }

    def _extract(self) -> Contents:
        contents = super()._extract()
        contents.numbers.update(oldest_admitted=self._oldest_admitted, n_recorded=self._n_recorded)
        contents.arrays["steps_looked_at"] = self._n_looked_at
        # By step, not by slot: that depends on the size.
        owners = self._states.owners(contents.first, contents.end, self.episode_steps)
        slots, envs = np.nonzero(owners >= 0)
        order = np.argsort(owners[slots, envs], kind="stable")
        slots, envs = slots[order], envs[order]
        contents.arrays.update(state_steps=owners[slots, envs], state_envs=envs)
        contents.arrays.update({f"states.{i}": array[slots, envs] for i, array in enumerate(self._states.arrays)})
        return contents

    def _allocate(self) -> None:
        super()._allocate()
        self._allocate_windows()

    def _restore(self, contents: Contents, keeps_masses: bool = True) -> None:
        held = np.arange(self._n_added - self.size(), self._n_added)
        episode_steps = self.episode_steps[held % self.buffer_size]
        before, after = episode_steps[:-1], episode_steps[1:]
        if episode_steps.min(initial=0) < 0 or ((after != 0) & (after != before + 1)).any():
            raise ValueError("Steps of an episode do not follow one another")
        shift = self._n_added - contents.end
        oldest = min(max(int(contents.numbers["oldest_admitted"]) + shift, self._oldest_anchor), self._n_added)
        self._n_numbered = self._n_added
        self._restore_states(contents, shift, int(held[0]) if held.size else self._n_added)
        super()._restore(contents, keeps_masses)
        self._forget_windows(oldest)
        if not keeps_masses:
            return
        looked_at = contents.arrays["steps_looked_at"].astype(np.int64) + shift
        if looked_at.shape != (self.n_envs,) or looked_at.max() > self._n_added:
            raise ValueError(f"windows are known up to the steps {looked_at} of {self._n_added}")
        if contents.numbers["n_recorded"] != self._n_recorded:
            # Of windows of another length, others are complete.
            complete = [
                end_of_complete(self.episode_steps, self.dones, self.timeouts, self._n_added, self._n_recorded, env)
                for env in range(self.n_envs if held.size else 0)
            ]
            looked_at[: len(complete)] = np.minimum(looked_at[: len(complete)], complete)
            self._n_admitted = -1
        self._n_looked_at = looked_at
        is_decided = (held[:, None] >= oldest) & (held[:, None] < looked_at)
        self._is_ready[held % self.buffer_size] = is_decided & (episode_steps % self._period == 0)
        self._n_ready = int(np.count_nonzero(self._is_ready))
        # Where the ring is smaller than it was.
        self._tree.update(np.flatnonzero(~self._is_ready.reshape(-1) & (self._tree.masses > 0.0)), 0.0)

    def _restore_states(self, contents: Contents, shift: int, oldest: int) -> None:
        steps, envs = (contents.arrays[name].astype(np.int64) for name in ("state_steps", "state_envs"))
        steps = steps + shift
        is_kept = steps >= oldest
        if steps.shape != envs.shape or (steps >= self._n_added).any() or (envs < 0).any() or (envs >= self.n_envs).any():
            raise ValueError("A recurrent state is of a step that is not there")
        if self.store_state:
            states = [contents.arrays[f"states.{i}"][is_kept] for i in range(len(self.state_shapes))]
            self._states.place(steps[is_kept], envs[is_kept], states)
