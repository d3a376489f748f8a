"""The base class of stores of observations, and the view of a store that looks like one of SB3's arrays."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class ObservationStore(ABC):
    """
    Keep an observation and a next observation for every slot of a ring; for Dict observations, of one key.

    For a store of your own, write :meth:`write` and :meth:`read`, and a constructor that takes ``(n_rows, n_envs, shape,
    dtype)``, where shape and dtype are those of one observation. Then set it as ``store_class`` of your buffer class. A slot
    is ``row * n_envs + env``. The other methods have defaults. A store may round.
    ``tests/helpers/store_contract.py`` checks a class.
    """

    # ---- writing and reading

    @abstractmethod
    def write(self, rows: np.ndarray, envs: np.ndarray, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store T successive steps of k environments in place of what was in their rows. It must not fail: do in
        :meth:`reserve` what may. The arrays belong to the caller, who may change them later.

        :param rows: int64 of shape (T, k); T may be 0
        :param envs: different environments, int64 of shape (k,)
        :param observations: shape (T, k, \\*shape)
        :param next_observations: in the same shape
        """

    @abstractmethod
    def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """
        Read slots. One that was never written reads as zeros, because users look at whole arrays.

        :param slots: int64 of any shape
        :param is_next: whether to read next observations
        :return: a copy, shape (\\*slots.shape, \\*shape)
        """

    def write_row(self, row: int, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store one step of every environment. Override it where an integer as an index is faster.

        :param row: row of the step
        :param observations: shape (n_envs, \\*shape)
        :param next_observations: in the same shape
        """
        n_envs = len(observations)
        self.write(np.full((1, n_envs), row), np.arange(n_envs), observations[None], next_observations[None])

    def reserve(self, n_transitions: int, last_row: int) -> None:  # noqa: B027 - an array of fixed size has room
        """
        Make room for steps, so that :meth:`write` cannot fail.

        :param n_transitions: number of steps that are written next, of all environments together
        :param last_row: largest row that is written
        :raises MemoryError: if there is no memory for them; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """

    def clear(self) -> None:  # noqa: B027 - new steps overwrite the rows
        """Forget everything."""

    @property
    def n_rows_with_room(self) -> int:
        """Rows below this one can be written without :meth:`reserve`."""
        return 0

    # ---- size

    @property
    def nbytes(self) -> int:
        """Bytes that both observations of all slots take; 0: not known."""
        return 0

    def full_nbytes(self) -> tuple[int, int]:
        """
        Estimate the size of the store when every slot holds a transition.

        :return: bytes of RAM, and bytes of the disk
        """
        return self.nbytes, 0

    # ---- as arrays

    def as_sb3_array(self, shape: tuple[int, ...], dtype: np.dtype, is_next: bool) -> Any:
        """
        Show the observations as an attribute of SB3's buffers.

        :param shape: (n_rows, n_envs, \\*shape of an observation)
        :param dtype: type of an observation
        :param is_next: whether to show next observations
        :return: the array itself, or a view that looks like one
        """
        return StoredArray(self, shape, dtype, is_next)

    def with_array(self, array: np.ndarray, is_next: bool) -> "ObservationStore":
        """
        Make a store with other observations, because a user has assigned an array.

        :param array: of all slots, shape (n_rows, n_envs, \\*shape of an observation)
        :param is_next: whether it takes the place of the next observations
        :return: a new store, or this one if the array was copied into its file
        :raises ValueError: if observations of this kind of store cannot be assigned
        """
        raise ValueError(f"Observations in a {type(self).__name__} cannot be assigned. Write steps with add() or extend()")

    def set_next_row(self, pos: int) -> None:  # noqa: B027 - most stores do not depend on the order
        """
        Note that rows were written by hand, so that the next step follows another row.

        :param pos: row that is written next; the one after it is the oldest
        """

    # ---- files

    def arrays_by_row(self) -> dict[str, np.ndarray]:
        """
        List what a saved buffer has to keep of each row.

        :return: views of shape (n_rows, n_envs, ...), by name
        :raises NotImplementedError: if this kind of store cannot be saved so
        """
        raise NotImplementedError(
            f"Observations in a {type(self).__name__} cannot be saved to a directory: save the buffer to a pickle"
        )

    def make_read_only(self) -> None:  # noqa: B027 - most stores have no files
        """Refuse all writes from now on: the files belong to the process that this one was forked from."""


class StoredArray:
    """
    View of a store that looks like SB3's array of observations, or of next observations; indexing reads a copy.

    :param store: of both kinds of observations
    :param shape: (n_rows, n_envs, ...)
    :param dtype: of an observation
    :param is_next: whether to show next observations
    """

    def __init__(self, store: ObservationStore, shape: tuple[int, ...], dtype: Any, is_next: bool):
        self.store = store
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.is_next = is_next

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Half of the bytes of the store; the other half is counted for the other array."""
        half = self.store.nbytes // 2
        return half if self.is_next else self.store.nbytes - half

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Index as NumPy does; the result is a copy. An index that does not begin with slots reads everything."""
        parts = index if isinstance(index, tuple) else (index,)
        if not _begins_with_slots(parts):
            return self[:][index]
        # NumPy finds the slots that an index of rows and environments means; the array of all slots is small beside the store.
        all_slots = np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])
        slots = np.asarray(all_slots[parts[:2]])
        decoded = self.store.read(slots, self.is_next)
        return decoded[(slice(None),) * slots.ndim + parts[2:]]


def _begins_with_slots(parts: tuple[Any, ...]) -> bool:
    """
    Tell whether the first two parts of an index can be used before the others, with the result that NumPy gives.

    :param parts: of the index, one for each axis
    :return: whether the first two choose slots, and all others are slices or integers that keep the order of the axes
    """
    arrays = [np.asarray(part) for part in parts[:2] if not isinstance(part, slice)]
    for array in arrays:
        is_mask = array.dtype == np.bool_ and 1 <= array.ndim <= 3 - len(parts[:2])  # of two axes only if it stands alone
        if array.dtype.kind not in "iu" and not is_mask:
            return False
    numbers = [part for part in parts[2:] if not isinstance(part, slice)]
    if not all(isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in numbers):
        return False
    # In `array[:, [0, 1], :, 0]`, NumPy puts the axis of the list first.
    has_list_after_slice = isinstance(parts[0], slice) and any(array.ndim for array in arrays)
    return not (numbers and has_list_after_slice)
