"""Runs on engines that answer in another order, overwrite old answers, or count calls."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sb3_per import PERDQN
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import LocalEngine
from tests.distributed.envs import Tracked
from tests.distributed.helpers import (
    Follower,
    assert_same_run,
    on_engine,
    small,
)


class Unordered(LocalEngine):
    """Return the newest answer first."""

    def wait(self, handles: Any, timeout: float) -> Any:
        return super().wait(handles[::-1], timeout)


class Forgetful(LocalEngine):
    """Overwrite an answer when the next one comes, as a full object store may."""

    given: Any = None
    chunk: Any = None

    def answer(self, handle: Any) -> Any:
        if handle is not self.given and self.given is not None:
            for value in (*self.chunk.steps.values(), *self.chunk.last_obs):
                if isinstance(value, np.ndarray):
                    value.fill(77)
            self.given = None
        answer = super().answer(handle)
        if isinstance(answer, Chunk) and handle is not self.given:
            self.given, self.chunk = handle, copy.deepcopy(answer)
        return self.chunk if handle is self.given else answer


class Counting(LocalEngine):
    """Count the unanswered calls of each actor."""

    def __init__(self) -> None:
        super().__init__()
        self.outstanding: Counter[int] = Counter()
        self.most = 0

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.actor, handle.method = actor, method
        if method == "collect":
            self.outstanding[actor] += 1
            self.most = max(self.most, *self.outstanding.values())
        return handle

    def wait(self, handles: Any, timeout: float) -> Any:
        handle = super().wait(handles, timeout)
        self.outstanding[handle.actor] -= handle.method == "collect"
        return handle


def run_on(engine: Any, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> tuple[Any, Follower]:
    env = on_engine(engine, monkeypatch, Tracked, 3, seed=1, **kwargs)
    model, follower = small(PERDQN, env), Follower()
    model.learn(90, callback=follower)
    return model, follower


@pytest.mark.parametrize("engine", [Unordered, Forgetful])
def test_late_and_overwritten_answers_do_not_change_a_run(engine, monkeypatch):
    """Chunks are used in the order of the calls, and copied before the next answer comes."""
    model, follower = run_on(engine(), monkeypatch)
    expected, expected_follower = run_on(LocalEngine(), monkeypatch)
    assert_same_run(model, expected)
    for seen, other in zip(follower.seen, expected_follower.seen, strict=True):
        for name in ("rewards", "dones", "new_obs"):
            np.testing.assert_array_equal(seen[name], other[name])


def test_an_actor_has_at_most_two_calls_in_flight(monkeypatch):
    engine = Counting()
    run_on(engine, monkeypatch, in_flight=2)
    assert engine.most == 2
