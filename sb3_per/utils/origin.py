"""Whose code it is: of this package, of a library that it extends, or of a user."""

from typing import Any

#: Packages whose classes this package and its users extend.
_EXTENDED = ("stable_baselines3", "sb3_contrib", "sbx")


def package_of(code: Any) -> str:
    """
    Name the package that a class or a function comes from.

    :param code: class or function
    :return: name of its top-level package, e.g. ``"sb3_per"``
    """
    return str(code.__module__).partition(".")[0]


def is_user_defined(code: Any) -> bool:
    """
    Tell whether a class or a function is a user's. So is one of any other library.

    :param code: class or function
    :return: ``False`` for one of this package, of SB3, sb3-contrib or SBX
    """
    return package_of(code) not in ("sb3_per", *_EXTENDED)
