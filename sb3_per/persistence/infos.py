"""Encode info dictionaries as JSON. A HER buffer keeps them with ``copy_info_dict``, and loading a pickle could run code."""

import json
from typing import Any

import numpy as np

# Keys that mark what JSON cannot express.
_ARRAY, _TUPLE = "__array__", "__tuple__"


def encode(infos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Write info dictionaries as JSON.

    :param infos: array of dictionaries, of any shape
    :return: their JSON, uint8 array of shape (n_bytes,), and the end of each, int64 array in the shape of ``infos``
    :raises ValueError: for a value that JSON cannot hold
    """
    texts = [json.dumps(_plain(info, "info")).encode() for info in infos.reshape(-1)]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64).reshape(infos.shape)
    return np.frombuffer(b"".join(texts), np.uint8), ends


def decode(texts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """
    Read info dictionaries from JSON.

    :param texts: first result of :func:`encode`
    :param ends: second result of :func:`encode`
    :return: array of dictionaries, in the shape of ``ends``
    :raises Exception: if these are not info dictionaries as JSON
    """
    infos = np.empty(ends.size, object)
    data, start = texts.tobytes(), 0
    for i, end in enumerate(ends.reshape(-1).tolist()):
        infos[i] = json.loads(data[start:end], object_hook=_special)
        if not isinstance(infos[i], dict):
            raise ValueError(f"{infos[i]!r} is not an info dictionary")
        start = end
    return infos.reshape(ends.shape)


def _plain(value: Any, name: str) -> Any:
    """Express a value in the types of JSON."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return {_ARRAY: [value.dtype.str, list(value.shape) if isinstance(value, np.ndarray) else None, value.tolist()]}
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(part, name) for part in value]}
    if isinstance(value, list):
        return [_plain(part, name) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) and key not in (_ARRAY, _TUPLE) for key in value):
        return {key: _plain(part, f"{name}[{key!r}]") for key, part in value.items()}
    raise ValueError(
        f"{name} is a {type(value).__name__}, which can only be saved as a pickle, and a pickle runs code when it is loaded: "
        "save to a name that does not end in .buffer, or leave out copy_info_dict"
    )


def _special(content: dict[str, Any]) -> Any:
    if content.keys() == {_TUPLE}:
        return tuple(content[_TUPLE])
    if content.keys() == {_ARRAY}:
        dtype, shape, values = content[_ARRAY]
        if np.dtype(dtype).kind not in "biuf":  # no objects, which would be pickles
            raise ValueError(f"arrays of type {dtype!r} are not read")
        array = np.array(values, dtype)
        return array[()] if shape is None else array.reshape(shape)
    return content
