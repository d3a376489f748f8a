"""What is saved of a buffer beside its rows."""

from typing import Any, NamedTuple

import numpy as np


class BufferState(NamedTuple):
    """Values that may change after a step is stored, see :meth:`PrioritizedReplayBuffer.state_to_save`."""

    #: numbers by name, as JSON can hold them
    numbers: dict[str, Any]
    #: arrays of shape (n_rows, n_envs, ...) by name
    by_row: dict[str, np.ndarray]
    #: other arrays by name
    arrays: dict[str, np.ndarray]
