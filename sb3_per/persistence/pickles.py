"""Unpickle buffers, and say what to do with a pickle whose classes this release does not have any more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sb3_per.buffers.state import OLD_PICKLE


@contextmanager
def unpickling(path: Any) -> Iterator[None]:
    """
    Explain a pickle of an older release while a buffer is unpickled.

    :param path: path of the file, or the open file
    :raises ValueError: if a class of this package is missing
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        if "sb3_per." not in str(error):
            raise  # e.g. a class of the user's that cannot be imported
        raise ValueError(f"{path}: {OLD_PICKLE}") from error
