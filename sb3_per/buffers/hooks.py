"""
Methods of SB3's buffers that a user's class may override.

A prioritized buffer calls each of them as SB3 does, or refuses the class.
"""

from stable_baselines3.common.buffers import BaseBuffer

from sb3_per.utils.origin import is_user_defined
from sb3_per.utils.parents import require_hooks

#: Methods that are called with SB3's arguments, and whose results are used.
CALLED = frozenset(
    {
        "_maybe_cast_dtype",
        "_normalize_obs",
        "_normalize_reward",
        "_sample_goals",
        "add",
        "extend",
        "reset",
        "sample",
        "set_env",
        "size",
        "swap_and_flatten",
        "to_torch",
        "truncate_last_trajectory",
    }
)

_CHANGE_THE_BATCH = "override sample(), and change the batch that super().sample() returns, e.g. batch._replace(rewards=...)"

#: Methods that `sample` and `add` do not call: what to do instead.
REFUSED = {
    "_get_samples": _CHANGE_THE_BATCH,
    "_get_real_samples": _CHANGE_THE_BATCH,
    "_get_virtual_samples": "override _sample_goals() for other goals, compute_reward() of the environment for other rewards, "
    "or sample() to change the batch",
    "_compute_episode_length": "override add(): after super().add(), the episodes are finished where done is set",
}

#: Methods that turn arrays into a batch. They are skipped while they are SB3's and have nothing to do.
BATCH_HOOKS = frozenset({"_normalize_obs", "_normalize_reward", "to_torch"})


def require_hooks_are_called(cls: type) -> None:
    """
    Check that no method of SB3's buffers is overridden in vain.

    :param cls: class of a prioritized buffer
    :raises TypeError: if a method is overridden that is never called; the message says what to do instead
    :raises ImportError: if SB3 has a method no more that this package overrides
    """
    require_hooks(cls)
    for name in sorted(CALLED | REFUSED.keys()):
        is_reached = True
        for owner in (base for base in cls.__mro__ if name in vars(base)):
            if not is_user_defined(owner):
                is_reached = False  # SB3's methods and ours call no others of this name
            elif name in REFUSED:
                raise TypeError(refusal(owner, name))
            elif not is_reached:
                bases = sorted(cls.__bases__, key=lambda base: owner not in base.__mro__)
                right_order = f"class {cls.__name__}({', '.join(base.__name__ for base in bases)})"
                raise TypeError(
                    f"{owner.__name__}.{name}() would never be called. Change the order of the classes: {right_order}"
                )


def refusal(cls: type, name: str) -> str:
    """
    Say that a method cannot be overridden.

    :param cls: class that overrides it
    :param name: one of the ``REFUSED`` methods
    :return: message for the user
    """
    return f"{cls.__name__}.{name}() would never be called, because a prioritized buffer reads batches itself: {REFUSED[name]}"


def is_overridden_in(cls: type, name: str) -> bool:
    """
    Say whether a user has replaced a method, in a class or in a mixin.

    :param cls: class of a prioritized buffer
    :param name: name of the method
    :return: whether it is not the method of this package or of SB3
    """
    return is_user_defined(next(base for base in cls.__mro__ if name in vars(base)))


def is_overridden(buffer: BaseBuffer, name: str) -> bool:
    """
    Say whether a user has replaced a method, also as an attribute of this object alone.

    :param buffer: prioritized buffer
    :param name: name of the method
    :return: whether it is not the method of this package or of SB3
    """
    return name in vars(buffer) or is_overridden_in(type(buffer), name)


def require_own(buffer: BaseBuffer, name: str) -> None:
    """
    Check that a method stores transitions as ``add`` does, which it does not call.

    :param buffer: prioritized buffer
    :param name: name of the method
    :raises NotImplementedError: if a user has overridden ``add``, and not this method
    """
    if is_overridden(buffer, "add") and not is_overridden(buffer, name):
        raise NotImplementedError(
            f"{type(buffer).__name__} overrides add(), and {name}() does not call it: override {name}() too, e.g. change its "
            f"arguments and call super().{name}()"
        )
