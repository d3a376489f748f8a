"""Find what a stopped run of RL Zoo continues from: its model, statistics, buffer and evaluations."""

import json
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback

from sb3_per.persistence.buffer_files import SUFFIX
from sb3_per.persistence.checkpoint_callback import BUFFER_SUFFIX, latest_checkpoint, manifest_of


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
    normalized = [path for path in checkpoints if _statistics_of(path).exists()]
    pair = latest_checkpoint(run) if with_buffer else None
    if pair is not None:
        checkpoints = [Path(pair[0])]
    elif normalized:
        checkpoints = normalized
    found = [_read(path) for path in (run / f"{env}.zip", *checkpoints)]
    return max((saved for saved in found if saved is not None), key=lambda saved: saved.num_timesteps, default=None)


def _statistics_of(checkpoint: Path) -> Path:
    """Name the statistics of VecNormalize that belong to a checkpoint, e.g. ``rl_model_1000_steps.zip``."""
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


def take_statistics(run: Path, env: str, num_timesteps: int, normalizes: bool) -> None:
    """
    Put the statistics of VecNormalize of a checkpoint where RL Zoo loads them, and print which ones it will load.

    :param run: folder of the run
    :param env: name of the environment in file names
    :param num_timesteps: environment steps of the checkpoint
    :param normalizes: whether the run has ``VecNormalize``
    """
    statistics = _statistics_of(run / f"rl_model_{num_timesteps}_steps.zip")
    loaded = run / env / "vecnormalize.pkl"
    if statistics.exists():
        shutil.copy(statistics, loaded)
        print(f"The statistics of VecNormalize are those of {statistics}")
    elif normalizes and loaded.exists():
        print(f"The statistics of VecNormalize are those of {loaded}")
    elif normalizes:
        print("The statistics of VecNormalize were not saved: they start anew")


def buffer_of(run: Path) -> Path:
    """
    Find the saved buffer of a run.

    :param run: folder of a run
    :return: directory of its buffer: that of the checkpoints, if there is one
    """
    checkpoints = run / f"rl_model{BUFFER_SUFFIX}"
    return checkpoints if checkpoints.exists() else run / f"replay_buffer{SUFFIX}"


def load_buffer(model: Any, run: Path, truncate_last_traj: bool) -> None:
    """
    Load the saved buffer of a run, if there is one.

    :param model: model of the run
    :param run: folder of the run
    :param truncate_last_traj: as in ``load_replay_buffer``
    """
    path = buffer_of(run)
    if path.exists():
        # The generation of the same step, or else the newest.
        generation = manifest_of(path, model.num_timesteps) or path
        model.load_replay_buffer(generation, truncate_last_traj=truncate_last_traj)
        print(f"The replay buffer has {model.replay_buffer.size():,} rows of {generation}")


def continue_evaluations(callback: EvalCallback, num_timesteps: int) -> None:
    """
    Load the evaluations up to the checkpoint, which the callback would otherwise overwrite.

    :param callback: callback of the run
    :param num_timesteps: environment steps of the checkpoint
    """
    path = Path(f"{callback.log_path}.npz")
    if not path.exists():
        return
    try:
        with np.load(path) as file:
            saved = dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:  # SB3 writes it in place
        print(f"The evaluations in {path} are damaged: they begin anew ({error})")
        return
    is_before = saved["timesteps"] <= num_timesteps
    callback.evaluations_timesteps = saved["timesteps"][is_before].tolist()
    callback.evaluations_results = saved["results"][is_before].tolist()
    callback.evaluations_length = saved["ep_lengths"][is_before].tolist()
    if "successes" in saved:
        callback.evaluations_successes = saved["successes"][is_before].tolist()
    # The best model stays the best, even if it came after the checkpoint.
    callback.best_mean_reward = float(saved["results"].mean(axis=1).max(initial=-np.inf))
