"""Messages between learner and actors: their order, their size, and arrays that do not last."""

import copy
from collections import Counter
from typing import Any

import cloudpickle
import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import LocalEngine
from sb3_per.distributed.worker import ActorWorker
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import Follower, Listening, assert_same_run, local, on_engine, small

pytestmark = pytest.mark.usefixtures("one_thread")


class Unordered(LocalEngine):
    """Return the newest answer first."""

    def wait(self, handles: Any, timeout: float) -> Any:
        return super().wait(handles[::-1], timeout)


class Forgetful(LocalEngine):
    """Overwrite the arrays of a chunk when the learner asks for the next one, as a full object store may."""

    chunk: Any = None

    def answer(self, handle: Any) -> Any:
        if self.chunk is not None:
            for value in (*self.chunk.steps.values(), *self.chunk.last_obs):
                if isinstance(value, np.ndarray):
                    value.fill(77)
            self.chunk = None
        answer = super().answer(handle)
        if not isinstance(answer, Chunk):
            return answer
        self.chunk = copy.deepcopy(answer)
        return self.chunk


class Counting(LocalEngine):
    """Count the unanswered calls of each actor."""

    def __init__(self) -> None:
        super().__init__()
        self.outstanding: Counter[int] = Counter()
        self.most = 0

    def ask(self, actor: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.actor = actor
        self.outstanding[actor] += 1
        self.most = max(self.most, *self.outstanding.values())
        return handle

    def answer(self, handle: Any) -> Any:
        self.outstanding[handle.actor] -= 1
        return super().answer(handle)


def run_on(engine: Any, **kwargs: Any) -> tuple[Any, Follower]:
    model, follower = small(PERDQN, on_engine(engine, 3, seed=1, **kwargs)), Follower()
    model.learn(90, callback=follower)
    return model, follower


def test_late_and_overwritten_answers_do_not_change_a_run():
    """Chunks are used in the order of the calls, and copied before the next answer comes."""
    expected, expected_follower = run_on(LocalEngine())
    for engine in (Unordered(), Forgetful()):
        model, follower = run_on(engine)
        assert_same_run(model, expected)
        for seen, other in zip(follower.seen, expected_follower.seen, strict=True):
            for name in ("rewards", "dones", "new_obs"):
                np.testing.assert_array_equal(seen[name], other[name])


def test_an_actor_has_at_most_two_calls_in_flight():
    engine = Counting()
    run_on(engine, in_flight=2)
    assert engine.most == 2


class Weighing(LocalEngine):
    """Add up the bytes of everything that is sent to actors."""

    n_bytes = 0

    def put(self, value: Any) -> Any:
        self.n_bytes += len(cloudpickle.dumps(value))
        return super().put(value)

    def ask(self, actor: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method in (ActorWorker.begin, ActorWorker.collect):
            self.n_bytes += len(cloudpickle.dumps(args))
        return super().ask(actor, method, *args, **kwargs)


def test_actors_are_never_sent_the_replay_buffer():
    """The buffer has 4 MB. Two runs, of which the second finds transitions in it, send less than a tenth of that."""
    engine = Weighing()
    model = small(PERDQN, on_engine(engine), buffer_size=50_000, gradient_steps=0)
    model.learn(40)
    model.learn(40, reset_num_timesteps=False)
    buffer = model.replay_buffer
    assert buffer.observations.nbytes + buffer.next_observations.nbytes > 1_000_000
    assert 0 < engine.n_bytes < 100_000


def test_infos_may_hold_objects_of_local_classes():
    class Mark:
        pass

    class Marking(Tracked):
        def step(self, action: Any) -> Any:
            *others, _ = super().step(action)
            return *others, {"mark": Mark()}

    seen = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            seen.extend(info["mark"] for info in self.locals["infos"])
            return True

    small(PERDQN, local(Marking)).learn(20, callback=Look())
    assert len(seen) == 20 and all(type(mark).__name__ == "Mark" for mark in seen)


def test_actors_get_the_number_of_transitions_of_the_whole_run():
    """Schedules and warm-up count the transitions of all actors, in the order of the calls."""
    engine = Listening()
    model = small(PERDQN, on_engine(engine, 3, n_envs=2, in_flight=2), learning_starts=0)
    model.learn(120)
    model.learn(30, reset_num_timesteps=False)
    assert [args[2] for _, method, args in engine.calls if method is ActorWorker.collect] == list(range(0, 150, 10))
