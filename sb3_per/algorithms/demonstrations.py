"""What an algorithm does with the demonstrations in its buffer: statistics to normalize with, and metrics for the log."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.inputs import td_error_matrix
from sb3_per.storage.nested import keyed

# Number of observations to read at a time: as stacks of frames, all of them could take many times their RAM.
_BLOCK = 1024


def start_statistics(buffer: PrioritizedReplayBuffer, normalize: VecNormalize | None) -> None:
    """
    Let the statistics of a VecNormalize that has seen no step begin with the demonstrations, as if its environments had made
    these steps.

    :param buffer: buffer with the demonstrations
    :param normalize: wrapper whose statistics may change; ``None``: there is none
    """
    n = len(buffer.demonstrations)
    if n == 0 or normalize is None or not normalize.training:
        return
    if normalize.ret_rms.count >= 1.0:  # every step counts there; resets count in the statistics of observations alone
        return
    storage = buffer.demonstrations.storage
    if normalize.norm_obs:
        for start in range(0, n, _BLOCK):
            observations = keyed(storage.read_observations(np.arange(start, min(start + _BLOCK, n))))
            for key, statistics in keyed(normalize.obs_rms).items():
                statistics.update(observations[key])
    returns = np.empty(n)
    discounted = 0.0
    for i, (reward, done) in enumerate(zip(storage.rewards[:n, 0], storage.dones[:n, 0], strict=True)):
        discounted = discounted * normalize.gamma + float(reward)
        returns[i] = discounted
        if done:
            discounted = 0.0
    normalize.ret_rms.update(returns)


def demonstration_metrics(
    buffer: PrioritizedReplayBuffer, is_demonstration: np.ndarray, td_errors: Any
) -> dict[str, np.floating]:
    """
    Summarize a batch for the log.

    :param buffer: buffer that the batch was drawn from
    :param is_demonstration: bool of shape (batch_size,)
    :param td_errors: signed TD errors, an array or a tensor on any device, shape (batch_size, n_critics)
    :return: numbers by their name in the log: share of demonstrations, mean ``|td|`` of both parts, and mean priority p of
        the demonstrations. Without numbers of a part that the batch lacks
    """
    errors = np.abs(td_error_matrix(td_errors, is_demonstration.shape), dtype=np.float64)
    of_demonstrations = errors[is_demonstration]
    metrics = {"demonstrations/share": is_demonstration.mean()}
    if len(of_demonstrations):
        metrics["demonstrations/td_error"] = of_demonstrations.mean()
        metrics["demonstrations/mean_priority"] = buffer.scheme.priority(buffer.scheme.reduce(of_demonstrations)).mean()
    if len(of_demonstrations) < len(errors):
        metrics["demonstrations/td_error_of_experience"] = errors[~is_demonstration].mean()
    return metrics
