"""Names of algorithms in RL Zoo, with a prefix for SBX, folders of runs, and the command that comes next."""

import argparse
import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path


def uses_sbx(algo: str) -> bool:
    """
    Say whether an algorithm is one of SBX.

    :param algo: name of an algorithm, e.g. ``"sbx_per_sac"``, or ``"sbx_sac"`` for its stock class
    :return: whether it is
    """
    return algo.startswith("sbx_")


def nearest(algo: str, names: Iterable[str]) -> str:
    """
    Name the algorithm that a user may have meant.

    :param algo: unknown name of an algorithm, e.g. ``"PERSAC"``
    :param names: known names
    :return: end of an error message, with all names if none is near
    """
    plain = {name.replace("_", ""): name for name in names}
    found = difflib.get_close_matches(algo.lower().replace("_", "").replace("-", ""), plain, n=1)
    return f"did you mean {plain[found[0]]}?" if found else f"choose from {', '.join(plain.values())}"


def split_env(env: str) -> tuple[str, str]:
    """
    Split the id of an environment as Gymnasium does.

    :param env: id of an environment, e.g. ``"Pendulum-v1"``, or ``"module:id"`` with the module that registers it
    :return: name of the module, empty if there is none, and the id
    """
    module, _, name = env.rpartition(":")
    return module, name


def runs_of(folder: str | Path, algo: str, env: str) -> Path:
    """
    Find the folder with the runs of an algorithm, and check that there are runs on an environment.

    :param folder: folder of all runs, e.g. ``"logs"``
    :param algo: name of the algorithm
    :param env: id of the environment
    :return: path of the folder
    :raises FileNotFoundError: if there is no such run; the message says how to make one
    """
    runs = Path(folder, algo)
    if not any(runs.glob(f"{env.replace('/', '-')}_*")):
        raise FileNotFoundError(
            f"there are no runs of {algo} on {env} in {runs}. Train one with: sb3-per train --algo {algo} --env {env}, or "
            "name the folder of your runs with -f"
        )
    return runs


def newest_run(folder: str | Path, algo: str, env: str) -> Path:
    """
    Find the newest run of an algorithm on an environment.

    :param folder: folder of all runs, which ``train -f`` was given
    :param algo: name of the algorithm, e.g. ``"per_sac"``
    :param env: id of the environment
    :return: folder of the run
    :raises FileNotFoundError: if there is none
    """
    from rl_zoo3 import get_latest_run_id

    runs, name = runs_of(folder, algo, env), env.replace("/", "-")
    return runs / f"{name}_{get_latest_run_id(str(runs), name)}"


def next_command(prog: str, command: str, options: argparse.Namespace, *more: str) -> str:
    """
    Write the command that comes next.

    :param prog: program and command that runs now, e.g. ``"sb3-per train"``
    :param command: name of the next command
    :param options: its algorithm, environment, modules and folder
    :param more: further options
    :return: command to type
    """
    words = [*prog.split()[:-1], command, "--algo", options.algo, "--env", options.env, "-f", options.folder]
    if options.gym_packages:
        words += ["--gym-packages", *options.gym_packages]
    return shlex.join([*words, *more])
