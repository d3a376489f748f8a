"""Save buffers in child processes that are killed while they save; used by ``test_crash.py``."""

import itertools
import os
import signal
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from sb3_per.persistence.buffer_files import SavedBuffer
from sb3_per.persistence.generations import manifest_names_in
from tests.helpers.forks import forked
from tests.helpers.saved import Player, digest, files_in_manifests, make, names_of, watch_disk


def run(kind: str, path: Path, seed: int, n_saves: int | None, fail_at: int = -1, begun: int | None = None) -> None:
    """
    Load the saved buffer, if there is one, then add steps and save it again ``n_saves`` times.

    :param kind: kind of the buffer, a key of ``KINDS``
    :param path: directory of the saved buffer; the file ``log`` next to it records the start and the end of each save
    :param seed: seed of the random steps
    :param n_saves: number of saves; ``None``: until the process is killed
    :param fail_at: number of the disk operation, from 0, at which the process kills itself; -1: none
    :param begun: descriptor to which a byte is written when a save begins
    """
    log = os.open(path.parent / "log", os.O_CREAT | os.O_APPEND | os.O_RDWR)
    number = (path.parent / "log").read_text().count("begin")
    buffer, saved = make(kind), SavedBuffer(path)
    if manifest_names_in(path):
        buffer = saved.load(buffer)
    player, left = Player(buffer, seed=seed), [fail_at]

    def announce(operation: str, *args: Any) -> None:
        if left[0] == 0:
            if operation == "write":  # a killed process may have written a part of the data
                target, position, data = args
                with open(target, "rb+") as file:
                    file.seek(position)
                    file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    if fail_at >= 0:
        watch_disk(announce, pytest.MonkeyPatch())
    for i in itertools.count(number) if n_saves is None else range(number, number + n_saves):
        player.play()
        os.write(log, f"begin {i} {digest(buffer)}\n".encode())
        if begun is not None:
            os.write(begun, b".")
        saved.save(buffer, num_timesteps=i)
        os.write(log, f"done {i}\n".encode())
        assert names_of(path) == files_in_manifests(path), "the directory has a file that no manifest names"
    os.close(log)


def warm_up(kind: str) -> None:
    """Do all one-time work for a kind of buffer before the first fork."""
    with tempfile.TemporaryDirectory() as folder:
        run(kind, Path(folder) / "x.buffer", 0, 2)
        run(kind, Path(folder) / "x.buffer", 1, 1)


def exit_code(
    kind: str,
    path: Path,
    seed: int,
    n_saves: int | None,
    fail_at: int = -1,
    killed_in: int = 0,
    delay: float = 0.0,
    signal_number: int | None = None,
) -> int:
    """
    Save in a child process, and return its exit code. The arguments are those of :func:`run`, and:

    :param killed_in: number of saves that have begun before the process is killed
    :param delay: time from then on, seconds
    :param signal_number: signal that kills the process; ``None``: it is not killed from outside
    """
    reader, writer = os.pipe()

    def save() -> None:
        os.close(reader)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.write(writer, b".")
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "10 batches were drawn")
        run(kind, path, seed, n_saves, fail_at, writer)

    pid = forked(save)
    os.close(writer)
    if signal_number is not None:
        # Wait until the child has its own handler of the signal, then until so many saves have begun.
        for _ in range(1 + killed_in):
            os.read(reader, 1)
        time.sleep(delay)
        os.kill(pid, signal_number)
    status = os.waitpid(pid, 0)[1]
    os.close(reader)  # not before, because a write to a closed pipe is an error
    return os.waitstatus_to_exitcode(status)
