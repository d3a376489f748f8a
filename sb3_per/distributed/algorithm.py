"""
What actors need of the learner's algorithm: a copy at the beginning of a run, its weights during the run, and its counters.

Stable-Baselines3 has private names for some of it, which only this module of the folder uses.
"""

import copy
import io
import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.utils import ConstantSchedule

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

# Attributes of the learner's algorithm that its actors do not get, beside the replay buffer.
_NOT_SENT = (
    "env",
    "tensorboard_log",
    "ent_coef_optimizer",
    "_logger",
    "_vec_normalize_env",
    "_last_obs",
    "_last_original_obs",
    "_last_episode_starts",
)

# ---- counters


def n_updates(model: PrioritizedAlgorithm) -> int:
    """Count the gradient steps of the learner so far."""
    return int(model._n_updates)


def n_timesteps_left(model: PrioritizedAlgorithm) -> int:
    """Count the transitions that are left until the run of the learner ends, as the schedules count."""
    return int(model._total_timesteps - model.num_timesteps)


def count_step(model: PrioritizedAlgorithm, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
    """Update what SB3 updates after each step: statistics of episodes, progress, target networks and exploration rate."""
    model._update_info_buffer(infos, dones)
    model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
    model._on_step()


def count_episode(model: PrioritizedAlgorithm) -> int:
    """Count a finished episode, and return the number of episodes so far."""
    model._episode_num += 1
    return int(model._episode_num)


def last_obs(model: PrioritizedAlgorithm) -> tuple[Any, Any]:
    """Return the observations to act on next: normalized, and as the environments gave them or ``None``."""
    return model._last_obs, model._last_original_obs


def set_last_obs(model: PrioritizedAlgorithm, both: tuple[Any, Any]) -> None:
    """Replace the observations to act on next, in the form of :func:`last_obs`."""
    model._last_obs, model._last_original_obs = both


# ---- the copy of an actor


def packed(model: PrioritizedAlgorithm, n_rows: int) -> bytes:
    """
    Pickle the learner's algorithm for its actors, with the classes of the user's script.

    SB3's ``save`` is not used, because ``load`` makes optimizers and PyTorch then imports its compiler. Each actor would take
    1.5 s more CPU time to start, and 70 MB more RAM.

    :param model: a prioritized algorithm, on any device
    :param n_rows: largest number of steps in a call
    :return: the pickle
    """
    buffer = model.replay_buffer
    # Settings that change the content of a transition.
    settings = dict(n_steps=buffer.n_steps, gamma=buffer.gamma, handle_timeout_termination=buffer.handle_timeout_termination)
    sent = copy.copy(model)
    for name, value in vars(model).items():
        if name in _NOT_SENT or isinstance(value, ReplayBuffer):  # a buffer may have gigabytes
            setattr(sent, name, None)
    file = io.BytesIO()
    th.save((sent, n_rows, settings), file, pickle_module=cloudpickle)
    return file.getvalue()


def unpacked(content: bytes, n_envs: int, epsilon: float | None) -> Any:
    """
    Load the algorithm of an actor, on the CPU. Its replay buffer has room for the steps of one call.

    :param content: result of :func:`packed`
    :param n_envs: number of environments of the actor
    :param epsilon: share of random actions; ``None`` follows the learner's schedule
    :return: the algorithm
    """
    model, n_rows, settings = th.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    model.device = th.device("cpu")
    model.n_envs = n_envs
    for module in model.policy.modules():
        if hasattr(module, "optimizer"):
            module.optimizer = None  # its state takes twice the memory of the weights
    obs_space = model.observation_space
    buffer_class = PrioritizedDictReplayBuffer if isinstance(obs_space, spaces.Dict) else PrioritizedReplayBuffer
    model.replay_buffer = buffer_class(
        n_rows * n_envs, obs_space, model.action_space, "cpu", n_envs, scheme="uniform", **settings
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    noise = model.action_noise
    if noise is not None:
        base = noise.base_noise if isinstance(noise, VectorizedActionNoise) else noise
        model.action_noise = VectorizedActionNoise(base, n_envs)
    if hasattr(model, "target_update_interval"):
        # SB3's `_on_step` moves the target networks. Those of an actor must stay the learner's.
        model.target_update_interval = sys.maxsize
    if epsilon is not None:
        model.exploration_schedule = ConstantSchedule(epsilon)
        model.exploration_rate = epsilon
    return model


# ---- weights


@dataclass(frozen=True)
class Weights:
    """
    Weights that the learner sends, and other values that change during a run.

    :param version: number of the learner's updates so far
    :param arrays: everything that is learned, by name: the policy, and e.g. the entropy coefficient
    :param normalize: statistics of observations and of returns by ``VecNormalize``; ``None`` where there are none
    """

    version: int
    arrays: dict[str, np.ndarray]
    normalize: tuple[Any, Any]


def weights_of(model: PrioritizedAlgorithm) -> Weights:
    """Collect the weights that the learner sends. On the CPU, the arrays are views of them."""
    tensors = dict(model.policy.state_dict())
    for name in model._get_torch_save_params()[1]:
        if getattr(model, name) is not None:
            tensors[name] = getattr(model, name)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    normalize = model.get_vec_normalize_env()
    # `VecNormalize` has no statistics of what it does not normalize.
    statistics = getattr(normalize, "obs_rms", None), getattr(normalize, "ret_rms", None)
    return Weights(n_updates(model), arrays, statistics)


def set_weights(model: PrioritizedAlgorithm, weights: Weights) -> None:
    """Give an actor the learner's weights."""
    own = {**vars(model), **model.policy.state_dict()}
    for name, array in weights.arrays.items():
        np.copyto(own[name].detach().numpy(), array)
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        # A copy, because the actor updates the statistics while it acts.
        normalize.obs_rms, normalize.ret_rms = copy.deepcopy(weights.normalize)
