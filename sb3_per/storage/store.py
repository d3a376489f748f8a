"""The interface of a store of observations, and the view of a store that looks like one of SB3's arrays."""

from typing import Any, Protocol

import numpy as np


class ObservationStore(Protocol):
    """
    Keep an observation and a next observation for every slot of a ring; for Dict observations, of one key.

    Any class with these methods will do: :class:`~sb3_per.storage.arrays.ArrayStore`,
    :class:`~sb3_per.storage.frames.FrameStore`, or one of your own, as ``store_class`` of your buffer. The constructor of your
    own takes ``(n_rows, n_envs, shape, dtype)``, where shape and dtype are those of one observation. A slot is
    ``row * n_envs + env``. ``tests/helpers/store_contract.py`` checks a class.
    """

    @property
    def nbytes(self) -> int:
        """Bytes that both observations of all slots take."""

    def reserve(self, rows: Any, envs: np.ndarray | None) -> None:
        """
        Make room for steps, so that :meth:`write` cannot fail.

        :param rows: as in :meth:`write`
        :param envs: as in :meth:`write`
        :raises MemoryError: if there is no memory for them; nothing has changed then
        :raises OSError: if there is no space on the disk; nothing has changed then
        """

    def write(self, rows: Any, envs: np.ndarray | None, observations: np.ndarray, next_observations: np.ndarray) -> None:
        """
        Store steps in place of what was in their rows. The arrays belong to the caller, who may change them later.

        :param rows: row of one step of all environments, an int; or int64 of shape (T, k)
        :param envs: ``None``: all environments; or the k environments of T successive steps, different int64 of shape (k,)
        :param observations: shape (n_envs, \\*shape) for one step, (T, k, \\*shape) for several
        :param next_observations: in the same shape
        """

    def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
        """
        Read slots that were written.

        :param slots: int64 of any shape
        :param is_next: whether to read next observations
        :return: a copy, shape (\\*slots.shape, \\*shape)
        """

    def clear(self) -> None:
        """Forget everything."""


class StoredArray:
    """
    View of a store that looks like SB3's array of observations, or of next observations; indexing reads a copy.

    :param store: of both kinds of observations
    :param shape: (n_rows, n_envs, ...)
    :param dtype: of an observation
    :param is_next: whether to show next observations
    """

    def __init__(self, store: ObservationStore, shape: tuple[int, ...], dtype: Any, is_next: bool):
        self.store, self.shape, self.dtype, self.is_next = store, shape, np.dtype(dtype), is_next

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Half of the bytes of the store; the other half is counted for the other array."""
        return self.store.nbytes // 2 if self.is_next else self.store.nbytes - self.store.nbytes // 2

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Index as NumPy does; the result is a copy."""
        if index is Ellipsis or (isinstance(index, tuple) and any(part is Ellipsis for part in index)):
            return self[:][index]
        parts = index if isinstance(index, tuple) else (index,)
        slots = np.asarray(np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])[parts[:2]])
        decoded = self.store.read(slots, self.is_next)
        return decoded[(slice(None),) * slots.ndim + parts[2:]]
