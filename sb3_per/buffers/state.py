"""What is saved of a buffer beside its rows."""

from typing import Any, NamedTuple

import numpy as np


class BufferState(NamedTuple):
    """Values that may change after a step is stored, see :meth:`PrioritizedReplayBuffer.state`."""

    #: numbers by name, as JSON can hold them
    numbers: dict[str, Any]
    #: arrays of shape (n_rows, n_envs, ...) by name
    by_row: dict[str, np.ndarray]
    #: other arrays by name
    arrays: dict[str, np.ndarray]


#: What to do with a pickle of a release whose buffers had other attributes.
OLD_PICKLE = (
    "this buffer was pickled by sb3_per before its buffers stood on SB3's own arrays, and this release cannot read it. With "
    "sb3_per at commit 1aaa58c4, run: sb3-per convert old.pkl stock.pkl --trust. This release loads stock.pkl"
)
