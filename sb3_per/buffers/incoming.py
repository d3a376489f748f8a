"""Checks of what comes into a buffer, all of them before the first write."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_per.sampling.sum_tree import as_batch
from sb3_per.storage.arrays import ArrayStorage, Steps, tree_map

_NUMBERS = frozenset(map(np.dtype, ("?", *"bhilqBHILQefd")))


def checked_steps(
    storage: ArrayStorage,
    lead: tuple[int, ...],
    obs: Any,
    next_obs: Any,
    actions: Any,
    rewards: Any,
    dones: Any,
    timeouts: Any,
    infos: Any = None,
) -> Steps:
    """
    Check steps against the arrays that store them. What SB3's ``add`` accepts is accepted for one step: missing axes of length
    1, and shapes that NumPy broadcasts.

    :param storage: that will store them
    :param lead: (n_envs,) for one step of all environments, (T, k) for several steps of some
    :param obs: observations, shape (*lead, ...), or a dictionary of them
    :param next_obs: next observations, in the same form
    :param actions: actions, shape (*lead, action_dim)
    :param rewards: rewards, shape ``lead``
    :param dones: ends of episodes, shape ``lead``
    :param timeouts: which of them are truncations, shape ``lead``; ``None``: none
    :param infos: dictionaries, shape ``lead``, which are kept if the storage keeps them; ``None``: none
    :return: arrays of the shapes that are stored
    :raises ValueError: for another shape, or values that are not numbers
    """
    try:
        # The usual case in one check, because `add` is called at every step: arrays of the stored shapes.
        if (
            obs.shape == next_obs.shape == lead + storage.obs_shape
            and actions.shape == lead + storage.action_shape
            and rewards.shape == dones.shape == lead
            and timeouts is None
            and storage.infos is None
            and {obs.dtype, next_obs.dtype, actions.dtype, rewards.dtype, dones.dtype} <= _NUMBERS
        ):
            return obs, next_obs, actions, rewards, dones, None, None
    except (AttributeError, TypeError):
        pass  # lists, scalars, dictionaries
    plural = "s" if len(lead) == 2 else ""
    obs, next_obs = (
        tree_map(
            lambda stored, part, name=name: _fit(name, part, lead, stored),
            storage.observations,
            _with_keys(name, given, storage.observations),
        )
        for name, given in (("obs", obs), ("next_obs", next_obs))
    )
    return (
        obs,
        next_obs,
        _fit(f"action{plural}", actions, lead, storage.actions, True),
        _fit(f"reward{plural}", rewards, lead, storage.rewards),
        _fit(f"done{plural}", dones, lead, storage.dones),
        None if timeouts is None else _fit("timeouts" if infos is None else "infos", timeouts, lead, storage.timeouts),
        None if infos is None or storage.infos is None else _fit("infos", infos, lead, storage.infos),
    )


def checked_step(storage: ArrayStorage, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> Steps:
    """
    Check one step of all environments, see :func:`checked_steps`.

    :param storage: that will store it
    :param obs: observations, shape (n_envs, ...), or a dictionary of them
    :param next_obs: next observations, in the same form
    :param action: actions, shape (n_envs, action_dim)
    :param reward: rewards, shape (n_envs,)
    :param done: ends of episodes, shape (n_envs,)
    :param infos: one dictionary per environment
    :return: arrays of the shapes that are stored
    :raises ValueError: for another shape, or values that are not numbers
    """
    n_envs = storage.n_envs
    timeouts = timeouts_of(infos, n_envs) if storage.handles_timeouts or storage.infos is not None else None
    return checked_steps(storage, (n_envs,), obs, next_obs, action, reward, done, timeouts, infos)


def checked_recording(
    storage: ArrayStorage,
    lead: tuple[int, int],
    obs: Any,
    next_obs: Any,
    actions: Any,
    rewards: Any,
    dones: Any,
    infos: Iterable[Any],
) -> Steps:
    """
    Check n steps of k environments, see :func:`checked_steps`.

    :param storage: with arrays of the same shapes
    :param lead: (n, k)
    :param obs: observations, shape (n, k, ...), a dictionary of them, or one entry per step
    :param next_obs: next observations, in the same form
    :param actions: actions, shape (n, k, action_dim)
    :param rewards: rewards, shape (n, k)
    :param dones: ends of episodes, shape (n, k)
    :param infos: for each step, one dictionary per environment
    :return: arrays of the shapes that are stored
    :raises ValueError: for another shape, or values that are not numbers
    """
    infos, timeouts = list(infos), []
    if len(infos) != lead[0]:
        raise ValueError(f"infos of {len(infos)} steps do not fit rewards of {lead[0]} steps")
    if storage.handles_timeouts or storage.infos is not None:
        found = (timeouts_of(of_step, lead[1]) for of_step in infos)
        timeouts = [[False] * lead[1] if of_step is None else of_step for of_step in found]
    return checked_steps(storage, lead, obs, next_obs, actions, rewards, dones, timeouts or None, infos or None)


def checked_lead(rewards: Any, n_envs: int, n_rows: int) -> tuple[int, int]:
    """
    Check the number of steps and of environments.

    :param rewards: of T steps
    :param n_envs: number of environments k that add
    :param n_rows: rows of the buffer
    :return: (T, k)
    :raises ValueError: for another shape, or more steps than rows
    """
    lead = np.shape(rewards)
    if len(lead) != 2 or lead[1] != n_envs:
        raise ValueError(f"rewards must have shape (T, {n_envs}), not {lead}")
    if lead[0] > n_rows:
        raise ValueError(f"{lead[0]} steps at once do not fit a buffer of {n_rows} rows")
    return lead[0], lead[1]


def timeouts_of(infos: Iterable[dict[str, Any]], n_envs: int) -> list[bool] | None:
    """
    Read from infos which environments were truncated.

    :param infos: one dictionary per environment
    :param n_envs: number of environments
    :return: which environments were truncated, SB3's ``TimeLimit.truncated``; ``None`` if none was
    :raises ValueError: for anything but dictionaries
    """
    try:
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
    except (AttributeError, TypeError):
        raise ValueError(f"infos must hold one dictionary per environment, not {infos!r}") from None
    for timeout in timeouts:
        if timeout is not False:
            return timeouts
    return None if len(timeouts) == n_envs else timeouts


def _with_keys(name: str, given: Any, stored: Any) -> Any:
    """Check the keys of observations, if they are dictionaries; a list of these becomes one."""
    if not isinstance(stored, dict):
        return given
    if isinstance(given, list):
        steps = [_with_keys(name, step, stored) for step in given]
        return {key: [step[key] for step in steps] for key in stored}
    if not isinstance(given, dict) or not given.keys() >= stored.keys():
        raise ValueError(f"{name} must be a dictionary with the keys {sorted(stored)}, not {type(given).__name__}")
    return given


def _fit(name: str, value: Any, lead: tuple[int, ...], stored: Any, in_any_form: bool = False) -> np.ndarray:
    """
    Make an array of a given shape.

    :param name: of the argument
    :param value: that was given
    :param lead: first axes of the shape
    :param stored: array of shape (n_rows, n_envs, ...) that stores it
    :param in_any_form: whether the remaining axes may have another shape with as many values
    :return: array of shape (*lead, ...)
    :raises ValueError: if NumPy could not write it into such an array, which is SB3's rule
    """
    shape = lead + stored.shape[2:]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of shape {shape}: {error}") from None
    if array.shape == shape and array.dtype in _NUMBERS:
        return array
    given = array
    try:
        if len(lead) == 2 and array.shape[:2] != lead:
            raise ValueError("one entry for every step of every environment is needed")
        has_all = array.size == math.prod(shape)
        if in_any_form or (has_all and (stored.shape[2:] == (1,) or array.shape[: len(shape)] == shape)):
            array = array.reshape(shape)
        written = np.empty(shape, stored.dtype)
        written[...] = array
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{name} must be numbers of shape {shape}, not {given.dtype} of shape {given.shape}: {error}"
        ) from None
    return written


def as_matrix(td_errors: np.ndarray | th.Tensor, batch_size: int) -> np.ndarray:
    """
    Make a matrix of TD errors, with one row for each transition.

    :param td_errors: shape (batch_size,), (batch_size, 1) or (batch_size, n_critics)
    :param batch_size: number of transitions that they belong to
    :return: the same, contiguous, float32 or float64 of shape (batch_size, n_critics)
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
    matrix = array[:, None] if array.ndim == 1 else array
    if matrix.ndim != 2 or len(matrix) != batch_size or matrix.shape[1] == 0:
        raise ValueError(f"td_errors of shape {array.shape} do not fit {batch_size} transition ids")
    return matrix


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


