"""From one buffer to another: from SB3's and back, to other settings, and to an empty one of the same kind."""

import inspect
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.arrays import ARRAYS, HER_ARRAYS, LARGE, folder_of, move_arrays, new_arrays, plain_array
from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.buffers.settings import PLACE_SETTINGS, SCHEME_SETTINGS, BufferSettings, IgnoredSettingWarning, with_both_betas
from sb3_per.buffers.slots import map_arrays
from sb3_per.sampling.schemes import arguments_for
from sb3_per.utils.origin import is_user_defined

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")

# Attributes of SB3's buffers that hold transitions, and those of HER.
_CONTENTS = (*ARRAYS, "buffer_size", "pos", "full", *HER_ARRAYS, "_current_ep_start")


def stock_class_of(cls: type) -> type[ReplayBuffer]:
    """
    Name the class of SB3 that stores what another class stores.

    :param cls: class of buffers, of SB3 or prioritized
    :return: ``HerReplayBuffer``, ``DictReplayBuffer`` or ``ReplayBuffer``
    """
    return next(kind for kind in (HerReplayBuffer, DictReplayBuffer, ReplayBuffer) if issubclass(cls, kind))


def stock_choice(cls: type) -> type[ReplayBuffer] | None:
    """
    Name the class of SB3 that a stock algorithm must be given to store the same.

    :param cls: any class of buffers
    :return: ``HerReplayBuffer``, or ``None`` where the algorithm chooses by its observations and ``n_steps``
    """
    return HerReplayBuffer if issubclass(cls, HerReplayBuffer) else None


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


# ---- to a prioritized buffer


def from_replay_buffer(cls: type[BufferT], buffer: ReplayBuffer, settings: dict[str, Any]) -> BufferT:
    """See :meth:`PrioritizedReplayBuffer.from_replay_buffer`."""
    if stock_class_of(cls) is not stock_class_of(type(buffer)):
        raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
    settings = with_both_betas(settings)
    if hasattr(buffer, "priority_sampler"):
        return _with_settings(cls, cast("PrioritizedReplayBuffer", buffer), settings)
    _complete_old_buffer(buffer)
    require_finite_rewards(buffer.rewards[: buffer.size()])
    if isinstance(buffer, NStepReplayBuffer):
        settings = {"n_steps": buffer.n_steps, "gamma": buffer.gamma, **settings}
    made = _around(cls, buffer, settings)
    move_arrays(made, made.settings)
    made.make_parts()
    return made


def _with_settings(cls: type[BufferT], buffer: "PrioritizedReplayBuffer", changed: dict[str, Any]) -> BufferT:
    """
    Give the transitions of a prioritized buffer another class or other settings.

    :param cls: class of the new buffer
    :param buffer: not to be used any more
    :param changed: settings that change
    :return: the new buffer
    """
    if type(buffer) is cls and changed.keys() <= set(BufferSettings.names()):
        # A copy, so that what a user's class keeps beside SB3's arrays stays.
        made = object.__new__(cls)
        vars(made).update(vars(buffer))
        kept = kept_settings(buffer, changed, own_arguments=False)
        made.use_settings({**kept, **changed}, buffer.optimize_memory_usage)
    else:
        made = _around(cls, buffer, {**kept_settings(buffer, changed, cls), **changed})
    move_arrays(made, made.settings)
    made.make_parts()
    take_over(made, buffer)
    return made


def take_over(made: "PrioritizedReplayBuffer", other: "PrioritizedReplayBuffer") -> None:
    """
    Continue with the transitions, the demonstrations and the beta of another buffer, whose arrays this one shares.

    :param made: new buffer
    :param other: of the same kind and size; not to be used any more
    """
    keeps_masses = made.scheme.equals(other.scheme) and made.mass_owner == other.mass_owner
    made.row_tracker.continue_from(made, other, keeps_masses)
    made.beta_schedule.load(other.beta_schedule.state())
    made.demonstrations.take_over(other.demonstrations, made, keeps_masses)
    made.draw_record = other.draw_record  # ids go on


def _around(cls: type[BufferT], buffer: ReplayBuffer, settings: dict[str, Any]) -> BufferT:
    """
    Make a buffer by its constructor, and let it use the arrays of another one.

    :param cls: class of the new buffer
    :param buffer: of SB3 or prioritized
    :param settings: arguments beside SB3's
    :return: the new buffer, whose own parts do not fit the arrays yet
    """
    # A user's constructor may make arrays of its own. Otherwise one row is enough, because SB3's arrays are replaced.
    n_rows = buffer.buffer_size if is_user_defined(cls) else 1
    made = _constructed(cls, n_rows * buffer.n_envs, sb3_arguments_of(buffer), settings)
    _share_contents(buffer, made)
    for name in ARRAYS:
        if hasattr(made, name):
            setattr(made, name, map_arrays(_writable, getattr(made, name)))
    return made


