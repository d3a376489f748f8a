"""Make an actor's environments, and rebuild the learner's vectorized wrappers around them."""

import copy
from dataclasses import dataclass
from typing import Any

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


#: Wrappers, the innermost first: the class of each, and a copy of its attributes, reduced to the actor's environments.
Wrappers = list[tuple[type[VecEnvWrapper], dict[str, Any]]]


def wrappers_of(env: VecEnv | None, columns: np.ndarray) -> Wrappers:
    """
    Describe wrappers so that an actor can rebuild them.

    :param env: the learner's environments, wrapped or not
    :param columns: indices of the actor's environments
    :return: the description
    :raises ValueError: for a wrapper that cannot be rebuilt around an actor's environments
    """
    wrappers: Wrappers = []
    while isinstance(env, VecEnvWrapper):
        kind = type(env)
        if kind not in (VecTransposeImage, VecFrameStack, VecNormalize, VecCheckNan):
            hint = "monitor_dir=..." if kind is VecMonitor else "wrapper_class=..."
            raise ValueError(f"Actors cannot rebuild {kind.__name__}. Wrap each environment: make_actors(..., {hint})")
        state = copy.deepcopy({name: value for name, value in vars(env).items() if name not in ("venv", "class_attributes")})
        if kind is VecNormalize:
            state["returns"] = state["returns"][columns]
        if kind is VecFrameStack:
            stack = state["stacked_obs"]
            for part in getattr(stack, "sub_stacked_observations", {None: stack}).values():  # by key of Dict observations
                part.stacked_obs = part.stacked_obs[columns]
        wrappers.append((kind, state))
        env = env.venv
    return wrappers[::-1]


def rebuild(venv: VecEnv, wrappers: Wrappers) -> VecEnv:
    """
    Wrap an actor's environments like the learner's.

    :param venv: the actor's environments
    :param wrappers: what :func:`wrappers_of` returned
    :return: the wrapped environments
    """
    for kind, state in wrappers:
        wrapper = kind.__new__(kind)
        vars(wrapper).update(state)
        VecEnvWrapper.__init__(wrapper, venv, wrapper.observation_space, wrapper.action_space)
        venv = wrapper
    return venv
