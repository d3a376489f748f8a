"""Warnings for users."""

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def caught_user_warnings() -> Iterator[list[str]]:
    """
    Collect the messages of warnings for users, which are there after the block.

    Warnings of another category may come from the garbage of other tests.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield messages
    messages += [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


@contextlib.contextmanager
def no_user_warnings() -> Iterator[None]:
    """Turn warnings for users into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
