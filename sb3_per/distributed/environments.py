"""Make an actor's environments, and the learner's vectorized wrappers around them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations


@dataclass(frozen=True)
class EnvRecipe:
    """
    Arguments from which an actor makes its environments.

    :param arguments: arguments of ``make_vec_env`` for the first actor
    :param spec: registration of the environment in the learner's process
    """

    arguments: dict[str, Any]
    spec: Any = None

    def make(self, actor: int, n_earlier_starts: int) -> VecEnv:
        """Make the environments of an actor, from its number and the number of its earlier starts."""
        if self.spec is not None:
            gym.registry.setdefault(self.spec.id, self.spec)
        arguments = dict(self.arguments)
        arguments["start_index"] = arguments.get("start_index", 0) + actor * arguments["n_envs"]
        if n_earlier_starts > 0:
            # A new actor keeps the monitor file of the one before it.
            arguments["monitor_kwargs"] = {**(arguments.get("monitor_kwargs") or {}), "override_existing": False}
        return make_vec_env(**arguments)


#: Function that wraps an actor's environments. It can be pickled.
Wrap = Callable[[VecEnv], VecEnv]


def wrappers_of(env: VecEnv | None, columns: np.ndarray) -> list[Wrap]:
    """
    Copy the learner's wrappers for an actor.

    :param env: the learner's environments, wrapped or not
    :param columns: indices of the actor's environments
    :return: functions that wrap the actor's environments, the innermost wrapper first
    :raises ValueError: for a wrapper that actors do not support
    """
    wraps: list[Wrap] = []
    while isinstance(env, VecEnvWrapper):
        wraps.insert(0, _copied(env, columns))
        env = env.venv
    return wraps


def _copied(env: VecEnvWrapper, columns: np.ndarray) -> Wrap:
    # Exactly these classes: a subclass may have arguments and a state of its own.
    if type(env) is VecTransposeImage:
        return partial(VecTransposeImage, skip=env.skip)
    if type(env) is VecCheckNan:
        return partial(VecCheckNan, raise_exception=env.raise_exception, warn_once=env.warn_once, check_inf=env.check_inf)
    if type(env) is VecNormalize:
        return partial(_normalized, cloudpickle.dumps(env), env.returns[columns])
    if type(env) is VecFrameStack:
        frames = {key: stack.stacked_obs[columns] for key, stack in _stacks(env).items()}
        orders = {key: "first" if stack.channels_first else "last" for key, stack in _stacks(env).items()}
        return partial(_stacked, env.stacked_obs.n_stack, orders, frames)
    hint = "monitor_dir=..." if type(env) is VecMonitor else "wrapper_class=..."
    raise ValueError(
        f"Actors do not support {type(env).__name__}, only VecNormalize, VecFrameStack, VecTransposeImage and VecCheckNan. "
        f"Wrap each environment: make_actors(..., {hint})"
    )


def _normalized(content: bytes, returns: np.ndarray, venv: VecEnv) -> VecEnv:
    normalize: VecNormalize = cloudpickle.loads(content)
    normalize.set_venv(venv)
    normalize.returns = returns.copy()
    return normalize


def _stacked(n_stack: int, orders: dict[str, str], frames: dict[str, np.ndarray], venv: VecEnv) -> VecEnv:
    is_dict = isinstance(venv.observation_space, gym.spaces.Dict)
    env = VecFrameStack(venv, n_stack, orders if is_dict else orders[""])
    for key, stack in _stacks(env).items():
        stack.stacked_obs[:] = frames[key]
    return env


def _stacks(env: VecFrameStack) -> dict[str, StackedObservations]:
    """List the stack of each key of Dict observations, or the only stack by the key ``""``."""
    if isinstance(env.observation_space, gym.spaces.Dict):
        return env.stacked_obs.sub_stacked_observations
    return {"": env.stacked_obs}
