"""Forked processes that own a folder, or write into one."""

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer

from tests.helpers.buffers import make_buffer


class Fork:
    """
    Call a function in a forked process, which then keeps what the function returns until it is killed.

    :param function: returns what can be pickled, or a buffer, or raises an error
    """

    def __init__(self, function: Callable[[], Any]):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(60)  # whatever happens to the test
            try:
                result = function()
            except BaseException as error:
                result = error
            with open(write, "wb") as file:
                pickle.dump(None if isinstance(result, ReplayBuffer) else result, file)
            time.sleep(60)
        os.close(write)
        self._pipe = open(read, "rb")

    def result(self) -> Any:
        """Wait for what the function returns or raises; a buffer stays in the process."""
        with self._pipe:
            return pickle.load(self._pipe)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def in_fork(function: Callable[[], Any]) -> Any:
    """Call a function in a forked process, and return what it returns or raises."""
    fork = Fork(function)
    try:
        return fork.result()
    finally:
        fork.kill()


@contextlib.contextmanager
def owner_of(folder: Path) -> Iterator[None]:
    """Let another process have a folder; it is killed at the end of the block."""
    fork = Fork(lambda: make_buffer(storage_folder=folder))
    try:
        assert fork.result() is None
        yield
    finally:
        fork.kill()
