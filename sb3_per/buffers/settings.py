"""
The settings of a buffer as types, and what is said of those that are misspelt, of another type, or without effect.

It knows schemes, and no buffer.
"""

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from sb3_per.schemes import LAP, PriorityScheme, as_number
from sb3_per.signatures import names_of, nearest, parameters_of

if TYPE_CHECKING:
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

WEIGHT_NORMALIZATIONS = ("max", "mean", "none")
ACTOR_BATCHES = ("prioritized", "weighted", "uniform")


class PrioritizedKwargs(TypedDict, total=False):
    """Keywords of all prioritized buffers, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`."""

    scheme: Literal["proportional", "rank", "lap", "pal", "uniform"] | PriorityScheme
    alpha: float | None
    beta_start: float
    beta_end: float
    beta_anneal_steps: int | None
    epsilon: float
    kappa: float | Literal["auto"]
    td_error_reduction: Literal["mean", "max", "min"] | None
    stratified: bool
    uniform_fraction: float
    weight_normalization: Literal["max", "mean", "none"]
    actor_batch: Literal["prioritized", "weighted", "uniform"]
    initial_priority: Literal["max", "mean", "td_error"]
    max_priority_interval: int | None
    recency: float
    recency_min: int
    unique: bool
    n_steps: int
    gamma: float
    frames: int | Literal["auto"] | dict[str, int] | None


class PrioritizedHerKwargs(PrioritizedKwargs, total=False):
    """Keywords of a buffer with hindsight, see :class:`~sb3_per.buffers.PrioritizedHerReplayBuffer`."""

    update_from_virtual: bool


class PrioritizedSequenceKwargs(PrioritizedKwargs, total=False):
    """Keywords of a buffer of sequences, see :class:`~sb3_per.buffers.PrioritizedSequenceReplayBuffer`."""

    sequence_length: int
    burn_in: int
    sequence_period: int | None
    eta: float
    store_state: bool
    state_shapes: Sequence[tuple[int, int]]


class ReplayBufferKwargs(PrioritizedHerKwargs, PrioritizedSequenceKwargs, total=False):
    """
    What ``replay_buffer_kwargs`` of an algorithm may hold, for type checkers and editors; at run time it is a ``dict``. All of
    these are checked where they are written, but pyright wants one of the first two, and refuses ``dict(...)``::

        PERSAC("MlpPolicy", env, replay_buffer_kwargs=ReplayBufferKwargs(alpha=0.6))
        PERSAC("MlpPolicy", env, replay_buffer_kwargs={"alpha": 0.6})
        PERSAC("MlpPolicy", env, replay_buffer_kwargs=dict(alpha=0.6))  # mypy

    A buffer of your own with further keywords has a type of its own, which is accepted in its place::

        class MyKwargs(ReplayBufferKwargs, total=False):
            min_reward: float
    """

    handle_timeout_termination: bool
    n_sampled_goal: int
    goal_selection_strategy: "GoalSelectionStrategy | Literal['future', 'final', 'episode']"
    copy_info_dict: bool


# Keywords by the buffer that has them, beside those that all have.
_OF_HINDSIGHT = (*PrioritizedHerKwargs.__annotations__, "n_sampled_goal", "goal_selection_strategy", "copy_info_dict")
_KIND_OF: dict[str, str] = {
    **dict.fromkeys(PrioritizedSequenceKwargs.__annotations__, "PrioritizedSequenceReplayBuffer, which PERRecurrentDQN has"),
    **dict.fromkeys(_OF_HINDSIGHT, "PrioritizedHerReplayBuffer: replay_buffer_class=PrioritizedHerReplayBuffer"),
}
_KIND_OF = {name: kind for name, kind in _KIND_OF.items() if name not in PrioritizedKwargs.__annotations__}

#: Settings that are integers, and that are other numbers; with the words that may stand in their place.
INTEGERS = frozenset(
    "beta_anneal_steps max_priority_interval recency_min n_steps frames sequence_length burn_in sequence_period "
    "n_sampled_goal".split()
)
NUMBERS = INTEGERS | frozenset("alpha beta_start beta_end epsilon kappa uniform_fraction recency gamma eta".split())
_WORDS = {"kappa": "auto", "frames": "auto"}
# What may be None.
_OPTIONAL = frozenset("alpha beta_anneal_steps max_priority_interval frames sequence_period".split())


# ---- keywords that are not there


def require_known(cls: type, base: type, keywords: Collection[str]) -> None:
    """
    :param cls: of a buffer
    :param base: that has been given the keywords, and does not know them
    :param keywords: for the constructors behind it
    :raises TypeError: for those that none of them has; the message names the nearest
    """
    mro = [c for c in cls.__mro__ if "__init__" in vars(c) and c is not object]
    others = [c for c in mro[mro.index(base) + 1 :] if not c.__module__.startswith("sb3_per.")]
    if any(names_of(c.__init__) is None for c in others):  # type: ignore[misc]
        return  # one of somebody's own that takes any keyword says itself what it does not know
    known = {parameter.name for c in mro for parameter in parameters_of(c)}
    unknown = [name for name in keywords if name not in known]
    if unknown:
        raise TypeError(f"{cls.__name__} has no setting {'; '.join(f'{name!r}{_hint(name, known)}' for name in unknown)}")


