"""
The command ``sb3-per``, which passes its options to the module of each command.

    sb3-per train --algo per_sac --env Pendulum-v1
    sb3-per doctor
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

# Name of a command, with a module that has a `main`, and its first arguments.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": ("sb3_per.zoo", ("train",)),
    "tune": ("sb3_per.zoo", ("train", "-optimize")),
    "enjoy": ("sb3_per.zoo", ("enjoy",)),
    "record_video": ("sb3_per.zoo", ("record_video",)),
    "plot": ("sb3_per.zoo", ("plot",)),
    "convert": ("sb3_per.persistence.convert", ()),
    "doctor": ("sb3_per.cli.doctor", ()),
}

_HELP = """
commands:
  train         train an agent with RL Zoo
  tune          tune hyperparameters: train -optimize
  enjoy         watch a trained agent
  record_video  record a video of a trained agent
  plot          plot returns of training episodes
  convert       turn a pickled replay buffer into a directory that runs no code when loaded
  doctor        print versions, cache, threads and GPU, and test the installation

sb3-per COMMAND --help lists the options of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run one of the commands.

    :param arguments: name of the command and its options; ``None``: arguments of the process
    :return: exit status
    """
    import sb3_per

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser("sb3-per", epilog=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"sb3_per {sb3_per.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(arguments[:1]).command
    module, first = COMMANDS[command]
    try:
        status = importlib.import_module(module).main([*first, *arguments[1:]])
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        parser.exit(1, f"sb3-per {command}: {error}\n")
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(main())
