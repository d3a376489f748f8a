"""Add demonstrations from a buffer directory or a Minari dataset."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.integrations.minari import from_minari
from sb3_per.persistence.buffer_files import load_buffer
from sb3_per.persistence.facts import describe_space
from sb3_per.persistence.generations import Manifest, manifest_names_in, reading, whole_generations

# Kinds of buffers that demonstrations can come from, as they are named in files.
_KINDS: dict[str, Any] = {
    cls.kind_in_files: cls for cls in (PrioritizedHerReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer)
}


def require_saved(path: str | Path) -> None:
    """
    Check that there is something to add.

    :param path: a ``.buffer`` directory, or the name of a Minari dataset on this machine
    :raises FileNotFoundError: if nothing is saved there
    """
    is_saved = False
    if Path(path).is_dir():
        is_saved = bool(manifest_names_in(Path(path)))
    elif importlib.util.find_spec("minari") is not None:
        from minari.storage.datasets_root_dir import get_dataset_path

        is_saved = get_dataset_path(str(path)).is_dir()
    if not is_saved:
        raise FileNotFoundError(f"There is no saved buffer at {path}, and no Minari dataset of this name on this machine")


def add_saved_demonstrations(buffer: PrioritizedReplayBuffer, path: str | Path) -> int:
    """
    Add saved transitions to the demonstrations of a buffer. The demonstrations of a saved buffer count like its experience.

    :param buffer: buffer that gets the demonstrations
    :param path: a ``.buffer`` directory, of any size and number of environments, or the name of a Minari dataset on this
        machine
    :return: number of demonstrations that were added
    :raises ValueError: for a directory of another kind or with other spaces, for actions outside of other bounds, and as
        :func:`~sb3_per.from_minari`
    :raises FileNotFoundError: if nothing is saved there
    """
    require_saved(path)
    if not Path(path).is_dir():
        return from_minari(str(path), buffer, demonstrations=True)
    empty = _empty_buffer_for(_newest_whole_manifest(Path(path)), buffer)
    with warnings.catch_warnings():
        # Demonstrations get new masses whatever the scheme was.
        warnings.filterwarnings("ignore", message=".*all transitions get the largest priority")
        source = load_buffer(empty, path)
    before = len(buffer.demonstrations)
    buffer.add_demonstrations_from(source)
    return len(buffer.demonstrations) - before


def _newest_whole_manifest(directory: Path) -> Path:
    """Find the newest manifest that is not damaged, or the newest one if all are."""
    whole = [manifest.name for manifest in whole_generations(directory, with_contents=False)]
    return directory / (whole or manifest_names_in(directory))[0]


def _empty_buffer_for(manifest: Path, buffer: PrioritizedReplayBuffer) -> PrioritizedReplayBuffer:
    """
    Make an empty buffer that a saved one can be loaded into.

    :param manifest: path of the manifest of the saved buffer
    :param buffer: buffer that gets the demonstrations
    :return: buffer of the kind, size, number of environments and bounds of actions of the saved one
    :raises ValueError: for a kind that has no demonstrations, or other observations
    """
    about, ours = Manifest.read(manifest).about, buffer.observation_space
    if about["kind"] not in _KINDS:
        raise ValueError(f"{manifest.parent} holds {about['kind']}, and demonstrations are one of: {', '.join(_KINDS)}")
    expected = describe_space(ours, with_bounds=False)
    if about["observation_space"] != expected:
        raise ValueError(f"{manifest.parent} has observation_space {about['observation_space']}, and the model has {expected}")
    if about["optimize_memory_usage"]:
        raise ValueError(
            f"{manifest.parent} was saved with optimize_memory_usage=True, which does not store the last observation of an "
            "episode, so its transitions cannot be demonstrations"
        )
    settings: dict[str, Any] = {"device": "cpu", "n_envs": about["n_envs"], "frames": buffer.settings.frames}
    if _KINDS[about["kind"]] is PrioritizedHerReplayBuffer:
        settings["env"] = None  # nothing is drawn from it
    with reading(manifest):
        actions = _saved_space(about["action_space"], buffer.action_space)
        size = about["buffer_size"] * about["n_envs"]
    return _KINDS[about["kind"]](size, ours, actions, **settings)


def _saved_space(described: dict[str, Any], otherwise: spaces.Space) -> spaces.Space:
    """
    Make an action space from its description.

    :param described: description in a manifest
    :param otherwise: action space if this is not a Box
    :return: a Box with the bounds that were saved, or ``otherwise``, which is compared when the buffer is loaded
    """
    if described["type"] != "box":
        return otherwise
    low, high = (np.array(described[name], described["dtype"]) for name in ("low", "high"))
    return spaces.Box(low, high, dtype=low.dtype.type)
