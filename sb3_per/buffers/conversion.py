"""Give the transitions of a buffer to another one: from SB3's buffers and back, and to other settings or another class."""

import warnings
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.arrays import ARRAYS, HER_ARRAYS, LARGE, move_arrays, plain_array
from sb3_per.buffers.copies import bare_copy, change_settings, construct, kept_arguments, kept_settings, sb3_arguments_of
from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.buffers.settings import BufferSettings, with_both_betas
from sb3_per.buffers.slots import map_arrays
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


# ---- to a prioritized buffer


def from_replay_buffer(cls: type[BufferT], buffer: ReplayBuffer, settings: dict[str, Any]) -> BufferT:
    """See :meth:`PrioritizedReplayBuffer.from_replay_buffer`."""
    if stock_class_of(cls) is not stock_class_of(type(buffer)):
        raise ValueError(f"{cls.__name__} cannot take over a {type(buffer).__name__}, which stores something else")
    settings = with_both_betas(settings)
    if hasattr(buffer, "priority_sampler"):
        return _with_changed_settings(cls, cast("PrioritizedReplayBuffer", buffer), settings)
    _complete_old_buffer(buffer)
    require_finite_rewards(buffer.rewards[: buffer.size()])
    if isinstance(buffer, NStepReplayBuffer):
        settings = {"n_steps": buffer.n_steps, "gamma": buffer.gamma, **settings}
    return _constructed_around(cls, buffer, settings)


def _with_changed_settings(cls: type[BufferT], buffer: "PrioritizedReplayBuffer", changed: dict[str, Any]) -> BufferT:
    """
    Give the transitions of a prioritized buffer another class or other settings.

    :param cls: class of the new buffer
    :param buffer: not to be used any more
    :param changed: settings, and further arguments of the class, that change
    :return: the new buffer
    """
    if type(buffer) is cls and changed.keys() <= set(BufferSettings.names()):
        made = bare_copy(buffer)
        change_settings(made, changed)
    else:
        given = {**kept_arguments(buffer, cls, changed), **kept_settings(buffer, changed), **changed}
        made = _constructed_around(cls, buffer, given)
    continue_from(made, buffer)
    return made


def continue_from(made: "PrioritizedReplayBuffer", other: "PrioritizedReplayBuffer") -> None:
    """
    Continue with the transitions, the demonstrations and the beta of another buffer, whose arrays this one shares.

    :param made: new buffer
    :param other: of the same kind and size; not to be used any more
    """
    keeps_masses = made.scheme.equals(other.scheme) and made.mass_owner == other.mass_owner
    made.row_tracker.continue_from(made, other, keeps_masses)
    made.beta_schedule.load(other.beta_schedule.state())
    made.demonstrations.continue_from(other.demonstrations, made, keeps_masses)
    made.draw_record = other.draw_record  # ids go on


def _constructed_around(cls: type[BufferT], buffer: ReplayBuffer, given: dict[str, Any]) -> BufferT:
    """
    Make a buffer by its constructor, and let it use the arrays of another one, or move them to where the settings want them.

    :param cls: class of the new buffer
    :param buffer: of SB3 or prioritized
    :param given: arguments beside SB3's
    :return: the new buffer, for which all transitions are new
    """
    # A user's constructor may make arrays of its own. Otherwise one row is enough, because SB3's arrays are replaced.
    n_rows = buffer.buffer_size if is_user_defined(cls) else 1
    made = construct(cls, n_rows * buffer.n_envs, sb3_arguments_of(buffer), given)
    _share_contents(buffer, made)
    for name in ARRAYS:
        if hasattr(made, name):
            setattr(made, name, map_arrays(_writable, getattr(made, name)))
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
    if buffer.row_tracker.clears_timeouts and buffer.n_steps == 1:
        # SB3 would leave such a flag there for the next lap. Without both, the target is the same.
        is_cut = buffer.timeouts != 0
        buffer.dones[is_cut] = buffer.timeouts[is_cut] = 0
    made = sb3_class(buffer.n_envs, **arguments)  # one row, whose arrays are replaced
    _share_contents(buffer, made)
    for name in LARGE:
        if hasattr(made, name):
            setattr(made, name, map_arrays(plain_array, getattr(made, name)))
    return made
