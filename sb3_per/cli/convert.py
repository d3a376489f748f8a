"""
Convert a pickled buffer to a directory, which loads without running code, or to a pickle for stock algorithms::

    sb3-per convert old.pkl new.buffer --trust
    sb3-per convert prioritized.pkl stock.pkl --trust
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sb3_per.persistence.convert import convert
from sb3_per.utils.arguments import Parser

DESCRIPTION = (
    "Turn a pickled replay buffer into a directory that runs no code when loaded, or a prioritized one into SB3's own class"
)


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per convert") -> None:
    """
    Convert a file.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param prog: program name shown in usage and errors
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: for a file that holds no buffer, or another target than a new ``.buffer`` directory or ``.pkl`` file
    """
    parser = parser_of(prog)
    options = parser.parse_args(arguments)
    if Path(options.source).is_dir():
        raise ValueError(
            f"{options.source} is a directory, which a model loads: model.load_replay_buffer({options.source!r}). For a stock "
            "algorithm, save model.replay_buffer.to_replay_buffer() with stable_baselines3.common.save_util.save_to_pkl"
        )
    if not Path(options.source).is_file():
        raise FileNotFoundError(f"There is no file {options.source}")
    if not options.trust:
        parser.error(f"{options.source} is a pickle, and unpickling runs code from it; if you trust it, add --trust")
    convert(options.source, options.target)
    print(f"Saved {options.target}. Next: model.load_replay_buffer({options.target!r})")


def parser_of(prog: str) -> argparse.ArgumentParser:
    """
    Make the parser of the command.

    :param prog: program name shown in usage and errors
    :return: the parser
    """
    parser = Parser(prog, description=DESCRIPTION)
    parser.add_argument("source", help="pickled buffer, e.g. replay_buffer.pkl")
    parser.add_argument("target", help="what to make: NAME.buffer, or NAME.pkl for stock algorithms")
    parser.add_argument("--trust", action="store_true", help="allow the pickle to run code: only if you know who made it")
    return parser
