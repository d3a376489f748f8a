"""Learn from demonstrations before the first step in the environment."""

from contextlib import ExitStack
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm, SelfOffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.utils import configure_logger

from sb3_per.algorithms.demonstrations import start_statistics
from sb3_per.utils.checks import integer, require


class PretrainingMixin(OffPolicyAlgorithm):
    """Learn from demonstrations before the first step in the environment."""

    def pretrain(
        self: SelfOffPolicyAlgorithm, gradient_steps: int, log_interval: int = 1_000, progress_bar: bool = False
    ) -> SelfOffPolicyAlgorithm:
        """
        Update the networks from demonstrations alone, whatever ``demonstration_fraction`` is. Nothing counts as a step of the
        environment. Target networks are updated as often as they would be while learning. The statistics of a ``VecNormalize``
        that has seen no step begin with the demonstrations.

        ::

            model.replay_buffer.add_demonstrations_from(expert_buffer)
            model.pretrain(5_000)
            model.learn(100_000)

        :param gradient_steps: number of updates
        :param log_interval: number of updates between two records, which go into a run of their own, ``..._pretrain``
        :param progress_bar: whether to show a progress bar with tqdm and rich, as in ``learn``
        :return: this model
        :raises ValueError: for a number below 1, or without demonstrations
        :raises ImportError: for a progress bar without tqdm or rich
        """
        require("gradient_steps", gradient_steps, integer())
        require("log_interval", log_interval, integer())
        buffer: Any = self.replay_buffer
        if buffer is None or not len(buffer.demonstrations):
            raise ValueError("pretrain() needs demonstrations. Add some: model.replay_buffer.add_demonstrations(...)")
        if not self._custom_logger:
            self._logger = configure_logger(self.verbose, self.tensorboard_log, f"{type(self).__name__}_pretrain", True)
        frequency: Any = self.train_freq
        n_calls = frequency.frequency if frequency.unit == TrainFrequencyUnit.STEP else 1
        n_at_once = self.gradient_steps if self.gradient_steps > 0 else n_calls * self.n_envs
        with ExitStack() as stack:
            stack.enter_context(buffer.only_demonstrations())
            bar = stack.enter_context(_progress_bar(gradient_steps)) if progress_bar else None
            start_statistics(buffer, self._vec_normalize_env)
            for n_before in range(0, gradient_steps, n_at_once):
                n_done = min(n_before + n_at_once, gradient_steps)
                self.train(n_done - n_before, self.batch_size)
                for _ in range(n_calls):
                    self._on_step()  # DQN's target network
                if n_done // log_interval > n_before // log_interval or n_done == gradient_steps:
                    self.logger.dump(n_done)
                if bar is not None:
                    bar.update(n_done - n_before)
        return self


def _progress_bar(total: int) -> Any:
    """
    Make the progress bar of SB3's ``learn``.

    :param total: number of updates
    :return: bar of tqdm and rich, a context manager
    :raises ImportError: without tqdm or rich
    """
    try:
        from tqdm.rich import tqdm
    except ImportError as error:
        command = 'pip install "tqdm" "rich", or pip install ".[extra]" in a clone of this package'
        raise ImportError(f"progress_bar=True needs tqdm and rich: {command}") from error
    return tqdm(total=total)
