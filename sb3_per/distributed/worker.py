"""An actor: environments, a copy of the algorithm, and SB3's own ``collect_rollouts``."""

from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_wrapper

from sb3_per.distributed import model_copy, random_state, wrappers
from sb3_per.distributed.algorithm_state import AlgorithmState, set_seeds_and_options
from sb3_per.distributed.messages import Chunk, EnvRecipe, Setup, Weights
from sb3_per.distributed.random_state import RandomState
from sb3_per.distributed.recorder import Recorder


def exploration_ladder(n_actors: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """
    Compute a share of random actions for each actor (Horgan et al. 2018, section 4.1).

    :param n_actors: number of actors N
    :param epsilon: share of the first actor
    :param alpha: the last actor has the share ``epsilon ** (1 + alpha)``
    :return: ``epsilon ** (1 + alpha i / (N - 1))`` for i from 0 to N - 1
    """
    return [epsilon ** (1.0 + alpha * i / max(n_actors - 1, 1)) for i in range(n_actors)]


class ActorWorker:
    """Answer the calls to an actor. Engines turn an error into a ``Failure``."""

    venv: VecEnv | None = None
    model: Any = None

    # ---- environments that the learner steps

    def build(self, recipe: bytes, actor: int, start: int) -> tuple[Any, Any]:
        """
        Make the environments, if they are not there yet.

        :param recipe: a pickled :class:`~sb3_per.distributed.messages.EnvRecipe`
        :param actor: number of this actor
        :param start: how often it was started before
        :return: observation space and action space
        """
        venv = self._make(recipe, actor, start)
        return venv.observation_space, venv.action_space

    def reset(
        self, recipe: bytes, actor: int, start: int, seeds: list[int | None], options: list[dict[str, Any]]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """
        Reset the environments. A new actor makes them first.

        :param recipe: see :meth:`build`
        :param actor: see :meth:`build`
        :param start: see :meth:`build`
        :param seeds: one seed per environment, or ``None``
        :param options: one dictionary per environment
        :return: observations, and the infos of the resets
        """
        venv = self._make(recipe, actor, start)
        set_seeds_and_options(venv, seeds, options)
        return venv.reset(), list(venv.reset_infos)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]], list[dict[str, Any]]]:
        """
        Step every environment once.

        :param actions: one action per environment
        :return: what ``VecEnv.step`` returns, and the infos of the resets
        """
        venv = self._built()
        return (*venv.step(np.array(actions)), list(venv.reset_infos))

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        Call a method of the environments.

        :param method: name of a method of ``VecEnv``
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

    # ---- acting

    def begin(self, recipe: bytes, content: bytes, setup: Setup) -> int:
        """
        Get ready to act.

        :param recipe: see :meth:`build`
        :param content: the algorithm, see :func:`~sb3_per.distributed.model_copy.packed`
        :param setup: all else that the actor needs
        :return: number of this actor
        """
        venv = self._make(recipe, setup.actor, setup.start)
        before, self.setup = self.model, setup
        self.model = model_copy.unpacked(content, venv.num_envs, setup.chunk, setup.buffer_kwargs, setup.epsilon)
        self.state = AlgorithmState(self.model)
        if setup.continues and before is not None:
            # Random numbers, observations and wrappers stay. The statistics of VecNormalize come with the weights.
            self.state.go_on_from(before)
        else:
            self._begin_anew()
        self.state.normalize = unwrap_vec_wrapper(self.env, VecNormalize)
        self.recorder = Recorder(self.model.replay_buffer)
        self.callback = _NoCallback(self.model)
        return setup.actor

    def _begin_anew(self) -> None:
        setup, venv, space = self.setup, self._built(), self.model.action_space
        self.random_state: RandomState = random_state.seeded(setup.seed, space)
        self.env = wrappers.rebuild(venv, setup.wrappers)
        if setup.last_obs is not None:
            wrappers.set_states(self.env, setup.wrapper_states)
            self.state.last_obs = setup.last_obs, setup.last_original_obs
        else:
            venv.seed(setup.seed)
            with random_state.drawing_from(self.random_state, space) as after:
                obs = self.env.reset()
            self.random_state = after[0]
            normalize = unwrap_vec_wrapper(self.env, VecNormalize)
            self.state.last_obs = obs, None if normalize is None else normalize.get_original_obs()
        self.state.begin_episodes(venv.num_envs)

    def collect(self, weights: Weights, n_steps: int, num_timesteps: int, shared: RandomState | None = None) -> Chunk:
        """
        Act for some steps.

        :param weights: weights to act with
        :param n_steps: steps of every environment
        :param num_timesteps: number of transitions of the run before these steps
        :param shared: the learner's random state, to draw from instead of the actor's own
        :return: the steps
        """
        model = self.model
        model_copy.set_weights(model, weights)
        model.num_timesteps = num_timesteps
        self.recorder.clear()
        with random_state.drawing_from(self.random_state if shared is None else shared, model.action_space) as after:
            model.collect_rollouts(
                self.env,
                callback=self.callback,
                train_freq=TrainFreq(n_steps, TrainFrequencyUnit.STEP),
                replay_buffer=self.recorder,
                action_noise=model.action_noise,
                learning_starts=model.learning_starts,
            )
        if shared is None:
            self.random_state = after[0]
        last_obs, last_original_obs = self.state.last_obs
        return Chunk(
            actor=self.setup.actor,
            version=weights.version,
            td_errors=self.td_errors() if self.setup.wants_td_errors else None,
            last_obs=last_obs,
            last_original_obs=last_original_obs,
            random_state=None if shared is None else after[0],
            **self.recorder.columns(),
        )

    def td_errors(self) -> np.ndarray:
        """
        Compute the TD errors of the recorded steps with the actor's weights.

        :return: signed TD errors, shape (n_steps, n_envs, n_critics)
        """
        buffer, space = self.model.replay_buffer, self.model.action_space
        # The random numbers are the actor's own, even if it has acted with the learner's.
        space_state = space.np_random.bit_generator.state
        with random_state.drawing_from(self.random_state, space) as after:
            errors = self.state.td_errors()
        self.random_state = after[0]
        space.np_random.bit_generator.state = space_state
        return errors.reshape(buffer.size(), buffer.n_envs, errors.shape[-1])


class _NoCallback(BaseCallback):
    """Do nothing. SB3 wants a callback, and the learner calls those of the user."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def _on_step(self) -> bool:
        return True
