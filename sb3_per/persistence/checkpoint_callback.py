"""Save checkpoints of a run that may be killed at any moment, and find the latest complete one."""

import glob
import pickle
import pickletools
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from stable_baselines3.common.callbacks import CheckpointCallback

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.persistence.atomic import make_directory, remove_temporary, sync_directory, write_file
from sb3_per.persistence.buffer_files import SUFFIX, SavedBuffer
from sb3_per.persistence.facts import describe_buffer
from sb3_per.persistence.generations import manifest_names_in, numbers_in, whole_generations
from sb3_per.utils.checks import Allowed, check_argument, integer
from sb3_per.utils.parents import overrides

#: Part of the name of a buffer after the prefix.
BUFFER_SUFFIX = f"_replay_buffer{SUFFIX}"


@overrides("_init_callback", "_on_step")
class BufferCheckpointCallback(CheckpointCallback):
    """
    Save checkpoints as SB3's callback does, in files that stay complete if the run is killed.

    All checkpoints of the replay buffer share a directory, ``PREFIX_replay_buffer.buffer``, and each adds only what is new.
    The buffer is saved last, so that its newest generation always has a model.

    :param save_freq: number of calls between checkpoints; each call is one step of every environment
    :param save_path: folder of the checkpoints
    :param name_prefix: first part of the names of the files
    :param save_replay_buffer: whether to save the buffer too
    :param save_vecnormalize: whether to save the statistics of ``VecNormalize`` too
    :param verbose: 2 for a message about every file
    :param keep: number of generations of the buffer to keep, at least 1; all models are kept
    :raises ValueError: for a ``keep`` below 1; when training starts, for a buffer that a directory cannot hold
    :raises TypeError: when training starts, for a model whose buffer is not from this package
    """

    def __init__(
        self,
        save_freq: int,
        save_path: str,
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = True,
        save_vecnormalize: bool = False,
        verbose: int = 0,
        keep: int = 2,
    ):
        super().__init__(save_freq, save_path, name_prefix, save_replay_buffer, save_vecnormalize, verbose)
        check_argument("keep", keep, integer())
        self.keep = keep

    def _init_callback(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if self.save_replay_buffer and buffer is not None:
            if not isinstance(buffer, PrioritizedReplayBuffer):
                raise TypeError(
                    f"{type(self.model).__name__} has a {type(buffer).__name__}, which only SB3's CheckpointCallback can "
                    "save, as a pickle: use that callback, or save_replay_buffer=False"
                )
            describe_buffer(buffer)  # raises an error for what a directory cannot hold
        path = (Path(self.save_path) / (self.name_prefix + BUFFER_SUFFIX)).absolute()
        # A model that has loaded its buffer from there knows what need not be written again. A stock model knows of none.
        known = getattr(self.model, "saved_buffers", {})
        self.saved_buffer = known.setdefault(path, SavedBuffer(path))
        make_directory(Path(self.save_path).absolute())
        checkpoints = rf"{re.escape(self.name_prefix)}_(vecnormalize_)?[0-9]+_steps\.(zip|pkl)"
        remove_temporary(Path(self.save_path), checkpoints)

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            self.save()
        return True

    def save(self) -> None:
        """Save a checkpoint now, e.g. at the end of a run."""
        self._write("model", self._checkpoint_path(extension="zip"), self.model.save)
        normalize = self.model.get_vec_normalize_env() if self.save_vecnormalize else None
        if normalize is not None:
            path = Path(self._checkpoint_path("vecnormalize_", extension="pkl"))
            # As `VecNormalize.save` does, but through a temporary file.
            self._write("VecNormalize", path, lambda path: write_file(path, lambda file: pickle.dump(normalize, file)))
            sync_directory(path.parent)
        buffer = getattr(self.model, "replay_buffer", None)
        if self.save_replay_buffer and buffer is not None:
            saved = self.saved_buffer
            self._write("replay buffer", saved.path, lambda path: saved.save(buffer, self.num_timesteps, keep=self.keep))

    def _write(self, what: str, path: Any, write: Any) -> None:
        write(path)
        if self.verbose >= 2:
            print(f"Saved checkpoint of the {what} to {path}")


class Checkpoint(NamedTuple):
    """
    A model and the buffer that was saved at the same step: ``model_path, buffer_path = checkpoint``.

    :param model: path of the model, for ``load``
    :param buffer: path for ``load_replay_buffer``: the directory of the buffer or, if the directory has a newer complete
        generation, the manifest that belongs to the model
    """

    model: Path
    buffer: Path

    @property
    def vec_normalize(self) -> Path | None:
        """
        Path of the statistics of ``VecNormalize`` at the same step, for ``VecNormalize.load``. ``None`` without
        ``save_vecnormalize``.
        """
        n_steps = self.model.name.split("_")[-2]
        path = self.model.with_name(f"{self._prefix}_vecnormalize_{n_steps}_steps.pkl")
        return path if path.exists() else None

    @property
    def is_whole(self) -> bool:
        """Whether model and statistics are there and complete. Statistics may be missing if the run saved none at any step."""
        if self.vec_normalize is not None:
            return _is_whole_zip(self.model) and _is_whole_pickle(self.vec_normalize)
        pattern = f"{glob.escape(self._prefix)}_vecnormalize_*_steps.pkl"
        return _is_whole_zip(self.model) and not any(self.model.parent.glob(pattern))

    @property
    def _prefix(self) -> str:
        return self.model.name.rsplit("_", 2)[0]


def latest_checkpoint(folder: str | Path, name_prefix: str | None = None) -> Checkpoint | None:
    """
    Find the model with the most steps whose buffer was saved at the same step, both complete. If the run saves the statistics
    of ``VecNormalize``, those of the same step are complete too.

    If a folder holds several runs, give each its own ``name_prefix``, and name it here. Otherwise the longest run wins.

    ::

        if checkpoint := latest_checkpoint("runs/pendulum"):
            env = VecNormalize.load(checkpoint.vec_normalize, env)  # with `save_vecnormalize=True`
            model = PERSAC.load(checkpoint.model, env=env)
            model.load_replay_buffer(checkpoint.buffer)

    :param folder: folder that :class:`BufferCheckpointCallback` saves to; it need not exist
    :param name_prefix: the callback's; ``None``: any
    :return: paths of the model and of the buffer, which can be unpacked, and of the statistics. ``None`` if there is no such
        checkpoint
    :raises ValueError: for a ``name_prefix`` that is no string
    """
    check_argument("name_prefix", name_prefix, Allowed("a string", lambda value: isinstance(value, str)), or_none=True)
    pattern = "*" if name_prefix is None else glob.escape(name_prefix)
    found: list[tuple[int, Checkpoint]] = []
    for path in Path(folder).glob(f"{pattern}{BUFFER_SUFFIX}"):
        for i, manifest in enumerate(whole_generations(path, with_contents=True)):
            model = path.with_name(f"{path.name.removesuffix(BUFFER_SUFFIX)}_{manifest.num_timesteps}_steps.zip")
            found.append((manifest.num_timesteps, Checkpoint(model, path / manifest.name if i else path)))
    found.sort(key=lambda entry: entry[0], reverse=True)
    return next((checkpoint for _, checkpoint in found if checkpoint.is_whole), None)


def manifest_of(path: Path, num_timesteps: int) -> Path | None:
    """
    Find the generation that belongs to a model. It may be damaged.

    :param path: directory of a buffer
    :param num_timesteps: steps of the model
    :return: a path for ``load_replay_buffer``: the directory if its newest generation fits, or the manifest of an older one;
        ``None`` if no generation fits
    """
    names = manifest_names_in(path)
    fitting = [name for name in names if numbers_in(name)[1] == num_timesteps]
    return None if not fitting else path if fitting[0] == names[0] else path / fitting[0]


def _is_whole_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError):
        return False


def _is_whole_pickle(path: Path) -> bool:
    """Tell whether a pickle has an end, without running its code. It has no checksum."""
    try:
        with open(path, "rb") as file:
            for _ in pickletools.genops(file):
                pass
    except (OSError, ValueError):
        return False
    return True
