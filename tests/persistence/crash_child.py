"""
A process whose children are killed while they save: ``python -m tests.persistence.crash_child``, see ``test_crash.py``.

It imports once, which takes seconds, and forks for every task, a line of JSON; it answers with the exit code of the child.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

import sb3_per.persistence.buffer_files as buffer_files
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.generations import manifests_in
from tests.persistence.saved import KINDS, Player, digest, make, named_files, names_of, one_after_the_other, watch


def run(kind: str, directory: str, seed: int, n_saves: int, fail_at: int = -1, **_: Any) -> None:
    """
    Go on from what is there, and save again and again.

    :param kind: of the buffer
    :param directory: it is saved to; beside it, a log tells what is about to be saved, and what has been
    :param seed: of all that comes
    :param n_saves: after so many it is over
    :param fail_at: number of the operation of the disk that it does not survive, from 0
    """
    path = Path(directory)
    log = os.open(path.parent / "log", os.O_CREAT | os.O_APPEND | os.O_RDWR)
    number = (path.parent / "log").read_text().count("begin")
    buffer = make(kind)
    if manifests_in(path):
        buffer = load_buffer(buffer, path)
    player, left = Player(buffer, seed=seed), [fail_at]

    def announce(operation: str, *args: Any) -> None:
        if left[0] == 0:
            if operation == "write":  # half of it
                target, position, data = args
                with open(target, "rb+") as file:
                    file.seek(position)
                    file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    if fail_at >= 0:
        watch(announce, pytest.MonkeyPatch())
    for i in range(number, number + n_saves):
        player.live()
        os.write(log, f"begin {i} {digest(buffer)}\n".encode())
        save_buffer(buffer, path, num_timesteps=i)
        os.write(log, f"done {i}\n".encode())
        assert names_of(path) == named_files(path), "leftovers are gone"


def child(task: dict[str, Any]) -> None:
    code = 1
    try:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "10 batches were drawn")
        run(**task)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def warm_up() -> None:
    """What a process does but once; without a thread, for those are not forked."""
    parallel, buffer_files.in_parallel = buffer_files.in_parallel, one_after_the_other
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            run(kind, f"{folder}/{kind}.buffer", 0, 2)
            run(kind, f"{folder}/{kind}.buffer", 1, 1)
            os.unlink(f"{folder}/log")
    buffer_files.in_parallel = parallel


def main() -> None:
    warm_up()
    for line in sys.stdin:
        task = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(task)
        if "killed_after" in task:
            time.sleep(task["killed_after"])
            os.kill(pid, task["signal"])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
