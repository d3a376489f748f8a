"""
Find out whether prioritization pays on your task::

    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'" --dry-run
    sb3-per compare --algo dqn --env LunarLander-v3 --setting "scheme='lap'"

It needs the extra ``compare``.
"""

import argparse
import signal
from collections.abc import Sequence

from sb3_per.utils.arguments import Parser, count, factor
from sb3_per.utils.extras import EXTRAS, require

# Seeds and factors of the learning rate: of a whole comparison, and of a quick one. At one learning rate, eight seeds are the
# least that can decide. They find a difference of two standard deviations in 49% of cases, ten in 87%.
SEEDS, QUICK_SEEDS = 10, 3
RATES = (1 / 3, 1.0, 3.0)

_DESCRIPTION = """
Should you change your script, and to what? Train the stock class, its uniform twin (the same class with uniform draws), your
setting, and your setting with its priorities shuffled within the batch, on your task: several seeds, several learning rates.
The answer names the best arm, the stock class included, or says that the runs cannot tell. A stopped comparison continues with
the same command.
"""


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per compare") -> None:
    """
    Run what is missing, and print a table and an answer.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param prog: program name shown in usage and errors
    """
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    for package in EXTRAS["compare"]:
        require(package, "compare", prog)
    options.rates = sorted({1.0, *(options.rates or ([] if options.quick else RATES))})
    from sb3_per.compare.command import compare  # after --help, which needs no PyTorch

    # Otherwise the workers of a stopped comparison go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    compare(parser, options, SEEDS, QUICK_SEEDS)


def _parser(prog: str) -> argparse.ArgumentParser:
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    parser = Parser(prog, usage, _DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--algo", required=True, help="algorithm with RL Zoo's hyperparameters, e.g. dqn, or with ours, e.g. per_dqn")
    add("-e", "--env", required=True, help="id of the environment, e.g. LunarLander-v3 or module:Name-v0")
    add("--setting", action="append", default=[], help="setting to judge, e.g. \"scheme='lap', kappa=0.1\"; repeatable")
    add("-n", "--n-timesteps", type=count, default=-1, metavar="N", help="environment steps of a run; default: of the file")
    add("-conf", "--conf-file", metavar="FILE", help="your own hyperparameter file")
    add("-params", "--hyperparams", nargs="+", default=[], metavar="NAME:VALUE", help="replace hyperparameters of the file")
    add("--env-kwargs", nargs="+", default=[], metavar="NAME:VALUE", help="arguments of the environment")
    add("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    add("--vec-env", default="dummy", choices=("dummy", "subproc"), help="where several environments run; default: dummy")
    add("--device", default="cpu", help="device of PyTorch; default: cpu")
    add("--seeds", type=count, metavar="N", help=f"runs of each arm at each rate; default: {SEEDS}, or more if needed")
    add("--rates", type=factor, nargs="+", metavar="F", help="factors of the learning rate; default: 1/3 1 3; 1 is always one")
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds and one learning rate: a first impression, no verdict")
    add("--eval-episodes", type=count, dest="n_episodes", default=10, metavar="N", help="episodes per evaluation; default: 10")
    add("--workers", type=count, default=1, metavar="N", help="runs at a time, one core each; default: 1")
    add("-f", "--folder", default="logs", help="results go to its folder compare; default: logs")
    add("--dry-run", action="store_true", help="show the arms, and how long it will take")
    return parser
