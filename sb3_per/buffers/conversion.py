"""
From one buffer to another.

- :func:`from_sb3` and :func:`to_sb3`: from a buffer of SB3 and back. They share the arrays where they can
- :func:`rebuilt`: to another class or other settings, e.g. another scheme or ``frames``. The result shares the arrays
  where it can
- :func:`empty_twin` and :func:`copy_newest`: to another size. The newest transitions are copied

``take_over`` of a buffer is the way back: a buffer that is in use gets the contents of another one.
"""

import inspect
import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.buffers.recordings import Recording
from sb3_per.buffers.settings import SCHEME_SETTINGS, BufferSettings, with_both_betas
from sb3_per.sampling.schemes import arguments_for
from sb3_per.storage.array_store import ArrayStore, writable
from sb3_per.storage.frame_setting import frames_by_key
from sb3_per.storage.make import converted, make_storage
from sb3_per.storage.mapped import Folder, folder_of_copy
from sb3_per.storage.nested import keyed
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Layout, Storage
from sb3_per.storage.store import ObservationStore
from sb3_per.utils.origin import is_user_defined

#: A prioritized buffer, whose module imports this one.
BufferT = TypeVar("BufferT", bound=Any)

# Parameters that are neither ``*args`` nor ``**kwargs``.
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the arguments of SB3's constructor, without the size.

    :param buffer: of SB3 or prioritized
    :return: arguments by name
    """
    arguments = {
        "observation_space": buffer.observation_space,
        "action_space": buffer.action_space,
        "device": buffer.device,
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": buffer.optimize_memory_usage,
        "handle_timeout_termination": buffer.handle_timeout_termination,
    }
    if isinstance(buffer, HerReplayBuffer):
        arguments["env"] = buffer.env
        arguments["n_sampled_goal"] = buffer.n_sampled_goal
        arguments["goal_selection_strategy"] = buffer.goal_selection_strategy
        arguments["copy_info_dict"] = buffer.copy_info_dict
    return arguments


def extra_names(cls: type) -> set[str]:
    """
    Name the arguments of a class of buffers beside SB3's and the settings.

    :param cls: prioritized
    :return: its ``extra_arguments``, and what a user's constructors add
    """
    constructors = [base for base in cls.__mro__ if "__init__" in vars(base)]
    known = set(BufferSettings.names())
    added: set[str] = set()
    for base in constructors:
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names = [each.name for each in parameters if each.kind in _NAMED]
        (added if is_user_defined(base) else known).update(names)
    return (added - known) | set(cls.extra_arguments)  # type: ignore[attr-defined]


def extra_arguments_of(buffer: Any) -> dict[str, Any]:
    """
    Return the arguments of a buffer beside SB3's and the settings.

    :param buffer: prioritized
    :return: arguments by name
    :raises TypeError: for one that is no attribute of the buffer
    """
    names = sorted(extra_names(type(buffer)))
    for name in names:
        if not hasattr(buffer, name):
            raise TypeError(
                f"A {type(buffer).__name__} with other settings or contents cannot be made: keep the argument {name!r} of its "
                "constructor in an attribute of the same name"
            )
    return {name: getattr(buffer, name) for name in names}


# ---- from SB3


def from_sb3(cls: type[BufferT], buffer: ReplayBuffer, settings: dict[str, Any]) -> BufferT:
    """
    Make a prioritized buffer of SB3's, see :meth:`PrioritizedReplayBuffer.from_replay_buffer`.

    :param cls: class of the new buffer
    :param buffer: of SB3, of the kind of storage of this class
    :param settings: of prioritization; ``n_steps`` and ``gamma`` stay those of an ``NStepReplayBuffer``
    :return: the new buffer
    :raises ValueError: for a reward that is NaN or infinite
    """
    require_finite_rewards(buffer.rewards[: buffer.size()])
    if isinstance(buffer, NStepReplayBuffer):
        settings = {"n_steps": buffer.n_steps, "gamma": buffer.gamma, **settings}
    ring, storage = recording_of(buffer)
    made = _around(cls, buffer, settings, ring, storage, _folder_for(storage, settings))
    state = {"ring": ring.state(), "eligible": episodes_of(buffer), "sampler": made.sampler.state(0)}
    made.experience.load(state, keeps_masses=False)
    return made


def recording_of(buffer: ReplayBuffer) -> Recording:
    """
    Make a ring and a storage for a buffer of SB3, whose arrays are shared.

    :param buffer: of SB3
    :return: both
    """
    return ring_of(buffer), storage_of(buffer)


def _around(
    cls: type[BufferT],
    buffer: ReplayBuffer,
    settings: dict[str, Any],
    ring: Ring,
    storage: Storage,
    folder: Folder | None,
) -> BufferT:
    """
    Make a prioritized buffer of the transitions of another one. It holds none of them before a state is loaded.

    :param cls: class of the new buffer
    :param buffer: has the arguments of SB3's constructor
    :param settings: all settings of the new buffer
    :param ring: of the transitions
    :param storage: of the transitions, which the new buffer uses, or moves into the layout that the settings want
    :param folder: of the files of the new buffer; ``None``: in RAM
    :return: the new buffer
    """
    arguments = {**settings, **arguments_of(buffer)}
    path = arguments.pop("storage_folder", None)
    made = cls(buffer_size=buffer.n_envs, **arguments)  # one row, whose storage is replaced
    if path is not None:
        made.settings = replace(made.settings, storage_folder=path)
    made.start_empty(converted(storage, ring, made.storage.layout, folder))
    return made


def _folder_for(storage: Storage, settings: dict[str, Any]) -> Folder | None:
    """
    Choose the folder of a new buffer.

    :param storage: of the buffer before it
    :param settings: that the user has given. Without ``storage_folder``, files go beside those of the buffer before it
    :return: the folder; ``None``: in RAM
    """
    if "storage_folder" not in settings:
        return folder_of_copy(storage.folder)
    path = settings["storage_folder"]
    return None if path is None else Folder.shared(path)


def layout_of(buffer: ReplayBuffer) -> Layout:
    """
    Describe the transitions of a buffer of SB3.

    :param buffer: of SB3
    :return: their shapes and types, stored in arrays
    """
    observations = keyed(buffer.observations)
    return Layout(
        shapes={key: array.shape[2:] for key, array in observations.items()},
        dtypes={key: array.dtype for key, array in observations.items()},
        action_shape=buffer.actions.shape[2:],
        action_dtype=buffer.actions.dtype,
        shares_next_obs=buffer.optimize_memory_usage,
        handles_timeouts=buffer.handle_timeout_termination,
        keeps_infos=isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict,
    )


def storage_of(buffer: ReplayBuffer) -> Storage:
    """
    Make a storage of SB3's arrays. They are shared, unless a user has set one that is read-only or not contiguous.

    :param buffer: of SB3
    :return: the storage
    """
    layout = layout_of(buffer)
    stores: dict[str | None, ObservationStore] = {}
    for key, array in keyed(buffer.observations).items():
        next_observations = None
        if not layout.shares_next_obs:
            next_observations = writable(keyed(buffer.next_observations)[key])
        stores[key] = ArrayStore(writable(array), next_observations)
    return Storage(
        layout,
        stores,
        actions=writable(buffer.actions),
        rewards=writable(buffer.rewards),
        dones=writable(buffer.dones),
        timeouts=writable(buffer.timeouts),
        infos=buffer.infos if isinstance(buffer, HerReplayBuffer) and layout.keeps_infos else None,
    )


def ring_of(buffer: ReplayBuffer) -> Ring:
    """
    Make a ring that stands where a buffer of SB3 does.

    :param buffer: of SB3
    :return: the ring
    """
    ring = Ring(buffer.buffer_size, buffer.n_envs, buffer.optimize_memory_usage)
    n_present = buffer.pos
    if buffer.full:
        n_present += buffer.buffer_size
    ring.clear(n_present)
    return ring


def episodes_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    Return the episodes that SB3's buffer knows with HER.

    :param buffer: of SB3
    :return: state of the candidates; empty without HER
    """
    if not isinstance(buffer, HerReplayBuffer):
        return {}
    n = buffer.buffer_size if buffer.full else buffer.pos
    return {
        "ep_start": buffer.ep_start[:n],
        "ep_length": buffer.ep_length[:n],
        "current_ep_start": buffer._current_ep_start,  # noqa: SLF001 - SB3 has no other name for it
    }


