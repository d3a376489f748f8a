"""What a buffer holds, apart from its settings, in a form that fits a buffer of another size. It knows arrays."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Contents:
    """
    Of the steps from ``first`` to ``end``, the oldest one first; a step is one transition of every environment.

    :param first: number of the oldest step that is held, the first one of all is 0
    :param end: number of the step that comes next
    :param buffer_size: rows of the ring that they are from
    :param numbers: anything that JSON knows
    :param columns: by name, an array of shape (end - first, n_envs) in parts, views of the buffer's
    :param arrays: by name, arrays of any shape
    """

    first: int
    end: int
    buffer_size: int
    numbers: dict[str, Any]
    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def array(self, name: str, kind: str, *shape: int | None) -> np.ndarray:
        """
        :param name: of one of the arrays
        :param kind: ``"i"`` or ``"f"``, as in a NumPy type
        :param shape: that it should have; ``None`` for any length
        :return: the array
        :raises ValueError: if it is another
        """
        array = self.arrays[name]
        fits = len(array.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits or array.dtype.kind != kind:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
        return array
