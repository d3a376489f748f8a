"""
Options of RL Zoo's scripts: those that must be given, those that are ours, and help that does not wait for PyTorch.
"""

import argparse
from typing import Any, NamedTuple

# What a script is for, by its name.
SCRIPTS: dict[str, str] = {
    "train": "Train an agent with RL Zoo, or tune hyperparameters with -optimize",
    "enjoy": "Watch a trained agent",
    "record_video": "Record a video of a trained agent",
    "plot": "Plot the returns of training episodes",
}

# Scripts that play a saved model.
PLAYERS = ("enjoy", "record_video")

# The folder of the runs, where no other is given.
FOLDER = "logs"

_SHOWN: dict[str, list[tuple[tuple[str, ...], dict[str, Any]]]] = {
    "train": [
        (("-n", "--n-timesteps"), dict(type=int, metavar="N", help="number of environment steps; default: of the file")),
        (("-conf", "--conf-file"), dict(metavar="FILE", help="your own hyperparameter file")),
        (("-params", "--hyperparams"), dict(nargs="+", metavar="NAME:VALUE", help="replace hyperparameters of the file")),
        (("--env-kwargs",), dict(nargs="+", metavar="NAME:VALUE", help="arguments of the environment")),
        (("--gym-packages",), dict(nargs="+", metavar="MODULE", help="modules that register environments")),
        (("--seed",), dict(type=int, help="seed of the run; default: a random one")),
        (("--eval-freq",), dict(type=int, metavar="N", help="evaluate every N steps; default: 25000, -1: never")),
        (("--save-freq",), dict(type=int, metavar="N", help="save a checkpoint every N steps")),
        (("--save-replay-buffer",), dict(action="store_true", help="save the replay buffer too")),
        (("-tb", "--tensorboard-log"), dict(metavar="FOLDER", help="folder of logs for TensorBoard")),
        (("-optimize", "--optimize-hyperparameters"), dict(action="store_true", help="tune hyperparameters")),
    ],
    "enjoy": [
        (("-n", "--n-timesteps"), dict(type=int, metavar="N", help="number of steps; default: 1000")),
        (("--exp-id",), dict(type=int, default=0, metavar="N", help="number of the run; default: the newest")),
        (("--load-best",), dict(action="store_true", help="load the best model instead of the last")),
        (("--load-checkpoint",), dict(type=int, metavar="N", help="load the checkpoint after N steps")),
        (("--load-last-checkpoint",), dict(action="store_true", help="load the last checkpoint")),
        (("--no-render",), dict(action="store_true", help="open no window")),
    ],
    "plot": [
        (("-x", "--x-axis"), dict(choices=("steps", "episodes", "time"), help="default: steps")),
        (("-y", "--y-axis"), dict(choices=("success", "reward", "length"), help="default: reward")),
        (("-w", "--episode-window"), dict(type=int, metavar="N", help="average over N episodes; default: 100")),
        (("-max", "--max-timesteps"), dict(type=int, metavar="N", help="plot the first N steps only")),
    ],
}
_SHOWN["record_video"] = _SHOWN["enjoy"]

# The Zoo's name for the option that has the folder of the runs.
_FOLDERS = {"train": "--log-folder", "plot": "--exp-folder", **dict.fromkeys(PLAYERS, "--folder")}


class Parsed(NamedTuple):
    """
    Options of a script.

    :param known: those that are shown in the help, and ours
    :param handed: what the Zoo's script gets
    :param parser: parser of the options, for messages
    """

    known: argparse.Namespace
    handed: list[str]
    parser: argparse.ArgumentParser


def _own_options(script: str) -> argparse.ArgumentParser:
    """Make a parser for the options that the Zoo does not have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    if script == "train":
        parser.add_argument("--resume", action="store_true", help="go on with the newest run, if it was killed")
        what = "a .buffer directory or a Minari dataset, a share of each batch"
        parser.add_argument("--demonstrations", metavar="PATH", help=what)
        parser.add_argument("--actors", type=int, metavar="N", help="let N processes collect while one learns")
    elif script == "plot":
        parser.add_argument("-o", "--output", metavar="FILE", help="write a picture, e.g. plot.png, and open no window")
    return parser


def parse(script: str, options: list[str], typed: str) -> Parsed:
    """
    Check the options that we know, and leave the others to the Zoo.

    :param script: name of the script
    :param options: its options
    :param typed: what the user has typed before the options
    :return: the options
    :raises SystemExit: after ``--help``, and without an option that is required
    """
    own = _own_options(script)
    epilog = f"RL Zoo's other options work too: {typed} --help-all lists all of them, with the Zoo's own defaults."
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    parser = argparse.ArgumentParser(typed, usage, SCRIPTS[script], epilog, parents=[own], allow_abbrev=False)
    if "--help-all" in options:
        return Parsed(argparse.Namespace(), ["--help" if word == "--help-all" else word for word in options], parser)
    algo, env, several = (["-a"], ["-e"], dict[str, Any](nargs="+")) if script == "plot" else ([], [], {})
    parser.add_argument(*algo, "--algo", required=True, help="algorithm, e.g. per_sac, or one of the Zoo's, e.g. sac")
    parser.add_argument(*env, "--env", required=True, **several, help="id of the environment, e.g. Pendulum-v1")
    parser.add_argument("-f", _FOLDERS[script], dest="folder", default=FOLDER, help=f"folder of the runs; default: {FOLDER}")
    for names, settings in _SHOWN[script]:
        parser.add_argument(*names, **settings)
    known, _ = parser.parse_known_args(options)
    _, rest = own.parse_known_args(options)
    return Parsed(known, [_FOLDERS[script], FOLDER, *rest], parser)
