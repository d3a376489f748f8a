"""Observations are an array, or a dictionary of arrays by key: the same functions work with both."""

from collections.abc import Callable
from typing import Any

import numpy as np


def map_arrays(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """
    Apply a function to an array, or to every array of a dictionary.

    :param function: of one array from each tree
    :param tree: array, dictionary of arrays, or ``None``, which stays ``None``
    :param others: in the same form
    :return: the results in the same form
    """
    if isinstance(tree, dict):
        return {key: function(part, *(other[key] for other in others)) for key, part in tree.items()}
    if tree is None:
        return None
    return function(tree, *others)


def keyed(observations: Any) -> dict[str | None, Any]:
    """
    Make a dictionary of observations.

    :param observations: an array, or a dictionary of them
    :return: a dictionary, with the key ``None`` for a single array
    """
    if isinstance(observations, dict):
        return dict(observations)
    return {None: observations}


def join(first: Any, second: Any) -> Any:
    """
    Concatenate two arrays, or the arrays of two dictionaries.

    :param first: an array, a dictionary of arrays, or ``None``
    :param second: the same for other rows
    :return: the rows of both, in this order
    """
    return map_arrays(_concatenate, first, second)


def _concatenate(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate((first, second))


def flat(stored: np.ndarray) -> np.ndarray:
    """
    View an array by slot.

    :param stored: one of SB3's arrays, shape (n_rows, n_envs, ...), contiguous
    :return: a view of shape (capacity, ...); a copy if the array is not contiguous
    """
    return stored.reshape(-1, *stored.shape[2:])


def read_slots(stored: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """
    Read slots. ``take`` from the flat view is several times faster than ``stored[rows, envs]``.

    :param stored: array of shape (n_rows, n_envs, ...)
    :param slots: integers of any shape
    :return: a copy, shape (\\*slots.shape, ...)
    """
    return flat(stored).take(slots, axis=0)
