"""Learn from environments that collect transitions themselves, such as the actors of :mod:`sb3_per.distributed`."""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.algorithms.buffer_choice import BufferChoiceMixin

SelfActingMixin = TypeVar("SelfActingMixin", bound="ActingMixin")


class CollectingVecEnv(VecEnv):
    """Environments that collect transitions themselves while an algorithm of this package learns with them."""

    #: the algorithm that learns now
    learner: "ActingMixin | None" = None

    @abstractmethod
    def require_supported(self, model: "ActingMixin") -> None:
        """
        Refuse algorithms and settings that these environments do not support.

        :param model: algorithm that is to learn
        :raises NotImplementedError: for a combination that is not supported
        """

    @abstractmethod
    def acting_for(self, model: "ActingMixin") -> AbstractContextManager[None]:
        """
        Collect for an algorithm while it learns.

        :param model: algorithm that learns
        :return: context of its ``learn``
        """

    @abstractmethod
    def collect(self, callback: BaseCallback, log_interval: int | None) -> RolloutReturn:
        """
        Take transitions in place of SB3's ``collect_rollouts``, whose other arguments are attributes of the algorithm.

        :param callback: the user's callback
        :param log_interval: episodes from one line of the log to the next
        :return: see SB3
        """


class ActingMixin(BufferChoiceMixin):
    """Let a :class:`CollectingVecEnv` collect in place of the algorithm."""

    #: Number of priorities that came too late, after their transition was overwritten. Counts all calls of ``train``; not
    #: saved.
    n_stale_updates = 0

    #: Whether actors can act with copies of the policy.
    can_act_in_copies: ClassVar[bool] = True

    def _setup_model(self) -> None:
        super()._setup_model()
        collecting_env = _collecting_env_of(self.env)
        if collecting_env is not None:
            collecting_env.require_supported(self)

    def learn(
        self: SelfActingMixin,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfActingMixin:
        """
        See SB3. Environments of actors collect themselves, see :func:`sb3_per.distributed.make_actors`.

        :param total_timesteps: number of steps, over all environments
        :param callback: called at every step
        :param log_interval: number of episodes between two records
        :param tb_log_name: name of the run in TensorBoard; ``None``: that of the stock algorithm, e.g. ``DQN``, so that a run
            which either class resumes stays one run
        :param reset_num_timesteps: ``False``: continue counting, in the newest run of this name
        :param progress_bar: whether to show a progress bar
        :return: this model
        :raises ImportError: if ``tensorboard_log`` was given and TensorBoard is not installed
        """
        if self.tensorboard_log is not None:
            try:
                import tensorboard  # noqa: F401
            except ImportError as error:
                command = 'pip install "tensorboard", or pip install ".[extra]" in a clone of this package'
                raise ImportError(f"tensorboard_log needs tensorboard: {command}") from error
        arguments: dict[str, Any] = dict(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )
        if tb_log_name is not None:
            arguments["tb_log_name"] = tb_log_name
        collecting_env = _collecting_env_of(self.env)
        with nullcontext() if collecting_env is None else collecting_env.acting_for(self):
            return super().learn(**arguments)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """
        See SB3. While actors act, they collect.

        :param env: training environments
        :param callback: called at every step
        :param train_freq: steps to collect
        :param replay_buffer: buffer that stores the steps
        :param action_noise: noise of the actions
        :param learning_starts: number of steps before which actions are random
        :param log_interval: number of episodes between two records
        :return: SB3's result
        """
        collecting_env = _collecting_env_of(env)
        if collecting_env is not None and collecting_env.learner is self:
            return collecting_env.collect(callback, log_interval)
        return super().collect_rollouts(env, callback, train_freq, replay_buffer, action_noise, learning_starts, log_interval)


def _collecting_env_of(env: VecEnv | None) -> CollectingVecEnv | None:
    """Find the environments in any wrappers that collect themselves; ``None`` if the algorithm collects."""
    innermost = None if env is None else env.unwrapped
    return innermost if isinstance(innermost, CollectingVecEnv) else None
