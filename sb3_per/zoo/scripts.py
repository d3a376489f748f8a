"""Run RL Zoo's scripts. They read the command line of the process, and have no hooks: names of their modules are replaced."""

import argparse
import functools
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sb3_per.utils.arguments import Parser
from sb3_per.utils.extras import missing_packages_in_one_line, require
from sb3_per.zoo.names import nearest, runs_of, split_env, uses_sbx
from sb3_per.zoo.options import MODULES, SCRIPTS, parser_of
from sb3_per.zoo.registry import OURS, class_of, config_path, register


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run one of the Zoo's scripts with the prioritized algorithms.

    :param arguments: name of the script and its options; ``None``: those of the command line, which may choose the number of
        PyTorch's threads
    """
    is_command = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = Parser("python -m sb3_per.zoo", description="RL Zoo with prioritized experience replay")
    parser.add_argument("script", choices=SCRIPTS, help="the Zoo's script; its own options follow, see SCRIPT --help")
    script = parser.parse_args(arguments[:1]).script
    prog = f"{parser.prog} {script}"
    with missing_packages_in_one_line(prog):
        run(script, arguments[1:], prog, is_command)


def run(script: str, options: list[str], prog: str, is_command: bool = False) -> None:
    """
    Run one of the Zoo's scripts with the prioritized algorithms.

    :param script: name of the script
    :param options: its options
    :param prog: program name shown in usage and errors
    :param is_command: whether this process runs the script alone. Then PyTorch takes one thread where observations have no
        images, unless the user has chosen a number. A call from Python keeps the threads of its caller
    :raises SystemExit: after ``--help``, for options that cannot be used, and if there is nothing to play or to plot
    """
    parser = parser_of(script, prog)
    known, of_zoo = parser.parse_known_args(options)  # answers --help, before anything heavy is imported
    if script == "plot" and known.output:
        require("matplotlib", "extra", prog).use("Agg")  # needs no display; before the Zoo imports pyplot
    register(uses_sbx(known.algo))
    import torch as th
    from rl_zoo3.utils import ALGOS

    from sb3_per.zoo.environments import register_environment
    from sb3_per.zoo.threads import default_threads

    if known.algo not in ALGOS and not Path(known.folder, known.algo).is_dir():  # the runs of another program can be plotted
        parser.error(f"there is no algorithm {known.algo!r}: {nearest(known.algo, ALGOS)}")
    known.default_threads = default_threads() if is_command else 0
    trains = script in ("train", "tune")
    names = [split_env(env)[1] for env in known.env]
    try:
        if not trains:
            runs_of(known.folder, known.algo, names[0])  # the Zoo would look for them on a hub
        if script != "plot":
            register_environment(known.env[0], known.gym_packages)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    if script in ("train", "tune", "enjoy") and known.gym_packages:
        of_zoo = ["--gym-packages", *known.gym_packages, *of_zoo]  # for what it saves with the run
    if script == "tune":
        # A study of its own, which the command printed at the end can read.
        storage = known.storage or str(Path(known.folder, known.algo, "tune.log"))
        study = known.study_name or f"{names[0]}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        of_zoo = ["-optimize", "--storage", storage, "--study-name", study, *of_zoo]
    if trains:
        of_zoo = ["--conf-file", str(config_path(known.algo)), *of_zoo]
    with mock.patch.object(sys, "argv", [prog, "--algo", known.algo, "--env", *names, "-f", known.folder, *of_zoo]):
        if trains:
            _train(parser, known)
        elif script == "plot":
            _plot(parser, known)
        else:
            if known.default_threads:
                th.set_num_threads(1)  # a policy acts on one observation at a time; --num-threads is read later
            _play(parser, script)


def _train(parser: argparse.ArgumentParser, known: argparse.Namespace) -> None:
    """Run the Zoo's script with our manager in place of its own."""
    from rl_zoo3 import train

    from sb3_per.zoo.runs import RunManager

    with mock.patch.object(train, "ExperimentManager", functools.partial(RunManager, parser=parser, options=known)):
        train.train()


def _play(parser: argparse.ArgumentParser, script: str) -> None:
    """Run a script that loads models, without allocating their buffers. Exit if there is no such model."""
    from rl_zoo3 import utils

    find = utils.get_model_path

    def get_model_path(exp_id: int, folder: str, algo: str, env: Any, load_best: bool, *checkpoint: Any) -> Any:
        try:
            return find(exp_id, folder, algo, env, load_best, *checkpoint)
        except (AssertionError, ValueError) as error:
            hint = " Train with --eval-freq to get one, or leave --load-best out" if load_best else ""
            parser.error(f"{error}.{hint}")

    options = dict(buffer_size=1, optimize_memory_usage=False)
    loads = {algo: functools.partial(class_of(algo).load, **options) for algo in OURS.keys() & utils.ALGOS}
    players = {algo: SimpleNamespace(load=load) for algo, load in loads.items()}
    with mock.patch.dict(utils.ALGOS, players), mock.patch.object(utils, "get_model_path", get_model_path):
        runpy.run_module(f"rl_zoo3.{MODULES.get(script, script)}", run_name="__main__")


def _plot(parser: argparse.ArgumentParser, known: argparse.Namespace) -> None:
    """Run the Zoo's script, which shows the plot. Save the plot instead if a file is named, or if there is no display."""
    from matplotlib import pyplot as plt
    from rl_zoo3.plots import plot_train

    with mock.patch.object(plt, "show"):  # the script ends with it
        plot_train()
    if not any(axes.lines for axes in plt.gcf().axes):
        parser.error("no run has enough episodes: average over fewer with -w, e.g. -w 10")
    output = known.output
    if output is None and plt.get_backend().lower() == "agg":  # matplotlib's choice where it can open no window
        output = Path(known.folder, known.algo, "plot.png")
        print("There is no display, so the plot is saved. Name a file with -o")
    if output is None:
        plt.show()
        return
    plt.savefig(output)
    print(f"Saved {output}")
