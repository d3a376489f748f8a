"""Describe a buffer for the manifest of its files, which must fit the buffer that they are loaded for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.persistence.array_rows import ArrayRows
from sb3_per.persistence.generations import to_json
from sb3_per.persistence.streams import stream_of
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import SCHEMES, PriorityScheme

# Names of the spaces in files: all that SB3's buffers take.
_SPACES: dict[str, type[spaces.Space]] = {
    "box": spaces.Box,
    "discrete": spaces.Discrete,
    "multi discrete": spaces.MultiDiscrete,
    "multi binary": spaces.MultiBinary,
}

# Facts in which a saved buffer and the buffer of the model must be equal.
MUST_FIT = ("kind", "observation_space", "action_space", "n_envs", "optimize_memory_usage", "sequences")

# |td| of two critics, whose masses tell a user's schemes apart.
_TD_ERRORS = np.outer([0.013, 0.17, 0.71, 1.9, 13.7, 137.0], [1.0, 0.6])


def describe_buffer(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """
    Describe a buffer, to tell whether its files fit another one.

    :param buffer: prioritized buffer
    :return: kind, spaces, layout and scheme of the buffer, as they are in a manifest
    :raises ValueError: for what a directory cannot hold: infos, or settings of a scheme that are no numbers or texts
    """
    facts = {
        **buffer.describe_for_files(),
        "observation_space": describe_space(buffer.observation_space, with_bounds=False),
        "action_space": describe_space(buffer.action_space, with_bounds=True),
        "arrays_by_row": {
            rows.name: [rows.holder.dtype.str, rows.holder.shape[2:]]
            for rows in stream_of(buffer).rows
            if isinstance(rows, ArrayRows) and rows.is_plain
        },
        # A mass has a meaning only together with its scheme and with what is drawn.
        "scheme": {**_describe_scheme(buffer.priority_sampler), "unit": buffer.mass_owner},
    }
    return dict(json.loads(to_json(facts)))  # so that it equals what is read from a manifest


def describe_space(space: spaces.Space, with_bounds: bool) -> dict[str, Any]:
    """
    Describe a space.

    :param space: space of observations or actions
    :param with_bounds: whether bounds matter: stored actions are scaled with them, observations are not
    :return: description of the space, as JSON can hold it
    """
    if isinstance(space, spaces.Dict):
        return {"type": "dict", "spaces": {str(key): describe_space(part, with_bounds) for key, part in space.spaces.items()}}
    kind = next(name for name, cls in _SPACES.items() if isinstance(space, cls))
    described: dict[str, Any] = {"type": kind, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    for name in ("n", "start", "nvec", *(("low", "high") if with_bounds else ())):
        if hasattr(space, name):
            described[name] = np.asarray(getattr(space, name)).tolist()
    return described


def _describe_scheme(sampler: Sampler) -> dict[str, Any]:
    """
    Return the name of a scheme and its settings, as JSON can hold them. A user's scheme has no name in files: some of its
    masses take the place of one. They are rounded, because the last digits differ between processors.
    """
    scheme = sampler.scheme
    settings = {}
    for name, value in scheme.settings.items():
        if isinstance(value, PriorityScheme):
            raise ValueError(f"a directory cannot hold {scheme}: save to a name that does not end in .buffer")
        plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        try:
            json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{type(scheme).__name__}.{name} is {value!r}, which a directory cannot hold: begin its name with an "
                "underscore if priorities do not depend on it, or save to a name that does not end in .buffer"
            ) from error
        settings[name] = plain
    names = {made_by: name for name, made_by in SCHEMES.items()}
    if type(scheme) in names:
        return {"name": names[type(scheme)], "settings": settings}
    masses, _ = sampler.evaluate(_TD_ERRORS)
    return {"name": "own", "settings": settings, "masses": [float(f"{mass:.6g}") for mass in masses]}


def require_fit(path: Path, fact: str, found: Any, expected: Any) -> None:
    """
    Check that a saved buffer fits the one of the model.

    :raises ValueError: if it does not
    """
    if found != expected:
        raise ValueError(f"{path} does not fit this model: it has {fact} {found}, and the model has {expected}")
