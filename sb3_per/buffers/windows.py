"""
Which windows of consecutive steps can be drawn, and where their steps are (R2D2: Kapturowski et al. 2019).

Every ``period``-th step of an episode is an **anchor**, the first step of a window, and anchors alone have mass. Steps are
numbered as in :class:`~sb3_per.sampling.transition_ids.TransitionIds`: step ``s`` is in row ``s % n_rows``.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch as th

from sb3_per.buffers.n_step import return_windows
from sb3_per.buffers.rows import RowTracker
from sb3_per.buffers.state import BufferState
from sb3_per.utils.compiled import kernel

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer
    from sb3_per.buffers.sequences import PrioritizedSequenceReplayBuffer

#: recurrent states, each of shape (n_layers, n_envs, hidden)
States = Sequence[np.ndarray | th.Tensor]


class Changes(NamedTuple):
    """Windows that can be drawn from now on, and that no longer can, until :meth:`Windows.confirm`."""

    #: anchors of windows that became complete, from old to new, int64 of shape (n,)
    new: np.ndarray
    #: slots that cannot be anchors any more, int64 of shape (m,)
    gone: np.ndarray
    #: first step of each environment that is not decided yet, afterwards, int64 of shape (n_envs,)
    undecided: np.ndarray
    #: oldest step that may be an anchor, afterwards
    oldest_anchor: int


class WindowBatch(NamedTuple):
    """Where the steps of drawn windows are. B is the batch size, n the recorded steps of a window."""

    #: slots of the steps, time first, int64 of shape (n, B); after the end of a window, its first slot again
    slots: np.ndarray
    #: how many steps count, 1 to n, int64 of shape (B,)
    lengths: np.ndarray
    #: slots of the last steps that count, int64 of shape (B,)
    last_slots: np.ndarray
    #: slots of the steps before the first, for burn-in, int64 of shape (burn_in, B)
    prefix_slots: np.ndarray
    #: how many of them count, int64 of shape (B,)
    prefix_lengths: np.ndarray
    #: recurrent states before the prefix, each float32 of shape (n_layers, B, hidden)
    states: list[np.ndarray]


class Windows:
    """
    The windows of a buffer. Methods take the buffer, whose arrays may be assigned at any time.

    A window has learned steps, after up to ``burn_in`` steps that warm up the recurrent state. It ends with its episode. A
    window can be drawn once ``n_recorded`` steps from its anchor on are stored, or its episode has ended.

    One recurrent state is kept for every ``period`` rows of each environment. For a million rows, an LSTM of 256 units and a
    period of 40, this takes 51 MB; one for each row would take 2 GB. The states that two windows of an episode need are
    ``period`` rows apart, and a window of the next episode cannot need one in between: from each of its states on, an episode
    has at least ``burn_in`` + 1 rows. At the start of an episode the state is zero, and is not kept.

    In a full buffer, a new row overwrites the state of a row that is up to ``period`` - 1 rows ahead. The window of that state
    begins ``burn_in`` rows later, so no window before it can be drawn.

    :param n_rows: number of rows of the buffer
    :param n_envs: number of environments
    :param n_recorded: steps of a complete window: the learned ones, and those of the last n-step return
    :param period: steps from one anchor to the next
    :param burn_in: steps before an anchor from which a window is unrolled
    :param state_shapes: (n_layers, hidden) of each recurrent state
    :param store_state: whether states are kept; otherwise all are zero
    """

    def __init__(
        self,
        n_rows: int,
        n_envs: int,
        n_recorded: int,
        period: int,
        burn_in: int,
        state_shapes: Sequence[tuple[int, int]] = (),
        store_state: bool = True,
    ):
        self.n_rows = n_rows
        self.n_envs = n_envs
        self.n_recorded = n_recorded
        self.period = period
        self.burn_in = burn_in
        self.state_shapes = tuple(state_shapes)
        #: number of each step within its episode, int32 of shape (n_rows, n_envs)
        self.steps_in_episode = np.zeros((n_rows, n_envs), np.int32)
        #: anchors of windows that can be drawn, bool of shape (n_rows, n_envs)
        self.is_drawable = np.zeros((n_rows, n_envs), np.bool_)
        #: oldest step that may be an anchor
        self.oldest_anchor = 0
        #: by environment, the first step of which it is not decided yet, int64 of shape (n_envs,)
        self.undecided = np.zeros(n_envs, np.int64)
        n_states = -(-n_rows // period)
        #: float32, each of shape (n_states, n_envs, n_layers, hidden); none if no states are kept
        self.states = [np.zeros((n_states, n_envs, *shape), np.float32) for shape in self.state_shapes if store_state]
        # Below 0 after an interrupt while marks changed: they are counted anew.
        self._n_drawable = 0
        self._shapes_of_step = [(n_layers, n_envs, hidden) for n_layers, hidden in self.state_shapes]
        self._no_starts = np.zeros(n_envs, np.bool_)

    @property
    def n_drawable(self) -> int:
        """Number of windows that can be drawn."""
        if self._n_drawable < 0:
            self._n_drawable = int(np.count_nonzero(self.is_drawable))
        return self._n_drawable

    # ---- write

    def require_fitting(self, starts: np.ndarray | None, states: States | None) -> None:
        """
        Check what comes with a step.

        :param starts: starts of episodes
        :param states: recurrent states before the step. They may come from a device, so their values are not read
        :raises ValueError: for another shape, or states that are no real numbers
        """
        if starts is not None and starts.shape != (self.n_envs,):
            raise ValueError(f"episode_starts of shape {starts.shape} do not fit {self.n_envs} environments")
        if states is None:
            return
        given = [tuple(state.shape) for state in states]
        if given != self._shapes_of_step:
            raise ValueError(f"states of shapes {given} do not fit state_shapes={self.state_shapes}: {self._shapes_of_step}")
        for state in states:
            is_real = not state.is_complex() if isinstance(state, th.Tensor) else state.dtype.kind in "fiub"
            if not is_real:
                raise ValueError(f"states must hold real numbers, not {state.dtype}")

    def begin_row(self, buffer: "PrioritizedSequenceReplayBuffer", starts: np.ndarray | None, states: States | None) -> None:
        """
        Number the step that is stored next within its episode, keep the states before it, and end the episodes that it does
        not continue. Call it before the step is stored: in a buffer of one row, it overwrites the step before.

        :param buffer: the buffer
        :param starts: where an episode starts although the one before has not ended, bool of shape (n_envs,); ``None``:
            nowhere. After an end, and in an empty buffer, an episode always starts
        :param states: recurrent states before the step, each of shape (n_layers, n_envs, hidden); ``None``: zeros
        """
        row = buffer.pos
        row_before = (row - 1) % self.n_rows
        if starts is None:
            starts = self._no_starts
        numbers = self.steps_in_episode[row_before].copy()
        any_cut, any_unrolled = number_next(
            numbers,
            buffer.dones[row_before],
            buffer.timeouts[row_before],
            buffer.size() == 0,
            starts,
            self.period,
            self.burn_in,
        )
        if any_unrolled:
            arrays = self._as_arrays(states)  # first, because a device may fail
        if any_cut and self.n_rows > 1:
            buffer.end_episodes(np.flatnonzero(starts))
        self.steps_in_episode[row] = numbers
        if any_unrolled:
            envs = np.flatnonzero(self._are_unrolled_from(numbers))
            for kept, state in zip(self.states, arrays, strict=False):
                kept[row // self.period, envs] = state.swapaxes(0, 1)[envs]

    def _as_arrays(self, states: States | None) -> list[np.ndarray]:
        """Copy states from their device."""
        if states is None:
            return [np.zeros(shape, np.float32) for shape in self._shapes_of_step]
        # NumPy does not have all types of torch.
        return [state.detach().float().cpu().numpy() if isinstance(state, th.Tensor) else state for state in states]

    def _are_unrolled_from(self, numbers: np.ndarray) -> np.ndarray:
        """Tell from which steps of an episode a window is unrolled, other than its start."""
        return (numbers > 0) & ((numbers + self.burn_in) % self.period == 0)

    # ---- which windows can be drawn

    def changes(self, buffer: "PrioritizedSequenceReplayBuffer") -> Changes:
        """
        Find the windows that became complete, and those whose beginning is being overwritten. None is marked yet.

        :param buffer: the buffer, which is not empty
        :return: what to tell the tree, and :meth:`confirm` afterwards
        """
        end = buffer.numbering.next_step
        oldest = buffer.numbering.first_step
        if buffer.full:
            # The prefix must be there, and the state before it, which shares its place with up to `period` - 1 earlier rows.
            oldest = min(end - self.n_rows + self.burn_in + self.period - 1, end)
        oldest = max(oldest, self.oldest_anchor)
        first_gone = max(self.oldest_anchor, oldest - self.n_rows)
        gone = np.arange(first_gone * self.n_envs, oldest * self.n_envs) % buffer.numbering.capacity

        newest_row = (end - 1) % self.n_rows
        is_over = (buffer.dones[newest_row] != 0) | (buffer.timeouts[newest_row] != 0)
        start_of_newest = end - 1 - self.steps_in_episode[newest_row]
        first = np.maximum(self.undecided, oldest)
        decided = np.where(is_over, end, np.maximum(start_of_newest, end - self.n_recorded + 1))
        decided = np.maximum(decided, first)
        steps = np.arange(first.min(), decided.max())
        rows = steps % self.n_rows
        is_new = (first <= steps[:, None]) & (steps[:, None] < decided) & (self.steps_in_episode[rows] % self.period == 0)
        found, envs = np.nonzero(is_new)
        return Changes(rows[found] * self.n_envs + envs, gone, decided, oldest)

    def confirm(self, changes: Changes) -> None:
        """
        Admit the new windows, and retire the others. Twice is as good as once.

        :param changes: from :meth:`changes`
        """
        marks = self.is_drawable.reshape(-1)
        n_drawable = self.n_drawable
        self._n_drawable = -1
        n_drawable -= int(np.count_nonzero(marks[changes.gone]))
        marks[changes.gone] = False
        n_drawable += len(changes.new) - int(np.count_nonzero(marks[changes.new]))
        marks[changes.new] = True
        # In one statement, because an interrupt may come between two.
        self._n_drawable, self.undecided, self.oldest_anchor = n_drawable, changes.undecided, changes.oldest_anchor

    def find_anew(self) -> None:
        """Look for all complete windows anew."""
        self._n_drawable = -1
        self.is_drawable.fill(False)
        self.undecided = np.full(self.n_envs, self.oldest_anchor)

    def start_over(self, buffer: "PrioritizedSequenceReplayBuffer", first: int) -> None:
        """
        Number the rows that are there. The ends of episodes say which steps belong together; recurrent states are not known.

        :param buffer: the buffer
        :param first: step that starts an episode
        """
        end = buffer.numbering.next_step
        if end > first:
            number_by_dones(self.steps_in_episode, buffer.dones, buffer.timeouts, first, end)
            for array in self.states:
                array.fill(0.0)
        self.oldest_anchor = first
        self.find_anew()

    def takes_states_of(self, other: "Windows") -> bool:
        """
        Tell whether the states that another buffer has stored are those from which windows are unrolled here.

        :param other: of another buffer
        :return: whether they are
        """
        fits = (self.period, self.burn_in) == (other.period, other.burn_in)
        return fits and [array.shape for array in self.states] == [array.shape for array in other.states]

    def continue_from(self, other: "Windows", first: int, keeps_masses: bool) -> None:
        """
        Continue with the windows of another buffer, whose rows are in the same places here.

        :param other: not to be used any more
        :param first: oldest step that is held
        :param keeps_masses: whether these are windows of the same steps; otherwise all are found anew
        """
        self.steps_in_episode = other.steps_in_episode
        self.oldest_anchor = other.oldest_anchor
        if self.burn_in > other.burn_in:  # no window may be unrolled from before the oldest step
            steps = np.arange(self.oldest_anchor, first + self.burn_in)
            n_before = np.minimum(self.steps_in_episode[steps % self.n_rows], self.burn_in)
            too_early = np.flatnonzero((n_before > (steps - first)[:, None]).any(axis=1))
            if len(too_early):
                self.oldest_anchor = int(steps[too_early[-1]]) + 1
        if self.takes_states_of(other):
            self.states = other.states
        self.find_anew()
        if keeps_masses:
            self.is_drawable = other.is_drawable
            self.undecided = other.undecided

    # ---- read

    def read(self, buffer: "PrioritizedSequenceReplayBuffer", slots: np.ndarray) -> WindowBatch:
        """
        Find the steps of windows.

        :param buffer: the buffer
        :param slots: anchors of complete windows, int64 of shape (B,)
        :return: where their steps are
        """
        steps = return_windows(slots, buffer.dones, buffer.timeouts, buffer.pos, self.n_recorded)
        is_step = np.arange(self.n_recorded) < steps.lengths[:, None]
        numbers = self.steps_in_episode.take(slots)
        prefix_lengths = np.minimum(numbers, self.burn_in).astype(np.int64)
        capacity = self.n_rows * self.n_envs
        first_slots = (slots - prefix_lengths * self.n_envs) % capacity
        offsets = np.arange(self.burn_in)[:, None]
        prefix_slots = (first_slots + offsets * self.n_envs) % capacity
        return WindowBatch(
            slots=np.where(is_step, steps.slots, slots[:, None]).T,
            lengths=steps.lengths,
            last_slots=steps.last_slots,
            prefix_slots=np.where(offsets < prefix_lengths, prefix_slots, first_slots),
            prefix_lengths=prefix_lengths,
            states=self._states_at(slots, numbers),
        )

    def lengths_at(self, buffer: "PrioritizedSequenceReplayBuffer", slots: np.ndarray, n_steps: int) -> np.ndarray:
        """
        Count the steps from slots on to the end of the episode, or of what is stored.

        :param buffer: the buffer
        :param slots: int64 of shape (B,)
        :param n_steps: largest number of steps
        :return: 1 to ``n_steps`` for each, int64 of shape (B,)
        """
        return return_windows(slots, buffer.dones, buffer.timeouts, buffer.pos, n_steps).lengths

    def _states_at(self, slots: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        """Read the states from which windows are unrolled, each of shape (n_layers, B, hidden)."""
        if not self.states:
            return [np.zeros((n_layers, len(slots), hidden), np.float32) for n_layers, hidden in self.state_shapes]
        rows, envs = np.divmod(slots, self.n_envs)
        places = (rows - self.burn_in) % self.n_rows // self.period
        found = []
        for kept in self.states:
            states = kept[places, envs]
            states[numbers <= self.burn_in] = 0.0
            found.append(np.ascontiguousarray(states.swapaxes(0, 1)))
        return found

    # ---- save and load

    def state(self, buffer: "PrioritizedSequenceReplayBuffer") -> BufferState:
        """
        Collect what a buffer with these rows needs, of any size. Ages count back from the step that is stored next.

        :param buffer: the buffer
        :return: see :meth:`load`
        """
        end = buffer.numbering.next_step
        numbers = {
            "oldest_anchor_age": end - self.oldest_anchor,
            "undecided_ages": (end - self.undecided).tolist(),
            "n_recurrent_states": len(self.states),
        }
        rows, envs = self._unrolled_rows(buffer)
        arrays = {f"recurrent_states_{i}": kept[rows // self.period, envs] for i, kept in enumerate(self.states)}
        return BufferState(numbers, {"windows_steps": self.steps_in_episode}, arrays)

    def load(self, buffer: "PrioritizedSequenceReplayBuffer", state: BufferState, keeps_masses: bool, is_whole: bool) -> None:
        """
        Restore a state.

        :param buffer: the buffer, which stands after the rows
        :param state: from :meth:`state`, of a buffer of any size
        :param keeps_masses: whether the same windows can be drawn; otherwise all are found anew
        :param is_whole: whether these are all rows of the other buffer; otherwise the older ones are missing
        :raises ValueError: if the state contradicts itself
        """
        end, first = buffer.numbering.next_step, buffer.numbering.next_step - buffer.size()
        numbers = state.by_row["windows_steps"]
        held = numbers[np.arange(first, end) % self.n_rows]
        if (held < 0).any() or ((held[1:] != 0) & (held[1:] != held[:-1] + 1)).any():
            raise ValueError("steps of an episode do not follow one another")
        self.steps_in_episode[:] = numbers
        oldest_age, undecided_ages = state.numbers["oldest_anchor_age"], state.numbers["undecided_ages"]
        if oldest_age < 0 or len(undecided_ages) != self.n_envs or min(undecided_ages) < 0:
            raise ValueError(f"windows are known from {oldest_age} steps ago to {undecided_ages} steps ago")
        self.oldest_anchor = max(end - oldest_age, first)
        self.find_anew()
        if keeps_masses:
            self.undecided = end - np.array(undecided_ages, np.int64)
            steps = np.arange(self.oldest_anchor, end)
            rows = steps % self.n_rows
            self.is_drawable[rows] = (steps[:, None] < self.undecided) & (self.steps_in_episode[rows] % self.period == 0)
        if len(self.states) == state.numbers["n_recurrent_states"]:
            rows, envs = self._unrolled_rows(buffer)
            for i, kept in enumerate(self.states):
                states = state.arrays[f"recurrent_states_{i}"]
                if len(states) < len(rows) or (is_whole and len(states) > len(rows)):
                    raise ValueError(f"{len(states)} recurrent states do not fit {len(rows)} windows")
                # A later step may take the place of an earlier one.
                kept[rows // self.period, envs] = states[len(states) - len(rows) :]
        elif self.states and buffer.size():
            _warn_of_missing_states()

    def _unrolled_rows(self, buffer: "PrioritizedSequenceReplayBuffer") -> tuple[np.ndarray, np.ndarray]:
        """List the rows and environments of steps from which windows are unrolled, from old to new."""
        held = np.arange(buffer.pos - buffer.size(), buffer.pos) % self.n_rows
        steps, envs = np.nonzero(self._are_unrolled_from(self.steps_in_episode[held]))
        return held[steps], envs


class WindowTracker(RowTracker["PrioritizedSequenceReplayBuffer"]):
    """Insert the windows that became complete, and remove those that are being overwritten."""

    def insert(self, buffer: "PrioritizedSequenceReplayBuffer") -> None:
        """See :meth:`RowTracker.insert`."""
        numbering = buffer.numbering
        if self.inserted_until < numbering.first_step:
            self.start_tree_over(buffer)
        if numbering.next_step > numbering.first_step:
            changes = buffer.windows.changes(buffer)
            buffer.priority_sampler.remove(changes.gone)
            buffer.priority_sampler.insert(changes.new, self.given_values)
            buffer.windows.confirm(changes)
        self.inserted_until = numbering.next_step  # last, so that after an interrupt all is done once more

    def start_tree_over(self, buffer: "PrioritizedSequenceReplayBuffer") -> None:
        """See :meth:`RowTracker.start_tree_over`."""
        super().start_tree_over(buffer)
        buffer.windows.start_over(buffer, buffer.numbering.first_step)

    def drawable_slots(self, buffer: "PrioritizedSequenceReplayBuffer") -> np.ndarray:
        """List the anchors of windows that can be drawn, see :meth:`RowTracker.drawable_slots`."""
        return np.flatnonzero(buffer.windows.is_drawable)

    def continue_from(
        self, buffer: "PrioritizedSequenceReplayBuffer", other: "PrioritizedReplayBuffer", keeps_masses: bool
    ) -> None:
        """See :meth:`RowTracker.continue_from`. The ends of episodes say what belongs together of transitions."""
        super().continue_from(buffer, other, keeps_masses)
        if hasattr(other, "windows"):
            if buffer.size() and buffer.windows.states and not buffer.windows.takes_states_of(other.windows):
                _warn_of_missing_states()
            buffer.windows.continue_from(other.windows, buffer.numbering.next_step - buffer.size(), keeps_masses)
        else:
            buffer.windows.start_over(buffer, buffer.numbering.next_step - buffer.size())


def _warn_of_missing_states() -> None:
    warnings.warn(
        "The recurrent states of the stored steps were saved for other windows (burn_in, sequence_length, sequence_period or "
        "store_state): windows of these steps start from zeros, also within an episode. New steps have their states"
    )


def number_by_dones(steps_in_episode: np.ndarray, dones: np.ndarray, timeouts: np.ndarray, first: int, end: int) -> None:
    """
    Number a range of steps within their episodes. An episode starts with the range, and after each end.

    :param steps_in_episode: numbers of the steps, int32 of shape (n_rows, n_envs); the rows of the range are written
    :param dones: ends of episodes, shape (n_rows, n_envs)
    :param timeouts: which of these ends are truncations, shape (n_rows, n_envs)
    :param first: first step of the range
    :param end: step after the last of the range
    """
    steps = np.arange(first, end)
    rows = steps % len(steps_in_episode)
    starts = np.full((len(rows), dones.shape[1]), first)
    starts[1:] = np.where((dones[rows[:-1]] != 0) | (timeouts[rows[:-1]] != 0), steps[1:, None], first)
    steps_in_episode[rows] = steps[:, None] - np.maximum.accumulate(starts, axis=0)


@kernel
def number_next(
    numbers: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    is_first: bool,
    starts: np.ndarray,
    period: int,
    burn_in: int,
) -> tuple[bool, bool]:
    """
    Number the next step of each environment within its episode, from 0.

    :param numbers: of the step before, int32 of shape (n_envs,); they become those of the next step
    :param dones: where an episode ended with the step before, shape (n_envs,)
    :param timeouts: which of these ends are truncations, shape (n_envs,)
    :param is_first: whether no step comes before it
    :param starts: where the caller starts an episode, bool of shape (n_envs,)
    :param period: steps from one anchor to the next
    :param burn_in: steps before an anchor from which a window is unrolled
    :return: whether the step cuts off an episode that has not ended, and whether a window is unrolled from it whose episode
        started earlier
    """
    any_cut = False
    any_unrolled = False
    for e in range(numbers.size):
        if is_first or dones[e] != 0 or timeouts[e] != 0:
            numbers[e] = 0
        elif starts[e]:
            numbers[e] = 0
            any_cut = True
        else:
            numbers[e] += 1
            if (numbers[e] + burn_in) % period == 0:
                any_unrolled = True
    return any_cut, any_unrolled
