"""
The algorithm as an actor has it: policy, schedules and noise, without replay buffer, optimizers and environment; and the
weights that follow. It knows how Stable-Baselines3 saves a model, and no algorithm.
"""

import io
import sys
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.distributed.messages import Weights

# What belongs to the learner.
_NOT_SENT = frozenset(
    "env replay_buffer _logger _vec_normalize_env ep_info_buffer ep_success_buffer _last_obs _last_original_obs "
    "_last_episode_starts _continued_buffer tensorboard_log ent_coef_optimizer".split()
)


class _Pickler(cloudpickle.Pickler):
    """Leaves optimizers out, whose state is twice as large as the weights."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, th.optim.Optimizer):
            return type(None), ()
        return super().reducer_override(obj)


def packed(model: Any) -> bytes:
    """
    :param model: a prioritized algorithm, on any device
    :return: what an actor needs of it
    """
    state = {name: value for name, value in vars(model).items() if name not in _NOT_SENT}
    module: Any = SimpleNamespace(Pickler=_Pickler, dump=cloudpickle.dump, dumps=cloudpickle.dumps, __name__="cloudpickle")
    file = io.BytesIO()
    th.save((type(model), state), file, pickle_module=module)
    return file.getvalue()


def unpacked(content: bytes, n_envs: int, epsilon: float | None) -> Any:
    """
    :param content: of :func:`packed`
    :param n_envs: number of environments of the actor
    :param epsilon: share of random actions; ``None``: as the schedule says
    :return: the algorithm, on the CPU
    """
    # Written a moment ago, by the learner.
    cls, state = th.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    model = cls.__new__(cls)
    vars(model).update({**dict.fromkeys(_NOT_SENT), **state})
    model.device, model.n_envs = th.device("cpu"), n_envs
    model.ep_info_buffer, model.ep_success_buffer = [], []
    model._logger = Logger(folder=None, output_formats=[])
    model.action_noise = _noise_of(model.action_noise, n_envs)
    if hasattr(model, "target_update_interval"):
        # Target networks are the learner's, SB3's `_on_step` must not move those of an actor.
        model.target_update_interval = sys.maxsize
    if epsilon is not None:
        model.exploration_schedule = _Constant(epsilon)
        model.exploration_rate = epsilon
    model.policy.set_training_mode(False)
    return model


class _Constant:
    """A schedule that does not change."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, progress_remaining: float) -> float:
        return self.value


def _noise_of(noise: Any, n_envs: int) -> Any:
    """The noise of a learner, for the number of environments of an actor."""
    if isinstance(noise, VectorizedActionNoise):
        noise = noise.base_noise
    if noise is None or n_envs == 1:
        return noise
    return VectorizedActionNoise(noise, n_envs)


def published(model: Any) -> Weights:
    """
    :param model: the learner
    :return: its weights; arrays may be views of them
    """
    tensors = {name: getattr(model, name) for name in model._get_torch_save_params()[1]}
    normalize: VecNormalize | None = model._vec_normalize_env
    statistics = None if normalize is None else (getattr(normalize, "obs_rms", None), normalize.ret_rms)
    return Weights(
        version=model._n_updates,
        policy={name: _array(tensor) for name, tensor in model.policy.state_dict().items()},
        tensors={name: _array(tensor) for name, tensor in tensors.items() if tensor is not None},
        normalize=statistics,
        total_timesteps=model._total_timesteps,
    )


def take_on(model: Any, weights: Weights) -> None:
    """
    :param model: of an actor
    :param weights: from now on
    """
    own = model.policy.state_dict()
    for name, array in weights.policy.items():
        np.copyto(_array(own[name]), array)
    for name, array in weights.tensors.items():
        np.copyto(_array(getattr(model, name)), array)
    model._total_timesteps = weights.total_timesteps
    normalize = model._vec_normalize_env
    if normalize is not None and weights.normalize is not None:
        statistics = cloudpickle.loads(cloudpickle.dumps(weights.normalize))  # an actor goes on counting, in its own
        if statistics[0] is not None:
            normalize.obs_rms = statistics[0]
        normalize.ret_rms = statistics[1]


def _array(tensor: th.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
