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


def is_overridden(instance: Any, name: str) -> bool:
    """
    Tell whether a user has replaced a method: in a class, a mixin, or this object alone.

    :param instance: object of a class of this package, or of one that extends it
    :param name: name of the method
    :return: whether the method is not one of this package or of a library that it extends
    """
    if name in vars(instance):
        return True
    return is_user_defined(next(base for base in type(instance).__mro__ if name in vars(base)))


def require_unchanged(cls: type, *names: str) -> None:
    """
    Check that nobody has replaced methods in the classes of a library that a class derives from, where they are never called.

    :param cls: class of this package, or a user's that derives from one
    :param names: names of methods of the library that this package has its own for
    :raises NotImplementedError: if one of them was replaced; the message says what to do instead
    """
    for base in cls.__mro__:
        for name in names:
            if not is_user_defined(base) and name in vars(base) and is_user_defined(vars(base)[name]):
                raise NotImplementedError(
                    f"{base.__name__}.{name} was replaced by {vars(base)[name].__qualname__}(), which {cls.__name__} never "
                    f"calls: override {name}() in a subclass of {cls.__name__}"
                )
