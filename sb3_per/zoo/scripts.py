"""Run RL Zoo's scripts, which read their options from the command line of the process."""

import contextlib
import functools
import importlib
import io
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sb3_per.utils.extras import require
from sb3_per.zoo import ALGORITHMS, class_of, config_path, register
from sb3_per.zoo.options import PLAYERS, Parsed


def run_script(script: str, parsed: Parsed, typed: str) -> None:
    """
    Run one of the Zoo's scripts with the prioritized algorithms.

    :param script: name of the script
    :param parsed: its options
    :param typed: what the user has typed before the options
    :raises SystemExit: if there is no model to play, or nothing to plot
    """
    if hasattr(parsed.known, "output") and parsed.known.output:
        require("matplotlib", "extra", typed).use("Agg")  # needs no display; before the Zoo imports pyplot
    register()
    with _command_line([typed, *parsed.handed]):
        if script in PLAYERS:
            _play(script, parsed)
        elif script == "train":
            _train(parsed)
        else:
            _plot(parsed)


@contextlib.contextmanager
def _command_line(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def _train(parsed: Parsed) -> None:
    """Run the Zoo's script with our manager in place of its own, and our hyperparameter file. The Zoo has no hook for that."""
    from rl_zoo3 import train

    from sb3_per.zoo.runs import RunHasEndedError, RunManager

    known = vars(parsed.known)
    if known.get("algo") in ALGORITHMS and known["conf_file"] is None:
        sys.argv += ["--conf-file", str(config_path(known["algo"]))]
    names = vars(train)
    managers = {"ExperimentManager": names["ExperimentManager"]}
    own = {name: known[name] for name in ("resume", "actors", "demonstrations") if name in known}
    names["ExperimentManager"] = functools.partial(RunManager, **own)
    try:
        train.train()
    except RunHasEndedError as ended:
        print(ended)  # not an error: a script may repeat the command until the run has ended
    finally:
        names.update(managers)


def _play(script: str, parsed: Parsed) -> None:
    """Run a script that loads models, without allocating their buffers."""
    from rl_zoo3.utils import ALGOS

    if "folder" in parsed.known:
        _require_model(parsed)
    try:
        ALGOS.update({algo: _player(class_of(algo)) for algo in ALGORITHMS})
        if script == "enjoy":
            importlib.import_module("rl_zoo3.enjoy").enjoy()
        else:
            runpy.run_module(f"rl_zoo3.{script}", run_name="__main__")
    finally:
        ALGOS.update({algo: class_of(algo) for algo in ALGORITHMS})


def _player(cls: Any) -> Any:
    """Make a stand-in for an algorithm that loads models without allocating a buffer."""
    return SimpleNamespace(load=functools.partial(cls.load, buffer_size=1, optimize_memory_usage=False))


def _require_model(parsed: Parsed) -> None:
    """
    Look for the model as the Zoo does, which would ask a hub for a missing one.

    :raises SystemExit: if there is none; the message names the folder
    """
    from huggingface_sb3 import EnvironmentName
    from rl_zoo3.utils import get_model_path

    known = parsed.known
    which = (known.exp_id, known.folder, known.algo, EnvironmentName(known.env))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            get_model_path(*which, known.load_best, known.load_checkpoint, known.load_last_checkpoint)
    except (AssertionError, ValueError) as error:
        folder = Path(known.folder, known.algo)
        parsed.parser.exit(
            1,
            f"{parsed.parser.prog}: there is no such model in {folder}: {error}\n"
            f"Train one with: sb3-per train --algo {known.algo} --env {known.env}, or name the folder of your runs with -f\n",
        )


def _plot(parsed: Parsed) -> None:
    """Run the Zoo's script, which shows the plot, and save the plot instead if a file is named."""
    from matplotlib import pyplot as plt
    from rl_zoo3.plots import plot_train

    known = parsed.known
    if "folder" in known and not Path(known.folder, known.algo).is_dir():
        parsed.parser.exit(1, f"{parsed.parser.prog}: there are no runs of {known.algo} in {Path(known.folder, known.algo)}\n")
    show = plt.show
    vars(plt)["show"] = lambda: None  # the script ends with it
    try:
        plot_train()
    finally:
        vars(plt)["show"] = show
    if not any(axes.lines for axes in plt.gcf().axes):
        parsed.parser.exit(1, f"{parsed.parser.prog}: no run has enough episodes: average over fewer with -w, e.g. -w 10\n")
    if known.output is None:
        plt.show()
        return
    plt.savefig(known.output)
    print(f"Saved {known.output}")
