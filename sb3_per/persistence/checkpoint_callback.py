"""
Checkpoints of a run that may be killed at any moment, and finding the newest one that is whole.

It knows models and the names of their files, nothing of what is in them.
"""

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import CheckpointCallback

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.persistence.atomic import TEMPORARY, make_directory, sync_directory, write_file
from sb3_per.persistence.buffer_files import SUFFIX, save_buffer
from sb3_per.persistence.generations import Directory, num_timesteps_of

#: behind the prefix, in the name of a buffer
BUFFER = f"_replay_buffer{SUFFIX}"


class BufferCheckpointCallback(CheckpointCallback):
    """
    SB3's callback for checkpoints, which a kill at any moment leaves whole. The replay buffer has one directory,
    ``PREFIX_replay_buffer.buffer``, to which every checkpoint adds what is new.

    Each file takes the place of an older one when it is whole; the buffer comes last, so that its newest generation has a
    model.

    :param save_freq: save every so many calls of the callback, each of which is one step of every environment
    :param save_path: folder of the files
    :param name_prefix: of their names
    :param save_replay_buffer: save the buffer as well
    :param save_vecnormalize: save the statistics of ``VecNormalize`` as well
    :param verbose: 2 for a line for every file
    :param keep: generations of the buffer that stay, at least 1; models stay all
    :raises ValueError: for another ``keep``
    :raises TypeError: when training starts, for a model whose buffer is not one of this package
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
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep must be an integer of at least 1, not {keep!r}")
        self.keep = keep

    def _init_callback(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if self.save_replay_buffer and not (buffer is None or isinstance(buffer, PrioritizedReplayBuffer)):
            raise TypeError(
                f"{type(self.model).__name__} has a {type(buffer).__name__}, which only SB3's CheckpointCallback can save, as "
                "a pickle: take that one, or save_replay_buffer=False"
            )
        make_directory(Path(self.save_path).absolute())
        super()._init_callback()
        leftover = re.compile(rf"{re.escape(self.name_prefix)}_(vecnormalize_)?[0-9]+_steps\.(zip|pkl){re.escape(TEMPORARY)}")
        for path in Path(self.save_path).iterdir():
            if leftover.fullmatch(path.name) and path.is_file():  # of a run that was killed
                path.unlink()

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
            # What its `save` does, but for the file's place.
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
    The newest model of a folder whose buffer is there as well, of the same moment, and both whole.

    :param folder: that :class:`BufferCheckpointCallback` has saved to; it need not exist
    :return: path of the model's zip, and a path for ``load_replay_buffer``: the directory of the buffer or, if that holds
        something newer, the manifest that belongs to the model; ``None`` if there is no pair
    """
    folder = Path(folder)
    pairs: list[tuple[int, Path, Path]] = []
    for path in folder.glob(f"*{BUFFER}"):
        directory = Directory(path.absolute())
        whole = [name for name in directory.manifests() if directory.is_whole(name)]
        for name in whole:
            steps = num_timesteps_of(name)
            model = folder / f"{path.name.removesuffix(BUFFER)}_{steps}_steps.zip"
            pairs.append((steps, model, path if name == whole[0] else path / name))
    pairs.sort(key=lambda pair: pair[0], reverse=True)
    return next(((model, path) for _, model, path in pairs if _is_whole_zip(model)), None)


def manifest_of(path: Path, num_timesteps: int) -> Path | None:
    """
    :param path: directory of a buffer
    :param num_timesteps: of a model
    :return: a path for ``load_replay_buffer``: the directory if its newest generation is of that moment, the manifest of an
        older one that is, or ``None``; not whether it is whole
    """
    names = Directory(path.absolute()).manifests()
    fitting = [name for name in names if num_timesteps_of(name) == num_timesteps]
    return None if not fitting else path if fitting[0] == names[0] else path / fitting[0]


def _is_whole_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError):
        return False
