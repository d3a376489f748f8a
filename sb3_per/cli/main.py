"""
The command ``sb3-per``, which passes its options to the module of each command::

    sb3-per train --algo per_sac --env Pendulum-v1
    sb3-per doctor
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import sb3_per
from sb3_per.utils.arguments import Parser
from sb3_per.utils.extras import missing_packages_in_one_line
from sb3_per.zoo.options import SCRIPTS
from sb3_per.zoo.scripts import run

# Purpose of each command that has a module of its own.
MODULES = {
    "compare": "find out whether prioritization pays on your task",
    "convert": "turn a pickled replay buffer into a directory that runs no code when loaded, or into SB3's own class",
    "doctor": "print versions, cache, threads and GPU, and test the installation",
}


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per") -> int:
    """
    Run one of the commands.

    :param arguments: name of the command and its options; ``None``: those of the process, which may choose PyTorch's threads
    :param prog: program name shown in usage and errors
    :return: exit status
    """
    is_command = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    commands = "\n".join(f"  {name:14}{what}" for name, what in {**SCRIPTS, **MODULES}.items())
    epilog = f"commands:\n{commands}\n\n{prog} COMMAND --help lists the options of a command."
    parser = Parser(prog, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"sb3_per {sb3_per.__version__}")
    parser.add_argument("command", choices=[*SCRIPTS, *MODULES], metavar="COMMAND")
    command = parser.parse_args(arguments[:1]).command
    prog, options = f"{prog} {command}", arguments[1:]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it: modules of --gym-packages lie there
    try:
        with missing_packages_in_one_line(prog):
            if command in MODULES:
                return int(importlib.import_module(f"sb3_per.cli.{command}").main(options, prog) or 0)
            run(command, options, prog, is_command)
            return 0
    except (ValueError, FileNotFoundError) as error:
        if command != "convert":
            raise
        parser.exit(1, f"{prog}: {error}\n")
