"""
The state of an algorithm that acting reads and changes. Stable-Baselines3 keeps it under private names; of this package, no
other module uses them.
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.vec_env import VecEnv, VecNormalize


class AlgorithmState:
    """
    Access to an algorithm's counters, last observations and tensors.

    :param model: a prioritized algorithm, of the learner or of an actor
    """

    def __init__(self, model: Any):
        self.model = model

    # ---- counters

    @property
    def n_updates(self) -> int:
        """Number of gradient steps so far."""
        return int(self.model._n_updates)

    @property
    def n_stale_updates(self) -> int:
        """Number of priorities that came too late, because their transition was already overwritten."""
        return int(self.model.n_stale_updates)

    @property
    def total_timesteps(self) -> int:
        """Number of transitions at which the run ends."""
        return int(self.model._total_timesteps)

    @property
    def timesteps_at_start(self) -> int:
        """Number of transitions at which the run began."""
        return int(self.model._num_timesteps_at_start)

    @property
    def train_freq(self) -> TrainFreq:
        """How often to update, in SB3's internal form."""
        self.model._convert_train_freq()
        return self.model.train_freq  # type: ignore[no-any-return]

    def count_step(self) -> None:
        """Do what SB3 does after each step: update the progress, the target networks and the exploration rate."""
        self.model._update_current_progress_remaining(self.model.num_timesteps, self.model._total_timesteps)
        self.model._on_step()

    def count_infos(self, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
        """
        Note the returns of finished episodes for the log.

        :param infos: one dictionary per transition
        :param dones: bool array of shape (n_transitions,)
        """
        self.model._update_info_buffer(infos, dones)

    def count_episode(self) -> int:
        """
        Count a finished episode.

        :return: number of episodes so far
        """
        self.model._episode_num += 1
        return int(self.model._episode_num)

    # ---- observations

    @property
    def last_obs(self) -> tuple[Any, Any]:
        """Observations to act on next: normalized, and as the environments gave them or ``None``."""
        return self.model._last_obs, self.model._last_original_obs

    @last_obs.setter
    def last_obs(self, both: tuple[Any, Any]) -> None:
        self.model._last_obs, self.model._last_original_obs = both

    @property
    def normalize(self) -> VecNormalize | None:
        """The ``VecNormalize`` around the environments."""
        return self.model._vec_normalize_env  # type: ignore[no-any-return]

    @normalize.setter
    def normalize(self, normalize: VecNormalize | None) -> None:
        self.model._vec_normalize_env = normalize

    # ---- tensors

    def tensors(self) -> dict[str, th.Tensor]:
        """
        Return tensors that are learned, beside those of the policy, e.g. the entropy coefficient.

        :return: the tensors by name
        """
        named = {name: getattr(self.model, name) for name in self.model._get_torch_save_params()[1]}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def td_errors(self) -> np.ndarray:
        """
        Compute the TD errors of all transitions in the algorithm's buffer, with the code that the learner updates with.

        :return: signed TD errors, float array of shape (n_transitions, n_critics)
        """
        buffer = self.model.replay_buffer
        slots = np.arange(buffer.size() * buffer.n_envs)
        batch = buffer.read(slots, self.model.get_vec_normalize_env())
        errors: np.ndarray = self.model.td_errors(batch).numpy()
        return errors

    # ---- an actor's copy

    def prepare_to_act(self, total_timesteps: int) -> None:
        """
        Set the end of the run, which the schedules refer to.

        :param total_timesteps: number of transitions at which the learner's run ends
        """
        self.model._total_timesteps = total_timesteps

    def begin_episodes(self, n_envs: int) -> None:
        """
        Say that an episode begins in every environment.

        :param n_envs: number of environments
        """
        self.model._last_episode_starts = np.ones(n_envs, dtype=bool)

    def go_on_from(self, before: Any) -> None:
        """
        Go on where an earlier copy of the same algorithm ended.

        :param before: the earlier copy
        """
        self.model.action_space = before.action_space
        for name in ("_last_obs", "_last_original_obs", "_last_episode_starts"):
            setattr(self.model, name, getattr(before, name))


def set_seeds_and_options(venv: VecEnv, seeds: list[int | None], options: list[dict[str, Any]]) -> None:
    """
    Set what the next reset of each environment gets.

    :param venv: environments
    :param seeds: one seed per environment, ``None`` for no new seed
    :param options: one dictionary per environment
    """
    venv._seeds, venv._options = list(seeds), list(options)
