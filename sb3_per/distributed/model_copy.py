"""Copy the learner's algorithm to its actors: everything at the beginning of a run, and its weights during the run."""

import copy
import io
import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.utils import ConstantSchedule

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.distributed.algorithm_state import learned_arrays, n_updates

# Attributes that an actor does not get.
_NOT_SENT = frozenset(
    "env replay_buffer _logger _vec_normalize_env _last_obs _last_original_obs "
    "_last_episode_starts _buffer_continues tensorboard_log ent_coef_optimizer".split()
)


@dataclass(frozen=True)
class Weights:
    """
    Weights that the learner publishes, and other values that change during a run.

    :param version: number of the learner's updates so far
    :param arrays: everything that is learned, by name
    :param normalize: statistics of observations and of returns by ``VecNormalize``; ``None`` where there are none
    """

    version: int
    arrays: dict[str, np.ndarray]
    normalize: tuple[Any, Any]


def packed(model: ActingMixin, n_rows: int) -> bytes:
    """
    Pickle the learner's algorithm for its actors, with the classes of the user's script.

    SB3's ``save`` is not used, because ``load`` makes optimizers and PyTorch then imports its compiler. Each actor would take
    1.5 s more CPU time to start, and 70 MB more RAM.

    :param model: a prioritized algorithm, on any device
    :param n_rows: largest number of steps in a call
    :return: the pickle
    """
    file, buffer = io.BytesIO(), model.replay_buffer
    state = {name: value for name, value in vars(model).items() if name not in _NOT_SENT}
    # Settings that change the content of a transition.
    settings = dict(n_steps=buffer.n_steps, gamma=buffer.gamma, handle_timeout_termination=buffer.handle_timeout_termination)
    th.save((type(model), state, n_rows, settings), file, pickle_module=cloudpickle)
    return file.getvalue()


def unpacked(content: bytes, n_envs: int, epsilon: float | None) -> Any:
    """
    Load the algorithm of an actor, on the CPU. Its replay buffer has room for the steps of one call.

    :param content: what :func:`packed` returned
    :param n_envs: number of environments of the actor
    :param epsilon: share of random actions; ``None`` follows the learner's schedule
    :return: the algorithm
    """
    cls, state, n_rows, settings = th.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    model = cls.__new__(cls)
    vars(model).update({**dict.fromkeys(_NOT_SENT), **state})
    model.device, model.n_envs = th.device("cpu"), n_envs
    for module in model.policy.modules():
        if hasattr(module, "optimizer"):
            module.optimizer = None  # its state takes twice the memory of the weights
    obs_space, action_space = model.observation_space, model.action_space
    buffer_class = PrioritizedDictReplayBuffer if isinstance(obs_space, spaces.Dict) else PrioritizedReplayBuffer
    model.replay_buffer = buffer_class(n_rows * n_envs, obs_space, action_space, "cpu", n_envs, scheme="uniform", **settings)
    model.set_logger(Logger(folder=None, output_formats=[]))
    if (noise := model.action_noise) is not None:
        base = noise.base_noise if isinstance(noise, VectorizedActionNoise) else noise
        model.action_noise = VectorizedActionNoise(base, n_envs)
    if hasattr(model, "target_update_interval"):
        # SB3's `_on_step` moves the target networks. Those of an actor must stay the learner's.
        model.target_update_interval = sys.maxsize
    if epsilon is not None:
        model.exploration_schedule = ConstantSchedule(epsilon)
        model.exploration_rate = epsilon
    return model


def published(model: ActingMixin) -> Weights:
    """
    Collect the weights that the learner publishes.

    :param model: the learner's algorithm
    :return: its weights; the arrays may be views of them
    """
    normalize = model.get_vec_normalize_env()
    # `VecNormalize` has no statistics of what it does not normalize.
    statistics = getattr(normalize, "obs_rms", None), getattr(normalize, "ret_rms", None)
    return Weights(n_updates(model), learned_arrays(model), statistics)


def set_weights(model: ActingMixin, weights: Weights) -> None:
    """
    Give an actor the learner's weights.

    :param model: the actor's algorithm
    :param weights: what :func:`published` returned
    """
    own = {**vars(model), **model.policy.state_dict()}
    for name, array in weights.arrays.items():
        np.copyto(own[name].detach().numpy(), array)
    if (normalize := model.get_vec_normalize_env()) is not None:
        # A copy, because the actor updates the statistics while it acts.
        normalize.obs_rms, normalize.ret_rms = copy.deepcopy(weights.normalize)
