"""Store the chunks that actors send, and show their transitions to callbacks."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.distributed.algorithm_state import last_obs
from sb3_per.distributed.random_state import RandomState
from sb3_per.storage.arrays import flat, keyed, tree_map


@dataclass(frozen=True)
class Chunk:
    """
    T successive steps of an actor's k environments.

    :param version: number of updates of the weights that it acted with
    :param steps: arguments of ``add_steps``, e.g. observations and rewards before normalization, of shape (T, k, ...); with TD
        errors by the actor's weights if they are wanted, shape (T, k, n_critics)
    :param infos: pickled list of one dictionary per transition, step by step
    :param last_obs: observations that the actor acts on next, shape (k, ...): normalized, and before normalization
    :param random_state: random state after the last step, if the learner sent one
    """

    version: int
    steps: dict[str, Any]
    infos: bytes
    last_obs: tuple[Any, Any]
    random_state: RandomState | None


#: What callbacks find in ``locals``: arrays and infos with one entry per transition. Dict observations are dictionaries.
Transitions = dict[str, Any]


def transitions_of(chunk: Chunk) -> Transitions:
    """
    List the transitions of a chunk for callbacks.

    :param chunk: the chunk
    :return: its transitions, step by step; the arrays are views if possible
    """
    names = {"buffer_actions": "actions", "new_obs": "next_obs", "rewards": "rewards", "dones": "dones"}
    found = {name: tree_map(flat, chunk.steps[key]) for name, key in names.items()}
    return {**found, "dones": found["dones"].astype(bool), "infos": cloudpickle.loads(chunk.infos)}


def some_of(arrays: dict[str, Any], index: Any) -> dict[str, Any]:
    """
    Select entries.

    :param arrays: by name, arrays, lists, or dictionaries of arrays
    :param index: slice of their first axis, or a tuple of slices
    :return: the same names, with views of the selected entries
    """
    return {name: tree_map(lambda part: part[index], each) for name, each in arrays.items()}


def joined(parts: Any) -> Any:
    """
    Join arrays and lists along their first axis.

    :param parts: arrays, lists, or dictionaries or tuples of them, all in the same form
    :return: a new one in this form
    """
    first = parts[0]
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(joined, zip(*parts, strict=True)))
    if isinstance(first, list):
        return [each for part in parts for each in part]
    return np.concatenate(parts)


def store(model: ActingMixin, columns: np.ndarray, chunk: Chunk, n: int) -> None:
    """
    Store a chunk as a whole, because a large write costs as much as a small one. Also update statistics and last observations.

    :param model: the learner's algorithm
    :param columns: columns of the actor's environments in the buffer, shape (k,)
    :param chunk: the chunk
    :param n: number of transitions that count, the first ones of the chunk
    """
    n_steps, n_rest = divmod(n, len(columns))
    blocks = [(columns, slice(n_steps))]
    if n_rest > 0:  # the first environments take one step more
        blocks.append((columns[:n_rest], slice(n_steps, n_steps + 1)))
    for envs, rows in blocks:
        model.replay_buffer.add_steps(envs, **some_of(chunk.steps, (rows, slice(len(envs)))), initial_priority="td_error")
    normalize = model.get_vec_normalize_env()
    if normalize is not None and normalize.training and n_steps > 0:
        update_statistics(normalize, columns, chunk, n_steps)
    # For callbacks, and for a run that continues.
    for present, last in zip(last_obs(model), chunk.last_obs, strict=True):
        for key, part in keyed(present).items() if present is not None else ():
            part[columns] = keyed(last)[key]


def cut(model: ActingMixin, columns: np.ndarray) -> None:
    """
    Cut the episodes of an actor after its last stored step, which its next step does not follow.

    :param model: the learner's algorithm
    :param columns: columns of the actor's environments, shape (k,)
    """
    model.replay_buffer.end_episodes(columns)
    if (normalize := model.get_vec_normalize_env()) is not None:
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
        obs, last = keyed(chunk.steps["obs"]), keyed(chunk.last_obs[1])
        for key, statistics in keyed(normalize.obs_rms).items():
            # The next step begins at what the environment returned after this step, or after the reset that followed.
            after = np.concatenate((obs[key][1:], last[key][None]))
            statistics.update(flat(after[:n_steps]))
    rewards, dones = (chunk.steps[name][:n_steps] for name in ("rewards", "dones"))
    returns = np.empty(rewards.shape)
    for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        returns[t] = normalize.returns[columns] * normalize.gamma + reward
        normalize.returns[columns] = np.where(done, 0.0, returns[t])
    normalize.ret_rms.update(returns.reshape(-1))
