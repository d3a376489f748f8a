"""What a buffer needs while it is used, and what does not belong to its state."""

import threading
from pathlib import Path
from typing import Any


class Runtime(type(threading.RLock())):  # type: ignore[misc]
    """
    A reentrant lock, and what a buffer remembers until it is pickled or copied: then it comes back as a new one, that nobody
    holds. It is equal to any other.
    """

    __slots__ = ("__dict__", "form", "n_unanswered", "saved")

    def __init__(self) -> None:
        #: draws in a row that were not followed by an update, -1 once that was complained of
        self.n_unanswered = 0
        #: shapes and types of a step that fits, see :mod:`~sb3_per.buffers.adding`
        self.form: Any = None
        #: what is on disk already, by directory, see :mod:`sb3_per.files`
        self.saved: dict[Path, Any] = {}

    def __reduce__(self) -> tuple[type["Runtime"], tuple[()]]:
        return Runtime, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runtime)

    __hash__ = object.__hash__
