"""
Read and change what acting needs of an algorithm's state. Stable-Baselines3 has private names for it, which only this module
of the folder uses.
"""

from typing import Any

import numpy as np

from sb3_per.algorithms.acting import ActingMixin


def n_updates(model: ActingMixin) -> int:
    """
    Count gradient steps.

    :param model: algorithm of the learner
    :return: number of gradient steps so far
    """
    return int(model._n_updates)


def n_timesteps_left(model: ActingMixin) -> int:
    """
    Count the transitions that are left until the run ends.

    :param model: algorithm of the learner
    :return: number of transitions, as the schedules count
    """
    return int(model._total_timesteps - model.num_timesteps)


def last_obs(model: ActingMixin) -> tuple[Any, Any]:
    """
    Return the observations to act on next.

    :param model: algorithm of the learner or of an actor
    :return: observations: normalized, and as the environments gave them or ``None``
    """
    return model._last_obs, model._last_original_obs


def set_last_obs(model: ActingMixin, both: tuple[Any, Any]) -> None:
    """
    Replace the observations to act on next.

    :param model: algorithm of the learner or of an actor
    :param both: observations: normalized, and as the environments gave them or ``None``
    """
    model._last_obs, model._last_original_obs = both


def learned_arrays(model: ActingMixin) -> dict[str, np.ndarray]:
    """
    List everything that is learned: the policy, and e.g. the entropy coefficient.

    :param model: algorithm of the learner
    :return: arrays by name; if the model is on the CPU, they are views
    """
    others = {name: getattr(model, name) for name in model._get_torch_save_params()[1]}
    tensors = {**model.policy.state_dict(), **{name: tensor for name, tensor in others.items() if tensor is not None}}
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def count_step(model: ActingMixin, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
    """
    Update what SB3 updates after each step: statistics of episodes, progress, target networks and exploration rate.

    :param model: algorithm of the learner
    :param infos: one dictionary per transition
    :param dones: bool array of shape (n_transitions,)
    """
    model._update_info_buffer(infos, dones)
    model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
    model._on_step()


def count_episode(model: ActingMixin) -> int:
    """
    Count a finished episode.

    :param model: algorithm of the learner
    :return: number of episodes so far
    """
    model._episode_num += 1
    return int(model._episode_num)
