"""Show and check what a user gives to the class of an algorithm: arguments, the order of its bases, a ``train`` of its own."""

import difflib
import inspect
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per.buffers.settings import OTHER_NAMES, SETTING_NAMES, setting_hint
from sb3_per.utils.origin import is_user_defined, package_of


def show_arguments(cls: type, changed_defaults: dict[str, Any]) -> None:
    """
    Let ``inspect.signature`` and editors show the arguments of the stock constructor and those that this package adds, for the
    class and for its ``__init__``.

    Our constructors name only what they add, e.g. ``__init__(self, *args, double_q=False, **kwargs)``. Scripts that select
    hyperparameters by the signature would miss all other arguments.

    :param cls: class of an algorithm
    :param changed_defaults: defaults that differ from the stock constructor's, by name
    """
    added: dict[str, inspect.Parameter] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for init in _constructors(cls):
        parameters = dict(inspect.signature(init).parameters)
        if not _is_ours(init):
            break  # the stock constructor, or one of the user's, has all other arguments
        for name, parameter in parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                added.setdefault(name, parameter)
    if added:  # a constructor of ours calls the other one, with our defaults
        for name in changed_defaults.keys() & parameters.keys():
            parameters[name] = parameters[name].replace(default=changed_defaults[name])
    shown = {**parameters, **added}
    signature = inspect.Signature(sorted(shown.values(), key=lambda parameter: parameter.kind))
    own = vars(cls).get("__init__")
    if own is not None and _is_ours(own):
        own.__signature__ = signature
    without_self = list(signature.parameters.values())[1:]
    cls.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]


def with_defaults(stock: type, args: tuple[Any, ...], kwargs: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """
    Name all arguments of a call, and add defaults that differ from the stock constructor's.

    :param stock: class of the stock algorithm
    :param args: positional arguments of the call
    :param kwargs: keyword arguments of the call
    :param defaults: defaults by name
    :return: keyword arguments, with the defaults of all that the call does not give
    """
    given = inspect.signature(stock).bind_partial(*args).arguments
    for name in given.keys() & kwargs.keys():
        raise TypeError(f"{stock.__name__} got the argument {name!r} twice, by position and by name")
    return {**defaults, **given, **kwargs}


def check_order(cls: type, mixin: type) -> None:
    """
    Check the order of the bases.

    :param cls: class of an algorithm
    :param mixin: class of this package that must stand left of the stock algorithm, or a parent of it
    :raises TypeError: if the stock algorithm stands left, so that its own ``train`` would run
    """
    bases = sorted(cls.__bases__, key=lambda base: not issubclass(base, mixin))  # ours first
    # The next `train` after ours in the order of the bases. SB3's abstract one means that no algorithm follows.
    has_stock_right_of_it = super(mixin, cls).train is not OffPolicyAlgorithm.train  # type: ignore[arg-type]
    if not has_stock_right_of_it and bases != list(cls.__bases__):
        raise TypeError(
            f"{cls.__name__} has no stock algorithm right of {bases[0].__name__}, so train() would ignore priorities. "
            f"Write class {cls.__name__}({', '.join(base.__name__ for base in bases)})"
        )


def check_arguments(cls: type, keywords: dict[str, Any]) -> None:
    """
    Check the names of keyword arguments.

    :param cls: class of an algorithm
    :param keywords: keyword arguments of its constructor
    :raises TypeError: for an unknown keyword; the message names the argument or setting that was probably meant
    """
    # It has all names: `show_arguments` completes the signatures of our own constructors.
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [name for name in keywords if name not in parameters]
    if unknown:
        hints = [f"{name!r}{_meant(cls, name, keywords[name], list(parameters))}" for name in unknown]
        raise TypeError(f"{cls.__name__} has no argument {'; '.join(hints)}")


def check_agreement(cls: type, keywords: dict[str, Any]) -> None:
    """
    Check that ``n_steps`` and ``gamma``, which may also stand in ``replay_buffer_kwargs``, are the same in both places.

    :param cls: class of an algorithm
    :param keywords: arguments of its constructor by name, or keyword arguments of ``load``
    :raises ValueError: if they differ
    """
    settings = keywords.get("replay_buffer_kwargs")
    if not isinstance(settings, dict):
        return
    for name in ("n_steps", "gamma"):
        if name in keywords and name in settings and keywords[name] != settings[name]:
            raise ValueError(contradiction(cls, name, keywords[name], settings))


def contradiction(cls: type, name: str, given: Any, settings: dict[str, Any]) -> str:
    """
    Say that an argument and a setting of the buffer differ.

    :param cls: class of an algorithm
    :param name: name of the argument
    :param given: its value
    :param settings: ``replay_buffer_kwargs``, with another value
    :return: message of an error
    """
    return f"{name}={given} contradicts replay_buffer_kwargs={settings}: give {name} to {cls.__name__} alone"


def name_of_users_train(cls: type) -> str | None:
    """
    Name a ``train`` that a user wrote, which may forget the priorities.

    :param cls: class of an algorithm
    :return: class and method; ``None`` if the method is of this package
    """
    owner = next(base for base in cls.__mro__ if "train" in vars(base))
    return f"{owner.__name__}.train()" if is_user_defined(owner) else None


def _constructors(cls: type) -> Iterator[Any]:
    """Yield the constructors of a class and its bases, in the order in which they are called."""
    for base in cls.__mro__:
        if "__init__" in vars(base):
            yield vars(base)["__init__"]


def _is_ours(init: Any) -> bool:
    """Tell whether a constructor is one of this package, which passes on all arguments that it does not name."""
    return package_of(init) == "sb3_per"


def _meant(cls: type, name: str, value: Any, known: list[str]) -> str:
    """Say what an unknown argument probably means: another argument, or a setting of the buffer."""
    settings = [setting for setting in SETTING_NAMES if setting not in known]
    target = OTHER_NAMES.get(name, name)
    if target not in settings:
        text = setting_hint(name, known)
        if text:
            return text
    nearest = difflib.get_close_matches(target, settings, n=1)
    if not nearest:
        return ""
    return f": did you mean {cls.__name__}(..., replay_buffer_kwargs=dict({nearest[0]}={value!r}))?"
