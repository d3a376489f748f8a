"""Forked processes that own a folder, write into one, or are killed while they do."""

import contextlib
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer

from tests.helpers.buffers import make_buffer


def forked(function: Callable[[], Any]) -> int:
    """
    Call a function in a forked process.

    :param function: prints its error, if it raises one
    :return: id of the process, which ends after the function, or after a minute
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork if there are other threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(600)  # whatever happens to the test; far more than a busy machine needs
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


class Fork:
    """
    Call a function in a forked process, which then keeps what the function returns until it is killed.

    :param function: returns what can be pickled, or a buffer, or raises an error
    """

    def __init__(self, function: Callable[[], Any]):
        read, write = os.pipe()

        def answer() -> None:
            try:
                result = function()
            except BaseException as error:
                result = error
            with open(write, "wb") as file:
                pickle.dump(None if isinstance(result, ReplayBuffer) else result, file)
            time.sleep(60)

        self.pid = forked(answer)
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