def _constructed(cls: type[BufferT], buffer_size: int, sb3_arguments: dict[str, Any], given: dict[str, Any]) -> BufferT:
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
        made.use_settings({**kept_settings(made, settings, own_arguments=False), **settings}, made.optimize_memory_usage)
        move_arrays(made, made.settings)
        made.make_parts()
    return made


def _complete_old_buffer(buffer: ReplayBuffer) -> None:
    """Add what buffers of SB3 before 2.1 do not have, as SB3 does when it loads one: it ignored timeouts."""
    if not hasattr(buffer, "handle_timeout_termination"):
        buffer.handle_timeout_termination = False
        buffer.timeouts = np.zeros_like(buffer.dones)


def _share_contents(source: ReplayBuffer, target: ReplayBuffer) -> None:
    """Let a buffer use the arrays of another one, and stand where it stands."""
    for name in _CONTENTS:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def _writable(array: Any) -> Any:
    """Return the same array, or a copy if it is read-only or not contiguous, which a user may have assigned."""
    if isinstance(array, np.ndarray):
        return np.require(array, requirements=["C", "W"])
    return array


def kept_settings(
    buffer: "PrioritizedReplayBuffer",
    without: Collection[str] = (),
    cls: type | None = None,
    own_arguments: bool = True,
) -> dict[str, Any]:
    """
    List the settings of a buffer that a change leaves as they are.

    :param buffer: prioritized
    :param without: names of settings that will be replaced
    :param cls: class that takes them, if it is another one: it may lack some arguments of the buffer's class
    :param own_arguments: whether to list the arguments of the buffer's class, too
    :return: settings by name. Of the scheme none if another one replaces it, and the object if nothing of it is replaced
    :raises TypeError: for an argument of a user's constructor that is no attribute of the buffer
    """
    kept = {name: getattr(buffer.settings, name) for name in buffer.settings.names() if name not in SCHEME_SETTINGS}
    kept["storage_folder"] = folder_of(buffer)
    if set(without).isdisjoint(SCHEME_SETTINGS):
        kept["scheme"] = buffer.scheme
    elif "scheme" not in without:
        kept.update(arguments_for(buffer.scheme))
    names = extra_names(type(buffer)) if own_arguments else set()
    if cls is not None:
        names &= extra_names(cls)
    for name in sorted(names):
        if not hasattr(buffer, name):
            raise TypeError(
                f"A {type(buffer).__name__} with other settings or contents cannot be made: keep the argument {name!r} of its "
                "constructor in an attribute of the same name"
            )
        kept[name] = getattr(buffer, name)
    return kept


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


# ---- to SB3


def to_replay_buffer(buffer: "PrioritizedReplayBuffer") -> ReplayBuffer:
    """See :meth:`PrioritizedReplayBuffer.to_replay_buffer`."""
    arguments = sb3_arguments_of(buffer)
    sb3_class = stock_class_of(type(buffer))
    if sb3_class is ReplayBuffer and buffer.n_steps > 1 and not buffer.optimize_memory_usage:
        sb3_class = NStepReplayBuffer
        arguments.update(n_steps=buffer.n_steps, gamma=buffer.gamma)
    left_out = buffer.unknown_to_sb3()
    if buffer.n_steps > 1 and sb3_class is not NStepReplayBuffer:
        left_out.append(f"n_steps={buffer.n_steps}")
    if left_out:
        warnings.warn(f"{sb3_class.__name__} of SB3 does not hold everything. Left out: {', '.join(left_out)}")
    made = sb3_class(buffer.n_envs, **arguments)  # one row, whose arrays are replaced
    _share_contents(buffer, made)
    for name in LARGE:
        if hasattr(made, name):
            setattr(made, name, map_arrays(plain_array, getattr(made, name)))
    return made


# ---- to an empty buffer


def empty_like(buffer: BufferT, **settings: Any) -> BufferT:
    """
    Make an empty buffer of the same class and size.

    :param buffer: prioritized
    :param settings: that change
    :return: the new buffer
    """
    kept = {**kept_settings(buffer, settings), **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredSettingWarning)  # the user knows
        return _constructed(type(buffer), buffer.buffer_size * buffer.n_envs, sb3_arguments_of(buffer), kept)


def empty_twin(buffer: BufferT, n_rows: int) -> BufferT:
    """
    Make an empty buffer of one environment for demonstrations that stores and reads as another one does.

    :param buffer: prioritized
    :param n_rows: number of rows of the new buffer
    :return: a copy with arrays and parts of its own; a user's class keeps its methods and attributes
    """
    twin = object.__new__(type(buffer))
    vars(twin).update(vars(buffer))
    twin.n_envs = 1
    twin.buffer_size = n_rows
    twin.pos = 0
    twin.full = False
    vars(twin).update(new_arrays(buffer, buffer.settings, n_rows, n_envs=1))
    twin.make_parts(buffer.settings.draw_settings.for_demonstrations())
    return twin
