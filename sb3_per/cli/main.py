"""
The command ``sb3-per``, which passes its options to the module of each command::

    sb3-per train --algo per_sac --env Pendulum-v1
    sb3-per doctor
"""

import argparse
import os
import sys
from collections.abc import Sequence

import sb3_per
from sb3_per.utils.arguments import Parser, missing_packages_in_one_line
from sb3_per.zoo import commands as zoo

#: Purpose of each command, by its name; RL Zoo's come first.
COMMANDS: dict[str, str] = {
    **zoo.COMMANDS,
    "compare": "find out whether prioritization pays on your task",
    "convert": "turn a pickled replay buffer into a directory that runs no code when loaded, or into SB3's own class",
    "doctor": "print versions, threads and GPU, and test the installation",
}


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per") -> int:
    """
    Run one of the commands.

    :param arguments: name of the command and its options; ``None``: those of the process
    :param prog: program name shown in usage and errors
    :return: exit status
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    commands = "\n".join(f"  {name:14}{what}" for name, what in COMMANDS.items())
    epilog = f"commands:\n{commands}\n\n{prog} COMMAND --help lists the options of a command."
    parser = Parser(prog, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"sb3_per {sb3_per.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    command = parser.parse_args(arguments[:1]).command
    prog = f"{prog} {command}"
    words = arguments[1:]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it: modules of --gym-packages lie there
    with missing_packages_in_one_line(prog):
        if command == "compare":
            from sb3_per.cli import compare

            compare.main(words, prog)
        elif command == "convert":
            from sb3_per.cli import convert

            try:
                convert.main(words, prog)
            except (ValueError, FileNotFoundError) as error:
                parser.exit(1, f"{prog}: {error}\n")
        elif command == "doctor":
            from sb3_per.cli import doctor

            return doctor.main(words, prog)
        else:
            zoo.run(command, words, prog)
    return 0
