"""
A control for a gain: the same scheme with its priorities shuffled within the batch. It draws as unevenly and takes steps as
small, but does not know which transitions to draw.
"""

import copy
from typing import Any

import numpy as np

from sb3_per.buffers.settings import SCHEME_SETTINGS
from sb3_per.sampling.schemes import make_scheme


def control_of(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Make the control of a setting: each error of a batch becomes the priority of another transition of the batch.

    :param buffer_kwargs: ``replay_buffer_kwargs`` of a setting
    :return: those of its control, with a scheme object that has the settings of the scheme
    """
    rest = {key: value for key, value in buffer_kwargs.items() if key not in SCHEME_SETTINGS}
    control = copy.copy(make_scheme(**{key: value for key, value in buffer_kwargs.items() if key not in rest}))

    class Shuffled(type(control)):  # type: ignore[misc]
        def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
            return np.random.permutation(super().reduce(abs_td_errors))

    control.__class__ = Shuffled
    return {**rest, "scheme": control}
