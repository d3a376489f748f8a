"""Checks of arguments: what is allowed passes, and anything else gets a message with name and value."""

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_per.utils.checks import ABOVE_0, AT_LEAST_0, FLAG, FRACTION, PATH, Allowed, check_argument, integer, words
from sb3_per.utils.lock import Lock

NAN, INF = float("nan"), float("inf")
CASES: list[tuple[Allowed, tuple[Any, ...], tuple[Any, ...]]] = [
    (integer(), (1, 7, np.int64(2)), (0, -1, 1.0, True, "1", None, np.float32(1))),
    (integer(0), (0, np.uint8(0)), (-1, False)),
    (FRACTION, (0, 1, 0.5, np.float32(0.25), np.array(0.5)), (-0.1, 1.1, NAN, "0.5", True, None, [0.5])),
    (AT_LEAST_0, (0, 1e300), (-1e-300, INF, NAN)),
    (ABOVE_0, (1e-300, 3), (0, INF, -1)),
    (FLAG, (True, False, 0, 1, np.True_), (2, "True", None, 1.0)),
    (PATH, ("x", Path("x")), ("", 3, None)),
    (words("a", "b"), ("a", "b"), ("c", "", 1, None)),
]


@pytest.mark.parametrize("allowed, right, wrong", CASES, ids=[allowed.text for allowed, _, _ in CASES])
def test_what_is_allowed(allowed, right, wrong):
    for value in right:
        check_argument("size", value, allowed)
    for value in wrong:
        with pytest.raises(ValueError) as caught:
            check_argument("size", value, allowed)
        assert str(caught.value).startswith(f"size must be {allowed.text}, not {value!r}")


def test_none_is_allowed_only_where_it_is_said():
    check_argument("size", None, integer(), or_none=True)
    with pytest.raises(ValueError, match="size must be None or an integer of at least 1 or 'all', not 'some'"):
        check_argument("size", "some", integer(), words("all"), or_none=True)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda lock: pickle.loads(pickle.dumps(lock))])
def test_the_copy_of_a_lock_is_another_lock_that_is_free(copied):
    lock = Lock()
    found = []
    with lock, lock:  # reentrant
        made = copied(lock)
        for each in (lock, made):
            thread = threading.Thread(target=lambda: found.append(each.acquire(blocking=False)))  # noqa: B023 - joined at once
            thread.start()
            thread.join()
    assert found == [False, True]
