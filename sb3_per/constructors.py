"""
Constructors of the prioritized algorithms: they look like those of the stock classes, and say what a wrong argument should be.

It knows signatures, and where a class stands among its bases; nothing of training.
"""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per.buffers.settings import ReplayBufferKwargs, require_no_strings
from sb3_per.signatures import names_of, nearest


def require_left(cls: type, mixin: type) -> None:
    """
    :param cls: new class, with the mixin among its bases
    :param mixin: whose ``train`` is to be the one that runs
    :raises TypeError: if an algorithm whose own ``train`` would run in its place stands left of it
    """
    for base in cls.__mro__[: cls.__mro__.index(mixin)]:
        train = vars(base).get("train")
        is_stock = OffPolicyAlgorithm in base.__mro__ and mixin not in base.__mro__
        if is_stock and train and not _calls_super(train):
            # Until it is collected, a refused class is one of those that `issubclass` asks. Its answers would go into the
            # memory that it has inherited, as it has none of its own yet, and SAC would be no subclass of SAC any more.
            cls._abc_impl = abc.ABCMeta("Refused", (), {})._abc_impl  # type: ignore[attr-defined]
            ours = [b.__name__ for b in cls.__bases__ if mixin in b.__mro__]
            others = [b.__name__ for b in cls.__bases__ if mixin not in b.__mro__]
            raise TypeError(
                f"{ours[0]} stands right of {base.__name__}, whose train() would run in its place, without priorities. The "
                f"mixin stands on the left: class {cls.__name__}({', '.join(ours + others)})"
            )


def _calls_super(method: Any) -> bool:
    """Whether it hands on to the next one, as far as can be seen."""
    return "super" in getattr(getattr(inspect.unwrap(method), "__code__", None), "co_names", ())


def stock_init_of(cls: type, mixin: type) -> Callable[..., None]:
    """
    :param cls: an algorithm
    :param mixin: whose constructor hands on
    :return: the constructor that it hands on to
    """
    mro = cls.__mro__
    init: Callable[..., None] = next(vars(c)["__init__"] for c in mro[mro.index(mixin) + 1 :] if "__init__" in vars(c))
    return init


def show_stock_init(cls: type, mixin: type) -> None:
    """
    Without a constructor of its own, a class shows that of its stock algorithm, in ``help`` and to ``inspect``, and not the
    mixin's, which takes any argument.

    :param cls: new class
    :param mixin: whose constructor hands on
    """
    stock_init = stock_init_of(cls, mixin)
    inherited = cls.__init__  # type: ignore[misc]
    hands_on = inherited is vars(mixin)["__init__"] or getattr(inherited, "shows_stock", False)
    if "__init__" in vars(cls) or not hands_on or stock_init is OffPolicyAlgorithm.__init__:
        return

    @functools.wraps(stock_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super(cls, self).__init__(*args, **kwargs)  # type: ignore[arg-type]

    __init__.shows_stock = True  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[misc]


def require_arguments(cls: type, mixin: type, keywords: dict[str, Any]) -> None:
    """
    :param cls: of the algorithm
    :param mixin: whose constructor has been given the keywords
    :param keywords: that no constructor before has taken
    :raises TypeError: for one that the stock algorithm does not have: names what was probably meant, or that it is a setting
        of the buffer
    :raises ValueError: for a string in place of a number
    """
    stock_init = stock_init_of(cls, mixin)
    known = names_of(stock_init)
    if known is None:
        return  # somebody's own, which says itself what it does not know
    unknown = {name: value for name, value in keywords.items() if name not in known}
    if unknown:
        shown = {*known, *(names_of(cls.__init__) or ())}  # type: ignore[misc]
        hints = "; ".join(f"{name!r}{_hint(cls, name, value, shown)}" for name, value in unknown.items())
        raise TypeError(f"{cls.__name__} has no argument {hints}")
    defaults = {p.name: p.default for p in inspect.signature(stock_init).parameters.values() if _is_number(p)}
    require_no_strings(keywords, defaults, [name for name, default in defaults.items() if isinstance(default, int)])


def _hint(cls: type, name: str, value: Any, known: set[str]) -> str:
    settings = {*ReplayBufferKwargs.__annotations__} - known
    meant = name if name in settings else nearest(name, known) or nearest(name, settings)
    if meant is None:
        return ""
    if meant in known:
        return f": did you mean {meant!r}?"
    where = f"{cls.__name__}(..., replay_buffer_kwargs=dict({meant}={value!r}))"
    return (
        f", it is a setting of the buffer: {where}" if meant == name else f": did you mean the setting of the buffer, {where}?"
    )


def _is_number(parameter: inspect.Parameter) -> bool:
    """Whether an argument is a number by default, and never a string."""
    alternatives = getattr(parameter.annotation, "__args__", (parameter.annotation,))
    default = parameter.default
    return isinstance(default, (int, float)) and not isinstance(default, bool) and str not in alternatives
