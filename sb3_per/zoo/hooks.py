"""Replace names of RL Zoo's modules, which have no hooks."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(names: dict[str, Any], **values: Any) -> Iterator[None]:
    """
    Replace some names for a while.

    :param names: names of a module, e.g. ``vars(sys)``
    :param values: by name: value until the end of the block
    """
    before = {name: names[name] for name in values}
    names.update(values)
    try:
        yield
    finally:
        names.update(before)