# ---- to SB3


def to_sb3(buffer: Any) -> ReplayBuffer:
    """
    Make a buffer of SB3, see :meth:`PrioritizedReplayBuffer.to_replay_buffer`.

    :param buffer: prioritized
    :return: the new buffer
    :warns UserWarning: if something is left out that SB3's class does not hold
    """
    sb3_class = sb3_class_of(buffer, buffer.n_steps)
    arguments = arguments_of(buffer)
    if sb3_class is NStepReplayBuffer:
        arguments.update(n_steps=buffer.n_steps, gamma=buffer.gamma)
    left_out = buffer.left_out_of(sb3_class)
    if left_out:
        warnings.warn(f"{sb3_class.__name__} of SB3 does not hold everything. Left out: {', '.join(left_out)}")
    made = sb3_class(buffer.n_envs, **arguments)  # one row, whose arrays are replaced
    fill_sb3(made, buffer.ring, buffer.storage)
    return made


def sb3_class_of(buffer: ReplayBuffer, n_steps: int) -> type[ReplayBuffer]:
    """
    Choose SB3's class for the transitions of a prioritized buffer.

    :param buffer: prioritized
    :param n_steps: number of steps of its n-step returns
    :return: class of SB3; one without n-step returns where SB3 does not have them
    """
    if isinstance(buffer, HerReplayBuffer):
        return HerReplayBuffer
    if isinstance(buffer, DictReplayBuffer):
        return DictReplayBuffer
    if n_steps > 1 and not buffer.optimize_memory_usage:
        return NStepReplayBuffer
    return ReplayBuffer


