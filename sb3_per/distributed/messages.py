"""Messages between the learner and its actors."""

import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.distributed.random_state import RandomState
from sb3_per.distributed.wrappers import Recipe


@dataclass(frozen=True)
class EnvRecipe:
    """
    Arguments from which an actor makes its environments.

    :param arguments: arguments of ``make_vec_env``, without ``start_index`` and ``n_envs``
    :param n_envs: environments of an actor
    :param start_index: index of the first environment of the first actor
    :param spec: registration of the environment in the learner's process
    """

    arguments: dict[str, Any]
    n_envs: int
    start_index: int = 0
    spec: Any = None

    def packed(self) -> bytes:
        """
        Pickle the recipe with the classes of the user's script.

        :return: the pickle
        """
        content: bytes = cloudpickle.dumps(self)
        return content

    def make(self, actor: int, start: int) -> VecEnv:
        """
        Make the environments of an actor.

        :param actor: its number, from 0
        :param start: how often it was started before
        :return: the environments
        """
        if self.spec is not None:
            gym.registry.setdefault(self.spec.id, self.spec)
        arguments = dict(self.arguments)
        if start > 0:
            # A new actor keeps the monitor file of the one before it.
            arguments["monitor_kwargs"] = {**(arguments.get("monitor_kwargs") or {}), "override_existing": False}
        return make_vec_env(n_envs=self.n_envs, start_index=self.start_index + actor * self.n_envs, **arguments)


@dataclass(frozen=True)
class Setup:
    """
    Settings of an actor for one run. It gets them when ``learn`` begins, and after a restart.

    :param actor: its number, from 0
    :param start: how often it was started before
    :param seed: seed of its random numbers, for this start
    :param chunk: most steps of a call
    :param buffer_kwargs: settings of the learner's buffer that change what a transition is
    :param wrappers: wrappers around its environments
    :param epsilon: its share of random actions; ``None`` follows the schedule
    :param wants_td_errors: whether its chunks contain TD errors
    :param continues: whether it continues its episodes of the last run
    :param last_obs: observations that it acts on first: normalized, and before normalization; ``None``: it resets its
        environments
    """

    actor: int
    start: int
    seed: int
    chunk: int
    buffer_kwargs: dict[str, Any]
    wrappers: Recipe
    epsilon: float | None
    wants_td_errors: bool
    continues: bool
    last_obs: tuple[Any, Any] | None


@dataclass(frozen=True)
class Weights:
    """
    Weights that the learner publishes, and what else changes during a run.

    :param version: number of the learner's updates so far
    :param policy: state of the policy, arrays by name
    :param tensors: other learned tensors by name, e.g. the entropy coefficient
    :param normalize: statistics of observations and of returns by ``VecNormalize``; ``None`` where there are none
    :param total_timesteps: number of transitions at which the run ends
    """

    version: int
    policy: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    normalize: tuple[Any, Any]
    total_timesteps: int


@dataclass
class Chunk:
    """
    T successive steps of an actor's k environments.

    :param actor: number of the actor
    :param version: number of updates of the weights that it acted with
    :param obs: observations before normalization, shape (T, k, ...), or a dictionary of them
    :param next_obs: next observations in the same form; at the end of an episode, the terminal ones
    :param actions: actions as the buffer stores them, shape (T, k, action_dim)
    :param rewards: rewards before normalization, shape (T, k)
    :param dones: ends of episodes, shape (T, k)
    :param timeouts: ends that are truncations, shape (T, k)
    :param td_errors: TD errors by the actor's weights, shape (T, k, n_critics), or ``None``
    :param last_obs: observations that the actor acts on next, shape (k, ...): normalized, and before normalization
    :param infos: pickled list of (step, environment, info), without empty infos
    :param random_state: random state after the last step, if the learner sent one
    """

    actor: int
    version: int
    obs: Any
    next_obs: Any
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray
    td_errors: np.ndarray | None
    last_obs: tuple[Any, Any]
    infos: bytes
    random_state: RandomState | None


@dataclass(frozen=True)
class Failure:
    """
    An error in an actor.

    :param error: the error, or a RuntimeError with its text if it cannot be sent
    :param text: its traceback
    """

    error: Exception
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """
        Make a failure that can be sent.

        :param error: the error that is being handled
        :return: the failure
        """
        text = "".join(traceback.format_exception(error))
        if isinstance(error, Exception):
            try:
                cloudpickle.loads(cloudpickle.dumps(error))
                return cls(error, text)
            except Exception:
                pass
        # A KeyboardInterrupt or a SystemExit of an environment must not look like one of the learner.
        return cls(RuntimeError(f"{type(error).__name__}: {error}"), text)

    def reraise(self) -> None:
        """
        Raise the error in the learner, with the actor's traceback as its cause.

        :raises Exception: the error
        """
        raise self.error from RuntimeError(f"in an actor:\n\n{self.text}")
