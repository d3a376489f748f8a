"""
Convert a pickled buffer to a directory, which loads without running code.

    sb3-per convert old.pkl new.buffer --trust
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from stable_baselines3.common.save_util import load_from_pkl

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import SUFFIX, save_buffer
from sb3_per.persistence.model_zip import prioritized_class_of


def convert(source: str | Path, target: str | Path) -> None:
    """
    Unpickle a buffer, which runs code from the file, and save it to a directory.

    :param source: path of a pickled buffer of SB3 or of this package
    :param target: path of the directory, ``NAME.buffer``, which must not exist
    :raises ValueError: if the file holds something else, or for another target
    """
    target = Path(target)
    if target.suffix != SUFFIX or target.exists():
        raise ValueError(f"{target} must be a new directory whose name ends in {SUFFIX}")
    buffer = load_from_pkl(source)
    if not isinstance(buffer, PrioritizedReplayBuffer):
        buffer_class = prioritized_class_of(type(buffer))
        if buffer_class is None:
            raise ValueError(
                f"{source} holds a {type(buffer).__name__}, which has no prioritized class: give a replay buffer of SB3"
            )
        buffer = buffer_class.from_replay_buffer(buffer)
    save_buffer(buffer, target)


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Convert a file.

    :param arguments: arguments of the command line; ``None``: those of the process
    """
    parser = argparse.ArgumentParser(
        "sb3-per convert",
        description="Turn a pickled replay buffer into a directory that runs no code when loaded",
    )
    parser.add_argument("source", help="pickled buffer, e.g. replay_buffer.pkl")
    parser.add_argument("target", help="directory to make, e.g. replay_buffer.buffer")
    parser.add_argument("--trust", action="store_true", help="allow the pickle to run code: only if you know who made it")
    options = parser.parse_args(arguments)
    if not options.trust:
        parser.error(f"{options.source} is a pickle, and unpickling runs code from it; if you trust it, add --trust")
    convert(options.source, options.target)
    print(f"Saved {options.target}")


if __name__ == "__main__":
    main()
