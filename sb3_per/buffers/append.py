"""Append many steps of one environment at once, which is how actors send them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_per.buffers import inputs
from sb3_per.buffers.arrays import StoredRows
from sb3_per.buffers.slots import map_arrays

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer


def append_rows(
    buffer: "PrioritizedReplayBuffer",
    obs: Any,
    next_obs: Any,
    actions: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    timeouts: np.ndarray,
    td_errors: np.ndarray | None,
) -> None:
    """See :meth:`PrioritizedReplayBuffer.append_rows`."""
    if not buffer.draws_all_rows:
        raise NotImplementedError(
            f"append_rows() of {type(buffer).__name__} is not supported: which of its transitions can be drawn is decided "
            "at each step. Use add()"
        )
    if buffer.n_envs != 1:
        raise ValueError(f"append_rows() needs a buffer with n_envs=1, not {buffer.n_envs}")
    if buffer.optimize_memory_usage:
        raise NotImplementedError(
            "append_rows() with optimize_memory_usage=True is not supported: the next observation of the last step is not "
            "the observation of the next row"
        )
    if td_errors is not None and buffer.scheme.draws_uniformly:
        raise ValueError(f"td_errors have no meaning with {buffer.scheme}, which draws uniformly: leave them out")
    n = len(rewards)
    parts = (obs, next_obs, actions, rewards, dones)
    obs, next_obs, actions, rewards, dones = (map_arrays(lambda array: np.asarray(array)[:, None], part) for part in parts)
    checked = inputs.checked_rows(buffer, (n, 1), obs, next_obs, actions, rewards, dones)
    timeouts = inputs.checked_timeouts(buffer, n, timeouts)
    errors = None if td_errors is None else inputs.abs_td_errors(td_errors, (n,))
    if n == 0:  # a scheme need not work with nothing
        return
    tree_values = None if errors is None else buffer.priority_sampler.evaluate(errors)[0]
    dones = np.array(checked[4])
    if not dones[-1]:
        dones[-1] = timeouts[-1] = 1
    steps = StoredRows(*checked[:4], dones, timeouts)
    with buffer.lock:
        buffer.row_tracker.catch_up(buffer)
        buffer.end_episodes()  # that `add` has left open
        first_step = buffer.numbering.next_step
        try:
            _write(buffer, first_step, steps, tree_values)
        except (KeyboardInterrupt, SystemExit):
            # Rows of which some arrays are new can neither be drawn nor be brought back: write all of them once more.
            _write(buffer, first_step, steps, tree_values)
            raise


def _write(buffer: "PrioritizedReplayBuffer", first_step: int, steps: StoredRows, tree_values: np.ndarray | None) -> None:
    """
    Write checked steps, and count them. Twice is as good as once.

    :param buffer: the buffer
    :param first_step: number of the first step
    :param steps: n steps of one environment
    :param tree_values: that the transitions come with, shape (n,); ``None``: they come with none
    """
    tracker, numbering = buffer.row_tracker, buffer.numbering
    tracker.clears_timeouts = not buffer.handle_timeout_termination
    next_step = first_step + len(steps.rewards)
    # Of more steps than rows, the newest.
    held = slice(max(next_step - first_step - numbering.n_rows, 0), None)
    rows = np.arange(first_step, next_step)[held] % numbering.n_rows
    if tree_values is not None or tracker.given_values is not None:
        tracker.keep_given_values(buffer, None if tree_values is None else tree_values[held, None], rows)
    steps.select(held).write_to(buffer, rows)
    # In one statement, because an interrupt may come between two.
    buffer.pos, buffer.full, numbering.next_step = (
        next_step % numbering.n_rows,
        next_step - numbering.first_step >= numbering.n_rows,
        next_step,
    )
