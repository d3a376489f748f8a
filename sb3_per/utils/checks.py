"""Check arguments."""

import math
import numbers
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Allowed(NamedTuple):
    """
    Allowed values of an argument.

    :param text: in words, for messages
    :param contains: whether a value is allowed
    """

    text: str
    contains: Callable[[Any], bool]


def number(interval: str, contains: Callable[[float], bool]) -> Allowed:
    """
    Allow the finite numbers of an interval.

    :param interval: in words, e.g. ``"in [0, 1]"``
    :param contains: whether a number is in it
    :return: finite numbers in an interval
    """

    def is_allowed(value: Any) -> bool:
        is_number = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
        return is_number and not isinstance(value, bool) and math.isfinite(value) and contains(float(value))

    return Allowed(f"a number {interval}", is_allowed)


def words(*allowed: str) -> Allowed:
    """
    Allow a few words.

    :param allowed: the words
    :return: one of a few words
    """
    return Allowed(" or ".join(map(repr, allowed)), lambda value: isinstance(value, str) and value in allowed)


def integer(least: int = 1) -> Allowed:
    """
    Allow integers.

    :param least: the smallest that is allowed
    :return: integers from there on
    """

    def is_allowed(value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least

    return Allowed(f"an integer of at least {least}", is_allowed)


FLAG = Allowed("True or False", lambda value: isinstance(value, (bool, np.bool_, numbers.Integral)) and value in (0, 1))
FRACTION = number("in [0, 1]", lambda x: 0.0 <= x <= 1.0)
PATH = Allowed("a path", lambda value: isinstance(value, (str, os.PathLike)) and os.fspath(value) != "")
AT_LEAST_0 = number("of at least 0", lambda x: x >= 0.0)
ABOVE_0 = number("above 0", lambda x: x > 0.0)


def check_argument(name: str, value: Any, *allowed: Allowed, or_none: bool = False) -> None:
    """
    Check an argument.

    :param name: name of the argument
    :param value: its value
    :param allowed: one of these must contain it
    :param or_none: whether ``None`` is allowed, too
    :raises ValueError: with the name, the value, and what is allowed
    """
    if (or_none and value is None) or any(each.contains(value) for each in allowed):
        return
    texts = " or ".join([*(["None"] if or_none else []), *(each.text for each in allowed)])
    hint = ""
    if isinstance(value, str) and any(each.text.startswith(("a number", "an integer")) for each in allowed):
        hint = ". Pass a number, not a string"
    elif not isinstance(value, (numbers.Real, str)):
        hint = f" ({type(value).__name__})"
    raise ValueError(f"{name} must be {texts}, not {value!r}{hint}")