def fill_sb3(target: ReplayBuffer, ring: Ring, storage: Storage) -> None:
    """
    Put transitions into a new buffer of SB3. Arrays are shared if they have SB3's form, and all environments stand at the same
    step. Otherwise SB3's buffer gets copies: of each environment as many of the newest transitions as all of them hold.

    :param target: buffer of one row
    :param ring: of the transitions
    :param storage: of the same transitions
    """
    n_held = int((ring.next_steps - ring.oldest_held).min())
    if not (ring.all_at_same_step and storage.has_plain_arrays):
        storage = _with_one_cursor(ring, storage, n_held)
    target.buffer_size = ring.n_rows
    target.pos = ring.pos if ring.all_at_same_step else n_held % ring.n_rows
    target.full = n_held == ring.n_rows
    for name, array in storage.arrays().items():
        setattr(target, name, dict(array) if isinstance(array, dict) else array)


def _with_one_cursor(ring: Ring, storage: Storage, n_held: int) -> Storage:
    """Copy the newest steps of each environment into arrays, in the same rows for all: SB3 has one cursor for all."""
    plain = make_storage(storage.layout.as_arrays(), ring.n_rows, ring.n_envs, None)
    first_steps = ring.next_steps - n_held
    first_rows = np.zeros(ring.n_envs, np.int64)
    if ring.all_at_same_step:
        first_rows = first_steps % ring.n_rows
    for envs, steps in ring.in_order(first_steps):
        rows = (steps - first_steps[envs] + first_rows[envs]) % ring.n_rows
        plain.write(rows, envs, storage.read_steps(ring.slots_of_steps(steps, envs)))
    return plain


