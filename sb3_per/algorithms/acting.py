"""Learn from environments that collect transitions themselves, such as the actors of :mod:`sb3_per.distributed`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar

from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.algorithms.buffer_choice import BufferChoiceMixin
from sb3_per.utils.extras import require

SelfActingMixin = TypeVar("SelfActingMixin", bound="ActingMixin")


class CollectingLoop(Protocol):
    """Collect transitions in place of an algorithm."""

    @property
    def model(self) -> "ActingMixin | None":
        """The algorithm that learns now."""

    def require_supported(self, model: "ActingMixin") -> None:
        """
        Refuse algorithms and settings that the loop does not support.

        :param model: algorithm that is to learn
        :raises NotImplementedError: for a combination that is not supported
        """

    def acting_for(self, model: "ActingMixin") -> AbstractContextManager[None]:
        """
        Collect for an algorithm while it learns.

        :param model: algorithm that learns
        :return: context of its ``learn``
        """

    def collect(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        Store transitions.

        :param args: arguments of SB3's ``collect_rollouts`` after the environments
        :param kwargs: its keyword arguments
        :return: see SB3
        """


class CollectingVecEnv(VecEnv):
    """Environments that collect on their own while an algorithm of this package learns with them."""

    learning_loop: CollectingLoop


class ActingMixin(BufferChoiceMixin):
    """Let the loop of a :class:`CollectingVecEnv` collect in place of the algorithm."""

    #: Number of priorities that came too late, after their transition was overwritten. Counts all calls of ``train``; not
    #: saved.
    n_stale_updates = 0

    #: Whether actors can act with copies of the policy.
    can_act_in_copies: ClassVar[bool] = True

    def _setup_model(self) -> None:
        super()._setup_model()
        loop = _learning_loop_of(self.env)
        if loop is not None:
            loop.require_supported(self)

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
        See SB3. Environments with a learning loop act on their own, see :func:`sb3_per.distributed.make_actors`.

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
            require("tensorboard", "extra", "tensorboard_log")
        arguments: dict[str, Any] = dict(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )
        if tb_log_name is not None:
            arguments["tb_log_name"] = tb_log_name
        loop = _learning_loop_of(self.env)
        with nullcontext() if loop is None else loop.acting_for(self):
            return super().learn(**arguments)

    def collect_rollouts(self, env: VecEnv, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        See SB3.

        :param env: training environments
        :param args: SB3's arguments
        :param kwargs: SB3's keyword arguments
        :return: SB3's result
        """
        loop = _learning_loop_of(env)
        if loop is None or loop.model is not self:
            return super().collect_rollouts(env, *args, **kwargs)
        return loop.collect(*args, **kwargs)


def _learning_loop_of(env: VecEnv | None) -> CollectingLoop | None:
    """
    Find the loop that collects in place of the algorithm.

    :param env: environments of an algorithm, wrapped or not
    :return: their loop; ``None`` if the algorithm collects itself
    """
    innermost = None if env is None else env.unwrapped
    return innermost.learning_loop if isinstance(innermost, CollectingVecEnv) else None
