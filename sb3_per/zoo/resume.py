"""Find the model that a stopped run of RL Zoo continues from."""

import json
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from sb3_per.persistence.checkpoint_callback import latest_checkpoint


class SavedModel(NamedTuple):
    """
    A complete model of a run.

    :param path: its zip file
    :param num_timesteps: environment steps that it was trained for
    """

    path: Path
    num_timesteps: int


def newest_model(run: Path, env: str, with_buffer: bool) -> SavedModel | None:
    """
    Find the newest complete model of a run: the one of its end or of an interrupt, or a checkpoint.

    :param run: folder of the run
    :param env: name of the environment in file names
    :param with_buffer: whether the run saves its buffer. Then a checkpoint with its buffer is better than a newer one without,
        which a kill can leave
    :return: the model; ``None`` if there is none
    """
    checkpoints = list(run.glob("rl_model_*_steps.zip"))
    # A kill can come between the model and its statistics.
    normalized = [path for path in checkpoints if statistics_of(path).exists()]
    pair = latest_checkpoint(run) if with_buffer else None
    if pair is not None:
        checkpoints = [Path(pair[0])]
    elif normalized:
        checkpoints = normalized
    found = [_read(path) for path in (run / f"{env}.zip", *checkpoints)]
    return max((saved for saved in found if saved is not None), key=lambda saved: saved.num_timesteps, default=None)


def statistics_of(checkpoint: Path) -> Path:
    """
    Name the statistics of VecNormalize that belong to a checkpoint.

    :param checkpoint: zip file of a model, ``rl_model_1000_steps.zip``
    :return: path of the pickle, which may not be there
    """
    return checkpoint.with_name(checkpoint.name.replace("rl_model_", "rl_model_vecnormalize_").replace(".zip", ".pkl"))


def _read(path: Path) -> SavedModel | None:
    """Read the number of steps from a model's file. A file that is damaged, or not there, is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is None:
                return SavedModel(path, int(json.loads(archive.read("data"))["num_timesteps"]))
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, KeyError, EOFError):
        pass
    return None