# ---- between prioritized buffers


def kept_settings(buffer: Any, without: Collection[str] = (), cls: type | None = None) -> dict[str, Any]:
    """
    List the settings of a buffer that a change leaves as they are.

    :param buffer: prioritized
    :param without: names of settings that will be replaced
    :param cls: class that takes them, if it is another one: a buffer of transitions has no sequence length
    :return: settings by name. Of the scheme none if another one replaces it, and the object if nothing of it is replaced
    """
    settings = buffer.settings
    kept = {name: getattr(settings, name) for name in settings.names() if name not in SCHEME_SETTINGS}
    if set(without).isdisjoint(SCHEME_SETTINGS):
        kept["scheme"] = buffer.scheme
    elif "scheme" not in without:
        kept.update(arguments_for(buffer.scheme))
    extra = extra_arguments_of(buffer)
    kept.update((name, value) for name, value in extra.items() if name in extra_names(cls or type(buffer)))
    return kept


def rebuilt(cls: type[BufferT], buffer: Any, settings: dict[str, Any]) -> BufferT:
    """
    Change class or settings of a buffer, see :meth:`PrioritizedReplayBuffer.from_replay_buffer`.

    :param cls: class of the new buffer
    :param buffer: prioritized, of the kind of storage of this class; not to be used any more
    :param settings: that change
    :return: the new buffer
    """
    settings = with_both_betas(settings)
    all_settings = {**kept_settings(buffer, settings, cls), **settings}
    folder = _folder_for(buffer.storage, settings)
    made = _around(cls, buffer, all_settings, buffer.ring, buffer.storage, folder)
    # Masses are valid only with the same scheme, and where they belong to the same thing.
    has_same_scheme = made.scheme.equals(buffer.scheme)
    has_same_owner = made.sampler.candidates.mass_owner == buffer.sampler.candidates.mass_owner
    keeps_masses = has_same_scheme and has_same_owner
    made.demonstrations.take_over(buffer.demonstrations, keeps_masses)
    made.load(buffer.state(), keeps_masses)
    return made


def empty_twin(buffer: BufferT, n_rows: int, frames: int | dict[str, int] | None) -> BufferT:
    """
    Make an empty buffer of the same kind with the same settings, in the same folder.

    :param buffer: prioritized
    :param n_rows: number of rows of the new buffer
    :param frames: setting ``frames`` of the new buffer
    :return: the new buffer
    """
    extra = extra_arguments_of(buffer)
    twin = type(buffer)(buffer_size=buffer.n_envs, **arguments_of(buffer), **extra)  # one row, whose storage is replaced
    twin.settings = replace(buffer.settings, frames=frames)
    layout: Layout = replace(buffer.storage.layout, frames=frames_by_key(frames, buffer.observation_space))
    twin.start_empty(make_storage(layout, n_rows, buffer.n_envs, folder_of_copy(buffer.storage.folder)))
    if buffer.draw_record is not None:
        twin.draw_record = buffer.draw_record.emptied(twin.ring.capacity)
    return twin


def copy_newest(source: Any, target: Any, keeps_masses: bool) -> None:
    """
    Fill an empty buffer with the newest steps of another one that fit, for each environment, with its demonstrations, beta and
    largest priority. The transitions get new ids.

    :param source: of any size and with any ``frames``; not to be used any more
    :param target: empty, of the same kind
    :param keeps_masses: whether both have the same scheme; otherwise every transition has the mass of a new one
    """
    target.experience.copy_newest(source.experience, keeps_masses)
    target.demonstrations.take_over(source.demonstrations, keeps_masses)
    target.mixture.share.load(source.mixture.share.progress)
    target.beta_schedule.load(source.beta_schedule.state())
    target.draw_source = target.chosen_draw_source()
