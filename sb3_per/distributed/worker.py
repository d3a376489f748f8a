"""
An actor: environments, a copy of the algorithm, and SB3's own ``collect_rollouts``. It runs in a process of its own or in that
of the learner, and does not know which.
"""

import functools
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_wrapper

from sb3_per.distributed import model_copy, streams, wrappers
from sb3_per.distributed.messages import Chunk, EnvRecipe, Failure, Setup, Weights
from sb3_per.distributed.recorder import Recorder


def exploration_ladder(n_actors: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """
    Each actor explores with another share of random actions, all the time (Horgan et al. 2018, section 4.1).

    :param n_actors: N
    :param epsilon: of the first actor
    :param alpha: the last actor has ``epsilon ** (1 + alpha)``
    :return: ``epsilon ** (1 + alpha i / (N - 1))`` for i from 0 to N - 1
    """
    return [epsilon ** (1.0 + alpha * i / max(n_actors - 1, 1)) for i in range(n_actors)]


def _reported(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors are an answer like another: they look the same, whichever way they come."""

    @functools.wraps(method)
    def answered(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            return Failure.of(error)

    return answered


class ActorWorker:
    """All that an actor can be asked to do. An answer is what was asked for, or a ``Failure``."""

    venv: VecEnv | None = None
    model: Any = None

    # ---- as an environment that is stepped

    @_reported
    def build(self, recipe: bytes, actor: int, start: int) -> tuple[Any, Any]:
        """
        Make the environments, if they are not there yet.

        :param recipe: a pickled :class:`~sb3_per.distributed.messages.EnvRecipe`
        :param actor: number of this actor
        :param start: how often it was started before
        :return: spaces of observations and of actions
        """
        venv = self._make(recipe, actor, start)
        return venv.observation_space, venv.action_space

    @_reported
    def reset(
        self, recipe: bytes, actor: int, start: int, seeds: list[int | None], options: list[dict[str, Any]]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """
        Reset the environments. A new actor makes them first.

        :param recipe: see :meth:`build`
        :param actor: see :meth:`build`
        :param start: see :meth:`build`
        :param seeds: of the environments
        :param options: of the environments
        :return: observations, and infos of the resets
        """
        venv = self._make(recipe, actor, start)
        venv._seeds, venv._options = list(seeds), list(options)
        return venv.reset(), list(venv.reset_infos)

    @_reported
    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]], list[dict[str, Any]]]:
        """
        :param actions: one of every environment
        :return: what ``VecEnv.step`` gives, and infos of the resets
        """
        venv = self._built()
        return (*venv.step(np.array(actions)), list(venv.reset_infos))

    @_reported
    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        :param method: of ``VecEnv``
        :param args: its arguments
        :param kwargs: its keyword arguments
        :return: what it returns
        """
        return getattr(self._built(), method)(*args, **kwargs)

    def _make(self, recipe: bytes, actor: int, start: int) -> VecEnv:
        if self.venv is None:
            made: EnvRecipe = cloudpickle.loads(recipe)
            self.venv = made.make(actor, start)
        return self.venv

    def _built(self) -> VecEnv:
        assert self.venv is not None, "The actor has no environments yet"
        return self.venv

    # ---- as an actor

    @_reported
    def begin(self, recipe: bytes, content: bytes, setup: Setup) -> int:
        """
        Get ready to act.

        :param recipe: see :meth:`build`
        :param content: the algorithm, see :func:`~sb3_per.distributed.model_copy.packed`
        :param setup: all else
        :return: number of this actor
        """
        venv = self._make(recipe, setup.actor, setup.start)
        before = self.model
        self.setup = setup
        self.model = model_copy.unpacked(content, venv.num_envs, setup.epsilon)
        if setup.continues and before is not None:
            self._go_on_from(before)
        else:
            self._begin_anew()
        normalize = unwrap_vec_wrapper(self.env, VecNormalize)
        self.model._vec_normalize_env = normalize
        self.recorder = Recorder(
            setup.chunk, venv.num_envs, self.model.observation_space, self.model.action_space, setup.recorder
        )
        self.callback = _Silent(self.model)
        return setup.actor

    def _go_on_from(self, before: Any) -> None:
        # Random numbers, wrappers and observations are those of the run before.
        self.model.action_space = before.action_space
        for name in ("_last_obs", "_last_original_obs", "_last_episode_starts"):
            setattr(self.model, name, getattr(before, name))
        # Its statistics arrive with the weights; the rest of a wrapper is its memory.

    def _begin_anew(self) -> None:
        model, setup, venv = self.model, self.setup, self._built()
        self.random_state = streams.seeded(setup.seed, model.action_space)
        self.env = wrappers.rebuild(venv, setup.wrappers)
        if setup.last_obs is not None:
            wrappers.take_on(self.env, setup.wrapper_states)
            model._last_obs, model._last_original_obs = setup.last_obs, setup.last_original_obs
        else:
            venv.seed(setup.seed)
            with streams.drawing_from(self.random_state, model.action_space) as after:
                model._last_obs = self.env.reset()
            self.random_state = after[0]
            normalize = unwrap_vec_wrapper(self.env, VecNormalize)
            model._last_original_obs = None if normalize is None else normalize.get_original_obs()
        model._last_episode_starts = np.ones(venv.num_envs, dtype=bool)

    @_reported
    def collect(self, weights: Weights, n_steps: int, num_timesteps: int, random_state: Any = None) -> Chunk:
        """
        Act: the permission to take so many steps.

        :param weights: to act with
        :param n_steps: of every environment
        :param num_timesteps: transitions that the run has at the first of them
        :param random_state: where random numbers come from; ``None``: the actor's own
        :return: the steps
        """
        model, is_shared = self.model, random_state is not None
        model_copy.take_on(model, weights)
        model.num_timesteps = num_timesteps
        self.recorder.clear()
        with streams.drawing_from(random_state if is_shared else self.random_state, model.action_space) as after:
            model.collect_rollouts(
                self.env,
                callback=self.callback,
                train_freq=TrainFreq(n_steps, TrainFrequencyUnit.STEP),
                replay_buffer=self.recorder,
                action_noise=model.action_noise,
                learning_starts=model.learning_starts,
            )
        if not is_shared:
            self.random_state = after[0]
        return Chunk(
            actor=self.setup.actor,
            version=weights.version,
            td_errors=self._td_errors() if self.setup.wants_td_errors else None,
            last_obs=model._last_obs,
            last_original_obs=model._last_original_obs,
            random_state=after[0] if is_shared else None,
            **self.recorder.columns(),
        )

    def _td_errors(self) -> np.ndarray:
        # From numbers of the actor's own, also where acting has drawn from the learner's.
        space_state = self.model.action_space.np_random.bit_generator.state
        with streams.drawing_from(self.random_state, self.model.action_space) as after:
            td_errors = self.recorder.td_errors(self.model)
        self.random_state = after[0]
        self.model.action_space.np_random.bit_generator.state = space_state
        return td_errors


class _Silent(BaseCallback):
    """SB3 calls one at every step; those of the user are called by the learner."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def _on_step(self) -> bool:
        return True
