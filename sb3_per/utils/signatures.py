"""What constructors show of themselves, and the nearest of the names that they know. It knows no class of this package."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

P = ParamSpec("P")


def extends_signature(
    stock_init: Callable[P, None], *others: Callable[..., None], **defaults: Any
) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """
    Show help and editors the arguments of the stock constructor, and behind them the keywords that the decorated one adds. For
    a type checker, the decorated constructor is the stock one.

    :param stock_init: constructor that receives ``*args`` and ``**kwargs``
    :param others: constructors on the way there, whose own keywords are shown as well
    :param defaults: of the stock arguments, where they are others here
    :return: the decorator
    """

    def decorate(init: Callable[..., None]) -> Callable[P, None]:
        stock = inspect.signature(stock_init)
        shown = {name: p.replace(default=defaults.get(name, p.default)) for name, p in stock.parameters.items()}
        for constructor in (*others, init):
            for name, parameter in inspect.signature(constructor).parameters.items():
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    shown.setdefault(name, parameter)
        # Stable: the stock arguments come first, in their order.
        parameters = sorted(shown.values(), key=lambda p: p.kind)
        init.__signature__ = stock.replace(parameters=parameters)  # type: ignore[attr-defined]
        return init

    return decorate


def names_of(constructor: Callable[..., None]) -> list[str] | None:
    """
    :param constructor: any
    :return: names of its arguments, without ``self``; ``None`` if it takes any keyword
    """
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]


def arguments_of(cls: type, stock: type, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param cls: in the error
    :param stock: class whose constructor gets the arguments in the end
    :param args: in its order
    :param keywords: also those of others
    :return: those of the constructor, by name
    :raises TypeError: if one is missing
    """
    signature = inspect.signature(stock.__init__)  # type: ignore[misc]
    own = {name: value for name, value in keywords.items() if name in signature.parameters}
    try:
        return signature.bind(None, *args, **own).arguments
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None


def parameters_of(cls: type) -> list[inspect.Parameter]:
    """Of the constructor of a class, also ``self``."""
    return list(inspect.signature(cls.__init__).parameters.values())  # type: ignore[misc]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """
    :param name: that was written
    :param known: that could have been meant
    :return: the one that looks most like it; ``None`` if none does
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
