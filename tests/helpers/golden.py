"""
Make the directory of the current format that the tests load, so that no change of the format goes unnoticed.

After a change of the format, give it a new number and run ``python -m tests.helpers.golden``.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per import PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import SavedBuffer
from sb3_per.persistence.generations import FORMAT
from tests.helpers.saved import Player, column, make

#: Kinds of buffers whose directories are kept.
KINDS = ("frames", "her", "rank", "sequences")

FOLDER = Path(__file__).parents[1] / "persistence" / "golden"

#: A directory from before format 2.
FORMAT_1 = FOLDER / "format-1.buffer"


def directory_of(kind: str) -> Path:
    """Return the directory of a buffer in the current format."""
    return FOLDER / f"format-{FORMAT}-{kind}.buffer"


def expected_of(kind: str) -> Path:
    """Return the file that says what is in the directory."""
    return directory_of(kind).with_suffix(".json")


def contents(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return the contents of a buffer, oldest step first: numbers as they are, and arrays as checksums."""
    found: dict[str, Any] = {"size": buffer.size(), "pos": buffer.pos, "full": buffer.full}
    found.update(max_priority=buffer.max_priority, beta=buffer.beta, next_step=buffer.numbering.next_step)
    for env in range(buffer.n_envs):
        for name, array in column(buffer, env).items():
            found[f"{name} {env}"] = _checksum(array)
    return found


def _checksum(array: np.ndarray) -> str:
    little = array.astype(array.dtype.newbyteorder("<"))
    return f"{array.dtype.name} {array.shape} {hashlib.sha256(little.tobytes()).hexdigest()}"


def main() -> None:
    for kind in KINDS:
        path = directory_of(kind)
        shutil.rmtree(path, ignore_errors=True)
        buffer, saved = make(kind, 8), SavedBuffer(path)
        player = Player(buffer, seed=11)
        for n_steps in (11, 1):  # the rows wrap, and are in two files
            player.play(n_steps)
            saved.save(buffer, num_timesteps=buffer.numbering.next_id, keep=1)
        (path / ".lock").unlink()
        expected_of(kind).write_text(json.dumps(contents(buffer), indent=1) + "\n")


if __name__ == "__main__":
    main()
