"""What the learner and its actors send each other."""

import traceback
from dataclasses import dataclass, field
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
    How an actor makes its environments.

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
    What an actor gets when ``learn`` begins, and after a restart.

    :param actor: its number, from 0
    :param start: how often it was started before
    :param seed: seed of its random numbers, for this start
    :param chunk: most steps of a call
    :param buffer_kwargs: settings of the learner's buffer that a transition depends on
    :param wrappers: wrappers around its environments
    :param epsilon: its share of random actions; ``None`` follows the schedule
    :param wants_td_errors: whether chunks come with TD errors
    :param continues: whether it goes on where it was
    :param last_obs: observations that it acts on first; ``None``: it resets its environments
    :param last_original_obs: the same observations before normalization
    :param wrapper_states: what the wrappers remember
    """

    actor: int
    start: int
    seed: int
    chunk: int
    buffer_kwargs: dict[str, Any]
    wrappers: Recipe
    epsilon: float | None
    wants_td_errors: bool
    continues: bool = False
    last_obs: Any = None
    last_original_obs: Any = None
    wrapper_states: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Weights:
    """
    What the learner publishes.

    :param version: number of the learner's updates
    :param policy: state of the policy, arrays by name
    :param tensors: other learned tensors by name, e.g. the entropy coefficient
    :param normalize: statistics of observations and of returns, if there is a ``VecNormalize``
    :param total_timesteps: number of transitions at which the run ends
    """

    version: int
    policy: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    normalize: tuple[Any, Any] | None
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
    :param last_obs: normalized observations that the actor acts on next, shape (k, ...)
    :param last_original_obs: the same observations before normalization
    :param infos: pickled list of (step, environment, info), without infos that say nothing
    :param random_state: random state after the last step, if the call came with one
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
    last_obs: Any
    last_original_obs: Any
    infos: bytes
    random_state: RandomState | None


class RemoteError(Exception):
    """The traceback of an actor. It is the cause of the error that the learner raises."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in an actor:\n\n{self.text}"


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
        """Raise the error in the learner, with the actor's traceback as its cause."""
        raise self.error from RemoteError(self.text)


def map_obs(function: Any, obs: Any) -> Any:
    """
    Apply a function to every array of an observation.

    :param function: function of an array
    :param obs: an array, or a dictionary or tuple of arrays
    :return: the results in the same form
    """
    if isinstance(obs, dict):
        return {key: function(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(function(part) for part in obs)
    return function(obs)
