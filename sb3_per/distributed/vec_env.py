"""
Present the environments of all actors as one ``VecEnv``. Stock algorithms step it synchronously, like ``SubprocVecEnv``. With
the algorithms of this package, the actors act on their own.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.collecting import CollectingVecEnv
from sb3_per.distributed import random_state
from sb3_per.distributed.actor_pool import ActorPool, ActorSettings
from sb3_per.distributed.chunks import joined
from sb3_per.distributed.engines import Engine
from sb3_per.distributed.environments import EnvRecipe
from sb3_per.distributed.loop import Run, RunMetrics, check_supported
from sb3_per.distributed.worker import ActorWorker


class ActorVecEnv(CollectingVecEnv):
    """
    Step the environments of actors. :func:`~sb3_per.distributed.make.make_actors` makes it.

    The environments of the first actor come first, ``n_envs`` of each actor.

    :param engine: engine that the actors run on
    :param n_actors: number of actors
    :param recipe: how an actor makes its environments
    :param settings: settings of all actors
    """

    def __init__(self, engine: Engine, n_actors: int, recipe: EnvRecipe, settings: ActorSettings):
        self.engine = engine
        self.pool = ActorPool(engine, n_actors, recipe, settings)
        #: metrics of the newest run of an algorithm of this package
        self.metrics: RunMetrics | None = None
        # The algorithm that learns now, and its run once it has begun.
        self._learner: PrioritizedAlgorithm | None = None
        self._run: Run | None = None
        # Answers of the newest synchronous step, one per actor.
        self._step_handles: list[Any] = []
        # The algorithm whose episodes continue if it learns again.
        self._continued_model: PrioritizedAlgorithm | None = None
        try:
            for actor in range(n_actors):
                self.pool.start(actor)
            # No restarts: an environment that cannot be made the first time has wrong arguments.
            spaces = self.pool.gather(lambda actor, is_restart: engine.ask(actor, ActorWorker.spaces), may_restart=False)
            super().__init__(n_actors * self.pool.n_envs, *spaces[0])
            self.seed(recipe.arguments["seed"])
        except BaseException:
            self.close()
            raise

    # ---- synchronous steps

    def step_async(self, actions: np.ndarray) -> None:
        """See SB3."""
        self._take_over()
        per_actor = np.split(np.asarray(actions), self.pool.n_actors)
        self._step_handles = [self.engine.ask(actor, ActorWorker.step, part) for actor, part in enumerate(per_actor)]

    def step_wait(self) -> VecEnvStepReturn:
        """See SB3."""
        obs, rewards, dones, infos, reset_infos = joined(self._answers(self._step_handles))
        self.reset_infos = reset_infos
        return obs, rewards, dones, infos

    def reset(self) -> VecEnvObs:
        """See SB3."""
        self._take_over()
        obs, reset_infos = joined(self.pool.gather(self._ask_reset))
        self.reset_infos = reset_infos
        self._reset_seeds()
        self._reset_options()
        return obs

    def _ask_reset(self, actor: int, is_restart: bool) -> Any:
        columns = self.pool.columns_of(actor)
        seed = self._seeds[columns[0]]
        if is_restart and seed is not None:  # the old seed may lead to the same fault again
            seed = random_state.derived_seed(seed, self.pool.n_restarts_ever[actor])
        return self.engine.ask(actor, ActorWorker.reset, seed, [self._options[column] for column in columns])

    def _take_over(self) -> None:
        """Prepare for synchronous steps, after which a run cannot continue the episodes of the last one."""
        self.pool.require_open()
        if self._run is not None:
            raise ValueError(
                "The environments cannot be reset or stepped while an algorithm learns with them. Wait until learn() returns, "
                "or use other environments, e.g. for an evaluation"
            )
        self._continued_model = None

    def _answers(self, handles: Sequence[Any]) -> list[Any]:
        return [self.engine.answer(handle) for handle in handles]

    # ---- collecting for an algorithm of this package

    def check_supported(self, model: PrioritizedAlgorithm) -> None:
        """See :class:`~sb3_per.algorithms.collecting.CollectingVecEnv`."""
        check_supported(self.pool, model)

    @contextlib.contextmanager
    def acting_for(self, model: PrioritizedAlgorithm) -> Iterator[None]:
        """See :class:`~sb3_per.algorithms.collecting.CollectingVecEnv`. An exception in the context stops the actors."""
        self.pool.require_open()
        self.check_supported(model)
        self.pool.start_run()
        self._learner = model
        try:
            yield
            if self._run is not None:
                self._continued_model = model if self._run.end() else None
        except BaseException:
            self.pool.close()
            raise
        finally:
            self._learner = None
            self._run = None

    def acts_for(self, model: PrioritizedAlgorithm) -> bool:
        """See :class:`~sb3_per.algorithms.collecting.CollectingVecEnv`."""
        return self._learner is model

    def collect(self, callback: BaseCallback, log_interval: int | None) -> RolloutReturn:
        """See :class:`~sb3_per.algorithms.collecting.CollectingVecEnv`."""
        assert self._learner is not None, "collect() is called within acting_for()"
        if self._run is None:  # only now, because `learn` resets the environments first
            self._run = Run(self.pool, self._learner, continues=self._continued_model is self._learner)
            self._continued_model = None
            self.metrics = self._run.metrics
        return self._run.collect(callback, log_interval)

    # ---- the rest of VecEnv

    def close(self) -> None:
        """End all actors and, if it was started for them, Ray."""
        self.pool.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """See SB3."""
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """See SB3."""
        return self._ask_some("get_attr", indices, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """See SB3."""
        self._ask_some("set_attr", indices, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """See SB3."""
        return self._ask_some("env_method", indices, method_name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """See SB3."""
        return self._ask_some("env_is_wrapped", indices, wrapper_class)

    def _ask_some(self, method: str, indices: VecEnvIndices, *args: Any, **kwargs: Any) -> list[Any]:
        """Ask the environments one by one, in the order of the indices."""
        self.pool.require_open()
        handles = []
        for index in self._get_indices(indices):
            # The index may be negative.
            actor, env = divmod(index % self.num_envs, self.pool.n_envs)
            handles.append(self.engine.ask(actor, ActorWorker.call_venv, method, *args, indices=[env], **kwargs))
        answers = self._answers(handles)
        return [None if answer is None else answer[0] for answer in answers]
