"""Convert a pickled buffer to a directory, which loads without running code."""

import pickle
from pathlib import Path

from stable_baselines3.common.save_util import load_from_pkl

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.counterparts import PRIORITIZED_CLASSES
from sb3_per.persistence.buffer_files import SUFFIX, save_buffer


def convert(source: str | Path, target: str | Path) -> None:
    """
    Unpickle a buffer, which runs code from the file, and save it to a directory.

    :param source: path of a pickled buffer of SB3 or of this package
    :param target: path of the directory, ``NAME.buffer``, which must not exist
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if the file holds something else, or for another target
    """
    source, target = Path(source), Path(target)
    if target.suffix != SUFFIX:
        raise ValueError(f"{target} must be a new directory whose name ends in {SUFFIX}, e.g. {target.with_suffix(SUFFIX)}")
    if target.exists():
        raise ValueError(f"{target} must be a new directory, and it exists: choose another name, or remove it first")
    try:
        buffer = load_from_pkl(source)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{source} is not a pickled replay buffer") from error
    if not isinstance(buffer, PrioritizedReplayBuffer):
        buffer_class = PRIORITIZED_CLASSES.get(type(buffer))
        if buffer_class is None:
            raise ValueError(
                f"{source} holds a {type(buffer).__name__}, which has no prioritized class: give a replay buffer of SB3"
            )
        buffer = buffer_class.from_replay_buffer(buffer)
    save_buffer(buffer, target)
