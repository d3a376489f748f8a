"""Recurrent states of an agent, kept for the steps from which a window is unrolled."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th


class RecurrentStates:
    """
    Keep one state for every ``period`` rows of each environment. For a million rows, an LSTM of 256 units and a period of 40,
    this takes 51 MB; one state for each row would take 2 GB.

    A window is unrolled from ``burn_in`` steps before its first step. So the states that two windows of an episode need are
    ``period`` rows apart. A window of the next episode cannot need one in between: from each of its states on, an episode has
    at least ``burn_in`` + 1 rows. So all rows within the same ``period`` rows share one state. At the start of an episode the
    state is zero, and is not kept.

    In a full ring, writing a row overwrites the state of a row that is up to ``period`` - 1 rows ahead. The window of that
    state begins ``burn_in`` rows later.

    :param n_rows: number of rows of the ring
    :param n_envs: number of environments
    :param period: number of steps from the beginning of a window to the beginning of the next
    :param burn_in: number of steps before a window from which it is unrolled
    :param shapes: (n_layers, hidden) of each state
    :param are_kept: whether states are kept; otherwise all are zero
    """

    def __init__(
        self, n_rows: int, n_envs: int, period: int, burn_in: int, shapes: Sequence[tuple[int, ...]], are_kept: bool = True
    ):
        self.n_rows, self.n_envs, self.period, self.burn_in = n_rows, n_envs, period, burn_in
        self.shapes = tuple(shapes)
        n_slots = -(-n_rows // period)
        #: float32, each of shape (n_slots, n_envs, n_layers, hidden); none if no states are kept
        self.arrays = [np.zeros((n_slots, n_envs, *shape), np.float32) for shape in self.shapes if are_kept]
        self._shapes_of_step = [(n_layers, n_envs, hidden) for n_layers, hidden in self.shapes]

    # ---- one step

    def require_fitting(self, states: Sequence[np.ndarray | th.Tensor] | None) -> None:
        """
        Check the states of a step.

        :param states: states before a step, see :meth:`store`
        :raises ValueError: for other shapes, or numbers that are not real
        """
        if states is None:
            return
        given, expected = [tuple(state.shape) for state in states], self._shapes_of_step
        if given != expected:
            raise ValueError(f"states of shapes {given} do not fit state_shapes={self.shapes}: expected {expected}")
        for state in states:
            if state.is_complex() if isinstance(state, th.Tensor) else state.dtype.kind not in "fiub":
                raise ValueError(f"states must hold real numbers, not {state.dtype}")

    def as_arrays(self, states: Sequence[np.ndarray | th.Tensor] | None) -> list[np.ndarray]:
        """
        Make arrays of the states before a step, which fails if a device does.

        :param states: arrays or tensors on any device, each of shape (n_layers, n_envs, hidden); ``None``: zeros
        :return: what :meth:`store` takes
        """
        found: list[Any] = [np.zeros(shape) for shape in self._shapes_of_step] if states is None else list(states)
        # NumPy does not have all types of torch.
        return [state.detach().float().cpu().numpy() if isinstance(state, th.Tensor) else state for state in found]

    def store(self, row: int, episode_steps: np.ndarray, states: Sequence[np.ndarray]) -> None:
        """
        Keep the states before a step, where a window is unrolled from it.

        :param row: row of the step
        :param episode_steps: number of the step within its episode, shape (n_envs,)
        :param states: each of shape (n_layers, n_envs, hidden)
        """
        envs = np.flatnonzero(self._are_unrolled_from(episode_steps))
        for array, state in zip(self.arrays, states, strict=False):
            array[row // self.period, envs] = state.swapaxes(0, 1)[envs]

    def clear(self) -> None:
        """Let all states be zero."""
        for array in self.arrays:
            array[:] = 0.0

    def _are_unrolled_from(self, episode_steps: np.ndarray) -> np.ndarray:
        """Whether a window is unrolled from these steps of an episode, and not from its start."""
        return (episode_steps > 0) & ((episode_steps + self.burn_in) % self.period == 0)

    def at(self, windows: np.ndarray, episode_steps: np.ndarray) -> list[np.ndarray]:
        """
        Read the states from which windows are unrolled.

        :param windows: slots of the first steps of the windows, int64 of shape (batch_size,)
        :param episode_steps: numbers of the steps within their episodes, by slot, shape (capacity,)
        :return: states, each float32 of shape (n_layers, batch_size, hidden)
        """
        if not self.arrays:
            return [np.zeros((n_layers, len(windows), hidden), np.float32) for n_layers, hidden in self.shapes]
        window_rows, envs = np.divmod(windows, self.n_envs)
        slots = (window_rows - self.burn_in) % self.n_rows // self.period * self.n_envs + envs
        is_start = episode_steps.take(windows) <= self.burn_in
        found = []
        for array in self.arrays:
            states = array.reshape(-1, *array.shape[2:]).take(slots, axis=0)
            states[is_start] = 0.0
            found.append(np.ascontiguousarray(states.swapaxes(0, 1)))
        return found

    # ---- saving

    def state(self, n_rows: int) -> dict[str, Any]:
        """
        Return the states.

        :param n_rows: number of rows, from row 0 on, that hold anything
        :return: period, burn-in, and the arrays of states by number, see :meth:`load`
        """
        n_slots = -(-n_rows // self.period)
        arrays = {str(i): array[:n_slots] for i, array in enumerate(self.arrays)}
        return {"period": self.period, "burn_in": self.burn_in, **arrays}

    def load(self, state: dict[str, Any]) -> None:
        """
        Take states over. States with another period, burn-in or shape cannot be used: these states stay zero.

        :param state: from :meth:`state`
        """
        given = [np.asarray(state[str(i)]) for i in range(len(self.arrays)) if str(i) in state]
        fits = (state.get("period"), state.get("burn_in")) == (self.period, self.burn_in)
        if not (fits and [part.shape[1:] for part in given] == [part.shape[1:] for part in self.arrays]):
            return
        for array, part in zip(self.arrays, given, strict=True):
            array[: len(part)] = part

    def copy_rows(self, other: "RecurrentStates", rows: np.ndarray, other_rows: np.ndarray, episode_steps: np.ndarray) -> None:
        """
        Copy the states of successive steps, from old to new.

        :param other: states with the same period, burn-in and shapes; it may keep none
        :param rows: rows of the steps here, shape (n,)
        :param other_rows: rows of the same steps there, shape (n,)
        :param episode_steps: numbers of the steps within their episodes, shape (n, n_envs)
        """
        steps, envs = np.nonzero(self._are_unrolled_from(episode_steps))
        for array, given in zip(self.arrays, other.arrays, strict=False):
            array[rows[steps] // self.period, envs] = given[other_rows[steps] // self.period, envs]
