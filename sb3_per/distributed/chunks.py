"""Store the chunks that actors send, and show their transitions to callbacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.buffers.slots import keyed, map_arrays
from sb3_per.distributed.algorithm import last_obs
from sb3_per.distributed.random_state import RandomState


@dataclass(frozen=True)
class Chunk:
    """
    T successive steps of an actor's k environments.

    :param version: number of updates of the weights that it acted with
    :param steps: arguments of ``append_rows``, e.g. observations and rewards before normalization, of shape (T, k, ...); with
        TD errors by the actor's weights if they are wanted, shape (T, k, n_critics)
    :param infos: pickled list of one dictionary per transition, step by step. As objects, their arrays would be read-only
        views that keep Ray's object store from becoming free
    :param last_obs: observations that the actor acts on next, shape (k, ...): normalized, and before normalization
    :param random_state: random state after the last step, if the learner sent one
    """

    version: int
    steps: dict[str, Any]
    infos: bytes
    last_obs: tuple[Any, Any]
    random_state: RandomState | None


#: Arrays and infos for callbacks, with one entry per transition. Dict observations are dictionaries.
ForCallbacks = dict[str, Any]


def for_callbacks(chunk: Chunk) -> ForCallbacks:
    """List the transitions of a chunk for callbacks, step by step. The arrays are views if possible."""
    steps = chunk.steps
    return {
        "buffer_actions": flat(steps["actions"]),
        "new_obs": map_arrays(flat, steps["next_obs"]),
        "rewards": flat(steps["rewards"]),
        "dones": flat(steps["dones"]).astype(bool),
        "infos": cloudpickle.loads(chunk.infos),
    }


def flat(array: np.ndarray) -> np.ndarray:
    """Join the first two axes of an array, steps and environments: a view if possible."""
    return array.reshape(-1, *array.shape[2:])


def some_of(arrays: dict[str, Any], index: Any) -> dict[str, Any]:
    """Select entries of arrays, lists, or dictionaries of arrays, by a slice or several: views under the same names."""
    return {name: map_arrays(lambda part: part[index], each) for name, each in arrays.items()}


def joined(parts: Sequence[Any]) -> Any:
    """Join arrays and lists, or dictionaries or tuples of them, along their first axis. The arrays are new ones."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(joined, zip(*parts, strict=True)))
    if isinstance(first, list):
        return [each for part in parts for each in part]
    return np.concatenate(parts)


def store_chunk(model: PrioritizedAlgorithm, columns: np.ndarray, chunk: Chunk, n: int) -> None:
    """
    Store the steps of a chunk, environment by environment. Also update statistics and last observations.

    :param model: the learner's algorithm
    :param columns: indices of the actor's environments, shape (k,)
    :param chunk: the chunk
    :param n: number of transitions that count, the first ones of the chunk
    """
    n_steps, n_rest = divmod(n, len(columns))
    for env in range(len(columns)):
        # The first environments take one step more.
        n_of_env = n_steps + (env < n_rest)
        model.replay_buffer.append_rows(**some_of(chunk.steps, (slice(n_of_env), env)))
    normalize = model.get_vec_normalize_env()
    if normalize is not None and normalize.training and n_steps > 0:
        update_statistics(normalize, columns, chunk, n_steps)
    # For callbacks, and for a run that continues.
    for present, last in zip(last_obs(model), chunk.last_obs, strict=True):
        if present is not None:
            for key, part in keyed(present).items():
                part[columns] = keyed(last)[key]


def forget_returns(model: PrioritizedAlgorithm, columns: np.ndarray) -> None:
    """Begin new episodes in the statistics of some environments, whose next step does not follow the last one."""
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        normalize.returns[columns] = 0.0


def update_statistics(normalize: VecNormalize, columns: np.ndarray, chunk: Chunk, n_steps: int) -> None:
    """
    Update statistics with the steps of an actor, as ``VecNormalize.step_wait`` does with its own.

    :param normalize: the learner's wrapper
    :param columns: indices of the actor's environments, shape (k,)
    :param chunk: the steps
    :param n_steps: number of steps that count, the first ones, at least 1
    """
    if normalize.norm_obs:
        obs = keyed(chunk.steps["obs"])
        last = keyed(chunk.last_obs[1])
        for key, statistics in keyed(normalize.obs_rms).items():
            # The next step begins at what the environment returned after this step, or after the reset that followed.
            after = np.concatenate((obs[key][1:], last[key][None]))
            statistics.update(flat(after[:n_steps]))
    rewards = chunk.steps["rewards"][:n_steps]
    dones = chunk.steps["dones"][:n_steps]
    returns = np.empty(rewards.shape)
    for t in range(n_steps):
        returns[t] = normalize.returns[columns] * normalize.gamma + rewards[t]
        normalize.returns[columns] = np.where(dones[t], 0.0, returns[t])
    normalize.ret_rms.update(returns.reshape(-1))
