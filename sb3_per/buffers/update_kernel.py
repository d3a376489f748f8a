"""What an update of priorities reads, in one pass: slots of ids, and absolute TD errors that are checked."""

import numpy as np

from sb3_per.sampling.kernels import kernel


@kernel
def read_update(
    ids: np.ndarray,
    oldest_id: int,
    next_id: int,
    lap_start: int,
    capacity: int,
    td_errors: np.ndarray,
    leaves: np.ndarray,
    abs_td_errors: np.ndarray,
) -> tuple[int, int]:
    """
    Fill ``leaves`` and ``abs_td_errors``.

    :param ids: of transitions, int64 of shape (batch_size,)
    :param oldest_id: that is held
    :param next_id: the first that was not issued
    :param lap_start: id of the first slot in this lap of the ring
    :param capacity: number of slots
    :param td_errors: shape (batch_size, n_critics)
    :param leaves: slots of the ids, 0 for stale ones; written
    :param abs_td_errors: in the shape of ``td_errors``; written
    :return: how many of the ids are not stale; and the position of the first bad id or TD error, -1 if there is none
    """
    n_held = 0
    for i in range(ids.size):
        if not 0 <= ids[i] < next_id:
            return n_held, i
        if ids[i] >= oldest_id:
            n_held += 1
            leaves[i] = ids[i] - lap_start
            if leaves[i] < 0:
                leaves[i] += capacity
        else:
            leaves[i] = 0
        for j in range(td_errors.shape[1]):
            abs_td_errors[i, j] = abs(td_errors[i, j])
            if not abs_td_errors[i, j] < np.inf:
                return n_held, i
    return n_held, -1
