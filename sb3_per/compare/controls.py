"""
A control for a gain: the same scheme with its priorities shuffled within the batch. It draws as unevenly and takes steps as
small, but does not know which transitions to draw.
"""

import copy
from typing import Any

import numpy as np

from sb3_per.sampling.schemes import PriorityScheme, make_scheme

SHUFFLED = "shuffled "
_SETTINGS = ("alpha", "epsilon", "kappa", "td_error_reduction")


def shuffled(scheme: PriorityScheme) -> PriorityScheme:
    """
    Shuffle the priorities of a scheme.

    :param scheme: a scheme object
    :return: copy in which each error of a batch becomes the priority of another transition of the batch
    """

    class Shuffled(type(scheme)):  # type: ignore[misc]
        def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
            return np.random.permutation(super().reduce(abs_td_errors))

    control = copy.copy(scheme)
    control.__class__ = Shuffled
    return control


def control_of(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Make the control of a setting.

    :param buffer_kwargs: ``replay_buffer_kwargs`` of a setting
    :return: those of its control; the scheme has a name, too, e.g. ``"shuffled lap"``, unless it was an object
    """
    scheme = buffer_kwargs.get("scheme", "proportional")
    return {**buffer_kwargs, "scheme": SHUFFLED + scheme if isinstance(scheme, str) else shuffled(scheme)}


def with_control(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Make the scheme of a control.

    :param buffer_kwargs: ``replay_buffer_kwargs``, whose scheme may be called ``"shuffled proportional"``
    :return: the same, with a scheme object in place of such a name
    """
    name = buffer_kwargs.get("scheme", "")
    if not isinstance(name, str) or not name.startswith(SHUFFLED):
        return buffer_kwargs
    rest = {key: value for key, value in buffer_kwargs.items() if key not in ("scheme", *_SETTINGS)}
    settings = {key: value for key, value in buffer_kwargs.items() if key in _SETTINGS}
    return {**rest, "scheme": shuffled(make_scheme(name.removeprefix(SHUFFLED), **settings))}
