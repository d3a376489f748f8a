"""
Rebuild the learner's vectorized wrappers around an actor's environments. Only those of SB3 can be rebuilt.
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

#: Classes of wrappers, each with its arguments after the environment.
Recipe = list[tuple[type, dict[str, Any]]]


def recipes_of(env: VecEnv) -> Recipe:
    """
    Describe wrappers so that an actor can rebuild them.

    :param env: the learner's environments
    :return: the wrappers, the innermost first
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
        return {"pickled": cloudpickle.dumps(wrapper)}  # without its environment and returns
    if kind is VecCheckNan:
        names = ("raise_exception", "warn_once", "check_inf")
        return {name: getattr(wrapper, name) for name in names}
    if kind is VecExtractDictObs:
        return {"key": wrapper.key}
    if kind is VecMonitor and wrapper.results_writer is None:
        return {"info_keywords": wrapper.info_keywords}
    hint = "monitor_dir=..." if kind is VecMonitor else "wrapper_class=..."
    raise ValueError(
        f"Actors cannot rebuild {kind.__name__} around their own environments. Wrap each environment instead: "
        f"make_actors(..., {hint})"
    )


def _channels_order(stack: StackedObservations) -> Any:
    if isinstance(stack.observation_space, spaces.Dict):
        return {key: _channels_order(part) for key, part in stack.sub_stacked_observations.items()}
    return "first" if stack.channels_first else "last"


def rebuild(venv: VecEnv, recipes: Recipe) -> VecEnv:
    """
    Wrap an actor's environments like the learner's.

    :param venv: the actor's environments
    :param recipes: what :func:`recipes_of` returned
    :return: the wrapped environments
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
    Read what the learner's wrappers remember of an actor's environments.

    :param env: the learner's environments, after a reset
    :param columns: indices of the actor's environments
    :return: one state per wrapper, the innermost first
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


def set_states(env: VecEnv, states: list[Any]) -> None:
    """
    Give an actor's wrappers what the learner's remember.

    :param env: the actor's wrapped environments
    :param states: what :func:`states_of` returned
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
    Update statistics with the steps of actors, as ``VecNormalize.step_wait`` does with its own.

    :param normalize: the learner's wrapper
    :param columns: environments of the steps, shape (k,)
    :param new_obs: observations after the steps and resets, not normalized, shape (T, k, ...), or a dictionary of them
    :param rewards: rewards, not normalized, shape (T, k)
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
