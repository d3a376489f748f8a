"""Check the steps that come into a buffer, and what comes with them, before anything is written."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.sampling.mass_tree import LEAST_MASS
from sb3_per.storage.nested import map_arrays
from sb3_per.storage.storage import Steps, Storage
from sb3_per.utils.compiled import kernel

# Types of rewards that the kernel takes.
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# Largest reward that is finite as the float32 that is stored.
_LARGEST_REWARD = float(np.finfo(np.float32).max)
# Types of NumPy that hold real numbers.
_NUMBERS = frozenset(map(np.dtype, ("?", *"bhilqBHILQefd")))


# ---- steps


def checked_row(
    storage: Storage, obs: Any, next_obs: Any, actions: Any, rewards: Any, dones: Any, infos: list[dict[str, Any]]
) -> Steps:
    """
    Check one step of all environments against the arrays that store it. What SB3's ``add`` accepts is accepted: missing axes
    of length 1, and shapes that NumPy broadcasts.

    :param storage: storage that will hold it
    :param obs: observations, shape (n_envs, ...), or a dictionary of them
    :param next_obs: next observations, in the same form
    :param actions: actions, shape (n_envs, action_dim)
    :param rewards: rewards, shape (n_envs,)
    :param dones: ends of episodes, shape (n_envs,)
    :param infos: one dictionary per environment; kept if the storage keeps them
    :return: arrays of the shapes that are stored
    :raises ValueError: for another shape, values that are not numbers, or a reward that is NaN or infinite
    """
    timeouts = _timeouts_in_row(storage, infos)
    obs_shape, action_shape, shape = storage.row_shapes
    try:
        # Arrays of the stored shapes need no more than this, because `add` is called at every step.
        if (
            timeouts is storage.no_timeouts
            and storage.infos is None
            and obs.shape == next_obs.shape == obs_shape
            and actions.shape == action_shape
            and rewards.shape == dones.shape == shape
            and _NUMBERS.issuperset((obs.dtype, next_obs.dtype, actions.dtype, rewards.dtype, dones.dtype))
            and (abs(rewards.item()) <= _LARGEST_REWARD if storage.n_envs == 1 else _are_finite(rewards))
        ):
            return Steps(obs, next_obs, actions, rewards, dones, timeouts, None)
    except (AttributeError, TypeError):
        pass  # lists, scalars, dictionaries
    return _fit_steps(storage, shape, Steps(obs, next_obs, actions, rewards, dones, timeouts, infos), "infos")


def checked_steps(
    storage: Storage,
    shape: tuple[int, int],
    obs: Any,
    next_obs: Any,
    actions: Any,
    rewards: Any,
    dones: Any,
    infos: Any = (),
    timeouts: Any = None,
) -> Steps:
    """
    Check T steps of k environments against the arrays that store them.

    :param storage: storage that will hold them
    :param shape: (T, k)
    :param obs: observations, shape (T, k, ...), a dictionary of them, or one entry per step
    :param next_obs: next observations, in the same form
    :param actions: actions, shape (T, k, action_dim)
    :param rewards: rewards, shape (T, k)
    :param dones: ends of episodes, shape (T, k)
    :param infos: for each step, one dictionary per environment; kept if the storage keeps them
    :param timeouts: which of the ends are truncations, shape (T, k); ``None``: the infos say so
    :return: arrays of the shapes that are stored
    :raises ValueError: for another shape, values that are not numbers, or a reward that is NaN or infinite
    """
    if timeouts is not None:
        steps = Steps(obs, next_obs, actions, rewards, dones, timeouts, None)
        return _fit_steps(storage, shape, steps, "timeouts")
    infos = list(infos)
    steps = Steps(obs, next_obs, actions, rewards, dones, _timeouts_in_steps(storage, shape, infos), infos)
    return _fit_steps(storage, shape, steps, "infos")


def _fit_steps(storage: Storage, shape: tuple[int, ...], given: Steps, source_of_timeouts: str) -> Steps:
    """Make arrays of the stored shapes of what was given, which the messages name; infos only if the storage keeps them."""
    plural = "s" if len(shape) == 2 else ""
    rewards = _fit(f"reward{plural}", given.rewards, shape, storage.rewards)
    require_finite_rewards(rewards)
    steps = Steps(
        obs=_fit_observations("obs", given.obs, shape, storage),
        next_obs=_fit_observations("next_obs", given.next_obs, shape, storage),
        actions=_fit(f"action{plural}", given.actions, shape, storage.actions, in_any_form=True),
        rewards=rewards,
        dones=_fit(f"done{plural}", given.dones, shape, storage.dones),
        timeouts=_fit(source_of_timeouts, given.timeouts, shape, storage.timeouts),
        infos=None if storage.infos is None or given.infos is None else _fit("infos", given.infos, shape, storage.infos),
    )
    if not storage.handles_timeouts:
        return steps._replace(timeouts=np.zeros(shape, np.float32))
    return steps


def _fit_observations(name: str, given: Any, shape: tuple[int, ...], storage: Storage) -> Any:
    given = _with_keys(name, given, storage.observations)
    return map_arrays(lambda stored, part: _fit(name, part, shape, stored), storage.observations, given)


@kernel
def _are_finite_floats(rewards: np.ndarray) -> bool:
    """Whether floats of shape (n,) are all finite as float32."""
    for reward in rewards:
        if not abs(reward) <= _LARGEST_REWARD:
            return False
    return True


def _are_finite(rewards: np.ndarray) -> bool:
    """Whether all rewards are finite as float32."""
    if rewards.dtype in _FLOATS and rewards.ndim == 1:
        return bool(_are_finite_floats(rewards))  # takes a tenth of the time
    return bool((np.abs(rewards) <= np.finfo(np.float32).max).all())


def require_finite_rewards(rewards: np.ndarray) -> None:
    """
    Check that rewards are finite: one NaN in a batch makes all parameters NaN.

    :param rewards: numbers, shape (n_envs,) for one step, (T, k) for several
    :raises ValueError: with the first one that is NaN, or infinite as the float32 that is stored
    """
    if not _are_finite(rewards):
        place = np.argwhere(~(np.abs(rewards) <= np.finfo(np.float32).max))[0].tolist()
        name = "reward" if rewards.ndim == 1 else "rewards"
        raise ValueError(
            f"{name}{place} must be a finite number, not {rewards[tuple(place)]}: it would make all parameters NaN. Find out "
            "where the environment computes it, or replace it before it is stored"
        )


def _timeouts_in_row(storage: Storage, infos: Any) -> Any:
    """
    Find the truncations in the infos of a step.

    :param storage: that will store the step
    :param infos: one dictionary per environment
    :return: truncations (SB3's ``TimeLimit.truncated``); ``no_timeouts`` of the storage if there are none
    :raises ValueError: for anything but dictionaries
    """
    if not storage.handles_timeouts and storage.infos is None:
        return storage.no_timeouts
    try:
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
    except (AttributeError, TypeError):
        raise _bad_infos(infos) from None
    try:
        return storage.no_timeouts if timeouts.count(False) == storage.n_envs == len(timeouts) else timeouts
    except ValueError:  # an array in place of one truth value, which is refused later
        return timeouts


def _timeouts_in_steps(storage: Storage, shape: tuple[int, int], infos: list[Any]) -> Any:
    """
    Find the truncations in the infos of several steps.

    :param storage: that will store the steps
    :param shape: (T, k)
    :param infos: for each step, one dictionary per environment
    :return: truncations, (T, k) of them
    :raises ValueError: for anything but dictionaries, or infos of another number of steps
    """
    if len(infos) != shape[0]:
        raise ValueError(f"infos of {len(infos)} steps do not fit rewards of {shape[0]} steps")
    if shape[0] == 0 or (not storage.handles_timeouts and storage.infos is None):
        return np.zeros(shape, np.float32)
    try:
        return [[info.get("TimeLimit.truncated", False) for info in of_step] for of_step in infos]
    except (AttributeError, TypeError):
        raise _bad_infos(infos) from None


def _bad_infos(infos: Any) -> ValueError:
    return ValueError(f"infos must hold one dictionary per environment, not {infos!r}")


def _with_keys(name: str, given: Any, stored: Any) -> Any:
    """Check the keys of observations, if they are dictionaries; a list of these becomes one."""
    if not isinstance(stored, dict):
        return given
    if isinstance(given, list):
        steps = [_with_keys(name, step, stored) for step in given]
        return {key: [step[key] for step in steps] for key in stored}
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be a dictionary with the keys {sorted(stored)}, not {type(given).__name__}")
    if not given.keys() >= stored.keys():
        raise ValueError(f"{name} must have the keys {sorted(stored)}, but lacks {sorted(stored.keys() - given.keys())}")
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
    shape, given = lead + stored.shape[2:], value
    try:
        given = array = np.asarray(value)
        if array.shape == shape and array.dtype in _NUMBERS:
            return array
        if len(lead) == 2 and array.shape[:2] != lead:
            raise ValueError("one entry for every step of every environment is needed")
        has_all = array.size == math.prod(shape)
        if in_any_form or (has_all and (stored.shape[2:] == (1,) or array.shape[: len(shape)] == shape)):
            array = array.reshape(shape)
        if array.dtype == object and stored.dtype != object and any(each is None for each in array.flat):
            raise ValueError("None is not a number")  # NumPy would write NaN
        written = np.empty(shape, stored.dtype)
        written[...] = array
    except (ValueError, TypeError) as error:
        found = f"{given.dtype} of shape {given.shape}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
        raise ValueError(f"{name} must be numbers of shape {shape}, not {found}: {error}") from None
    return written


def require_nonempty(**by_name: spaces.Space) -> None:
    """
    Check that spaces hold at least one number.

    :param by_name: spaces of observations or actions, by the name of the argument
    :raises ValueError: if one of them, or a part of it, holds no number
    """
    for name, space in by_name.items():
        if isinstance(space, spaces.Dict):
            require_nonempty(**{f"{name}[{key!r}]": part for key, part in space.spaces.items()})
        elif 0 in (space.shape or ()):
            raise ValueError(f"{name} must hold at least one number, not {space}, whose shape is {space.shape}")


def in_steps(observations: Any) -> Any:
    """
    List observations step by step.

    :param observations: shape (n, n_envs, ...), a dictionary of them, or one entry per step
    :return: one entry per step
    """
    if not isinstance(observations, dict):
        return observations
    return [dict(zip(observations, parts, strict=True)) for parts in zip(*observations.values(), strict=True)]


# ---- what comes with steps


def checked_masses(masses: Any, shape: tuple[int, int], largest: float) -> np.ndarray:
    """
    Check sampling masses that transitions come with.

    :param masses: of new transitions
    :param shape: (n_steps, n_envs)
    :param largest: largest mass of the scheme
    :return: the same, float64 of this shape
    :raises ValueError: for another shape, or a mass that is not allowed
    """
    masses = np.asarray(masses, dtype=np.float64)
    if masses.shape != shape:
        raise ValueError(f"masses of shape {masses.shape} do not fit {shape[0]} steps of {shape[1]} environments")
    bad = masses[~((masses >= LEAST_MASS) & (masses <= largest))]
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
