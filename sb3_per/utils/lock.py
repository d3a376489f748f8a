"""A lock that objects with a lock can be copied and pickled with."""

import threading
from typing import Any


class Lock(type(threading.RLock())):  # type: ignore[misc]
    """A reentrant lock. A copy of it, also one that was pickled, is another lock, which nobody holds."""

    def __reduce__(self) -> Any:
        return Lock, ()
