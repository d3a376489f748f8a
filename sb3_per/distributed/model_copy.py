"""The algorithm of an actor: how the learner sends it once, and its weights again and again."""

import io
import sys
import warnings
from typing import Any

import cloudpickle
import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.utils import ConstantSchedule

from sb3_per.distributed import random_state
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.messages import Weights

# Attributes that an actor does not need, in addition to those that SB3 never saves.
_NOT_SENT = ("ep_info_buffer", "ep_success_buffer", "_last_obs", "_last_original_obs", "_last_episode_starts")


def packed(model: Any) -> bytes:
    """
    Save the learner's algorithm for its actors.

    :param model: a prioritized algorithm, on any device
    :return: its class and its zip, pickled with the classes of the user's script
    """
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loading the zip as the stock algorithm
        model.save(file, exclude=_NOT_SENT)
    content: bytes = cloudpickle.dumps((type(model), file.getvalue()))
    return content


def unpacked(content: bytes, n_envs: int, n_rows: int, buffer_kwargs: dict[str, Any], epsilon: float | None) -> Any:
    """
    Load the algorithm of an actor, on the CPU. Its replay buffer has room for the steps of one call.

    :param content: what :func:`packed` returned
    :param n_envs: number of environments of the actor
    :param n_rows: most steps of a call
    :param buffer_kwargs: settings of the learner's buffer that a transition depends on
    :param epsilon: share of random actions; ``None`` follows the learner's schedule
    :return: the algorithm
    """
    cls, zipped = cloudpickle.loads(content)
    replaced = dict(
        n_envs=n_envs,
        buffer_size=n_rows * n_envs,
        optimize_memory_usage=False,
        replay_buffer_class=None,
        replay_buffer_kwargs={**buffer_kwargs, "scheme": "uniform"},
        seed=None,
        tensorboard_log=None,
        verbose=0,
    )
    with random_state.preserved(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the learner has given them already
        model = cls.load(io.BytesIO(zipped), device="cpu", custom_objects=replaced)
    model.ep_info_buffer, model.ep_success_buffer = [], []
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.action_noise = _noise_of(model.action_noise, n_envs)
    if hasattr(model, "target_update_interval"):
        # SB3's `_on_step` moves the target networks. Those of an actor must stay the learner's.
        model.target_update_interval = sys.maxsize
    if epsilon is not None:
        model.exploration_schedule = ConstantSchedule(epsilon)
        model.exploration_rate = epsilon
    model.policy.set_training_mode(False)
    return model


def _noise_of(noise: Any, n_envs: int) -> Any:
    """Return the learner's action noise for the environments of an actor."""
    if isinstance(noise, VectorizedActionNoise):
        noise = noise.base_noise
    if noise is None or n_envs == 1:
        return noise
    return VectorizedActionNoise(noise, n_envs)


def published(model: Any) -> Weights:
    """
    Collect what the learner publishes.

    :param model: the learner's algorithm
    :return: its weights; the arrays may be views of them
    """
    state = AlgorithmState(model)
    normalize = state.normalize
    return Weights(
        version=state.n_updates,
        policy={name: _array(tensor) for name, tensor in model.policy.state_dict().items()},
        tensors={name: _array(tensor) for name, tensor in state.tensors().items()},
        normalize=None if normalize is None else (getattr(normalize, "obs_rms", None), normalize.ret_rms),
        total_timesteps=state.total_timesteps,
    )


def set_weights(model: Any, weights: Weights) -> None:
    """
    Give an actor the learner's weights.

    :param model: the actor's algorithm
    :param weights: what :func:`published` returned
    """
    state, own = AlgorithmState(model), model.policy.state_dict()
    for name, array in weights.policy.items():
        np.copyto(_array(own[name]), array)
    tensors = state.tensors()
    for name, array in weights.tensors.items():
        np.copyto(_array(tensors[name]), array)
    state.prepare_to_act(weights.total_timesteps)
    if state.normalize is not None and weights.normalize is not None:
        # A copy, because the actor updates the statistics while it acts.
        obs_rms, ret_rms = cloudpickle.loads(cloudpickle.dumps(weights.normalize))
        if obs_rms is not None:
            state.normalize.obs_rms = obs_rms
        state.normalize.ret_rms = ret_rms


def _array(tensor: th.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
