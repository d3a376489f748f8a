"""
Info dictionaries as JSON: what hindsight keeps of them with ``copy_info_dict``, without the pickles that could run code.
"""

import json
import re
from typing import Any

import numpy as np

# What JSON has no word for; the key that says which it is.
_ARRAY, _TUPLE = "__array__", "__tuple__"

# Booleans, integers and floats: no objects, which would be pickles.
_PLAIN_TYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


def encode(infos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    :param infos: dictionaries, an array of objects of any shape
    :return: all of them as JSON, uint8 of shape (bytes,), and where each ends, int64 in the shape of ``infos``
    :raises ValueError: for a value that JSON cannot hold
    """
    texts = [json.dumps(_plain(info, "info")).encode() for info in infos.reshape(-1)]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64).reshape(infos.shape)
    return np.frombuffer(b"".join(texts), np.uint8), ends


def decode(texts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """
    :param texts: what :func:`encode` gave
    :param ends: likewise
    :return: the dictionaries, an array of objects in the shape of ``ends``
    :raises ValueError: for anything else
    """
    infos = np.empty(ends.size, object)
    data, start = texts.tobytes(), 0
    for i, end in enumerate(ends.reshape(-1).tolist()):
        infos[i] = json.loads(data[start:end], object_hook=_special)
        if not isinstance(infos[i], dict):
            raise ValueError(f"{infos[i]!r} is no info dictionary")
        start = end
    return infos.reshape(ends.shape)


def _plain(value: Any, name: str) -> Any:
    """The same of what JSON knows."""
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
        f"{name} is a {type(value).__name__}, which can only be saved as a pickle, and those run code when they are loaded: "
        "save under another name than .buffer, or do without copy_info_dict"
    )


def _special(content: dict[str, Any]) -> Any:
    if content.keys() == {_TUPLE}:
        return tuple(content[_TUPLE])
    if content.keys() == {_ARRAY}:
        dtype, shape, values = content[_ARRAY]
        if not _PLAIN_TYPE.fullmatch(dtype):
            raise ValueError(f"arrays of type {dtype!r} are not read")
        array = np.array(values, dtype)
        return array[()] if shape is None else array.reshape(shape)
    return content
