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


def flattened(attributes: dict[str, Any]) -> dict[str, Any]:
    """
    Return what a pickle holds of a buffer: the attributes of its row tracker stand beside its own.

    :param attributes: of the buffer
    :return: a copy in the form of pickles
    """
    state = dict(attributes)
    of_tracker = vars(state.pop("row_tracker"))
    return state | {_name_in_pickles(name): value for name, value in of_tracker.items()}


def unflattened(state: dict[str, Any], tracker: Any) -> dict[str, Any]:
    """
    Undo :func:`flattened`.

    :param state: from a pickle
    :param tracker: new tracker of the class that belongs to the buffer; gets its attributes
    :return: attributes of the buffer
    :raises ValueError: for a pickle of a release whose buffers had other attributes
    """
    if "numbering" not in state:
        raise ValueError(OLD_PICKLE)
    attributes = dict(state)
    if "row_tracker" not in state:  # a user's `__getstate__` may return all attributes as they are
        for name in vars(tracker):
            setattr(tracker, name, attributes.pop(_name_in_pickles(name)))
        attributes["row_tracker"] = tracker
    return attributes


def _name_in_pickles(name: str) -> str:
    """Name an attribute of the row tracker as pickles do. Their format is older than the tracker."""
    return name if name == "given_values" else f"_{name}"
