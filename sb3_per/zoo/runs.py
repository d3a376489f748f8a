"""
Runs of RL Zoo whose buffers are saved as directories, and that go on after a kill. It knows the Zoo's folders.
"""

import functools
import os
import unittest.mock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rl_zoo3 import exp_manager
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_per.persistence.buffer_files import SUFFIX
from sb3_per.persistence.checkpoint_callback import BUFFER, BufferCheckpointCallback, latest_checkpoint, manifest_of
from sb3_per.persistence.model_zip import CheckpointMixin


class RunHasEndedError(Exception):
    """There is nothing to resume; no failure."""


class RunManager(ExperimentManager):
    """
    The Zoo's manager. Checkpoints are whole whenever the run is killed, and with ``--save-replay-buffer`` hold the buffer.

    :param args: the Zoo's
    :param resume: go on with the newest run of this environment from its newest whole checkpoint, in its folder; without one,
        begin
    :param actors: how many collect, each with ``n_envs`` environments of the hyperparameter file; ``None``: the Zoo's way
    :param kwargs: the Zoo's
    :raises ValueError: for actors below 1, with an algorithm that is not ours, and where hyperparameters are tuned
    """

    def __init__(self, *args: Any, resume: bool = False, actors: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.actors = actors
        if actors is not None and (actors < 1 or not self._is_ours() or self.optimize_hyperparameters):
            raise ValueError(f"--actors must be at least 1, for a prioritized algorithm and without -optimize, not {actors}")
        # Steps of the checkpoint that the run goes on from.
        self.resumed_from: int | None = None
        run_id = get_latest_run_id(self.log_path, self.env_name)
        if resume and run_id > 0:
            self._resume(Path(self.log_path, f"{self.env_name}_{run_id}"))

    def _resume(self, folder: Path) -> None:
        """
        :param folder: of a run
        :raises RunHasEndedError: if that run has come to its end
        """
        if (folder / f"{self.env_name}.zip").exists():
            raise RunHasEndedError(f"The run in {folder} has come to its end: there is nothing to resume")
        checkpoint = latest_checkpoint(folder)
        if checkpoint is None:
            print(f"There is no whole checkpoint in {folder}, with model and buffer: begins anew")
            return
        self.save_path, self.params_path = str(folder), str(folder / self.env_name)
        self.trained_agent, self.continue_training = str(checkpoint[0]), True
        self.resumed_from = int(checkpoint[0].stem.split("_")[-2])
        print(f"Resumes the run in {folder} at {self.resumed_from} steps")

    def create_callbacks(self) -> None:
        """As the Zoo's, but checkpoints of a prioritized algorithm, and evaluations that go on where they were."""
        super().create_callbacks()
        for callback in list(self.callbacks):
            if type(callback) is CheckpointCallback and self._is_ours():
                # The last one: what else is done at this step, such as an evaluation, is done when the checkpoint is there.
                self.callbacks.remove(callback)
                checkpoints = BufferCheckpointCallback(
                    save_freq=callback.save_freq,
                    save_path=callback.save_path,
                    name_prefix=callback.name_prefix,
                    save_replay_buffer=self.save_replay_buffer,
                    save_vecnormalize=bool(self.normalize),
                    verbose=callback.verbose,
                )
                self.callbacks.append(checkpoints)
            elif isinstance(callback, EvalCallback) and self.resumed_from is not None:
                _continue_evaluations(callback, self.resumed_from)
        # Episodes of the run so far stay in its files.
        if self.resumed_from is not None:
            self.monitor_kwargs = {**self.monitor_kwargs, "override_existing": False}

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        processed = super()._preprocess_hyperparams(hyperparams)
        # What counts environments, such as the frequency of evaluations, comes later.
        self.n_envs *= self.actors or 1
        return processed

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        As the Zoo's; those to train with are actors, if there are any.

        :param n_envs: how many
        :param eval_env: whether they are to evaluate with
        :param no_log: whether episodes are not to be logged
        :return: the environments, in the Zoo's wrappers
        """
        if self.actors is None or eval_env:
            return super().create_envs(n_envs, eval_env, no_log)
        from sb3_per.distributed import make_actors

        def make(env_id: Any, n_envs: int, **kwargs: Any) -> VecEnv:
            assert self.actors is not None
            return make_actors(env_id, n_envs=n_envs // self.actors, n_actors=self.actors, **kwargs)

        with unittest.mock.patch.object(exp_manager, "make_vec_env", make):
            return super().create_envs(n_envs, eval_env, no_log)

    def _is_ours(self) -> bool:
        from rl_zoo3.utils import ALGOS

        return isinstance(ALGOS[self.algo], type) and issubclass(ALGOS[self.algo], CheckpointMixin)

    def _maybe_normalize(self, env: VecEnv, eval_env: bool) -> VecEnv:
        statistics = Path(self.save_path, f"rl_model_vecnormalize_{self.resumed_from}_steps.pkl")
        if self.resumed_from is None or not statistics.exists():
            return super()._maybe_normalize(env, eval_env)
        normalized = VecNormalize.load(str(statistics), env)
        if eval_env:
            normalized.training = normalized.norm_reward = False
        return normalized

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> Any:
        model: Any = super()._load_pretrained_agent(hyperparams, env)
        buffer = _buffer_beside(Path(self.trained_agent), model.num_timesteps) if self._is_ours() else None
        if buffer is not None:
            print(f"Loading replay buffer {buffer}")
            model.load_replay_buffer(buffer, truncate_last_traj=self.truncate_last_trajectory)
        return model

    def learn(self, model: Any) -> None:
        """
        As the Zoo's, for what is left of the steps.

        :param model: to train
        """
        if self.resumed_from is None:
            super().learn(model)
            return
        self.n_timesteps = max(self.n_timesteps - model.num_timesteps, 0)
        # The Zoo's own call, with one more argument.
        learn = functools.partial(model.learn, reset_num_timesteps=False)
        continuing: Any = SimpleNamespace(learn=learn, env=model.env, policy=model.policy)
        super().learn(continuing)

    def save_trained_model(self, model: Any) -> None:
        """
        As the Zoo's, but for the buffer of a prioritized algorithm: where checkpoints are, it becomes another one of them.

        :param model: that was trained
        """
        save_replay_buffer = self.save_replay_buffer and self._is_ours()
        if save_replay_buffer:
            print("Saving replay buffer")
            checkpoints = Path(self.save_path, f"rl_model{BUFFER}")
            model.save_replay_buffer(checkpoints if checkpoints.exists() else Path(self.save_path, f"replay_buffer{SUFFIX}"))
            self.save_replay_buffer = False
        super().save_trained_model(model)
        self.save_replay_buffer = self.save_replay_buffer or save_replay_buffer


def _buffer_beside(model: Path, num_timesteps: int) -> Path | None:
    """
    :param model: path of its zip
    :param num_timesteps: of the model
    :return: what belongs to it of the buffers in its folder: that of the same moment, or else the newest
    """
    folders = sorted(model.parent.glob(f"*{SUFFIX}"), key=os.path.getmtime)
    same_moment = (manifest_of(folder, num_timesteps) for folder in reversed(folders))
    return next((path for path in same_moment if path is not None), folders[-1] if folders else None)


def _continue_evaluations(callback: EvalCallback, num_timesteps: int) -> None:
    """Read what the run has written so far, which would be written over, up to the checkpoint."""
    path = Path(f"{callback.log_path}.npz")
    if not path.exists():
        return
    with np.load(path) as saved:
        is_before = saved["timesteps"] <= num_timesteps
        callback.evaluations_timesteps = saved["timesteps"][is_before].tolist()
        callback.evaluations_results = saved["results"][is_before].tolist()
        callback.evaluations_length = saved["ep_lengths"][is_before].tolist()
        if "successes" in saved:
            callback.evaluations_successes = saved["successes"][is_before].tolist()
    # The best model of all stays the best, also if it came after the checkpoint.
    with np.load(path) as saved:
        callback.best_mean_reward = float(saved["results"].mean(axis=1).max(initial=-np.inf))
