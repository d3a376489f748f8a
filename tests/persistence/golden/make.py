"""
Makes directories of the current version of the format, to be loaded by all later releases; never the same one twice.

    python -m tests.persistence.golden.make
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per import PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import save_buffer
from sb3_per.persistence.generations import VERSION
from tests.persistence.saved import KINDS, Player, make

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"


def contents(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """What anybody can see of a buffer, the oldest step first: numbers as they are, and arrays as checksums."""
    held = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    found: dict[str, Any] = {"size": buffer.size(), "pos": buffer.pos, "full": buffer.full}
    found.update(max_priority=buffer.max_priority, beta=buffer.beta, first_id=int(buffer.transition_ids[held[0], 0]))
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_length"):
        array = getattr(buffer, name, None)
        if array is None or (name == "next_observations" and buffer.optimize_memory_usage):
            continue
        for key, part in sorted(array.items()) if isinstance(array, dict) else [("", array)]:
            found[f"{name} {key}".strip()] = checksum(part[:][held])
    masses = buffer.priorities[held]
    # Ranks are counted, and the powers of them may differ in the last bit between processors.
    found["priorities"] = checksum(masses) if buffer.scheme.alpha == 0.6 else np.argsort(-masses, None, "stable").tolist()
    if hasattr(buffer, "infos"):
        found["infos"] = [[{**info, "seen": list(info["seen"])} for info in infos] for infos in buffer.infos[held]]
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
            player = Player(buffer, 11)
            for n_steps in (11, 1):  # more than a lap; rows in two files
                player.live(n_steps)
                save_buffer(buffer, HERE / f"{name}.buffer", num_timesteps=buffer._next_id, keep=1)
            (HERE / f"{name}.buffer" / ".lock").unlink()
            expected[name] = contents(buffer)
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
