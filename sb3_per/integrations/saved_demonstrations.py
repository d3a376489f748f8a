"""Add demonstrations from a buffer directory or a Minari dataset."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.integrations.minari import from_minari
from sb3_per.persistence.buffer_files import load_buffer
from sb3_per.persistence.generations import Manifest, manifests_in

_PLAIN: dict[str, Any] = {cls.__name__: cls for cls in (PrioritizedReplayBuffer, PrioritizedDictReplayBuffer)}


def require_saved(path: str | Path) -> None:
    """
    Check that there is something to add.

    :param path: a ``.buffer`` directory, or the name of a Minari dataset on this machine
    :raises FileNotFoundError: if nothing is saved there
    """
    is_saved = False
    if Path(path).is_dir():
        is_saved = bool(manifests_in(Path(path)))
    elif importlib.util.find_spec("minari") is not None:
        from minari.storage.datasets_root_dir import get_dataset_path

        is_saved = get_dataset_path(str(path)).is_dir()
    if not is_saved:
        raise FileNotFoundError(f"There is no saved buffer at {path}, and no Minari dataset of this name on this machine")


def add_saved_demonstrations(buffer: PrioritizedReplayBuffer, path: str | Path) -> int:
    """
    Add saved transitions to the demonstrations of a buffer.

    :param buffer: buffer that gets the demonstrations
    :param path: a ``.buffer`` directory, of any size and number of environments, or the name of a Minari dataset on this
        machine
    :return: number of demonstrations that were added
    :raises ValueError: for a directory of another kind or with other spaces, and as :func:`~sb3_per.from_minari`
    :raises FileNotFoundError: if nothing is saved there
    """
    require_saved(path)
    if not Path(path).is_dir():
        return from_minari(str(path), buffer, demonstrations=True)
    about = Manifest.read(Path(path, manifests_in(Path(path))[0])).about
    form = buffer
    if about["kind"] in _PLAIN:
        spaces, n_envs = (buffer.observation_space, buffer.action_space), about["n_envs"]
        size, frames = about["buffer_size"] * n_envs, buffer.settings.frames
        form = _PLAIN[about["kind"]](size, *spaces, "cpu", n_envs, frames=frames)
    with warnings.catch_warnings():
        # Demonstrations get new masses whatever the scheme was.
        warnings.filterwarnings("ignore", message=".*was saved with the scheme")
        source = load_buffer(form, path)
    before = len(buffer.demonstrations)
    buffer.add_demonstrations_from(source)
    return len(buffer.demonstrations) - before
