"""An actor: its environments, its copy of the algorithm, and a recorder for SB3's own ``collect_rollouts``."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_wrapper

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.distributed import model_copy, random_state
from sb3_per.distributed.algorithm_state import AlgorithmState, set_seeds_and_options
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.environments import Wrappers, rebuild
from sb3_per.distributed.model_copy import Weights
from sb3_per.distributed.random_state import RandomState
from sb3_per.storage.arrays import tree_map

# An info with no other keys is not sent, unless an episode ends.
_USUAL_KEYS = {"TimeLimit.truncated"}


def exploration_ladder(n_actors: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """
    Compute a share of random actions for each actor (Horgan et al. 2018, section 4.1).

    :param n_actors: number of actors N
    :param epsilon: share of the first actor
    :param alpha: exponent; the share of the last actor is ``epsilon ** (1 + alpha)``
    :return: ``epsilon ** (1 + alpha i / (N - 1))`` for i from 0 to N - 1
    """
    return [epsilon ** (1.0 + alpha * i / max(n_actors - 1, 1)) for i in range(n_actors)]


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
    wrappers: Wrappers
    epsilon: float | None
    wants_td_errors: bool
    continues: bool
    last_obs: tuple[Any, Any] | None


class Recorder:
    """
    Record the steps of one call, in place of a replay buffer. A small buffer of the learner's kind stores them, so that
    observations and timeouts have the form that the learner stores.

    :param buffer: empty buffer with a row for each step of a call
    """

    def __init__(self, buffer: PrioritizedReplayBuffer):
        self._buffer = buffer
        #: infos with more than the usual keys, with their step and environment
        self.infos: list[tuple[int, int, dict[str, Any]]] = []

    def clear(self) -> None:
        """Forget all steps."""
        self._buffer.reset()
        self.infos = []

    def add(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: list[dict]
    ) -> None:
        """
        Record one step of every environment. The arguments are those of SB3's buffers.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: ends of episodes, shape (n_envs,)
        :param infos: one dictionary per environment
        """
        step = self._buffer.size()
        self._buffer.add(obs, next_obs, action, reward, done, infos)
        self.infos += [(step, env, info) for env, info in enumerate(infos) if info.keys() - _USUAL_KEYS or done[env]]

    def steps(self) -> dict[str, Any]:
        """
        Return copies of the recorded steps.

        :return: arguments of ``add_steps``
        """
        buffer, n = self._buffer, self._buffer.size()
        stored = {
            "obs": buffer.observations,
            "next_obs": buffer.next_observations,
            "actions": buffer.actions,
            "rewards": buffer.rewards,
            "dones": buffer.dones,
            "timeouts": buffer.timeouts,
        }
        return {name: tree_map(lambda part: np.array(part[:n]), each) for name, each in stored.items()}


class ActorWorker:
    """Answer the calls of the learner. Engines turn an error into a ``Failure``."""

    venv: Any = None
    model: Any = None

    # ---- environments that the learner steps

    def build(self, recipe: bytes, actor: int, start: int) -> tuple[Any, Any]:
        """
        Make the environments, if they are not there yet.

        :param recipe: a pickled :class:`~sb3_per.distributed.environments.EnvRecipe`
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
        return (*self.venv.step(np.array(actions)), list(self.venv.reset_infos))

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """
        Call a method of the environments.

        :param method: name of a method of ``VecEnv``
        :param args: its arguments
        :param kwargs: its keyword arguments
        :return: what it returns
        """
        return getattr(self.venv, method)(*args, **kwargs)

    def _make(self, recipe: bytes, actor: int, start: int) -> VecEnv:
        if self.venv is None:
            self.venv = cloudpickle.loads(recipe).make(actor, start)
        return self.venv  # type: ignore[no-any-return]

    # ---- acting

    def begin(self, recipe: bytes, content: bytes, setup: Setup) -> None:
        """
        Get ready to act.

        :param recipe: see :meth:`build`
        :param content: the algorithm, see :func:`~sb3_per.distributed.model_copy.packed`
        :param setup: all else that the actor needs
        """
        venv = self._make(recipe, setup.actor, setup.start)
        before, self.setup = self.model, setup
        self.model = model_copy.unpacked(content, venv.num_envs, setup.chunk, setup.buffer_kwargs, setup.epsilon)
        self.state = AlgorithmState(self.model)
        if setup.continues and before is not None:
            # Random numbers and wrappers stay. The statistics of VecNormalize come with the weights.
            self.state.last_obs = AlgorithmState(before).last_obs
        else:
            self._begin_anew(venv)
        self.state.set_normalize(unwrap_vec_wrapper(self.env, VecNormalize))
        self.recorder = Recorder(self.model.replay_buffer)
        # SB3 needs a callback, but only the learner calls the user's.
        self.callback = CallbackList([])
        self.callback.init_callback(self.model)

    def _begin_anew(self, venv: VecEnv) -> None:
        setup, space = self.setup, self.model.action_space
        self.random_state: RandomState = random_state.seeded(setup.seed, space)
        self.env = rebuild(venv, setup.wrappers)
        if setup.last_obs is not None:
            self.state.last_obs = setup.last_obs
            return
        venv.seed(setup.seed)
        with random_state.drawing_from(self.random_state, space):
            obs = self.env.reset()
            self.random_state = random_state.current(space)
        normalize = unwrap_vec_wrapper(self.env, VecNormalize)
        self.state.last_obs = obs, None if normalize is None else normalize.get_original_obs()

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
        with random_state.drawing_from(self.random_state if shared is None else shared, model.action_space):
            model.collect_rollouts(
                self.env,
                callback=self.callback,
                train_freq=TrainFreq(n_steps, TrainFrequencyUnit.STEP),
                replay_buffer=self.recorder,
                action_noise=model.action_noise,
                learning_starts=model.learning_starts,
            )
            after = random_state.current(model.action_space)
        if shared is None:
            self.random_state = after
        steps = self.recorder.steps()
        if self.setup.wants_td_errors:
            steps["td_errors"] = self.td_errors()
        infos, after_shared = cloudpickle.dumps(self.recorder.infos), None if shared is None else after
        return Chunk(self.setup.actor, weights.version, steps, infos, self.state.last_obs, after_shared)

    def td_errors(self) -> np.ndarray:
        """
        Compute the TD errors of the recorded steps by the actor's weights, with the code that the learner updates with.

        :return: signed TD errors, shape (n_steps, n_envs, n_critics)
        """
        model, buffer = self.model, self.model.replay_buffer
        # The random numbers are the actor's own, even if it has acted with the learner's.
        with random_state.drawing_from(self.random_state, model.action_space):
            batch = buffer.read(np.arange(buffer.size() * buffer.n_envs), model.get_vec_normalize_env())
            errors: np.ndarray = model.td_errors(batch).numpy()
            self.random_state = random_state.current(model.action_space)
        return errors.reshape(buffer.size(), buffer.n_envs, errors.shape[-1])