def finite_abs(td_errors: np.ndarray | th.Tensor, n: int) -> np.ndarray:
    """
    Take the absolute values of TD errors, and check that they are finite.

    :param td_errors: see :func:`as_matrix`
    :param n: number of transitions
    :return: ``|td|``, float64 of shape (n, n_critics)
    :raises ValueError: for another shape, NaN or infinity
    """
    errors: np.ndarray = np.abs(as_matrix(td_errors, n), dtype=np.float64)
    if not np.isfinite(errors).all():
        raise ValueError(f"td_errors must be finite, not {errors[~np.isfinite(errors)][0]}")
    return errors


def finite_abs_steps(td_errors: np.ndarray | th.Tensor, lead: tuple[int, int]) -> np.ndarray:
    """
    Take the absolute values of TD errors of several steps, and check that they are finite.

    :param td_errors: shape (T, k) or (T, k, n_critics)
    :param lead: (T, k)
    :return: see :func:`finite_abs`
    :raises ValueError: likewise
    """
    if tuple(td_errors.shape[:2]) != lead or td_errors.ndim > 3 or 0 in td_errors.shape[2:]:
        raise ValueError(f"td_errors of shape {tuple(td_errors.shape)} do not fit rewards of shape {lead}")
    n = lead[0] * lead[1]
    return finite_abs(td_errors.reshape(n, -1), n) if n else np.empty((0, 1))


