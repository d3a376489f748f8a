"""What is saved of a buffer beside its rows."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.buffers.slots import read_slots

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer


class BufferState(NamedTuple):
    """Values that may change after a step is stored, see :meth:`PrioritizedReplayBuffer.state_to_save`."""

    #: numbers by name, as JSON can hold them
    numbers: dict[str, Any]
    #: arrays of shape (n_rows, n_envs, ...) by name
    by_row: dict[str, np.ndarray]
    #: other arrays by name
    arrays: dict[str, np.ndarray]


def state_to_save(buffer: "PrioritizedReplayBuffer") -> BufferState:
    """See :meth:`PrioritizedReplayBuffer.state_to_save`."""
    buffer.insert_new_rows()
    numbers = {
        "first_step": buffer.numbering.first_step,
        "max_priority": buffer.priority_sampler.max_priority,
        "demonstration_progress": buffer.demonstrations.share.progress,
        **buffer.beta_schedule.state(),
    }
    shape = (buffer.buffer_size, buffer.n_envs)
    by_row = {name: array.reshape(shape) for name, array in buffer.priority_sampler.state().items()}
    # In a full ring, these next observations of the newest row have the place of the oldest observations.
    arrays = {}
    if buffer.optimize_memory_usage:
        newest = np.arange(buffer.pos * buffer.n_envs, (buffer.pos + 1) * buffer.n_envs)
        arrays["newest_next_observations"] = read_slots(buffer.observations, newest)
    return BufferState(numbers, by_row, arrays)


def restore_state(buffer: "PrioritizedReplayBuffer", state: BufferState, keeps_masses: bool, is_whole: bool) -> None:
    """See :meth:`PrioritizedReplayBuffer.restore_state`."""
    numbers = state.numbers
    if not 0.0 <= numbers["max_priority"] < np.inf or not 0.0 <= numbers["demonstration_progress"] <= 1.0:
        raise ValueError(f"numbers are out of range: {numbers}")
    if buffer.optimize_memory_usage:
        newest = state.arrays["newest_next_observations"]
        if newest.shape != buffer.observations.shape[1:]:
            raise ValueError(f"newest_next_observations have shape {newest.shape}")
        buffer.observations[buffer.pos] = newest
    require_finite_rewards(buffer.rewards[: buffer.size()])
    buffer.priority_sampler.max_priority = float(numbers["max_priority"])
    buffer.demonstrations.share.progress = float(numbers["demonstration_progress"])
    buffer.beta_schedule.load(numbers)
    if keeps_masses:
        by_slot = {name: array.reshape(-1) for name, array in state.by_row.items()}
        buffer.priority_sampler.load(by_slot, buffer.row_tracker.drawable_slots(buffer), is_whole)
        buffer.row_tracker.inserted_until = buffer.numbering.next_step
