"""
Rebuild the learner's vectorized wrappers around an actor's environments, and keep the statistics of ``VecNormalize``.
"""

from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from sb3_per.storage.arrays import flat, keyed, tree_map

#: Classes of wrappers, the innermost first. Each with its arguments after the environment, and with what it remembers of the
#: actor's environments.
Recipe = list[tuple[type, dict[str, Any], Any]]


def recipe_of(env: VecEnv, columns: slice | None = None) -> Recipe:
    """
    Describe wrappers so that an actor can rebuild them.

    :param env: the learner's environments
    :param columns: indices of the actor's environments; ``None``: the wrappers remember nothing, as before a reset
    :return: the recipe
    :raises ValueError: for a wrapper that cannot be rebuilt around an actor's environments
    """
    recipe: Recipe = []
    while isinstance(env, VecEnvWrapper):
        recipe.append((type(env), _arguments(env), None if columns is None else _memory(env, columns)))
        env = env.venv
    return recipe[::-1]


def _arguments(wrapper: Any) -> dict[str, Any]:
    kind = type(wrapper)
    if kind is VecTransposeImage:
        return {"skip": wrapper.skip}
    if kind is VecFrameStack:
        order = tree_map(lambda stack: "first" if stack.channels_first else "last", _stacks(wrapper))
        return {"n_stack": wrapper.stacked_obs.n_stack, "channels_order": order}
    if kind is VecNormalize:
        return {"pickled": cloudpickle.dumps(wrapper)}  # without its environment and returns
    if kind is VecCheckNan:
        return {name: getattr(wrapper, name) for name in ("raise_exception", "warn_once", "check_inf")}
    hint = "monitor_dir=..." if kind is VecMonitor else "wrapper_class=..."
    raise ValueError(
        f"Actors cannot rebuild {kind.__name__} around their own environments. Wrap each environment instead: "
        f"make_actors(..., {hint})"
    )


def _memory(wrapper: VecEnvWrapper, columns: slice) -> Any:
    if isinstance(wrapper, VecFrameStack):
        return tree_map(lambda stack: stack.stacked_obs[columns].copy(), _stacks(wrapper))
    return wrapper.returns[columns].copy() if isinstance(wrapper, VecNormalize) else None


def _stacks(wrapper: Any) -> Any:
    """Find the frames that a wrapper stacks; for Dict observations by key."""
    stack = wrapper.stacked_obs
    return stack.sub_stacked_observations if isinstance(stack.observation_space, spaces.Dict) else stack


def rebuild(venv: VecEnv, recipe: Recipe) -> VecEnv:
    """
    Wrap an actor's environments like the learner's.

    :param venv: the actor's environments
    :param recipe: what :func:`recipe_of` returned
    :return: the wrapped environments
    """

    def set_frames(stack: Any, frames: np.ndarray) -> None:
        stack.stacked_obs = np.array(frames)

    for kind, arguments, memory in recipe:
        if kind is VecNormalize:
            normalize = cloudpickle.loads(arguments["pickled"])
            normalize.set_venv(venv)
            venv = normalize
            if memory is not None:
                normalize.returns = np.array(memory)
        else:
            venv = kind(venv, **arguments)
            if memory is not None:
                tree_map(set_frames, _stacks(venv), memory)
    return venv


def update_statistics(
    normalize: VecNormalize, columns: np.ndarray, new_obs: Any, rewards: np.ndarray, dones: np.ndarray
) -> None:
    """
    Update statistics with the steps of actors, as ``VecNormalize.step_wait`` does with its own.

    :param normalize: the learner's wrapper
    :param columns: indices of the environments, shape (k,)
    :param new_obs: observations after the steps and resets, not normalized, shape (T, k, ...), or a dictionary of them
    :param rewards: rewards, not normalized, shape (T, k)
    :param dones: ends of episodes, shape (T, k)
    """
    if not normalize.training:
        return
    if normalize.norm_obs:
        for key, statistics in keyed(normalize.obs_rms).items():
            statistics.update(flat(keyed(new_obs)[key]))
    all_returns = np.empty(rewards.shape)
    for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        all_returns[t] = normalize.returns[columns] * normalize.gamma + reward
        normalize.returns[columns] = np.where(done, 0.0, all_returns[t])
    normalize.ret_rms.update(all_returns.reshape(-1))