def require_values(**by_name: spaces.Space) -> None:
    """
    Check that spaces hold at least one number.

    :param by_name: spaces of observations or actions, by the name of the argument
    :raises ValueError: if one of them, or a part of it, holds no number
    """
    for name, space in by_name.items():
        if isinstance(space, spaces.Dict):
            require_values(**{f"{name}[{key!r}]": part for key, part in space.spaces.items()})
        elif 0 in (space.shape or ()):
            raise ValueError(f"{name} must hold at least one number, not {space}, whose shape is {space.shape}")


def checked_rows(rows: Any, n_rows: int) -> np.ndarray:
    """
    Check rows.

    :param rows: integers of shape (batch_size,); negative ones count from the end, as in NumPy
    :param n_rows: rows of the buffer
    :return: the same, int64 in [0, n_rows)
    :raises IndexError: for a row outside of the buffer
    """
    rows = np.asarray(rows)
    outside = (rows < -n_rows) | (rows >= n_rows)
    if outside.any():
        raise IndexError(f"Row {rows[outside][0]} is outside of a buffer of {n_rows} rows")
    return np.asarray(rows % n_rows, np.int64)


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


def part_of(steps: Steps, index: Any) -> Steps:
    """
    Index all arrays of some steps.

    :param steps: arrays, with the same first axes
    :param index: of these axes; ``None`` adds one
    :return: the arrays at this index
    """
    parts = (None if part is None else tree_map(lambda array: array[index], part) for part in steps)
    return tuple(parts)  # type: ignore[return-value]
