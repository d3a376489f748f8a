"""Unpickle buffers, and say what to do with a pickle whose classes this release does not have any more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: What to do with a pickle of a release whose buffers had other attributes.
OLD_PICKLE = (
    "this buffer was pickled by sb3_per before its buffers stood on SB3's own arrays, and this release cannot read it. With "
    "sb3_per at commit 1aaa58c4, run: sb3-per convert old.pkl stock.pkl --trust. This release loads stock.pkl"
)


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
