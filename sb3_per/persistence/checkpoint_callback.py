"""Save checkpoints of a run that may be killed at any moment, and find the newest complete one."""

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import CheckpointCallback

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.persistence.atomic import make_directory, remove_temporary, sync_directory, write_file
from sb3_per.persistence.buffer_files import SUFFIX, save_buffer
from sb3_per.persistence.generations import manifests_in, numbers_in, whole_generations
from sb3_per.utils.checks import integer, require

#: Part of the name of a buffer after the prefix.
BUFFER = f"_replay_buffer{SUFFIX}"


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
    :raises ValueError: for a ``keep`` below 1
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
        require("keep", keep, integer())
        self.keep = keep

    def _init_callback(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if self.save_replay_buffer and not (buffer is None or isinstance(buffer, PrioritizedReplayBuffer)):
            raise TypeError(
                f"{type(self.model).__name__} has a {type(buffer).__name__}, which only SB3's CheckpointCallback can save, as "
                "a pickle: use that callback, or save_replay_buffer=False"
            )
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
            path = Path(self.save_path) / (self.name_prefix + BUFFER)
            self._write("replay buffer", path, lambda path: save_buffer(buffer, path, self.num_timesteps, keep=self.keep))

    def _write(self, what: str, path: Any, write: Any) -> None:
        write(path)
        if self.verbose >= 2:
            print(f"Saved checkpoint of the {what} to {path}")


def latest_checkpoint(folder: str | Path) -> tuple[Path, Path] | None:
    """
    Find the newest model whose buffer was saved at the same step, both complete.

    :param folder: folder that :class:`BufferCheckpointCallback` saves to; it need not exist
    :return: path of the model, and a path for ``load_replay_buffer``: the directory of the buffer or, if the directory has a
        newer complete generation, the manifest that belongs to the model. ``None`` if there is no such pair
    """
    found: list[tuple[int, Path, Path]] = []
    for path in Path(folder).glob(f"*{BUFFER}"):
        for i, manifest in enumerate(whole_generations(path, with_contents=True)):
            model = path.with_name(f"{path.name.removesuffix(BUFFER)}_{manifest.num_timesteps}_steps.zip")
            found.append((manifest.num_timesteps, model, path / manifest.name if i else path))
    found.sort(key=lambda entry: entry[0], reverse=True)
    return next(((model, path) for _, model, path in found if _is_whole_zip(model)), None)


def manifest_of(path: Path, num_timesteps: int) -> Path | None:
    """
    Find the generation that belongs to a model. It may be damaged.

    :param path: directory of a buffer
    :param num_timesteps: steps of the model
    :return: a path for ``load_replay_buffer``: the directory if its newest generation fits, or the manifest of an older one;
        ``None`` if no generation fits
    """
    names = manifests_in(path)
    fitting = [name for name in names if numbers_in(name)[1] == num_timesteps]
    return None if not fitting else path if fitting[0] == names[0] else path / fitting[0]


def _is_whole_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, RuntimeError, ValueError, EOFError):
        return False
