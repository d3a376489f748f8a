"""Read values of Python from the command line. Text of the user is parsed, and never evaluated."""

import ast
from collections.abc import Callable, Sequence
from typing import Any

from sb3_per.sampling.schemes import SCHEMES

# What may be called, with keyword arguments.
_CALLED: dict[str, Callable[..., Any]] = {"dict": dict, **{scheme.__name__: scheme for scheme in SCHEMES.values()}}

_ALLOWED = f"numbers, text in quotes, lists and so on, and {', '.join(_CALLED)} with keyword arguments, e.g. LAP(kappa=0.1)"


def value_of(option: str, text: str) -> Any:
    """
    Read a value.

    :param option: option that has the value, for messages
    :param text: literal of Python such as ``"[64, 64]"``, or a call such as ``"LAP(kappa=0.1)"`` or ``"dict(alpha=0.5)"``
    :return: the value
    :raises ValueError: for all other text; the message says what is allowed
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(f"{option}: {error}. Allowed are {_ALLOWED}") from error


def _value(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            raise ValueError(f"{ast.unparse(node)} is no literal") from error
    name = ast.unparse(node.func)
    if name not in _CALLED:
        raise ValueError(f"{name} cannot be called")
    if node.args:
        raise ValueError(f"{ast.unparse(node.args[0])} is no keyword argument")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{ast.unparse(keyword)} is no keyword argument")
        if keyword.arg in arguments:
            raise ValueError(f"{keyword.arg} is given twice")
        arguments[keyword.arg] = _value(keyword.value)
    return _CALLED[name](**arguments)


def setting_of(text: str) -> dict[str, Any]:
    """
    Read a setting of the buffer.

    :param text: keyword arguments, e.g. ``"scheme='lap', alpha=0.4"``
    :return: keyword arguments
    :raises ValueError: if it is no list of keyword arguments
    """
    return dict(value_of(f"--setting {text}", f"dict({text})"))


def words_of(option: str, words: Sequence[str]) -> dict[str, Any]:
    """
    Read words such as ``"name:value"``.

    :param option: option that has the words
    :param words: the words
    :return: values by name
    :raises ValueError: for a word without a colon, or a value that cannot be read
    """
    values = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            raise ValueError(f"{option}: {word!r} has no colon: write NAME:VALUE, e.g. {name.replace('=', ':', 1)}")
        values[name] = value_of(f"{option} {word}", value)
    return values
