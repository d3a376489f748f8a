"""
The base of all prioritized algorithms, for networks in PyTorch or JAX. It makes the buffer, draws batches, and writes
priorities.
"""

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from stable_baselines3.common.callbacks import BaseCallback

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.algorithms.checkpoints import CheckpointMixin
from sb3_per.algorithms.constructors import require_arguments, require_order, show_arguments
from sb3_per.algorithms.demonstrations import demonstration_metrics, start_statistics
from sb3_per.algorithms.metrics import MeanMetrics
from sb3_per.algorithms.normalization import require_normalized_last
from sb3_per.algorithms.pretraining import PretrainingMixin
from sb3_per.buffers import PrioritizedReplayBufferSamples


class PrioritizedReplayMixin(PretrainingMixin, ActingMixin, CheckpointMixin):
    """
    Prioritized replay for an off-policy algorithm, without its networks.

    The constructor is the stock algorithm's. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, and a buffer class of SB3 is replaced by its prioritized counterpart. ``replay_buffer_kwargs``
    configures the buffer, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`; ``n_steps`` and ``gamma`` reach it too.

    :raises TypeError: for an unknown keyword, or ``replay_buffer_kwargs`` that are no dictionary, or if the stock algorithm
        stands left of this class
    :raises ValueError: for any other ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` or ``gamma`` that
        contradicts the one in ``replay_buffer_kwargs``
    """

    #: Arguments of the stock constructor that have another default here.
    defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        show_arguments(cls, cls.defaults)

    # Type checkers must look past this class, at the constructor of the stock algorithm.
    if not TYPE_CHECKING:

        def __new__(cls, *args, **kwargs):  # noqa: D102
            require_order(cls, PrioritizedReplayMixin)
            require_arguments(cls, kwargs)
            return super().__new__(cls)

    # ---- methods for the training loop

    def _begin_training(self) -> None:
        """Anneal beta."""
        if self._progress_is_current:
            self.replay_buffer.update_beta(self._current_progress_remaining)

    def _draw(self, batch_size: int | None, gradient_step: int, gradient_steps: int) -> PrioritizedReplayBufferSamples:
        """
        Draw the batch of a gradient step.

        :param batch_size: number of transitions; ``None``: the ``batch_size`` of the constructor
        :param gradient_step: number of this step within the call of ``train``, from 0
        :param gradient_steps: number of steps of the call
        :return: the batch
        """
        buffer = self.replay_buffer
        if gradient_steps > 1:
            progress = (gradient_step + 1) / gradient_steps
            return buffer.sample(self.batch_size if batch_size is None else batch_size, self._vec_normalize_env, progress)
        return buffer.sample(self.batch_size if batch_size is None else batch_size, env=self._vec_normalize_env)

    def _write_priorities(self, batch: PrioritizedReplayBufferSamples, td_errors: Any, metrics: MeanMetrics) -> None:
        """
        Set the priorities of a batch, and record its metrics.

        :param batch: the batch
        :param td_errors: its signed unweighted TD errors, an array or a tensor of shape (batch_size, n_critics)
        :param metrics: metrics of this call of ``train``
        :raises ValueError: for TD errors that are NaN or infinite, before any priority is changed
        """
        buffer = self.replay_buffer
        n_written = buffer.update_priorities(batch.indices, td_errors)
        if n_written is not None:  # a buffer of the user's own may return nothing
            self.n_stale_updates += len(batch.indices) - n_written
        if batch.is_demonstration is not None:
            metrics.add(demonstration_metrics(buffer, batch.is_demonstration, td_errors))

    def _log_training(self, metrics: MeanMetrics) -> None:
        """
        Log a call of ``train``.

        :param metrics: metrics of its gradient steps
        """
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, number in metrics.means().items():
            self.logger.record(name, number)
        self.logger.record("per/beta", self.replay_buffer.beta)
        self.logger.record("per/max_priority", self.replay_buffer.max_priority)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        require_normalized_last(self.env, self.get_vec_normalize_env(), self.observation_space)
        if self.replay_buffer is None:
            raise ValueError(
                f"This {type(self).__name__} has no replay buffer: assign one to model.replay_buffer, or load one with "
                "load_replay_buffer()"
            )
        if self.replay_buffer.mixture.draws_demonstrations:
            start_statistics(self.replay_buffer, self._vec_normalize_env)
        last_obs = self._last_obs
        prepared = super()._setup_learn(*args, **kwargs)
        was_reset = self._last_obs is not last_obs
        if was_reset or not self._buffer_continues:
            # The next step does not follow the newest one in the buffer.
            self.replay_buffer.end_episodes()
        self._buffer_continues = True
        self._progress_is_current = True
        return prepared

    # ---- the buffer

    def _setup_model(self) -> None:
        self._choose_buffer()
        given = vars(self)["replay_buffer"]
        if given is not None:  # `load` may have set it beside the property
            self.replay_buffer = given
        # The stock algorithm makes the buffer, with all settings. The model keeps and saves only the user's.
        settings = self.replay_buffer_kwargs
        self.replay_buffer_kwargs = self._buffer_kwargs()
        with warnings.catch_warnings():
            # SB3 warns that it ignores `n_steps` for a buffer class that it does not know. Ours has received it.
            warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
            super()._setup_model()
        if settings.get("storage_folder") is not None:
            # The absolute path. In a new dictionary, since the caller's must not change.
            settings = settings | {"storage_folder": self.replay_buffer.settings.storage_folder}
        self.replay_buffer_kwargs = settings
