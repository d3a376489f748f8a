"""Runs of RL Zoo that save their buffers as directories, continue after a kill, and can use actors."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize

from sb3_per.persistence.buffer_files import SUFFIX
from sb3_per.persistence.checkpoint_callback import BUFFER, BufferCheckpointCallback, latest_checkpoint, manifest_of
from sb3_per.persistence.demonstrations import add_saved_demonstrations
from sb3_per.persistence.model_zip import CheckpointMixin
from sb3_per.zoo import tuning


class RunHasEndedError(Exception):
    """The run to resume has come to its end, which is no failure."""


class RunManager(ExperimentManager):
    """
    The Zoo's manager, with checkpoints that are whole whenever the run is killed.

    :param args: arguments of the Zoo
    :param resume: go on with the newest run of this environment, in its folder, from its newest whole checkpoint. Without
        one, a new run begins
    :param demonstrations: a buffer directory, or the name of a Minari dataset; ``None``: no demonstrations
    :param actors: number of actors, each with ``n_envs`` environments of the hyperparameter file; ``None``: no actors
    :param kwargs: keyword arguments of the Zoo
    :raises ValueError: for demonstrations with a stock algorithm, while tuning, or without a share; for actors below
        1, with a stock algorithm, and while tuning hyperparameters
    """

    def __init__(
        self,
        *args: Any,
        resume: bool = False,
        actors: int | None = None,
        demonstrations: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.actors, self.demonstrations = actors, demonstrations
        # Settings of the buffer from a trial of Optuna.
        self.tuned: dict[str, Any] | None = None
        if actors is not None and (actors < 1 or not self._is_ours() or self.optimize_hyperparameters):
            raise ValueError(f"--actors must be at least 1, for a prioritized algorithm and without -optimize, not {actors}")
        if demonstrations is not None and (not self._is_ours() or self.optimize_hyperparameters):
            raise ValueError("--demonstrations needs a prioritized algorithm, and does not go together with -optimize")
        # Number of steps of the checkpoint that the run goes on from.
        self.resumed_from: int | None = None
        run_id = get_latest_run_id(self.log_path, self.env_name)
        if resume and run_id > 0:
            self._resume(Path(self.log_path, f"{self.env_name}_{run_id}"))

    def _resume(self, folder: Path) -> None:
        """
        Go on with a run from its newest whole checkpoint, if there is one.

        :param folder: folder of the run
        :raises RunHasEndedError: if the run has come to its end
        """
        if (folder / f"{self.env_name}.zip").exists():
            raise RunHasEndedError(f"The run in {folder} has come to its end: there is nothing to resume")
        checkpoint = latest_checkpoint(folder)
        if checkpoint is None:
            print(f"There is no whole checkpoint in {folder}: a new run begins")
            return
        self.save_path, self.params_path = str(folder), str(folder / self.env_name)
        self.trained_agent, self.continue_training = str(checkpoint[0]), True
        self.resumed_from = int(checkpoint[0].stem.split("_")[-2])
        print(f"Resumes the run in {folder} at {self.resumed_from} steps")

    def create_callbacks(self) -> None:
        """Make the Zoo's callbacks; checkpoints come with the buffer, and evaluations continue those of the run."""
        super().create_callbacks()
        for callback in list(self.callbacks):
            if type(callback) is CheckpointCallback and self._is_ours():
                # Last, so that an evaluation at the same step comes before the checkpoint.
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
        # The monitor files of the run keep their episodes.
        if self.resumed_from is not None:
            self.monitor_kwargs = {**self.monitor_kwargs, "override_existing": False}

    def load_trial(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        Load the hyperparameters of a trial. Settings of the buffer join those of the file later.

        :param args: arguments of the Zoo
        :param kwargs: keyword arguments of the Zoo
        :return: hyperparameters
        """
        hyperparams: dict[str, Any] = super().load_trial(*args, **kwargs)
        if self._is_ours():
            self.tuned = hyperparams.pop("replay_buffer_kwargs", None)
        return hyperparams

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        processed = super()._preprocess_hyperparams(hyperparams)
        if "replay_buffer_kwargs" in (self.custom_hyperparams or {}):
            self.tuned = None  # the command line overrules the trial
        if self.tuned is not None:
            self.tuned = tuning.join(processed[0].get("replay_buffer_kwargs", {}), self.tuned)
            processed[0]["replay_buffer_kwargs"] = self.tuned
        # The Zoo divides the frequencies of callbacks by the number of environments later.
        self.n_envs *= self.actors or 1
        return processed

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        if self.tuned is not None:
            saved_hyperparams["replay_buffer_kwargs"] = self.tuned
        super()._save_config(saved_hyperparams)

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        Make the Zoo's environments. Training environments are actors, if there are any.

        The Zoo has no hook for its call of ``make_vec_env``, so those wrappers that it adds are added here.

        :param n_envs: number of environments
        :param eval_env: whether they are for evaluation
        :param no_log: do not log episodes
        :return: environments in the Zoo's wrappers
        """
        if self.actors is None or eval_env:
            return super().create_envs(n_envs, eval_env, no_log)
        from sb3_per.distributed import make_actors

        env: VecEnv = make_actors(
            gym.spec(self.env_name.gym_id).make,
            n_envs=n_envs // self.actors,
            seed=self.seed,
            monitor_dir=None if no_log else self.save_path,
            wrapper_class=self.env_wrapper,
            env_kwargs=self.env_kwargs,
            vec_env_cls=self.vec_env_class,  # type: ignore[arg-type]
            vec_env_kwargs=self.vec_env_kwargs,
            monitor_kwargs=self.monitor_kwargs,
            n_actors=self.actors,
        )
        if self.vec_env_wrapper is not None:
            env = self.vec_env_wrapper(env)
        env = self._maybe_normalize(env, eval_env)
        return env if self.frame_stack is None else VecFrameStack(env, self.frame_stack)

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
        Train the model for the remaining steps.

        :param model: model to train
        """
        if self.demonstrations is not None and not len(model.replay_buffer.demonstrations):
            self._add_demonstrations(model.replay_buffer, self.demonstrations)
        if self.resumed_from is None:
            super().learn(model)
            return
        self.n_timesteps = max(self.n_timesteps - model.num_timesteps, 0)
        # The Zoo calls `learn` without this argument.
        learn = functools.partial(model.learn, reset_num_timesteps=False)
        continuing: Any = SimpleNamespace(learn=learn, env=model.env, policy=model.policy)
        super().learn(continuing)

    def _add_demonstrations(self, buffer: Any, path: str) -> None:
        if not buffer.demonstrations.are_drawn:
            raise ValueError(
                "--demonstrations needs a share of each batch: set replay_buffer_kwargs to "
                "dict(demonstration_fraction=0.25) in the hyperparameter file"
            )
        print(f"Added {add_saved_demonstrations(buffer, path)} demonstrations from {path}")

    def save_trained_model(self, model: Any) -> None:
        """
        Save the model as the Zoo does, and a prioritized buffer as a directory: that of the checkpoints, if there is one.

        :param model: trained model
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
    Find the saved buffer of a model.

    :param model: path of a zip
    :param num_timesteps: number of steps of the model
    :return: buffer in the same folder, of the same moment or else the newest; ``None``: there is none
    """
    folders = sorted(model.parent.glob(f"*{SUFFIX}"), key=os.path.getmtime)
    same_moment = (manifest_of(folder, num_timesteps) for folder in reversed(folders))
    return next((path for path in same_moment if path is not None), folders[-1] if folders else None)


def _continue_evaluations(callback: EvalCallback, num_timesteps: int) -> None:
    """Load the evaluations up to the checkpoint, which the callback would write over."""
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
    # The best model stays the best, even if it came after the checkpoint.
    with np.load(path) as saved:
        callback.best_mean_reward = float(saved["results"].mean(axis=1).max(initial=-np.inf))
