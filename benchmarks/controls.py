"""
What a gain is held against: the same scheme with its priorities shuffled within the batch. It draws as unevenly and takes
steps as small, and knows nothing of which transitions to draw.
"""

import copy
from typing import Any

import numpy as np

from sb3_per import PriorityScheme
from sb3_per.sampling.schemes import make_scheme

SHUFFLED = "shuffled "
_SETTINGS = ("alpha", "epsilon", "kappa", "td_error_reduction")


def shuffled(scheme: PriorityScheme) -> PriorityScheme:
    """
    :param scheme: any
    :return: the same, but each error of a batch becomes the priority of another transition of the batch
    """

    class Shuffled(type(scheme)):  # type: ignore[misc]
        def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
            return np.random.permutation(super().reduce(abs_td_errors))

    control = copy.copy(scheme)
    control.__class__ = Shuffled
    return control


def control_of(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    :param buffer_kwargs: ``replay_buffer_kwargs`` of a setting, its scheme by name
    :return: those of its control, whose scheme has a name, too, as the settings of a run must be written down
    """
    return {**buffer_kwargs, "scheme": SHUFFLED + buffer_kwargs.get("scheme", "proportional")}


def with_control(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    :param buffer_kwargs: ``replay_buffer_kwargs``, whose scheme may be called ``"shuffled proportional"``
    :return: the same, with a scheme object in its place
    """
    name = buffer_kwargs.get("scheme", "")
    if not isinstance(name, str) or not name.startswith(SHUFFLED):
        return buffer_kwargs
    rest = {key: value for key, value in buffer_kwargs.items() if key not in ("scheme", *_SETTINGS)}
    settings = {key: value for key, value in buffer_kwargs.items() if key in _SETTINGS}
    return {**rest, "scheme": shuffled(make_scheme(name.removeprefix(SHUFFLED), **settings))}
