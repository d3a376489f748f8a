"""Run RL Zoo with buffers saved as directories, runs that continue after a kill, demonstrations, and actors."""

import argparse
import os
import shlex
import shutil
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch as th
import yaml
from gymnasium import spaces
from rl_zoo3 import get_latest_run_id
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_per.integrations.saved_demonstrations import add_saved_demonstrations, require_saved
from sb3_per.persistence.checkpoint_callback import BufferCheckpointCallback
from sb3_per.utils.parents import overrides
from sb3_per.zoo import tuning
from sb3_per.zoo.hyperparameters import check_names, check_schedules, with_numbers
from sb3_per.zoo.names import next_command
from sb3_per.zoo.registry import PRIORITIZED
from sb3_per.zoo.resume import buffer_of, continue_evaluations, load_buffer, newest_model, take_statistics
from sb3_per.zoo.upstream import CALLS_CONSTRUCTOR, Manager, get_class_by_name

_PACKAGE = Path(__file__).resolve().parents[1]

# Share of --demonstrations in each batch if neither the command line nor the hyperparameter file says another.
_DEMONSTRATION_FRACTION = 0.25


@overrides(
    "setup_experiment",
    "read_hyperparameters",
    "create_callbacks",
    "learn",
    "save_trained_model",
    "create_envs",
    "create_log_folder",
    "hyperparameters_optimization",
)
class RunManager(Manager):
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
        - ``words``: options of a search that the Zoo reads, for the command at its end
    :param kwargs: keyword arguments of the Zoo
    :raises SystemExit: for options that cannot be used, and if the run to resume is finished
    """

    def __init__(self, *args: Any, parser: argparse.ArgumentParser, options: argparse.Namespace, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.parser = parser
        self.options = options
        self.is_ours = self.algo in PRIORITIZED
        # Settings of the buffer from a trial of Optuna.
        self.trial_settings: dict[str, Any] | None = None
        # Number of steps of the model that the run continues from.
        self.resumed_from: int | None = None
        self.n_envs_of_actor = 1
        self._check_options()

    def _check_options(self) -> None:
        """Exit for options that do not go together, and if there are no such demonstrations, before anything is made."""
        path = self.options.demonstrations
        if self.optimize_hyperparameters and (self.options.resume or self.options.actors or path):
            self.parser.error("--resume, --actors and --demonstrations are for training, not for a search: leave them out")
        if (self.options.actors or path) and not self.is_ours:
            self.parser.error(
                f"--actors and --demonstrations need an algorithm of this package, e.g. per_sac, not {self.algo}"
            )
        if self.trial_id is not None and not (self.storage and self.study_name):
            self.parser.error(f"--trial-id {self.trial_id} needs the study of the trial: --storage PATH and --study-name NAME")
        if self.options.demonstration_fraction is not None and path is None:
            self.parser.error(f"--demonstration-fraction {self.options.demonstration_fraction} needs --demonstrations PATH")
        if self.is_ours:
            try:
                check_names(self.custom_hyperparams or {}, '-params replay_buffer_kwargs:"dict({})"')
            except ValueError as error:
                self.parser.error(f"-params: {error}")
        if path is not None:
            try:
                require_saved(path)
            except FileNotFoundError as error:
                self.parser.error(f"--demonstrations {path}: {error}")

    def setup_experiment(self) -> Any:
        """
        Make the model as the Zoo does.

        :return: what the Zoo returns
        :raises SystemExit: for an argument that this package refuses. An error of the environment keeps its traceback
        """
        try:
            return super().setup_experiment()
        except (TypeError, ValueError, NotImplementedError, AssertionError) as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            # The call of a constructor with an unknown argument is RL Zoo's.
            is_unknown_argument = isinstance(error, TypeError) and raised_in == CALLS_CONSTRUCTOR
            if not Path(raised_in).is_relative_to(_PACKAGE) and not is_unknown_argument:
                raise
            if self.resumed_from is None:
                shutil.rmtree(self.save_path, ignore_errors=True)  # a run that never began
            self.parser.error(str(error))

    # ---- hyperparameters

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the hyperparameters of the file, of a trial and of the command line.

        :return: hyperparameters for the run, and those to save
        :raises SystemExit: if the file cannot be read, or has a setting of the buffer beside the arguments, or a learning rate
            that is neither a number nor a schedule
        """
        if self.storage and self.study_name and not self.optimize_hyperparameters:
            self._take_trial(self.storage, self.study_name)
        try:
            hyperparams, saved = super().read_hyperparameters()
            check_schedules(with_numbers(hyperparams))
        except KeyError as error:
            self.parser.error(f"-conf {self.config} has no entry {error}, and none for {self.env_name.gym_id}")
        except OSError as error:
            self.parser.error(f"-conf {self.config}: {error.strerror}")
        except (ImportError, ValueError, yaml.YAMLError) as error:
            self.parser.error(f"-conf {self.config}: {error}")
        try:
            check_names(hyperparams)  # of the file, or of -params
        except ValueError as error:
            self.parser.error(str(error))
        return with_numbers(hyperparams), with_numbers(saved)

    def _take_trial(self, storage: str, study_name: str) -> None:
        """
        Use the hyperparameters of a trial, where the command line has none.

        :param storage: storage of the study
        :param study_name: name of the study
        :raises SystemExit: if there is no such trial. Without ``--trial-id`` it is the best one
        """
        try:
            trial = self.load_trial(storage, study_name, self.trial_id)
        except (KeyError, IndexError, ValueError) as error:
            which = "finished trial" if self.trial_id is None else f"--trial-id {self.trial_id}"
            self.parser.error(f"there is no {which} of --study-name {study_name} in --storage {storage}: {error}")
        self.trial_id = None  # the Zoo would load it again, and take trial 0 for none
        if self.is_ours:
            self.trial_settings = trial.pop("replay_buffer_kwargs")
        self.custom_hyperparams = {**trial, **(self.custom_hyperparams or {})}

    def process(self, hyperparams: dict[str, Any]) -> Any:
        """
        Turn hyperparameters into arguments of the model, with our options.

        :param hyperparams: hyperparameters of the file, of a trial and of the command line
        :return: see :meth:`~sb3_per.zoo.upstream.Manager.process`
        :raises SystemExit: for hyperparameters that cannot be used
        """
        buffer_class = hyperparams.get("replay_buffer_class")
        try:
            if isinstance(buffer_class, str) and "." in buffer_class:
                hyperparams["replay_buffer_class"] = get_class_by_name(buffer_class)
            processed = super().process(hyperparams)
        except (NameError, ImportError, AttributeError) as error:
            self.parser.error(
                f"-conf {self.config}: {error}. Name a scheme as text, e.g. scheme: lap, and a class with its module, e.g. "
                "replay_buffer_class: sb3_per.PrioritizedHerReplayBuffer"
            )
        self._complete_settings(processed[0])
        self.n_envs_of_actor = self.n_envs
        if self.options.actors:
            self.n_envs *= self.options.actors
        run_id = get_latest_run_id(self.log_path, self.env_name)
        if self.options.resume and run_id > 0:  # now that the number of steps is known, and nothing has been made yet
            self._resume(Path(self.log_path, f"{self.env_name}_{run_id}"))
        elif self.options.resume:
            print(f"There is no run of {self.env_name} in {self.log_path}: a new one begins")
        return processed

    def _complete_settings(self, hyperparams: dict[str, Any]) -> None:
        """
        Add the settings of a trial and the share of demonstrations to those of the buffer.

        :param hyperparams: hyperparameters, which change; their ``replay_buffer_kwargs`` may be a dictionary
        """
        settings = dict(hyperparams.get("replay_buffer_kwargs") or {})
        # The command line wins over the trial.
        if self.trial_settings is not None and "replay_buffer_kwargs" not in (self.custom_hyperparams or {}):
            settings = tuning.join(settings, self.trial_settings)
        if self.options.demonstrations is not None:
            if self.options.demonstration_fraction is not None:
                settings["demonstration_fraction"] = self.options.demonstration_fraction
            settings.setdefault("demonstration_fraction", _DEMONSTRATION_FRACTION)
        if settings:
            hyperparams["replay_buffer_kwargs"] = settings

    def save_config(self, hyperparams: dict[str, Any]) -> None:
        """
        Save what a run was made with, settings of a trial and of demonstrations too.

        :param hyperparams: hyperparameters of the file, which change
        """
        if self.trial_settings is not None or self.options.demonstrations is not None:
            hyperparams["replay_buffer_kwargs"] = self.arguments["replay_buffer_kwargs"]
        super().save_config(hyperparams)

    # ---- a run that continues

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
        take_statistics(folder, self.env_name, model.num_timesteps, self.normalize)

    def load_agent(self, arguments: dict[str, Any], env: VecEnv) -> Any:
        """
        Load the model that the run continues with, and its buffer.

        :param arguments: arguments that replace those of the model
        :param env: environments
        :return: the model
        """
        model = super().load_agent(arguments, env)
        if self.is_ours:
            load_buffer(model, Path(self.trained_agent).parent, self.truncate_last_trajectory)
        held = getattr(model, "replay_buffer", None)
        if self.resumed_from is not None and held is not None and held.size() == 0:
            hint = ": --save-replay-buffer saves it" if self.is_ours and not self.save_replay_buffer else ""
            print(f"The replay buffer is empty, because none was saved with the model{hint}")
        return model

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
            for callback in self._evaluations():
                continue_evaluations(callback, self.resumed_from)
            # The monitor files of the run keep their episodes.
            self.monitor_kwargs = {**self.monitor_kwargs, "override_existing": False}

    def _evaluations(self) -> list[EvalCallback]:
        return [callback for callback in self.callbacks if isinstance(callback, EvalCallback)]

    def learn(self, model: Any) -> None:
        """
        Train the model for the remaining steps.

        :param model: model to train
        """
        path = self.options.demonstrations
        if path is not None and not len(model.replay_buffer.demonstrations):
            try:
                n_added = add_saved_demonstrations(model.replay_buffer, path)
            except ValueError as error:
                self.parser.error(f"--demonstrations {path}: {error}")
            share = model.replay_buffer.settings.demonstration_fraction
            print(f"Added {n_added} demonstrations from {path}: {share:.0%} of each batch")
        if self.resumed_from is None:
            super().learn(model)
        else:
            self.learn_the_rest(model)

    def save_trained_model(self, model: Any) -> None:
        """
        Save the model as the Zoo does, and a prioritized buffer as a directory, if possible that of the checkpoints.

        :param model: trained model
        """
        if self.save_replay_buffer and self.is_ours:
            print("Saving replay buffer")
            model.save_replay_buffer(buffer_of(Path(self.save_path)))
            self.save_replay_buffer = False  # the Zoo would pickle it
        super().save_trained_model(model)
        evaluated = [callback.last_mean_reward for callback in self._evaluations() if np.isfinite(callback.last_mean_reward)]
        trained = [episode["r"] for episode in model.ep_info_buffer]
        result = ""
        if evaluated:
            result = f"Mean return of the last evaluation: {evaluated[0]:.1f}. "
        elif trained:
            result = f"Mean return of the last {len(trained)} training episodes: {np.mean(trained):.1f}. "
        print(f"{result}Saved in {self.save_path}. Next: {next_command(self.parser.prog, 'enjoy', self.options)}")

    # ---- environments

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        Make the Zoo's environments. With actors, the training environments are theirs. Small networks get one thread.

        :param n_envs: number of environments
        :param eval_env: whether they are for evaluation
        :param no_log: do not log episodes
        :return: environments in the Zoo's wrappers
        """
        if self.options.actors and not eval_env:
            env = self._make_actors()
        else:
            # A search leaves no empty run behind.
            env = super().create_envs(n_envs, eval_env, no_log or self.optimize_hyperparameters)
        # Small networks gain little from several threads, which wait for each other where other processes run.
        is_chosen = self.args.num_threads > 0 or "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
        space = env.observation_space
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
        if not is_chosen and not any(is_image_space(part) for part in parts):
            th.set_num_threads(1)
        return env

    def _make_actors(self) -> VecEnv:
        """Make environments that act on their own, in the Zoo's wrappers."""
        from sb3_per.distributed import make_actors

        vec_env_cls: Any = self.vec_env_class
        env: VecEnv = make_actors(
            self.env_name.gym_id,
            n_envs=self.n_envs_of_actor,
            seed=self.seed,
            monitor_dir=self.save_path,
            wrapper_class=self.env_wrapper,
            env_kwargs=self.env_kwargs,
            vec_env_cls=vec_env_cls,
            vec_env_kwargs=self.vec_env_kwargs,
            monitor_kwargs=self.monitor_kwargs,
            n_actors=self.options.actors,
        )
        if self.vec_env_wrapper is not None:
            env = self.vec_env_wrapper(env)
        env = self.normalized(env)
        return env if self.frame_stack is None else VecFrameStack(env, self.frame_stack)

    # ---- a search

    def create_log_folder(self) -> None:
        """Make the folder of a run. A search leaves no empty run behind."""
        if not self.optimize_hyperparameters:
            super().create_log_folder()

    def create_sampler(self, method: str) -> optuna.samplers.BaseSampler:
        """
        Make the sampler of a search.

        :param method: its name on the command line
        :return: the Zoo's, but for ``"tpe"``
        """
        if method != "tpe":
            return super().create_sampler(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # In groups, because the settings of a trial depend on its scheme.
            return optuna.samplers.TPESampler(
                n_startup_trials=self.n_startup_trials, seed=self.seed, multivariate=True, group=True
            )

    def hyperparameters_optimization(self) -> None:
        """Search as the Zoo does, and print the command that trains with the best trial."""
        super().hyperparameters_optimization()
        if self.storage and self.study_name and self.parser.prog.endswith("tune"):
            command = next_command(self.parser.prog, "train", self.options)
            print(f"Saved in {self.storage}. Next, train with the best trial: {command} {shlex.join(self.options.words)}")
