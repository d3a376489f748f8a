"""Learn from demonstrations before the first step in the environment."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.slots import keyed, read_slots
from sb3_per.utils.checks import check_argument, integer

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

# Number of observations to read at a time: as stacks of frames, all of them could take many times their RAM.
_BLOCK = 1024


def pretrain(model: "PrioritizedAlgorithm", gradient_steps: int, log_interval: int, progress_bar: bool) -> None:
    """See :meth:`~sb3_per.algorithms.base.PrioritizedAlgorithm.pretrain`."""
    check_argument("gradient_steps", gradient_steps, integer())
    check_argument("log_interval", log_interval, integer())
    buffer = model.replay_buffer
    if isinstance(buffer, PrioritizedSequenceReplayBuffer):
        raise NotImplementedError("pretrain() needs demonstrations, and a buffer of sequences has none")
    if buffer is None or len(buffer.demonstrations) == 0:
        raise ValueError("pretrain() needs demonstrations. Add some: model.replay_buffer.add_demonstrations(...)")
    if not model._custom_logger:
        name = f"{type(model).__name__}_pretrain"
        model._logger = configure_logger(model.verbose, model.tensorboard_log, name, reset_num_timesteps=True)

    # As often as while learning: calls of train(), and of _on_step(), with which DQN updates its target network.
    frequency: Any = model.train_freq
    steps_per_train = frequency.frequency if frequency.unit == TrainFrequencyUnit.STEP else 1
    updates_per_train = model.gradient_steps
    if updates_per_train <= 0:
        updates_per_train = steps_per_train * model.n_envs

    with ExitStack() as stack:
        stack.enter_context(buffer.only_demonstrations())
        bar = stack.enter_context(_progress_bar(gradient_steps)) if progress_bar else None
        start_statistics(buffer, model.get_vec_normalize_env())
        for start in range(0, gradient_steps, updates_per_train):
            end = min(start + updates_per_train, gradient_steps)
            model.train(end - start, model.batch_size)
            for _ in range(steps_per_train):
                model._on_step()
            if end // log_interval > start // log_interval or end == gradient_steps:
                model.logger.dump(end)
            if bar is not None:
                bar.update(end - start)


def start_statistics(buffer: PrioritizedReplayBuffer, normalize: VecNormalize | None) -> None:
    """
    Let the statistics of a ``VecNormalize`` that has seen no step begin with the demonstrations, as if its environments had
    made these steps.

    :param buffer: buffer with the demonstrations
    :param normalize: wrapper whose statistics may change; ``None``: there is none
    """
    n = len(buffer.demonstrations)
    if n == 0 or normalize is None or not normalize.training:
        return
    if normalize.ret_rms.count >= 1.0:  # every step counts there; resets count in the statistics of observations alone
        return
    recorded = buffer.demonstrations.buffer
    if normalize.norm_obs:
        for start in range(0, n, _BLOCK):
            observations = keyed(read_slots(recorded.observations, np.arange(start, min(start + _BLOCK, n))))
            for key, statistics in keyed(normalize.obs_rms).items():
                statistics.update(observations[key])
    returns = np.empty(n)
    discounted = 0.0
    for i, (reward, done) in enumerate(zip(recorded.rewards[:n, 0], recorded.dones[:n, 0], strict=True)):
        discounted = discounted * normalize.gamma + float(reward)
        returns[i] = discounted
        if done:
            discounted = 0.0
    normalize.ret_rms.update(returns)


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
