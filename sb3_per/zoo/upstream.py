"""
Everything that this package uses of RL Zoo beside the names in ``rl_zoo3.__all__``, with public names and arguments.

RL Zoo's functions take no arguments, and its manager of a run has no public hooks. docs/developer_guide.md lists what is used.
"""

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import optuna
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER, convert_offpolicy_params
from rl_zoo3.utils import get_class_by_name
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.utils.parents import WORKS_WITH, overrides

__all__ = ["CALLS_CONSTRUCTOR", "Manager", "convert_offpolicy_params", "get_class_by_name"]

#: File whose code calls the constructors of algorithms.
CALLS_CONSTRUCTOR = inspect.getfile(ExperimentManager)

# How errors about a run that cannot be loaded begin or end.
_NO_MODEL = ("No model found", "No checkpoint found", "folder was not found")

# Module and name of the function of each command.
_FUNCTIONS = {
    "train": ("rl_zoo3.train", "train"),
    "tune": ("rl_zoo3.train", "train"),
    "enjoy": ("rl_zoo3.enjoy", "enjoy"),
    "record-video": ("rl_zoo3.enjoy", "enjoy"),
    "plot": ("rl_zoo3.plots", "plot_train"),
}


@overrides("_preprocess_hyperparams", "_load_pretrained_agent", "_save_config", "_create_sampler")
class Manager(ExperimentManager):
    """RL Zoo's manager of a run, whose private hooks have public names here."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the model, once it has been set up."""
        return self._hyperparams

    def process(self, hyperparams: dict[str, Any]) -> Any:
        """
        Turn the hyperparameters of a file into arguments of the model.

        :param hyperparams: hyperparameters of the file
        :return: arguments, wrapper of an environment, callbacks, and wrapper of all environments
        """
        return super()._preprocess_hyperparams(hyperparams)

    def load_agent(self, arguments: dict[str, Any], env: VecEnv) -> Any:
        """
        Load the model that a run continues with.

        :param arguments: arguments that replace those of the model
        :param env: environments
        :return: the model
        """
        return super()._load_pretrained_agent(arguments, env)

    def save_config(self, hyperparams: dict[str, Any]) -> None:
        """
        Save what a run was made with.

        :param hyperparams: hyperparameters of the file
        """
        super()._save_config(hyperparams)

    def create_sampler(self, method: str) -> optuna.samplers.BaseSampler:
        """
        Make the sampler of a search.

        :param method: its name on the command line
        :return: the sampler
        """
        return super()._create_sampler(method)

    def normalized(self, env: VecEnv) -> VecEnv:
        """
        Put training environments into ``VecNormalize`` if the hyperparameters say so.

        :param env: environments
        :return: the same, or the wrapper
        """
        return super()._maybe_normalize(env, eval_env=False)

    def learn_the_rest(self, model: Any) -> None:
        """
        Train a loaded model for the steps that are left, and go on counting.

        :param model: the model
        """
        self.n_timesteps -= model.num_timesteps
        # All that `learn` uses of a model.
        rest: Any = SimpleNamespace(learn=functools.partial(model.learn, reset_num_timesteps=False), env=model.env)
        super().learn(rest)

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        return self.process(hyperparams)

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> Any:
        return self.load_agent(hyperparams, env)

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        self.save_config(saved_hyperparams)

    def _create_sampler(self, sampler_method: str) -> optuna.samplers.BaseSampler:
        return self.create_sampler(sampler_method)


# ---- commands


def run(command: str, prog: str, words: list[str]) -> None:
    """
    Run the function of a command. It reads the command line of the process, which is replaced meanwhile.

    :param command: name of the command
    :param prog: program name shown in usage and errors
    :param words: options
    """
    module, name = _FUNCTIONS[command]
    function = getattr(importlib.import_module(module), name)
    before = sys.argv
    sys.argv = [prog, *words]
    try:
        function()
    finally:
        sys.argv = before


@contextlib.contextmanager
def training_with(make_manager: Callable[..., Any]) -> Iterator[None]:
    """
    Let training make its manager with another function, within the block.

    :param make_manager: takes the arguments of the Zoo's manager
    :raises ImportError: if the Zoo's function does not make a manager of this name any more
    """
    from rl_zoo3 import train as zoo_train

    if "ExperimentManager" not in zoo_train.train.__code__.co_names:
        raise ImportError(
            f"rl_zoo3 {version('rl_zoo3')} does not make an ExperimentManager in rl_zoo3.train.train, which sb3_per replaces: "
            f"sb3_per works with {WORKS_WITH['rl_zoo3']}"
        )
    before: Any = zoo_train.ExperimentManager
    zoo_train.ExperimentManager = make_manager  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        zoo_train.ExperimentManager = before  # type: ignore[misc]


@contextlib.contextmanager
def environments_made_by(make: Callable[..., VecEnv]) -> Iterator[None]:
    """
    Make all environments with another function, within the block.

    :param make: takes the functions that make single environments
    """
    before: Any = ExperimentManager.default_vec_env_cls
    ExperimentManager.default_vec_env_cls = make  # type: ignore[assignment]
    try:
        yield
    finally:
        ExperimentManager.default_vec_env_cls = before


def has_no_model(error: Exception) -> bool:
    """
    Say whether an error of ``enjoy`` is that there is no model to play.

    :param error: the error
    """
    return isinstance(error, AssertionError | ValueError) and any(text in str(error) for text in _NO_MODEL)


def cannot_be_drawn(error: Exception) -> bool:
    """
    Say whether an error of ``enjoy`` is that the class of the environment takes no ``render_mode``.

    :param error: the error
    """
    return isinstance(error, TypeError) and "render_mode" in str(error)


def import_environments() -> None:
    """Register RL Zoo's own environments, such as CartPoleNoVel-v1."""
    importlib.import_module("rl_zoo3.import_envs")


# ---- search spaces


def add_search_space(algo: str, sample: Callable[..., dict[str, Any]], convert: Callable[..., dict[str, Any]]) -> None:
    """
    Register a search space.

    :param algo: name of the algorithm
    :param sample: see :func:`sb3_per.zoo.tuning.sample`, from ``trial`` on
    :param convert: see :func:`sb3_per.zoo.tuning.convert`, from ``params`` on
    """
    HYPERPARAMS_SAMPLER[algo] = sample
    HYPERPARAMS_CONVERTER[algo] = convert


def buffer_settings_of(additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Find the settings of the buffer in the hyperparameter file of a search.

    :param additional_args: the Zoo's last argument of a search space
    :return: ``replay_buffer_kwargs`` of the file
    """
    settings: dict[str, Any] = additional_args["her_kwargs"]
    return settings


def sample_stock(
    space: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any], has_hindsight: bool
) -> dict[str, Any]:
    """
    Choose the hyperparameters of a stock algorithm for a trial.

    :param space: its name
    :param trial: trial of Optuna
    :param n_actions: number of dimensions of the action space
    :param n_envs: number of environments
    :param additional_args: the Zoo's
    :param has_hindsight: whether to tune HER, which the Zoo does only for SB3's own class
    :return: hyperparameters
    """
    return HYPERPARAMS_SAMPLER[space](trial, n_actions, n_envs, {**additional_args, "using_her_replay_buffer": has_hindsight})
