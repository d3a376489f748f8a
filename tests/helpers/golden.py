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

#: Kind of the buffer: one with frames, Dict observations, and environments at different steps.
KIND = "frames"
DIRECTORY = Path(__file__).parents[1] / "persistence" / "golden" / f"format-{FORMAT}.buffer"
EXPECTED = DIRECTORY.with_suffix(".json")


def contents(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return the contents of a buffer, oldest step first: numbers as they are, and arrays as checksums."""
    found: dict[str, Any] = {"size": buffer.size(), "pos": buffer.pos, "full": buffer.full}
    found.update(max_priority=buffer.max_priority, beta=buffer.beta, steps=buffer.ring.next_steps.tolist())
    for env in range(buffer.n_envs):
        for name, array in column(buffer, env).items():
            found[f"{name} {env}"] = _checksum(array)
    return found


def _checksum(array: np.ndarray) -> str:
    little = array.astype(array.dtype.newbyteorder("<"))
    return f"{array.dtype.name} {array.shape} {hashlib.sha256(little.tobytes()).hexdigest()}"


def main() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    buffer, saved = make(KIND, 8), SavedBuffer(DIRECTORY)
    player = Player(buffer, seed=11)
    for n_steps in (11, 1):  # the ring wraps, and the rows are in two files
        player.play(n_steps)
        saved.save(buffer, num_timesteps=buffer.ring.next_id, keep=1)
    (DIRECTORY / ".lock").unlink()
    EXPECTED.write_text(json.dumps(contents(buffer), indent=1) + "\n")


if __name__ == "__main__":
    main()
