"""Read what YAML leaves as text in a hyperparameter file, and check names and learning rates."""

import re
from typing import Any

from sb3_per.buffers.settings import OTHER_NAMES, SETTING_NAMES, setting_hint

# A number in scientific notation without a point, such as 1e-3, is text for YAML.
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"
_PLAIN_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"

# Hyperparameters that may be schedules.
_SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")


def with_numbers(hyperparams: dict[str, Any]) -> dict[str, Any]:
    """
    Turn text such as ``"1e-3"`` into numbers.

    :param hyperparams: hyperparameters of a file; its ``replay_buffer_kwargs`` may be a dictionary
    :return: hyperparameters, with an integer where a number is whole
    """
    return {name: _with_number(value) for name, value in hyperparams.items()}


def _with_number(value: Any) -> Any:
    if isinstance(value, dict):
        return with_numbers(value)
    if not isinstance(value, str) or re.fullmatch(_NUMBER, value.strip()) is None:
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def check_schedules(hyperparams: dict[str, Any]) -> None:
    """
    Refuse a schedule that the Zoo cannot read.

    :param hyperparams: hyperparameters, after :func:`with_numbers`
    :raises ValueError: for text that is not a linear schedule; the message names the value and says what is allowed
    """
    for name in _SCHEDULES:
        value = hyperparams.get(name)
        if isinstance(value, str) and re.fullmatch(rf"[^_]+_{_PLAIN_NUMBER}", value) is None:
            raise ValueError(f"{name}: {value!r} is neither a number nor a linear schedule: write e.g. 0.001 or lin_0.001")


def check_names(hyperparams: dict[str, Any], form: str = "replay_buffer_kwargs=dict({})") -> None:
    """
    Refuse settings of the buffer that stand beside the arguments of the algorithm, as in files for older libraries.

    :param hyperparams: hyperparameters of a file or of the command line
    :param form: how a setting is written there
    :raises ValueError: for such a name; the message says where it belongs
    """
    for name, value in hyperparams.items():
        meant = OTHER_NAMES.get(name, name)
        if meant in SETTING_NAMES and meant not in ("n_steps", "gamma"):
            raise ValueError(f"{name} is a setting of the buffer: write {form.format(f'{meant}={value!r}')}")
        if name == "prioritized_replay":
            raise ValueError(f"{name}{setting_hint(name, ())}")
