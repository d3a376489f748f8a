"""Check that the classes of other packages have the methods that the classes of this package override."""

from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

from sb3_per.utils.origin import package_of

#: Versions of other packages that have these methods, as in pyproject.toml, by the name under which they are imported.
WORKS_WITH = {
    "stable_baselines3": "stable-baselines3>=2.7,<3",
    "rl_zoo3": "rl_zoo3>=2.9.2,<3",
}

#: The hooks that each class has declared, see :func:`overrides`.
DECLARED: dict[type, tuple[str, ...]] = {}

_Class = TypeVar("_Class", bound=type)


def overrides(*hooks: str) -> Callable[[_Class], _Class]:
    """
    Declare the hooks of a class: methods that it or its subclasses override, and that are part of no documented interface of
    its parents. If one went away, the override would never be called, and nobody would notice. Use it as a decorator.

    :param hooks: names of the methods
    :return: decorator of a class that extends one of another package; it returns this class
    :raises ImportError: if a hook is not there; the message names it, and the versions that work
    """

    def declare(cls: _Class) -> _Class:
        DECLARED[cls] = hooks
        parents = [base for base in cls.__mro__ if package_of(base) in WORKS_WITH]
        package = package_of(parents[0])
        for hook in hooks:
            if not any(hook in vars(base) for base in parents):
                raise ImportError(
                    f"{cls.__name__} overrides {parents[0].__name__}.{hook}, which is not there in {package} "
                    f"{version(package)}: sb3_per works with {WORKS_WITH[package]}"
                )
        return cls

    return declare
