"""
Read and change what acting needs of an algorithm's state. Stable-Baselines3 has private names for it, which only this module
of the folder uses.
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.algorithms.acting import ActingMixin


class AlgorithmState:
    """
    Access an algorithm's counters, last observations and tensors.

    :param model: a prioritized algorithm, of the learner or of an actor
    """

    def __init__(self, model: ActingMixin):
        self.model = model

    @property
    def n_updates(self) -> int:
        """Number of gradient steps so far."""
        return int(self.model._n_updates)

    @property
    def total_timesteps(self) -> int:
        """Number of transitions at which the run ends, as the schedules count."""
        return int(self.model._total_timesteps)

    @property
    def last_obs(self) -> tuple[Any, Any]:
        """Observations to act on next: normalized, and as the environments gave them or ``None``."""
        return self.model._last_obs, self.model._last_original_obs

    @last_obs.setter
    def last_obs(self, both: tuple[Any, Any]) -> None:
        self.model._last_obs, self.model._last_original_obs = both

    def set_normalize(self, normalize: VecNormalize | None) -> None:
        """
        Set the ``VecNormalize`` that the algorithm uses.

        :param normalize: wrapper around the environments that it acts in
        """
        self.model._vec_normalize_env = normalize

    def tensors(self) -> dict[str, th.Tensor]:
        """
        Return the learned tensors outside the policy, e.g. the entropy coefficient.

        :return: the tensors by name
        """
        named = {name: getattr(self.model, name) for name in self.model._get_torch_save_params()[1]}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def count_step(self, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
        """
        Update what SB3 updates after each step: statistics of episodes, progress, target networks and exploration rate.

        :param infos: one dictionary per transition
        :param dones: bool array of shape (n_transitions,)
        """
        self.model._update_info_buffer(infos, dones)
        self.model._update_current_progress_remaining(self.model.num_timesteps, self.model._total_timesteps)
        self.model._on_step()

    def count_episode(self) -> int:
        """
        Count a finished episode.

        :return: number of episodes so far
        """
        self.model._episode_num += 1
        return int(self.model._episode_num)
