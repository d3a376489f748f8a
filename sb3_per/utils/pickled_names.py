"""Attributes that have another name in pickles, whose form is older."""

from collections.abc import Mapping
from typing import Any


def with_pickled_names(attributes: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """
    Return what a pickle holds of an object.

    :param attributes: of the object
    :param names: names in pickles by the names of attributes, where they differ
    :return: a copy
    """
    return {names.get(name, name): value for name, value in attributes.items()}


def with_own_names(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """
    Undo :func:`with_pickled_names`.

    :param state: from a pickle
    :param names: as there
    :return: attributes of the object
    """
    own = {pickled: name for name, pickled in names.items()}
    return {own.get(name, name): value for name, value in state.items()}
