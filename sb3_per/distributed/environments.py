"""Make an actor's environments, and rebuild the learner's vectorized wrappers around them."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces
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

from sb3_per.storage.arrays import tree_map


@dataclass(frozen=True)
class EnvRecipe:
    """
    Arguments from which an actor makes its environments.

    :param arguments: arguments of ``make_vec_env`` for the first actor
    :param spec: registration of the environment in the learner's process
    """

    arguments: dict[str, Any]
    spec: Any = None

    def make(self, actor: int, start: int) -> VecEnv:
        """
        Make the environments of an actor.

        :param actor: its number, from 0
        :param start: number of earlier starts
        :return: the environments
        """
        if self.spec is not None:
            gym.registry.setdefault(self.spec.id, self.spec)
        arguments = dict(self.arguments)
        arguments["start_index"] = arguments.get("start_index", 0) + actor * arguments["n_envs"]
        if start > 0:
            # A new actor keeps the monitor file of the one before it.
            arguments["monitor_kwargs"] = {**(arguments.get("monitor_kwargs") or {}), "override_existing": False}
        return make_vec_env(**arguments)


#: Wrappers, the innermost first: class, arguments after the environment, and the frames that it stacks in the actor's
#: environments, or ``None``.
Wrappers = list[tuple[type, dict[str, Any], Any]]


def wrappers_of(env: VecEnv, columns: slice) -> Wrappers:
    """
    Describe wrappers so that an actor can rebuild them.

    :param env: the learner's environments
    :param columns: indices of the actor's environments
    :return: the description
    :raises ValueError: for a wrapper that cannot be rebuilt around an actor's environments
    """
    wrappers: Wrappers = []
    while isinstance(env, VecEnvWrapper):
        frames = None
        if isinstance(env, VecFrameStack):
            frames = tree_map(lambda stack: stack.stacked_obs[columns].copy(), _stacks(env))
        wrappers.append((type(env), _arguments(env), frames))
        env = env.venv
    return wrappers[::-1]


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


def _stacks(wrapper: Any) -> Any:
    """Find the frames that a wrapper stacks; for Dict observations by key."""
    stack = wrapper.stacked_obs
    return stack.sub_stacked_observations if isinstance(stack.observation_space, spaces.Dict) else stack


def rebuild(venv: VecEnv, wrappers: Wrappers) -> VecEnv:
    """
    Wrap an actor's environments like the learner's.

    :param venv: the actor's environments
    :param wrappers: what :func:`wrappers_of` returned
    :return: the wrapped environments
    """

    def set_frames(stack: Any, frames: np.ndarray) -> None:
        stack.stacked_obs = np.array(frames)

    for kind, arguments, frames in wrappers:
        if kind is VecNormalize:
            normalize = cloudpickle.loads(arguments["pickled"])
            normalize.set_venv(venv)
            venv = normalize
        else:
            venv = kind(venv, **arguments)
        if frames is not None:
            tree_map(set_frames, _stacks(venv), frames)
    return venv