def _hint(name: str, known: Collection[str]) -> str:
    if name in _KIND_OF:
        return f", it is one of {_KIND_OF[name]}"
    meant = nearest(name, known)
    return "" if meant is None else f": did you mean {meant!r}?"


# ---- what is no number


def require_numbers(settings: Mapping[str, Any]) -> None:
    """
    :param settings: of a buffer, by name
    :raises ValueError: for something else where a number belongs: a string, a list, None
    """
    require_no_strings(settings)
    for name, value in settings.items():
        is_frames = name == "frames" and isinstance(value, Mapping)
        if name in NUMBERS and not (isinstance(value, str) or is_frames or (value is None and name in _OPTIONAL)):
            as_number(name, value)


def require_no_strings(
    settings: Mapping[str, Any], numbers: Collection[str] = NUMBERS, integers: Collection[str] = INTEGERS
) -> None:
    """
    :param settings: by name
    :param numbers: names of those that are numbers
    :param integers: and of those that are integers
    :raises ValueError: for a string that stands in the place of one; the message says how YAML wants it
    """
    for name, value in settings.items():
        if name in numbers and isinstance(value, str) and value != _WORDS.get(name):
            if name == "kappa" and not _yaml_hint(value, False):
                continue  # another word: LAP and PAL know one, and say so
            raise ValueError(f"{name} must be a number, not the string {value!r}{_yaml_hint(value, name in integers)}")


def require_storage(arguments: Mapping[str, Any]) -> None:
    """
    :param arguments: of SB3's constructor, by name
    :raises ValueError: for a size, a number of environments or a space that no transition fits in
    """
    for name in ("buffer_size", "n_envs"):
        value = arguments.get(name, 1)
        if not is_count(value):
            raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    for name in ("observation_space", "action_space"):
        space = arguments[name]
        parts = getattr(space, "spaces", None)
        for key, part in parts.items() if isinstance(parts, Mapping) else [(None, space)]:
            shape = getattr(part, "shape", None) or ()
            if 0 in shape:
                where = name if key is None else f"{name}[{key!r}]"
                raise ValueError(f"{where} must hold at least one value, and its shape is {shape}: leave it out")


def is_count(value: Any) -> bool:
    """Whether this is an integer of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def _yaml_hint(text: str, is_integer: bool) -> str:
    try:
        number = float(text)
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    if is_integer and number.is_integer():
        return f". YAML reads {text} as text: write {int(number)}"
    return f". YAML reads {text} as text: write {yaml_number(number)} or !!float {number!r}"


def yaml_number(number: float) -> str:
    """
    :param number: finite
    :return: as YAML 1.1 reads it, with a point in front of the exponent
    """
    text = repr(number)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


# ---- settings without effect


class IgnoredSettingWarning(UserWarning):
    """A setting was given that the scheme, or another setting, has no use for."""


def ignored(scheme: str | PriorityScheme, name: str) -> str | None:
    """
    The one rule: which setting has no effect with which scheme.

    :param scheme: its name, or an object
    :param name: of a setting
    :return: what would use it; ``None`` if the scheme does, or all do
    """
    uniform = scheme in ("uniform", "pal") if isinstance(scheme, str) else scheme.draws_uniformly
    weighted = scheme in ("proportional", "rank") if isinstance(scheme, str) else scheme.importance_sampling
    if isinstance(scheme, str):
        is_lap, is_plain, is_epsilon = scheme in ("lap", "pal"), scheme == "uniform", scheme == "proportional"
    else:
        # An object has brought its own, and nothing stands beside it.
        is_lap, is_plain, is_epsilon = isinstance(scheme, LAP), False, True
    rules = {
        "alpha": (not is_plain, "'proportional', 'rank', 'lap' and 'pal' have an alpha"),
        "td_error_reduction": (not is_plain, "'proportional', 'rank', 'lap' and 'pal' reduce TD errors"),
        "epsilon": (is_epsilon, "'proportional' adds it to |td|"),
        "kappa": (is_lap, "'lap' and 'pal' have a kappa"),
        "uniform_fraction": (not uniform, "'proportional', 'rank' and 'lap' draw by priority"),
    }
    weights = "'proportional' and 'rank' have importance-sampling weights"
    rules.update({beta: (weighted, weights) for beta in ("beta_start", "beta_end", "beta_anneal_steps")})
    is_used, users = rules.get(name, (True, ""))
    return None if is_used else users


def warn_of_ignored(scheme: str | PriorityScheme, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """
    :param scheme: its name, or an object
    :param given: settings by name
    :param defaults: of the settings; one that equals its default was not given
    """
    for name, value in given.items():
        if name not in defaults or value == defaults[name]:
            continue
        users = ignored(scheme, name)
        if users is not None:
            _warn(f"{name}={value!r} has no effect with scheme={scheme!r}: {users}")
    if given.get("recency_min", defaults["recency_min"]) != defaults["recency_min"] and given.get("recency", 1.0) == 1.0:
        _warn(f"recency_min={given['recency_min']!r} has no effect with recency=1.0: a recency below 1 has a least number")


def _warn(message: str) -> None:
    warnings.warn(message, IgnoredSettingWarning)


@contextlib.contextmanager
def already_told() -> Iterator[None]:
    """In here, nothing is said of settings without effect: nobody has just written them, or it was said before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredSettingWarning)
        yield
