"""Make the signatures of the prioritized algorithms, and check the arguments of their constructors."""

import difflib
import inspect
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per.buffers.settings import OTHER_NAMES, PrioritySettings, hint


def signature_of(cls: type, defaults: dict[str, Any]) -> inspect.Signature:
    """
    Join the arguments of the stock constructor and the arguments that this package adds.

    :param cls: class of an algorithm
    :param defaults: defaults that differ from the stock constructor's, by name
    :return: signature without ``self``; with ``**kwargs`` only if a constructor from outside this package has them
    """
    added: dict[str, inspect.Parameter] = {}
    for init in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        parameters = dict(inspect.signature(init).parameters)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if not (takes_any and init.__module__.startswith("sb3_per.")):
            break
        added = {**{name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}, **added}
    del parameters["self"]
    stock = {name: p.replace(default=defaults.get(name, p.default)) for name, p in parameters.items()}
    return inspect.Signature(sorted({**stock, **added}.values(), key=lambda p: p.kind))


def require_order(cls: type, mixin: type) -> None:
    """
    Check the order of the bases.

    :param cls: class of an algorithm
    :param mixin: class that must stand left of the stock algorithm, or a parent of it
    :raises TypeError: if the stock algorithm stands left, so that its own ``train`` would run
    """
    if super(mixin, cls).train is OffPolicyAlgorithm.train:  # type: ignore[arg-type]
        bases = sorted(cls.__bases__, key=lambda base: not issubclass(base, mixin))
        raise TypeError(
            f"{cls.__name__} has no stock algorithm right of {bases[0].__name__}, so train() would ignore priorities. "
            f"Write class {cls.__name__}({', '.join(base.__name__ for base in bases)})"
        )


def require_arguments(cls: type, keywords: dict[str, Any]) -> None:
    """
    Check the names of keyword arguments.

    :param cls: class of an algorithm
    :param keywords: keyword arguments of its constructor
    :raises TypeError: for an unknown keyword; the message names the argument or setting that was probably meant
    """
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [name for name in keywords if name not in parameters]
    if unknown:
        hints = "; ".join(f"{name!r}{_meant(cls, name, keywords[name], list(parameters))}" for name in unknown)
        raise TypeError(f"{cls.__name__} has no argument {hints}")


def _meant(cls: type, name: str, value: Any, known: list[str]) -> str:
    settings = [setting for setting in PrioritySettings.names() if setting not in known]
    target = OTHER_NAMES.get(name, name)
    text = "" if target in settings else hint(name, known)
    nearest = difflib.get_close_matches(target, settings, n=1)
    if text or not nearest:
        return text
    return f": did you mean {cls.__name__}(..., replay_buffer_kwargs=dict({nearest[0]}={value!r}))?"
