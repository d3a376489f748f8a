"""Run RL Zoo with buffers saved as directories, runs that continue after a kill, demonstrations, and actors."""

import argparse
import contextlib
import functools
import shlex
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import optuna
import torch as th
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rl_zoo3 import exp_manager
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.integrations.saved_demonstrations import add_saved_demonstrations, require_saved
from sb3_per.persistence.buffer_files import SUFFIX
from sb3_per.persistence.checkpoint_callback import BUFFER, BufferCheckpointCallback, manifest_of
from sb3_per.zoo import tuning
from sb3_per.zoo.hyperparameters import check_schedules, with_numbers
from sb3_per.zoo.registry import OURS, config_path
from sb3_per.zoo.resume import newest_model
from sb3_per.zoo.threads import has_images

# Share of --demonstrations in each batch if neither the command line nor the hyperparameter file says another.
_DEMONSTRATION_FRACTION = 0.25


class RunManager(exp_manager.ExperimentManager):
    """
    Manage a run as the Zoo does, with checkpoints that stay complete if the run is killed.

    :param args: arguments of the Zoo
    :param parser: parser of the command, for messages
    :param options: options of the command that are ours:

        - ``resume``: continue the newest run of this environment, in its folder, from its newest complete model, up to the
          number of steps. Without one, a new run begins
        - ``demonstrations``: a buffer directory, or the name of a Minari dataset
        - ``demonstration_fraction``: share of the demonstrations in each batch, in (0, 1]; ``None``: that of the file, or 0.25
          if the file has none
        - ``actors``: number of actors, each with ``n_envs`` environments of the hyperparameter file; 0: no actors
        - ``default_threads``: number of PyTorch's threads that nobody has chosen, which becomes one where observations have
          no images; 0: somebody has chosen it
    :param kwargs: keyword arguments of the Zoo
    :raises SystemExit: for options that cannot be used, and if the run to resume is finished
    """

    def __init__(self, *args: Any, parser: argparse.ArgumentParser, options: argparse.Namespace, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.is_ours = self.algo in OURS
        self.parser, self.actors, self.demonstrations = parser, options.actors, options.demonstrations
        self.demonstration_fraction = options.demonstration_fraction
        # Settings of the buffer from a trial of Optuna.
        self.tuned: Any = None
        self.default_threads = 0 if self.args.num_threads > 0 else options.default_threads
        self.resumes = options.resume
        # Number of steps of the model that the run continues from.
        self.resumed_from: int | None = None
        self._require_options()

    def _require_options(self) -> None:
        """Exit for options that do not go together, and if there are no such demonstrations, before anything is made."""
        for name, value in (("--actors", self.actors), ("--demonstrations", self.demonstrations)):
            if value and not self.is_ours:
                self.parser.error(f"{name} {value} needs an algorithm of this package, e.g. per_sac, not {self.algo}")
            if value and self.optimize_hyperparameters:
                self.parser.error(f"{name} {value} cannot be tuned: leave it out, or train without -optimize")
        if self.trial_id is not None and not (self.storage and self.study_name):
            self.parser.error(f"--trial-id {self.trial_id} needs the study of the trial: --storage PATH and --study-name NAME")
        if self.resumes and self.optimize_hyperparameters:
            self.parser.error("--resume continues a run, not a search: a search continues with --storage and --study-name")
        if self.demonstrations is None:
            if self.demonstration_fraction is not None:
                self.parser.error(f"--demonstration-fraction {self.demonstration_fraction} needs --demonstrations PATH")
            return
        if self.algo.endswith("_lstm"):
            self.parser.error(f"--demonstrations {self.demonstrations} needs an algorithm without LSTM, not {self.algo}")
        with self._of_demonstrations():
            require_saved(self.demonstrations)

    @contextlib.contextmanager
    def _of_demonstrations(self) -> Iterator[None]:
        """Exit with the error of the block, which names the option."""
        try:
            yield
        except (ValueError, FileNotFoundError) as error:
            self.parser.error(f"--demonstrations {self.demonstrations}: {error}")

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        processed = super()._preprocess_hyperparams(hyperparams)
        run_id = get_latest_run_id(self.log_path, self.env_name)
        if self.resumes and run_id > 0:  # now that the number of steps is known, and nothing has been made yet
            self._resume(Path(self.log_path, f"{self.env_name}_{run_id}"))
        return processed

    def _resume(self, folder: Path) -> None:
        """
        Continue a run from its newest complete model, if there is one.

        :param folder: folder of the run
        :raises SystemExit: with status 0 if the run has all its steps, because a script may repeat the command until then
        """
        model = newest_model(folder, self.env_name, self.is_ours and self.save_replay_buffer)
        if model is None:
            print(f"There is no complete model in {folder}, neither a checkpoint nor a last one: a new run begins")
            return
        steps = f"{model.num_timesteps:,} of {self.n_timesteps:,} steps"
        if model.num_timesteps >= self.n_timesteps:
            print(f"The run in {folder} has come to its end, {steps}: to go on, give a larger -n")
            raise SystemExit(0)
        self.save_path = str(folder)
        self.params_path = str(folder / self.env_name)
        self.trained_agent = str(model.path)
        self.continue_training = True
        self.resumed_from = model.num_timesteps
        print(f"Resumes the run in {folder} at {steps}")
        statistics = folder / f"rl_model_vecnormalize_{self.resumed_from}_steps.pkl"
        of_run = Path(self.params_path, "vecnormalize.pkl")  # which the Zoo loads
        if statistics.exists():
            shutil.copy(statistics, of_run)
        elif self.normalize and not of_run.exists():
            print("The statistics of VecNormalize were not saved: they start anew")

    def load_trial(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        Load the hyperparameters of a trial. Its settings of the buffer are joined with those of the file later.

        :param args: arguments of the Zoo
        :param kwargs: keyword arguments of the Zoo
        :return: hyperparameters
        :raises SystemExit: if there is no such trial
        """
        try:
            hyperparams: dict[str, Any] = super().load_trial(*args, **kwargs)
        except (KeyError, IndexError):
            place = f"--study-name {self.study_name} in --storage {self.storage}"
            self.parser.error(f"there is no --trial-id {self.trial_id} of {place}")
        if self.is_ours:
            self.tuned = hyperparams.pop("replay_buffer_kwargs")
        return hyperparams

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the hyperparameters of the file, of a trial and of the command line.

        :return: hyperparameters for the run, with the environments of all actors, and those to save
        :raises SystemExit: if the file cannot be read, or has a learning rate that is neither a number nor a schedule
        """
        if self.trial_id == 0 and self.storage and self.study_name:  # which the Zoo takes for no trial
            trial = self.load_trial(self.storage, self.study_name, 0)
            self.custom_hyperparams = {**trial, **(self.custom_hyperparams or {})}
        try:
            hyperparams, saved = super().read_hyperparameters()
            hyperparams.update(with_numbers(hyperparams))
            saved.update(with_numbers(saved))
            check_schedules(hyperparams)
        except KeyError as error:
            self.parser.error(f"-conf {self.config} has no entry {error}, and none for {self.env_name.gym_id}")
        except (OSError, ImportError, ValueError, yaml.YAMLError) as error:
            self.parser.error(f"-conf {self.config}: {error}")
        of_file = hyperparams.get("replay_buffer_kwargs") or {}
        settings = dict(eval(of_file, vars(exp_manager)) if isinstance(of_file, str) else of_file)
        # The command line wins over the trial.
        is_tuned = self.tuned is not None and "replay_buffer_kwargs" not in (self.custom_hyperparams or {})
        if is_tuned:
            settings = tuning.join(settings, self.tuned)
        if self.demonstrations is not None:
            share = self.demonstration_fraction or settings.get("demonstration_fraction") or _DEMONSTRATION_FRACTION
            settings["demonstration_fraction"] = share
        if is_tuned or self.demonstrations is not None:
            hyperparams["replay_buffer_kwargs"] = saved["replay_buffer_kwargs"] = settings
        if self.actors:
            hyperparams["n_envs"] = hyperparams.get("n_envs", 1) * self.actors
        return hyperparams, saved

    def create_callbacks(self) -> None:
        """
        Make the Zoo's callbacks. Checkpoints include the statistics of VecNormalize and the buffer, a stock buffer excepted.
        Evaluations continue those of the run.
        """
        save_freq = self.save_freq
        self.save_freq = -1
        super().create_callbacks()
        if save_freq > 0:
            n_calls = max(save_freq // self.n_envs, 1)
            buffer = self.save_replay_buffer and self.is_ours
            checkpoints = BufferCheckpointCallback(n_calls, self.save_path, save_replay_buffer=buffer, save_vecnormalize=True)
            self.callbacks.append(checkpoints)  # last: an evaluation at the same step comes before the checkpoint
        if self.resumed_from is not None:
            for callback in self.callbacks:
                if isinstance(callback, EvalCallback):
                    _continue_evaluations(callback, self.resumed_from)
            # The monitor files of the run keep their episodes.
            self.monitor_kwargs = {**self.monitor_kwargs, "override_existing": False}

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        Make the Zoo's environments. With actors, the training environments are theirs.

        :param n_envs: number of environments
        :param eval_env: whether they are for evaluation
        :param no_log: do not log episodes
        :return: environments in the Zoo's wrappers
        """
        if not self.actors or eval_env:
            env = super().create_envs(n_envs, eval_env, no_log)
        else:
            from sb3_per.distributed import make_actors

            with mock.patch.object(exp_manager, "make_vec_env", functools.partial(make_actors, n_actors=self.actors)):
                env = super().create_envs(n_envs // self.actors, eval_env, no_log)
        # Small networks gain little from several threads, which wait for each other where other processes run.
        if th.get_num_threads() == self.default_threads and not has_images(env.observation_space):
            th.set_num_threads(1)
        return env

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> Any:
        model: Any = super()._load_pretrained_agent(hyperparams, env)
        buffer = _buffer_of(Path(self.trained_agent).parent)
        if self.is_ours and buffer.exists():
            print(f"Loading replay buffer {buffer}")
            # The generation of the same step, or else the newest.
            generation = manifest_of(buffer, model.num_timesteps) or buffer
            model.load_replay_buffer(generation, truncate_last_traj=self.truncate_last_trajectory)
        held = getattr(model, "replay_buffer", None)
        if self.resumed_from is not None and held is not None and held.size() == 0:
            hint = ": --save-replay-buffer saves it" if self.is_ours and not self.save_replay_buffer else ""
            print(f"The replay buffer is empty, because none was saved with the model{hint}")
        return model

    def learn(self, model: Any) -> None:
        """
        Train the model for the remaining steps.

        :param model: model to train
        """
        if self.demonstrations is not None and not len(model.replay_buffer.demonstrations):
            with self._of_demonstrations():
                n_added = add_saved_demonstrations(model.replay_buffer, self.demonstrations)
            share = model.replay_buffer.settings.demonstration_fraction
            print(f"Added {n_added} demonstrations from {self.demonstrations}: {share:.0%} of each batch")
        if self.resumed_from is None:
            super().learn(model)
            return
        self.n_timesteps = max(self.n_timesteps - model.num_timesteps, 0)
        # The Zoo calls `learn` without this argument.
        learn = functools.partial(model.learn, reset_num_timesteps=False)
        super().learn(SimpleNamespace(learn=learn, env=model.env, policy=model.policy))  # type: ignore[arg-type]

    def _create_sampler(self, sampler_method: str) -> optuna.samplers.BaseSampler:
        if sampler_method != "tpe":
            return super()._create_sampler(sampler_method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # In groups, because the settings of a trial depend on its scheme.
            return optuna.samplers.TPESampler(
                n_startup_trials=self.n_startup_trials, seed=self.seed, multivariate=True, group=True
            )

    def hyperparameters_optimization(self) -> None:
        """
        Search as the Zoo does, and print the command that trains with the best trial.

        :raises SystemExit: if no trial has come to its end
        """
        try:
            super().hyperparameters_optimization()
        except ValueError as error:
            if "No trials are completed" not in str(error):
                raise
            self.parser.exit(1, f"{self.parser.prog}: no trial has come to its end: run more with a larger --n-trials\n")
        if self.storage and self.study_name:
            print(f"Train with the best trial:\n{self._command_of_best_trial()}")

    def _command_of_best_trial(self) -> str:
        storage: Any = self.storage
        if storage.endswith(".log"):  # as the Zoo does
            storage = JournalStorage(JournalFileBackend(storage))
        best = optuna.load_study(study_name=self.study_name, storage=storage).best_trial.number
        program = self.parser.prog.removesuffix(" tune").removesuffix(" train")
        words = [*program.split(), "train", "--algo", self.algo, "--env", self.env_name.gym_id]
        words += ["-f", self.log_folder, "--storage", str(self.storage), "--study-name", str(self.study_name)]
        words += ["--trial-id", str(best)]
        if self.config != str(config_path(self.algo)):
            words += ["-conf", self.config]
        if self.args.gym_packages:
            words += ["--gym-packages", *self.args.gym_packages]
        for option, values in (("--env-kwargs", self.args.env_kwargs), ("-params", self.args.hyperparams)):
            if values:
                words += [option, *(f"{name}:{value!r}" for name, value in values.items())]
        return shlex.join(words)

    def save_trained_model(self, model: Any) -> None:
        """
        Save the model as the Zoo does, and a prioritized buffer as a directory, if possible that of the checkpoints.

        :param model: trained model
        """
        if self.save_replay_buffer and self.is_ours:
            print("Saving replay buffer")
            model.save_replay_buffer(_buffer_of(Path(self.save_path)))
            self.save_replay_buffer = False  # the Zoo would pickle it
        super().save_trained_model(model)


def _buffer_of(run: Path) -> Path:
    """
    Find the saved buffer of a run.

    :param run: folder of a run
    :return: directory of its buffer: that of the checkpoints, if there is one
    """
    checkpoints = run / f"rl_model{BUFFER}"
    return checkpoints if checkpoints.exists() else run / f"replay_buffer{SUFFIX}"


def _continue_evaluations(callback: EvalCallback, num_timesteps: int) -> None:
    """Load the evaluations up to the checkpoint, which the callback would otherwise overwrite."""
    path = Path(f"{callback.log_path}.npz")
    if not path.exists():
        return
    with np.load(path) as saved:
        is_before = saved["timesteps"] <= num_timesteps
        for name, values in saved.items():
            setattr(callback, f"evaluations_{'length' if name == 'ep_lengths' else name}", values[is_before].tolist())
        # The best model stays the best, even if it came after the checkpoint.
        callback.best_mean_reward = float(saved["results"].mean(axis=1).max(initial=-np.inf))
