"""
Run the scripts of RL Zoo with the prioritized algorithms.

    python -m sb3_per.zoo train --algo per_sac --env Pendulum-v1
    python -m sb3_per.zoo enjoy --algo per_sac --env Pendulum-v1 -f logs/

All options are the Zoo's, except two of ``train``: ``--resume`` goes on with a run that was killed, and ``--actors N`` lets N
actors collect. See :mod:`sb3_per.zoo.runs`. It needs the extra ``zoo``.
"""

import argparse
import functools
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym

import sb3_per
from sb3_per.utils.extras import require

ALGORITHMS: dict[str, Any] = {
    "per_sac": sb3_per.PERSAC,
    "per_td3": sb3_per.PERTD3,
    "per_ddpg": sb3_per.PERDDPG,
    "per_dqn": sb3_per.PERDQN,
    "per_qrdqn": sb3_per.PERQRDQN,
    "per_tqc": sb3_per.PERTQC,
    "per_crossq": sb3_per.PERCrossQ,
    "per_dqn_lstm": sb3_per.PERRecurrentDQN,
    "per_sac_lstm": sb3_per.PERRecurrentSAC,
}

# Name of a script, with the Zoo's module and function. A module without a function runs as a script.
SCRIPTS: dict[str, tuple[str, str | None]] = {
    "train": ("rl_zoo3.train", "train"),
    "enjoy": ("rl_zoo3.enjoy", "enjoy"),
    "record_video": ("rl_zoo3.record_video", None),
    "plot": ("rl_zoo3.plots", "plot_train"),
    "plot_train": ("rl_zoo3.plots", "plot_train"),
    "all_plots": ("rl_zoo3.plots", "all_plots"),
    "plot_from_file": ("rl_zoo3.plots", "plot_from_file"),
}

# Scripts that play a saved model, without a replay buffer.
_PLAYERS = ("enjoy", "record_video")


def config_path(algo: str) -> Path:
    """
    :param algo: name of an algorithm, e.g. ``"per_sac"``
    :return: path of the hyperparameter file of this package
    """
    here = Path(__file__).resolve().parent
    folders = (here / "configs", here.parents[1] / "zoo_configs")  # installed; in the repository
    return next(folder for folder in folders if folder.is_dir()) / f"{algo}.yml"


def register() -> None:
    """
    Register the algorithms and their search spaces with the Zoo, and our classes for its YAML files, e.g.
    ``replay_buffer_class: PrioritizedHerReplayBuffer``.

    :raises ImportError: without RL Zoo
    """
    require("rl_zoo3", "zoo", "python -m sb3_per.zoo")
    from rl_zoo3 import exp_manager, hyperparams_opt, utils

    from sb3_per.zoo import tuning

    utils.ALGOS.update(ALGORITHMS)
    hyperparams_opt.HYPERPARAMS_SAMPLER.update({algo: functools.partial(tuning.sample, algo) for algo in ALGORITHMS})
    hyperparams_opt.HYPERPARAMS_CONVERTER.update({algo: functools.partial(tuning.convert, algo) for algo in ALGORITHMS})
    # The Zoo evaluates the strings of its YAML files with the names of this module.
    vars(exp_manager).update({name: getattr(sb3_per, name) for name in sb3_per.__all__})
    _register_minatar()


def _register_minatar() -> None:
    """Register the environments of MinAtar, which importing it, as the Zoo's ``--gym-packages`` does, leaves out."""
    try:
        from minatar.gym import register_envs
    except ImportError:
        return
    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run one of the Zoo's scripts with the prioritized algorithms.

    :param arguments: name of the script and its options; ``None``: those of the command line
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser("python -m sb3_per.zoo", description="RL Zoo with prioritized experience replay")
    parser.add_argument("script", choices=SCRIPTS, help="the Zoo's script; its own options follow, see SCRIPT --help")
    script = parser.parse_args(arguments[:1]).script
    options = arguments[1:]

    register()
    ours = argparse.Namespace()
    if script == "train":
        ours, options = _own_options().parse_known_args(options)
        options = _with_config(options)
    command_line, sys.argv = sys.argv, [f"{parser.prog} {script}", *options]
    from rl_zoo3.utils import ALGOS

    try:
        if script in _PLAYERS:
            ALGOS.update({algo: _player(cls) for algo, cls in ALGORITHMS.items()})
        module, function = SCRIPTS[script]
        if function is None:
            runpy.run_module(module, run_name="__main__")
        elif script == "train":
            _train(**vars(ours))
        else:
            getattr(importlib.import_module(module), function)()
    finally:
        sys.argv = command_line
        ALGOS.update(ALGORITHMS)


def _own_options() -> argparse.ArgumentParser:
    """Make a parser for the options of ``train`` that the Zoo does not have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--actors", type=int)
    return parser


def _train(resume: bool, actors: int | None) -> None:
    """
    Run the Zoo's script with our manager in place of its own. The Zoo has no hook for that.

    :param resume: go on with the newest run
    :param actors: number of actors; ``None``: no actors
    """
    from rl_zoo3 import train

    from sb3_per.zoo.runs import RunHasEndedError, RunManager

    names = vars(train)
    managers = {"ExperimentManager": names["ExperimentManager"]}
    names["ExperimentManager"] = functools.partial(RunManager, resume=resume, actors=actors)
    try:
        train.train()
    except RunHasEndedError as ended:
        print(ended)  # not an error: a script may repeat the command until the run has ended
    finally:
        names.update(managers)


def _with_config(options: list[str]) -> list[str]:
    """
    :param options: options of the Zoo's ``train``
    :return: options that name our hyperparameter file, if the algorithm is ours and they name none
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo")
    parser.add_argument("-conf", "--conf-file")
    known, _ = parser.parse_known_args(options)
    if known.algo in ALGORITHMS and known.conf_file is None:
        return [*options, "--conf-file", str(config_path(known.algo))]
    return options


def _player(cls: Any) -> Any:
    """Make a stand-in for an algorithm that loads models without allocating a buffer."""
    return SimpleNamespace(load=functools.partial(cls.load, buffer_size=1, optimize_memory_usage=False))
