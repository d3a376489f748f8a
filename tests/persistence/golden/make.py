"""
Make directories of the current version of the format, which all later releases must load.

Directories that exist already are kept: ``python -m tests.persistence.golden.make``
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per import PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import save_buffer
from sb3_per.persistence.generations import VERSION
from tests.persistence.saved import KINDS, Player, column, make

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"


def contents(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return the contents of a buffer, oldest step first: numbers as they are, and arrays as checksums."""
    found: dict[str, Any] = {"size": buffer.size(), "pos": buffer.pos, "full": buffer.full}
    found.update(max_priority=buffer.max_priority, beta=buffer.beta, steps=buffer.ring.added.tolist())
    for env in range(buffer.n_envs):
        transitions = column(buffer, env)
        masses = transitions.pop("masses")
        for name, array in transitions.items():
            found[f"{name} {env}"] = checksum(array)
        # Compare the order of the masses, because powers may differ in the last bit between processors.
        found[f"order {env}"] = np.argsort(-masses, kind="stable").tolist()
        if buffer.storage.infos is not None:
            rows = np.arange(buffer.ring.first[env], buffer.ring.added[env]) % buffer.buffer_size
            found[f"infos {env}"] = [{**info, "seen": list(info["seen"])} for info in buffer.infos[rows, env]]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def checksum(array: np.ndarray) -> str:
    little = array.astype(array.dtype.newbyteorder("<"))
    return f"{array.dtype.name} {array.shape} {hashlib.sha256(little.tobytes()).hexdigest()}"


def main() -> None:
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    for kind in KINDS:
        name = f"{kind}-v{VERSION}"
        if name not in expected:
            buffer = make(kind, 8)
            player = Player(buffer, seed=11)
            for n_steps in (11, 1):  # the ring wraps, and the rows are in two files
                player.play(n_steps)
                save_buffer(buffer, HERE / f"{name}.buffer", num_timesteps=buffer.ring.next_id, keep=1)
            (HERE / f"{name}.buffer" / ".lock").unlink()
            expected[name] = contents(buffer)
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
