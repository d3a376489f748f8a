"""Convert a pickled buffer to a directory, which loads without running code, or to a pickle of SB3's own class."""

import pickle
from pathlib import Path

from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_per.buffers import PRIORITIZED_CLASSES, PrioritizedReplayBuffer
from sb3_per.buffers.pickles import unpickling
from sb3_per.persistence.buffer_files import SUFFIX, save_buffer

STOCK_SUFFIX = ".pkl"


def convert(source: str | Path, target: str | Path) -> None:
    """
    Unpickle a buffer, which runs code from the file, and save it in another form.

    :param source: path of a pickled buffer of SB3 or of this package
    :param target: path of what to make, which must not exist: a directory, ``NAME.buffer``; or ``NAME.pkl``, a pickle of SB3's
        own class, which a stock algorithm loads and which does not need this package
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if the file holds something else, or for another target
    """
    source, target = Path(source), Path(target)
    if target.suffix not in (SUFFIX, STOCK_SUFFIX):
        raise ValueError(
            f"{target} must be a new directory whose name ends in {SUFFIX}, e.g. {target.with_suffix(SUFFIX)}, or, for stock "
            f"algorithms, a new file whose name ends in {STOCK_SUFFIX}"
        )
    if target.exists():
        kind = "directory" if target.suffix == SUFFIX else "file"
        raise ValueError(f"{target} must be a new {kind}, and it exists: choose another name, or remove it first")
    try:
        with unpickling(source):
            buffer = load_from_pkl(source)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{source} is not a pickled replay buffer") from error
    buffer_class = PRIORITIZED_CLASSES.get(type(buffer))
    if not isinstance(buffer, PrioritizedReplayBuffer) and buffer_class is None:
        raise ValueError(
            f"{source} holds a {type(buffer).__name__}, which has no prioritized class: give a replay buffer of SB3"
        )
    if target.suffix == STOCK_SUFFIX:
        if buffer_class is not None:
            raise ValueError(f"{source} holds a {type(buffer).__name__} of SB3 already: stock algorithms load it as it is")
        save_to_pkl(target, buffer.to_replay_buffer())
    else:
        save_buffer(buffer if buffer_class is None else buffer_class.from_replay_buffer(buffer), target)
