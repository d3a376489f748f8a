"""
Wrappers around the vectorized environment of a learner, made anew around that of an actor: each sees its own columns.

It knows the wrappers of Stable-Baselines3, and refuses others, which it could not rebuild.
"""

from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import (
    StackedObservations,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

# Class, and its arguments behind the environment.
Recipe = list[tuple[type, dict[str, Any]]]


def recipes_of(env: VecEnv) -> Recipe:
    """
    :param env: of a learner
    :return: its wrappers, the innermost first
    :raises ValueError: for a wrapper that cannot be rebuilt around an actor's environments
    """
    recipes: Recipe = []
    while isinstance(env, VecEnvWrapper):
        recipes.append((type(env), _arguments(env)))
        env = env.venv
    return recipes[::-1]


def _arguments(wrapper: Any) -> dict[str, Any]:
    kind = type(wrapper)
    if kind is VecTransposeImage:
        return {"skip": wrapper.skip}
    if kind is VecFrameStack:
        stack = wrapper.stacked_obs
        return {"n_stack": stack.n_stack, "channels_order": _channels_order(stack)}
    if kind is VecNormalize:
        return {"pickled": cloudpickle.dumps(wrapper)}  # its environment and returns stay behind
    if kind is VecCheckNan:
        names = ("raise_exception", "warn_once", "check_inf")
        return {name: getattr(wrapper, name) for name in names}
    if kind is VecExtractDictObs:
        return {"key": wrapper.key}
    if kind is VecMonitor and wrapper.results_writer is None:
        return {"info_keywords": wrapper.info_keywords}
    hint = "monitor_dir=..." if kind is VecMonitor else "wrapper_class=..."
    raise ValueError(
        f"env={kind.__name__} around make_actors(): actors cannot rebuild it around their own environments. Wrap each "
        f"environment in its place, make_actors(..., {hint})"
    )


def _channels_order(stack: StackedObservations) -> Any:
    if isinstance(stack.observation_space, spaces.Dict):
        return {key: _channels_order(part) for key, part in stack.sub_stacked_observations.items()}
    return "first" if stack.channels_first else "last"


def rebuild(venv: VecEnv, recipes: Recipe) -> VecEnv:
    """
    :param venv: of an actor
    :param recipes: see :func:`recipes_of`
    :return: the environment in as many wrappers
    """
    for kind, arguments in recipes:
        if kind is VecNormalize:
            normalize = cloudpickle.loads(arguments["pickled"])
            normalize.set_venv(venv)
            venv = normalize
        else:
            venv = kind(venv, **arguments)
    return venv


def states_of(env: VecEnv, columns: slice) -> list[Any]:
    """
    :param env: of a learner, after a reset
    :param columns: of an actor
    :return: what its wrappers remember of these columns, the innermost first
    """
    states: list[Any] = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecFrameStack):
            states.append([stack.stacked_obs[columns].copy() for stack in _parts(env.stacked_obs)])
        elif isinstance(env, VecNormalize):
            states.append(env.returns[columns].copy())
        else:
            states.append(None)
        env = env.venv
    return states[::-1]


def take_on(env: VecEnv, states: list[Any]) -> None:
    """
    :param env: of an actor, with wrappers
    :param states: see :func:`states_of`
    """
    for state in states[::-1]:
        assert isinstance(env, VecEnvWrapper)
        if isinstance(env, VecFrameStack):
            for stack, stacked in zip(_parts(env.stacked_obs), state, strict=True):
                stack.stacked_obs = np.array(stacked)
        elif isinstance(env, VecNormalize):
            env.returns = np.array(state)
        env = env.venv


def _parts(stack: StackedObservations) -> list[StackedObservations]:
    if isinstance(stack.observation_space, spaces.Dict):
        return list(stack.sub_stacked_observations.values())
    return [stack]


def update_statistics(
    normalize: VecNormalize, columns: np.ndarray, new_obs: Any, rewards: np.ndarray, dones: np.ndarray
) -> None:
    """
    What ``VecNormalize.step_wait`` learns from steps, here from those that actors have sent.

    :param normalize: of the learner
    :param columns: that the steps belong to, shape (k,)
    :param new_obs: as the environments gave them, after resets, shape (T, k, ...), or a dictionary of them
    :param rewards: likewise, shape (T, k)
    :param dones: ends of episodes, shape (T, k)
    """
    if not normalize.training:
        return
    if normalize.norm_obs:
        if isinstance(new_obs, dict):
            for key, statistics in normalize.obs_rms.items():
                statistics.update(_rows(new_obs[key]))
        else:
            normalize.obs_rms.update(_rows(new_obs))
    all_returns = np.empty(rewards.shape)
    for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        all_returns[t] = normalize.returns[columns] * normalize.gamma + reward
        normalize.returns[columns] = np.where(done, 0.0, all_returns[t])
    normalize.ret_rms.update(all_returns.reshape(-1))


def _rows(steps: np.ndarray) -> np.ndarray:
    return steps.reshape(-1, *steps.shape[2:])
