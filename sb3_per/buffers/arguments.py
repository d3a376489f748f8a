"""Check the numbers that a buffer is given beside steps: ids, TD errors, masses, rows and environments."""

from typing import Any

import numpy as np
import torch as th

from sb3_per.sampling.sum_tree import as_batch


def as_matrix(td_errors: np.ndarray | th.Tensor, *shape: int) -> np.ndarray:
    """
    Make a matrix of TD errors, with one row for each step.

    :param td_errors: of ``shape``, or (*shape, n_critics)
    :param shape: shape of the steps that they belong to
    :return: the same, contiguous, float32 or float64 of shape (n, n_critics), where n is the number of steps
    :raises ValueError: for another shape
    """
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach() if td_errors.requires_grad else td_errors
        td_errors = td_errors if td_errors.is_cpu else td_errors.cpu()
        if td_errors.dtype is not th.float32:
            td_errors = td_errors.to(th.float64)  # NumPy does not have all types of torch
        td_errors = td_errors.numpy()
    try:
        array = np.asarray(td_errors)
        if array.dtype.char not in "fd" or not array.flags.carray:
            array = np.array(array, dtype=np.float64, order="C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"td_errors must be numbers: {error}") from error
    if array.shape == shape:
        return array.reshape(-1, 1)
    if array.shape[:-1] != shape or array.shape[-1] == 0:
        with_critics = ", ".join((*map(str, shape), "n_critics"))
        raise ValueError(f"td_errors have shape {array.shape}, and must have shape {shape} or ({with_critics})")
    return array.reshape(-1, array.shape[-1])


def finite_abs(td_errors: np.ndarray | th.Tensor, *shape: int) -> np.ndarray:
    """
    Return the absolute values of TD errors, and check that they are finite.

    :param td_errors: see :func:`as_matrix`
    :param shape: see :func:`as_matrix`
    :return: ``|td|``, float64 of shape (n, n_critics)
    :raises ValueError: for another shape, NaN or infinity
    """
    errors: np.ndarray = np.abs(as_matrix(td_errors, *shape), dtype=np.float64)
    require_finite(errors)
    return errors


def require_finite(td_errors: np.ndarray) -> None:
    """
    Check that TD errors are finite.

    :param td_errors: of any shape
    :raises ValueError: with the first one that is NaN or infinite
    """
    if not np.isfinite(td_errors).all():
        raise ValueError(f"td_errors must be finite, not {td_errors[~np.isfinite(td_errors)][0]}")


def checked_ids(indices: Any) -> np.ndarray:
    """
    Check transition ids.

    :param indices: transition ids
    :return: the same, int64 of shape (batch_size,)
    :raises ValueError: for another shape
    :raises IndexError: for anything but integers
    """
    ids = np.asarray(indices)
    if ids.ndim != 1:
        raise ValueError(f"Transition ids have shape (batch_size,), not {ids.shape}")
    if ids.dtype.kind not in "iu" and ids.size:
        raise IndexError(f"Transition ids are integers, not {ids.dtype}: {ids[0]}")
    return as_batch(ids, np.int64)


def checked_masses(masses: Any, n_steps: int, n_envs: int, largest: float) -> np.ndarray:
    """
    Check sampling masses that transitions come with.

    :param masses: of new transitions
    :param n_steps: number of steps
    :param n_envs: number of environments
    :param largest: largest mass of the scheme
    :return: the same, float64 of shape (n_steps, n_envs)
    :raises ValueError: for another shape, or a mass that is not allowed
    """
    masses = np.asarray(masses, dtype=np.float64)
    if masses.shape != (n_steps, n_envs):
        raise ValueError(f"masses of shape {masses.shape} do not fit {n_steps} steps of {n_envs} environments")
    bad = masses[~((masses > 0.0) & (masses <= largest))]
    if bad.size:
        raise ValueError(f"A mass must be above 0 and at most {largest}, so that their sum is finite, not {bad[0]}")
    return np.asarray(masses)


def checked_environments(envs: Any, n_envs: int) -> np.ndarray:
    """
    Check the environments that steps belong to.

    :param envs: that add, or end their episodes
    :param n_envs: number of environments
    :return: the same, int64 of shape (k,)
    :raises ValueError: for unknown or repeated environments
    """
    array = np.asarray(envs)
    is_fine = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    if not is_fine or not 0 <= array.min() <= array.max() < n_envs or len(set(array.tolist())) < len(array):
        raise ValueError(f"envs must be different integers in [0, {n_envs}), not {envs}")
    return np.asarray(array.astype(np.int64))


def checked_shape(rewards: Any, n_envs: int, n_rows: int) -> tuple[int, int]:
    """
    Check the number of steps and of environments.

    :param rewards: of T steps
    :param n_envs: number of environments k that add
    :param n_rows: rows of the buffer
    :return: (T, k)
    :raises ValueError: for another shape, or more steps than rows
    """
    shape = np.shape(rewards)
    if len(shape) != 2 or shape[1] != n_envs:
        raise ValueError(f"rewards must have shape (T, {n_envs}), not {shape}")
    if shape[0] > n_rows:
        raise ValueError(f"{shape[0]} steps at once do not fit a buffer of {n_rows} rows")
    return shape[0], shape[1]
