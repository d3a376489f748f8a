"""The control of a setting: the same setting with its priorities shuffled within the batch."""

from typing import Any

from sb3_per.buffers.settings import SCHEME_SETTINGS
from sb3_per.sampling.schemes import make_scheme
from sb3_per.sampling.shuffled import Shuffled


def control_of(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Make the control of a setting.

    :param buffer_kwargs: ``replay_buffer_kwargs`` of the setting
    :return: those of its control, whose scheme object has the settings of the scheme
    """
    scheme_settings = {name: value for name, value in buffer_kwargs.items() if name in SCHEME_SETTINGS}
    others = {name: value for name, value in buffer_kwargs.items() if name not in SCHEME_SETTINGS}
    return {**others, "scheme": Shuffled(make_scheme(**scheme_settings))}
