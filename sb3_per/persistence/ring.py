"""Find the rows of steps in a ring of rows."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class RingSteps:
    """
    Steps of a ring. Step ``s`` is in row ``(s - shift) % n_rows``.

    :param n_rows: number of rows
    :param first: oldest step that is held
    :param end: step after the newest
    :param shift: above 0 only after steps were loaded into arrays with another number of rows
    """

    n_rows: int
    first: int
    end: int
    shift: int = 0

    def place(self, first: int, end: int, n_rows: int, oldest_is_lost: bool) -> None:
        """
        Choose which steps of a saved ring are held here: all of them, or the newest that fit if the sizes differ.

        :param first: oldest step of the saved ring
        :param end: step after its newest
        :param n_rows: number of its rows
        :param oldest_is_lost: whether the oldest row of a full ring cannot be read
        """
        self.first, self.end = first, end
        if n_rows != self.n_rows:
            # With `optimize_memory_usage`, the oldest observation of a full buffer was overwritten.
            self.first = max(first + (oldest_is_lost and end - first == n_rows), end - self.n_rows)
            self.shift = self.first  # they begin with row 0

    def numbers(self, first_step: int) -> tuple[int, int]:
        """
        Find the numbers from which a buffer that holds these steps counts.

        :param first_step: first step since the saved buffer was last emptied
        :return: the same for this buffer, and the step that it stores next. Shifted steps get new numbers, which no id has yet
        """
        if self.shift == 0:
            return first_step, self.end
        first_step = -(-self.end // self.n_rows) * self.n_rows
        return first_step, first_step + self.end - self.first

    def rows(self, first: int, end: int) -> np.ndarray:
        """Find the rows of steps, int64 of shape (end - first,)."""
        return (np.arange(first, end) - self.shift) % self.n_rows

    def blocks(self, array: np.ndarray, first: int, end: int) -> list[np.ndarray]:
        """
        View the rows of steps.

        :param array: shape (n_rows, ...)
        :param first: first step
        :param end: step after the last, at most ``n_rows`` steps later
        :return: two views, from old to new
        """
        start = (first - self.shift) % self.n_rows
        stop = start + end - first
        return [array[start : min(stop, self.n_rows)], array[: max(stop - self.n_rows, 0)]]

    def put(self, array: np.ndarray, first: int, end: int, values: np.ndarray) -> None:
        """
        Write the rows of steps.

        :param array: shape (n_rows, ...)
        :param first: first step
        :param end: step after the last
        :param values: shape (end - first, ...)
        :raises ValueError: for values of another shape or type
        """
        require_same_form(array, first, end, values)
        start = 0
        for block in self.blocks(array, first, end):
            block[...] = values[start : start + len(block)]
            start += len(block)


def require_same_form(array: Any, first: int, end: int, values: np.ndarray) -> None:
    """Check that values from a file have the shape and the type of the rows of steps in an array."""
    if (values.shape, values.dtype) != ((end - first, *array.shape[1:]), array.dtype):
        raise ValueError(f"{values.dtype} of shape {values.shape} does not fit {array.dtype} of shape {array.shape}")
