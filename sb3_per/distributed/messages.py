"""What learner and actors send each other: data, and nothing that does something."""

import traceback
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.distributed.streams import State
from sb3_per.distributed.wrappers import Recipe


@dataclass(frozen=True)
class EnvRecipe:
    """
    How an actor makes its environments.

    :param arguments: of ``make_vec_env``, but for ``start_index`` and ``n_envs``
    :param n_envs: of an actor
    :param start_index: of the first environment of the first actor
    :param spec: what ``gym.make`` has to know, where the learner has registered the environment itself
    """

    arguments: dict[str, Any]
    n_envs: int
    start_index: int = 0
    spec: Any = None

    def packed(self) -> bytes:
        """
        :return: the same, pickled with the classes of the user's script
        """
        content: bytes = cloudpickle.dumps(self)
        return content

    def make(self, actor: int, start: int) -> VecEnv:
        """
        :param actor: its number, from 0
        :param start: how often it was started before
        :return: its environments
        """
        import gymnasium as gym

        if self.spec is not None:
            gym.registry.setdefault(self.spec.id, self.spec)
        arguments = dict(self.arguments)
        if start > 0:
            # What the one before has written of episodes stays.
            arguments["monitor_kwargs"] = {**(arguments.get("monitor_kwargs") or {}), "override_existing": False}
        return make_vec_env(n_envs=self.n_envs, start_index=self.start_index + actor * self.n_envs, **arguments)


@dataclass(frozen=True)
class Setup:
    """
    What an actor is told when ``learn`` begins, and after a restart.

    :param actor: its number, from 0
    :param start: how often it was started before
    :param seed: of its random numbers, for this start
    :param chunk: most steps of a call
    :param recorder: settings of its recorder
    :param wrappers: around its environments
    :param epsilon: of its exploration; ``None``: the schedule's
    :param wants_td_errors: whether chunks come with TD errors
    :param continues: whether it goes on where it was
    :param last_obs: that it acts on first; ``None``: it resets its environments
    :param last_original_obs: the same, before normalization
    :param wrapper_states: what the wrappers remember
    """

    actor: int
    start: int
    seed: int
    chunk: int
    recorder: dict[str, Any]
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

    :param version: number of its updates
    :param policy: state of the policy, arrays by name
    :param tensors: others of the algorithm, e.g. the entropy coefficient
    :param normalize: statistics of observations and of returns, of ``VecNormalize``
    :param total_timesteps: of this run, which schedules refer to
    """

    version: int
    policy: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    normalize: tuple[Any, Any] | None
    total_timesteps: int


@dataclass
class Chunk:
    """
    Successive steps of one actor, T of k environments.

    :param actor: its number
    :param version: number of updates of the weights that it has acted with
    :param obs: shape (T, k, ...), or a dictionary of them, before normalization, as are the others
    :param next_obs: likewise, terminal observations too
    :param actions: as the buffer stores them, shape (T, k, action_dim)
    :param rewards: shape (T, k)
    :param dones: ends of episodes, shape (T, k)
    :param timeouts: those of them that are no terminations, shape (T, k)
    :param td_errors: by the actor's weights, shape (T, k, n_critics), or ``None``
    :param last_obs: what it acts on next, shape (k, ...), normalized
    :param last_original_obs: the same, before normalization
    :param infos: pickled list of (step, environment, info), of those that say something
    :param random_state: behind the last step, if one was sent along
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
    random_state: State | None


class RemoteError(Exception):
    """The traceback of an actor; cause of the error that it has raised."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in an actor:\n\n{self.text}"


@dataclass(frozen=True)
class Failure:
    """
    An error in an actor.

    :param error: that was raised, or one that says so, if it cannot be pickled
    :param text: its traceback
    """

    error: Exception
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """
        :param error: the error that is being handled
        :return: a failure that can be pickled
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
        """Raise the error here, with the traceback of there."""
        raise self.error from RemoteError(self.text)


def map_obs(function: Any, obs: Any) -> Any:
    """
    :param function: of an array
    :param obs: an array, a dictionary or a tuple of them
    :return: the same of its values
    """
    if isinstance(obs, dict):
        return {key: function(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(function(part) for part in obs)
    return function(obs)
