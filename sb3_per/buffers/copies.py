"""
Make another buffer of the class of a buffer. There are two ways, because a user's class may have attributes of its own.

- By its constructor, which makes these attributes anew: :func:`construct`, and :func:`empty_like` to load files.
- As a copy, which has them as they are: :func:`bare_copy`, and :func:`empty_twin` for demonstrations.

:mod:`~sb3_per.buffers.conversion` uses both for buffers that are not empty.
"""

import inspect
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import arrays
from sb3_per.buffers.settings import PLACE_SETTINGS, SCHEME_SETTINGS, BufferSettings, IgnoredSettingWarning
from sb3_per.sampling.schemes import arguments_for
from sb3_per.utils.origin import is_user_defined

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")


# ---- by the constructor


def empty_like(buffer: BufferT, **settings: Any) -> BufferT:
    """
    Make an empty buffer of the same class and size.

    :param buffer: prioritized
    :param settings: that change
    :return: the new buffer
    """
    cls = type(buffer)
    given = {**kept_arguments(buffer, cls, settings), **kept_settings(buffer, settings), **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredSettingWarning)  # the user knows
        return construct(cls, buffer.buffer_size * buffer.n_envs, sb3_arguments_of(buffer), given)


def construct(cls: type[BufferT], buffer_size: int, sb3_arguments: dict[str, Any], given: dict[str, Any]) -> BufferT:
    """
    Make a buffer by its constructor. A user's constructor gets those of SB3's arguments that it takes, and arguments of its
    own, because it may choose settings itself. The settings follow when it is made, but for those that say where arrays are.

    :param cls: class of the new buffer
    :param buffer_size: number of transitions
    :param sb3_arguments: SB3's arguments without the size, by name
    :param given: settings, and further arguments of the class, by name
    :return: the new, empty buffer
    """
    # A model may give SB3's arguments among its settings: those of a buffer count.
    arguments = {**given, **sb3_arguments}
    if not is_user_defined(cls.__init__):
        return cls(buffer_size, **arguments)
    settings = {name: value for name, value in given.items() if name in BufferSettings.names()}
    parameters = inspect.signature(cls).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    places = {name: value for name, value in settings.items() if name in PLACE_SETTINGS and value is not None}
    wanted = {name: value for name, value in arguments.items() if name not in settings or name in places}
    if not takes_all:
        optional = {*sb3_arguments, *places, *cls.extra_arguments}
        wanted = {name: value for name, value in wanted.items() if name in parameters or name not in optional}
    made = cls(buffer_size, **wanted)
    if settings:
        change_settings(made, settings)
    return made


# ---- as a copy


def bare_copy(buffer: BufferT) -> BufferT:
    """
    Copy a buffer without a call of its constructor.

    :param buffer: prioritized
    :return: another object with the same attributes: give it parts of its own
    """
    made = object.__new__(type(buffer))
    vars(made).update(vars(buffer))
    return made


def empty_twin(buffer: BufferT, n_rows: int) -> BufferT:
    """
    Make an empty buffer of one environment for demonstrations that stores and reads as another one does.

    :param buffer: prioritized
    :param n_rows: number of rows of the new buffer
    :return: a copy with arrays and parts of its own; a user's class keeps its methods and attributes
    """
    twin = bare_copy(buffer)
    twin.n_envs = 1
    twin.buffer_size = n_rows
    twin.pos = 0
    twin.full = False
    vars(twin).update(arrays.new_arrays(buffer, buffer.settings, n_rows, n_envs=1))
    twin.make_parts(buffer.settings.draw_settings.for_demonstrations())
    return twin


# ---- arguments and settings


def sb3_arguments_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the arguments of SB3's constructor, without the size.

    :param buffer: of SB3 or prioritized
    :return: arguments by name
    """
    names = ["observation_space", "action_space", "device", "n_envs", "optimize_memory_usage", "handle_timeout_termination"]
    if isinstance(buffer, HerReplayBuffer):
        names += ["env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"]
    return {name: getattr(buffer, name) for name in names}


def change_settings(buffer: "PrioritizedReplayBuffer", changed: dict[str, Any]) -> None:
    """
    Give a buffer other settings, and new parts that follow them. Its transitions move to where the settings want them.

    :param buffer: prioritized
    :param changed: settings by name; the others stay
    :raises ValueError: for a value that is not allowed
    :raises NotImplementedError: for settings that do not go together
    :raises OSError: if the disk has no room
    """
    buffer.use_settings({**kept_settings(buffer, changed), **changed}, buffer.optimize_memory_usage)
    arrays.move_arrays(buffer, buffer.settings)
    buffer.make_parts()


def kept_settings(buffer: "PrioritizedReplayBuffer", without: Collection[str]) -> dict[str, Any]:
    """
    List the settings of a buffer that a change leaves as they are.

    :param buffer: prioritized
    :param without: names of settings that will be replaced
    :return: settings by name. Of the scheme none if another one replaces it, and the object if nothing of it is replaced
    """
    kept = {name: getattr(buffer.settings, name) for name in buffer.settings.names() if name not in SCHEME_SETTINGS}
    kept["storage_folder"] = arrays.folder_of(buffer)
    if set(without).isdisjoint(SCHEME_SETTINGS):
        kept["scheme"] = buffer.scheme
    elif "scheme" not in without:
        kept.update(arguments_for(buffer.scheme))
    return kept


def kept_arguments(buffer: "PrioritizedReplayBuffer", cls: type, without: Collection[str]) -> dict[str, Any]:
    """
    List the arguments of a buffer beside SB3's and the settings, which it has in attributes of the same names.

    :param buffer: prioritized
    :param cls: class that takes them, perhaps another one, which may lack some of them
    :param without: names of arguments that will be replaced
    :return: arguments by name
    :raises TypeError: for an argument of a user's constructor that is no attribute of the buffer
    """
    names = (extra_names(type(buffer)) & extra_names(cls)) - set(without)
    for name in sorted(names):
        if not hasattr(buffer, name):
            raise TypeError(
                f"A {type(buffer).__name__} with other settings or contents cannot be made: keep the argument {name!r} of its "
                "constructor in an attribute of the same name"
            )
    return {name: getattr(buffer, name) for name in names}


def extra_names(cls: type) -> set[str]:
    """
    Name the arguments of a class of buffers beside SB3's and the settings.

    :param cls: prioritized
    :return: its ``extra_arguments``, and what a user's constructors add
    """
    known = set(BufferSettings.names())
    added: set[str] = set()
    for base in (base for base in cls.__mro__ if "__init__" in vars(base)):
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        (added if is_user_defined(base) else known).update(names)
    return (added - known) | set(cls.extra_arguments)  # type: ignore[attr-defined]
