"""Give a buffer that was loaded from a pickle the settings of its model."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.conversion import extra_names, kept_settings
from sb3_per.buffers.settings import SCHEME_SETTINGS, BufferSettings
from sb3_per.sampling.schemes import PriorityScheme, arguments_for, make_scheme

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm


def adapted_to_model(model: "PrioritizedAlgorithm", buffer: PrioritizedReplayBuffer) -> PrioritizedReplayBuffer:
    """
    Give a loaded buffer the settings that a model names, and warn of those that differ. The others stay.

    :param model: the algorithm
    :param buffer: prioritized buffer from a file
    :return: the same buffer, or one with the same transitions and the settings of the model
    """
    changed = _changed_settings(model, buffer)
    own_class: Any = model.replay_buffer_class
    if own_class is not type(buffer) and issubclass(own_class, type(buffer)):
        # The model's class, e.g. a user's, may store more than the file has, or elsewhere.
        extra = extra_names(own_class)
        arguments = {name: value for name, value in model._buffer_settings().items() if name in extra}
        made: PrioritizedReplayBuffer = own_class.from_replay_buffer(buffer, **{**arguments, **changed})
        return made
    if changed:
        return type(buffer).from_replay_buffer(buffer, **changed)
    return buffer


def _changed_settings(model: "PrioritizedAlgorithm", buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Collect the settings of a model that differ from those of a loaded buffer, and warn of them."""
    wanted = model._buffer_settings()
    found = kept_settings(buffer)
    wanted_of_scheme = {name: wanted.pop(name) for name in SCHEME_SETTINGS if wanted.get(name) is not None}
    changed = {}
    described = []
    for name, value in wanted.items():
        if name not in found or np.array_equal(found[name], value):  # also of arrays, in a class of the user's
            continue
        changed[name] = value
        if name == "gamma" and model.n_steps == 1:
            continue  # only n-step returns use it
        described.append(f"{name}={found[name]!r} (this model: {value!r})")
    scheme = _wanted_scheme(buffer.scheme, wanted_of_scheme)
    if not scheme.equals(buffer.scheme):
        changed["scheme"] = scheme
        described.append(f"scheme={buffer.scheme!r} (this model: {scheme!r}, all priorities become the largest)")
    if described:
        warnings.warn(f"The loaded buffer has other settings. Those of this model count: {', '.join(described)}")
    return changed


def _wanted_scheme(found: PriorityScheme, wanted: dict[str, Any]) -> PriorityScheme:
    """
    Make the scheme that a model wants for a loaded buffer.

    :param found: scheme of the buffer
    :param wanted: what the user gave of ``SCHEME_SETTINGS``. Without a name, its settings are those of the default scheme
    :return: the scheme. Settings that were not given are those of the buffer, if its scheme is of the same class
    """
    if not wanted:
        return found
    wanted = {"scheme": BufferSettings.scheme, **wanted}
    if not isinstance(wanted["scheme"], PriorityScheme) and type(make_scheme(wanted["scheme"])) is type(found):
        wanted = {**arguments_for(found), **wanted}
    return make_scheme(**wanted)
