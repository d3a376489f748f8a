"""
Find out whether prioritization pays on your task::

    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'" --dry-run
    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'"

It needs the extra ``compare``.
"""

import argparse
import signal
from collections.abc import Sequence
from typing import Any

from sb3_per.utils.arguments import Parser, count, factor, multiple

# Seeds and factors of the learning rate: of a whole comparison, and of a quick one.
SEEDS, QUICK_SEEDS = 15, 3
RATES = (1 / 3, 1.0, 3.0)

_DESCRIPTION = """
Does prioritization pay on your task? Train the stock class, its uniform twin (the same class with uniform draws), your
setting, and your setting with its priorities shuffled within the batch: several seeds, several learning rates. Print a table
and one sentence, and draw the learning curves. A stopped comparison continues with the same command.
"""


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per compare") -> None:
    """
    Run what is missing, print a table and one sentence, and draw the learning curves.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param prog: program name shown in usage and errors
    """
    parser = parser_of(prog)
    options = options_of(parser, arguments)
    try:
        import matplotlib  # noqa: F401
        import rl_zoo3  # noqa: F401
        import scipy  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError as error:
        command = 'pip install "rl_zoo3[plots]" requests matplotlib scipy tqdm, or pip install ".[compare]" in a clone'
        raise ImportError(f"{error}: {command}") from error
    from sb3_per.compare.command import compare  # after --help, which needs no PyTorch

    # Otherwise the workers of a stopped comparison go on.
    signal.signal(signal.SIGTERM, _stop)
    compare(parser, options)


def _stop(*_: Any) -> None:
    # A second signal would interrupt the end of the workers, and leave a traceback.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def options_of(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """
    Read the options.

    :param parser: parser of the command
    :param arguments: arguments of the command line; ``None``: those of the process
    :return: options, with the seeds and the factors of the learning rate that follow from ``--quick``
    """
    options = parser.parse_args(arguments)
    options.quick_seeds = QUICK_SEEDS
    if options.seeds is None:
        options.seeds = QUICK_SEEDS if options.quick else SEEDS
    if options.rates is None:
        options.rates = [] if options.quick else RATES
    options.rates = sorted({1.0, *options.rates})
    return options


def parser_of(prog: str) -> argparse.ArgumentParser:
    """
    Make the parser of the command.

    :param prog: program name shown in usage and errors
    :return: the parser
    """
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    parser = Parser(prog, usage, _DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--algo", required=True, help="algorithm with RL Zoo's hyperparameters, e.g. dqn, or with ours, e.g. per_dqn")
    add("-e", "--env", required=True, help="id of the environment, e.g. LunarLander-v3 or module:Name-v0")
    add("--setting", action="append", default=[], help="setting to judge, e.g. \"scheme='lap', kappa=0.1\"; repeatable")
    add("-n", "--n-timesteps", type=count, default=-1, metavar="N", help="environment steps of a run; default: of the file")
    add("--n-envs", type=count, metavar="N", help="environments of every run; default: of the file")
    add("-conf", "--conf-file", metavar="FILE", help="your own hyperparameter file")
    add("-params", "--hyperparams", nargs="+", default=[], metavar="NAME:VALUE", help="replace hyperparameters of the file")
    add("--env-kwargs", nargs="+", default=[], metavar="NAME:VALUE", help="arguments of the environment")
    add("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    add("--vec-env", default="dummy", choices=("dummy", "subproc"), help="where several environments run; default: dummy")
    add("--device", default="cpu", help="device of PyTorch; default: cpu")
    add("--seeds", type=count, metavar="N", help=f"runs of each arm at each rate; default: {SEEDS}")
    add("--rates", type=factor, nargs="+", metavar="F", help="factors of the learning rate; default: 1/3 1 3; 1 is always one")
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds and one learning rate, which cannot decide")
    more = "one more arm: uniform draws with K times the gradient steps. Says who wins at the same time; default: no such arm"
    add("--more-updates", type=multiple, metavar="K", help=more)
    add("--eval-episodes", type=count, dest="n_episodes", default=10, metavar="N", help="episodes per evaluation; default: 10")
    add("--workers", type=count, default=1, metavar="N", help="runs at a time, one core each; default: 1")
    add("-f", "--folder", default="logs", help="results go to its folder compare; default: logs")
    add("--dry-run", action="store_true", help="show the arms, and how long it will take")
    return parser
