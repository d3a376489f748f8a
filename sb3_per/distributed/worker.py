"""Act with a copy of the algorithm: an actor steps its environments in SB3's own ``collect_rollouts``."""

from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.buffers.arrays import StoredRows
from sb3_per.distributed import algorithm, random_state
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.environments import Wrap


class ActorWorker:
    """
    Answer the calls of the learner. Acting draws from the random generators of the process, which ``begin`` seeds.

    :param recipe: a pickled :class:`~sb3_per.distributed.environments.EnvRecipe`
    :param actor: number of this actor
    :param n_earlier_starts: how often it was started before
    """

    model: Any

    def __init__(self, recipe: bytes, actor: int, n_earlier_starts: int):
        #: the environments
        self.venv: VecEnv = cloudpickle.loads(recipe).make(actor, n_earlier_starts)
        #: the environments as the algorithm sees them; `begin` wraps them
        self.env = self.venv

    # ---- environments

    def spaces(self) -> tuple[spaces.Space, spaces.Space]:
        """:return: observation space and action space"""
        return self.venv.observation_space, self.venv.action_space

    def reset(self, seed: int | None, options: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
        """
        Reset the environments.

        :param seed: seed of the first of them, see ``VecEnv.seed``; ``None``: they continue with their random numbers
        :param options: one dictionary per environment
        :return: observations, and the infos of the resets
        """
        if seed is not None:
            self.venv.seed(seed)
        self.venv.set_options(options)
        return self.venv.reset(), list(self.venv.reset_infos)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]], list[dict[str, Any]]]:
        """Step every environment once. Return the result of ``VecEnv.step``, and the infos of the resets."""
        return (*self.venv.step(np.array(actions)), list(self.venv.reset_infos))

    def call_venv(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the ``VecEnv``."""
        return getattr(self.venv, method)(*args, **kwargs)

    # ---- acting

    def begin(self, content: bytes, seed: int, wraps: list[Wrap] | None, epsilon: float | None, first_obs: Any) -> None:
        """
        Get ready to act, when ``learn`` begins and after a restart.

        :param content: the algorithm, see :func:`~sb3_per.distributed.algorithm.packed`
        :param seed: seed of the random numbers
        :param wraps: wrappers around the environments; ``None``: those of the last run, whose episodes continue
        :param epsilon: share of random actions; ``None`` follows the schedule
        :param first_obs: observations to act on first, unless episodes continue: normalized, and before normalization;
            ``None``: reset the environments
        """
        if wraps is None:
            # The learner does not know the last observations of an actor that has not acted since a restart.
            first_obs = algorithm.last_obs(self.model)
        else:
            self.env = self.venv
            for wrap in wraps:
                self.env = wrap(self.env)
        self.model = algorithm.unpacked(content, self.venv.num_envs, epsilon)
        self.model.set_env(self.env)
        random_state.seed_all(seed, self.model.action_space)
        if first_obs is None:
            self.venv.seed(seed)
            obs = self.env.reset()
            normalize = self.model.get_vec_normalize_env()
            first_obs = obs, None if normalize is None else normalize.get_original_obs()
        algorithm.set_last_obs(self.model, first_obs)

    def collect(
        self,
        weights: algorithm.Weights,
        n_steps: int,
        num_timesteps: int,
        with_td_errors: bool,
        learner_state: random_state.RandomState | None,
    ) -> Chunk:
        """
        Act for some steps.

        :param weights: weights to act with
        :param n_steps: steps of every environment
        :param num_timesteps: number of transitions of the run before these steps
        :param with_td_errors: whether the chunk contains TD errors
        :param learner_state: the learner's random state, to draw from instead of the actor's own; ``None``: the actor's own
        :return: the steps
        """
        model = self.model
        buffer = model.replay_buffer
        infos: list[dict[str, Any]] = []

        def record(seen: dict[str, Any], _: Any) -> bool:
            infos.extend(seen["infos"])  # the other parts of a step go into the actor's buffer
            return True

        recorder = ConvertCallback(record)
        algorithm.set_weights(model, weights)
        model.num_timesteps = num_timesteps
        buffer.reset()
        recorder.init_callback(model)
        if learner_state is not None:
            random_state.set_current(learner_state, model.action_space)
        train_freq = TrainFreq(n_steps, TrainFrequencyUnit.STEP)
        model.collect_rollouts(self.env, recorder, train_freq, buffer, model.action_noise, model.learning_starts)
        state_after = None if learner_state is None else random_state.current(model.action_space)
        steps = self.steps()
        if with_td_errors:
            steps["td_errors"] = self.td_errors()
        return Chunk(weights.version, steps, cloudpickle.dumps(infos), algorithm.last_obs(model), state_after)

    def steps(self) -> dict[str, Any]:
        """
        Copy the steps of the last call. The buffer has put observations and timeouts into the form that the learner stores.

        :return: arguments of ``append_rows``, shape (n, n_envs, ...)
        """
        buffer = self.model.replay_buffer
        return StoredRows.of(buffer, np.arange(buffer.size()))._asdict()

    def td_errors(self) -> np.ndarray:
        """
        Compute the TD errors of the last call's steps by the actor's weights, with the code that the learner updates with.

        :return: signed TD errors, shape (n_steps, n_envs, n_critics)
        """
        model = self.model
        buffer = model.replay_buffer
        batch = buffer.read_drawn(np.arange(buffer.size() * buffer.n_envs), model.get_vec_normalize_env())
        errors: np.ndarray = model.td_errors(batch).numpy()
        return errors.reshape(buffer.size(), buffer.n_envs, errors.shape[-1])
