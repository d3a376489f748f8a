"""Transitions that are drawn as windows of consecutive steps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_per.buffers.complete_windows import CompleteWindows
from sb3_per.buffers.recurrent_states import RecurrentStates
from sb3_per.buffers.transition_set import Drawn, TransitionSet
from sb3_per.buffers.window_kernels import lay_out
from sb3_per.sampling.sampler import Sampler
from sb3_per.storage.n_step import NStepReturns, window_lengths
from sb3_per.storage.nested import flat, map_arrays
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Steps, Storage


class WindowBatch(NamedTuple):
    """Windows before they are normalized and become tensors. B is the batch size; rows are in the order of time."""

    #: of the first step, then after each step, shape ((n_recorded + 1) * B, ...), or a dictionary of such arrays
    observations: Any
    #: before the first step, for burn-in, shape (burn_in * B, ...)
    prefix: Any
    #: how many steps of the prefix count, int64 of shape (B,)
    prefix_lengths: np.ndarray
    #: recurrent states before the prefix, each float32 of shape (n_layers, B, hidden)
    states: list[np.ndarray]
    #: of the learned steps, shape (sequence_length, B, action_dim)
    actions: np.ndarray
    #: of all recorded steps, float32 of shape (B, n_recorded)
    rewards: np.ndarray
    #: whether the last step is a termination, float32 of shape (B, 1)
    dones: np.ndarray
    #: how many of the recorded steps count, int64 of shape (B,)
    lengths: np.ndarray
    #: ids of the first steps, int64 of shape (B,)
    ids: np.ndarray


class WindowSet(TransitionSet):
    """
    Transitions whose windows can be drawn once they are complete.

    Windows are looked for before the next draw or update, by one kernel for all new steps.

    :param ring: which transition is in which slot
    :param storage: what is in a slot
    :param sampler: the mass of a slot, an anchor's alone
    :param n_step_returns: of the buffer
    :param windows: the candidates of the sampler
    :param states: recurrent states at the starts of the prefixes
    :param sequence_length: learned steps of a window
    """

    def __init__(
        self,
        ring: Ring,
        storage: Storage,
        sampler: Sampler,
        n_step_returns: NStepReturns,
        windows: CompleteWindows,
        states: RecurrentStates,
        sequence_length: int,
    ):
        super().__init__(ring, storage, sampler, n_step_returns)
        self.complete_windows = windows
        self.states = states
        self.sequence_length = sequence_length

    # ---- write

    def write_row(
        self,
        steps: Steps,
        tree_values: np.ndarray | None = None,
        starts: np.ndarray | None = None,
        states: Sequence[np.ndarray | th.Tensor] | None = None,
    ) -> None:
        """
        Write a step, see :meth:`TransitionSet.write_row`.

        :param steps: checked, of shape (n_envs, ...)
        :param tree_values: not used: the error of a window is known once it is complete
        :param starts: where an episode starts although the one before has not ended, bool of shape (n_envs,)
        :param states: recurrent states before the step, see :meth:`~sb3_per.buffers.recurrent_states.RecurrentStates.store`
        """
        row = self.ring.pos
        numbers, cut, is_unrolled_from = self.complete_windows.next_step(row, starts)
        stored_states = self.states.as_arrays(states) if is_unrolled_from else []
        self.storage.write_row(row, steps)
        self.complete_windows.add_row(row, numbers, cut)
        if is_unrolled_from:
            self.states.store(row, numbers, stored_states)
        self.ring.advance_all()

    def end_episodes(self, envs: np.ndarray) -> None:
        """See :meth:`TransitionSet.end_episodes`. Windows may become complete."""
        self.complete_windows.reopen_last_step()
        super().end_episodes(envs)

    # ---- draw and read

    def _update_candidates(self) -> None:
        """Tell the sampler which windows became complete, and which lose their beginning."""
        if self.complete_windows.are_from_before_reset:
            self.sampler.clear()  # an interrupt came right after the ring was emptied
        if not self.complete_windows.is_behind:
            return
        changes = self.complete_windows.changes()
        if changes.new.size or changes.gone.size:
            with self.sampler.changing_candidates():
                self.sampler.remove(changes.gone)
                self.sampler.insert_new(changes.new)
                self.complete_windows.confirm(changes)
        else:
            self.complete_windows.confirm(changes)

    def masses(self) -> np.ndarray:
        """See :meth:`TransitionSet.masses`."""
        self._update_candidates()
        return super().masses()

    def can_draw(self) -> bool:
        """See :meth:`TransitionSet.can_draw`."""
        self._update_candidates()
        return super().can_draw()

    def empty_error(self) -> Exception:
        """See :meth:`TransitionSet.empty_error`; a buffer may be too small for any window."""
        # Rows whose windows are retired, rows up to the next anchor, and its window.
        windows = self.complete_windows
        shortest = windows.burn_in + 2 * (windows.period - 1) + windows.n_recorded
        n_rows, n_envs = self.ring.n_rows, self.ring.n_envs
        if self.ring.full and n_rows < shortest:
            return ValueError(
                f"Cannot sample: the buffer holds {n_rows} steps of each environment, too few for a whole window. Windows of "
                f"sequence_length={self.sequence_length} need a buffer_size of at least {shortest * n_envs} ({n_envs} "
                "environments)"
            )
        return super().empty_error()

    def draw(self, batch_size: int, series_progress: float | None = None) -> Drawn:
        """See :meth:`TransitionSet.draw`."""
        self._update_candidates()
        return super().draw(batch_size, series_progress)

    def read(self, drawn: Drawn) -> WindowBatch:
        """
        Read windows.

        :param drawn: anchors of complete windows
        :return: the windows
        """
        slots = drawn.slots
        n_envs, capacity = self.ring.n_envs, self.ring.capacity
        n_recorded = self.complete_windows.n_recorded
        lengths = self.lengths_at(slots, n_recorded)
        places = lay_out(slots, lengths, n_recorded, n_envs, capacity)
        ids, rewards, dones = self.read_step_values(places.T, places[lengths - 1, np.arange(len(slots))])

        episode_steps = flat(self.complete_windows.episode_steps)
        prefix_lengths = np.minimum(episode_steps.take(slots), self.complete_windows.burn_in).astype(np.int64)
        first_places = (slots - prefix_lengths * n_envs) % capacity
        prefix_places = lay_out(first_places, prefix_lengths, self.complete_windows.burn_in, n_envs, capacity)

        # The observation before the first step, then the one after each step.
        observations = self.storage.read_observations(np.concatenate((slots, places.reshape(-1))), is_next=True)
        first_observations = self.storage.read_observations(slots)
        map_arrays(lambda array, first: np.copyto(array[: len(slots)], first), observations, first_observations)
        return WindowBatch(
            observations=observations,
            prefix=self.storage.read_observations(prefix_places.reshape(-1)),
            prefix_lengths=prefix_lengths,
            states=self.states.at(slots, episode_steps),
            actions=self.storage.read_actions(places[: self.sequence_length]),
            rewards=rewards,
            dones=dones,
            lengths=lengths,
            ids=ids,
        )

    def lengths_at(self, slots: np.ndarray, n_steps: int) -> np.ndarray:
        """
        Count the steps from these slots to the end of the episode, or of what is stored.

        :param slots: int64 of shape (batch_size,)
        :param n_steps: largest number of steps
        :return: 1 to ``n_steps`` for each, int64 of shape (batch_size,)
        """
        dones, timeouts = flat(self.storage.dones), flat(self.storage.timeouts)
        return window_lengths(slots, dones, timeouts, self.ring.next_steps, n_steps)

    def steps_of(self, ids: np.ndarray) -> np.ndarray:
        """
        Look up which entries of windows are steps.

        :param ids: of the first steps, int64 of shape (batch_size,)
        :return: bool of shape (sequence_length, batch_size); one step for ids without a window
        """
        self._update_candidates()
        slots = ids % self.ring.capacity
        can_be_drawn = (self.ring.ids_at(slots) == ids) & self.complete_windows.are_marked(slots)
        lengths = np.where(can_be_drawn, self.lengths_at(slots, self.sequence_length), 1)
        return np.arange(self.sequence_length)[:, None] < lengths

    # ---- update and save

    def update(self, ids: np.ndarray, td_errors: np.ndarray) -> int:
        """See :meth:`TransitionSet.update`."""
        self._update_candidates()
        return super().update(ids, td_errors)

    def state(self) -> dict[str, Any]:
        """See :meth:`TransitionSet.state`."""
        self._update_candidates()
        return super().state()
