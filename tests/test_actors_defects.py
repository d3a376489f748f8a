"""Deliberate defects in what learner and actors do, each of which a test of ``test_actors.py`` sees."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_per import PERDQN
from sb3_per.distributed import crew, loop, model_copy, streams, worker
from sb3_per.distributed.engines import LocalEngine
from sb3_per.distributed.messages import Failure
from tests import test_actors
from tests.actor_envs import Tracked
from tests.test_actors import Follower, assert_columns_hold, assert_same_run, local, small

# ---- what the tests there do not ask


class Unordered(LocalEngine):
    """Whoever is waited for, another one is there first."""

    def wait(self, handles: Any, timeout: float) -> Any:
        return super().wait(handles[::-1], timeout)


class Forgetful(LocalEngine):
    """As an object store that has no room: what an answer was made of is something else when the next one comes."""

    given: Any = None

    def answer(self, handle: Any) -> Any:
        if handle is not self.given and self.given is not None:
            for value in vars(self.given.answer).values():
                if isinstance(value, np.ndarray):
                    value.fill(77)
            self.given = None
        answer = super().answer(handle)
        if handle.method == "collect" and handle is not self.given:
            self.given, handle.answer = handle, copy.deepcopy(answer)
        return handle.answer


class Counting(LocalEngine):
    """Knows how many calls of an actor have no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.outstanding: Counter[int] = Counter()
        self.most = 0

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.actor = actor
        if method == "collect":
            self.outstanding[actor] += 1
            self.most = max(self.most, *self.outstanding.values())
        return handle

    def wait(self, handles: Any, timeout: float) -> Any:
        handle = super().wait(handles, timeout)
        self.outstanding[handle.actor] -= handle.method == "collect"
        return handle


def run_on(engine: Any, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> tuple[Any, Follower]:
    with monkeypatch.context() as patch:
        patch.setattr("sb3_per.distributed.make.LocalEngine", engine)
        env = local(Tracked, 3, seed=1, **kwargs)
    model, follower = small(PERDQN, env), Follower()
    model.learn(90, callback=follower)
    return model, follower


def same_run_on(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, the buffer, and what callbacks have seen."""
    (model, follower), (expected, expected_follower) = (run_on(each, monkeypatch) for each in (engine, LocalEngine))
    assert_same_run(model, expected)
    for seen, other in zip(follower.seen, expected_follower.seen, strict=True):
        for name in ("rewards", "dones", "new_obs"):
            np.testing.assert_array_equal(seen[name], other[name])


def at_most_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = run_on(Counting, monkeypatch, in_flight=2)
    assert model.env.engine.most == 2


def nothing_is_lost_or_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(PERDQN, local(Tracked, 3, n_envs=2, chunk=5, in_flight=2), buffer_size=1000)
    model.learn(150)
    assert assert_columns_hold(model.replay_buffer) == 0


def counted_as_sb3_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_steps_are_counted_as_sb3_counts_them(3, 2, 4, 101)


def as_a_synchronous_run(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_one_actor_without_lag_is_the_synchronous_algorithm("sac")


def with_noise_as_a_synchronous_run(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_one_actor_without_lag_is_the_synchronous_algorithm("td3")


def statistics_as_of_a_synchronous_run(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_wrappers_are_rebuilt_around_an_actor(loop.VecNormalize)


def chunks_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_lost_chunks(0, monkeypatch)


def errors_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    test_actors.test_an_environment_that_raises_again_and_again()


# ---- the defects


def twice(next_chunk: Any) -> Any:
    def defective(self: Any) -> Any:
        if vars(self).get("again") is None:
            self.again = next_chunk(self)
            return copy.deepcopy(self.again)
        again, self.again = self.again, None
        self._n_steps_left -= len(again.rewards)
        return again

    return defective


def not_asked_for_again(replace: Any) -> Any:
    def defective(self: Any, request: Any, failure: Any) -> None:
        n_left = self._n_steps_left
        replace(self, request, failure)
        self._n_steps_left = n_left

    return defective


def without_order(wait: Any) -> Any:
    def defective(self: Any) -> Any:
        return self.wait(list(self._pending))

    return defective


def five_at_once(done_with: Any) -> Any:
    def defective(self: Any, actor: int) -> None:
        for _ in range(5):
            done_with(self, actor)

    return defective


def all_of_it(init: Any) -> Any:
    return lambda self, chunk, n_left: init(self, chunk, 10**9)


def one_step_a_tick(next_tick: Any) -> Any:
    def defective(self: Any) -> Any:
        n_actors, self.env.n_actors = self.env.n_actors, 1
        try:
            return next_tick(self)
        finally:
            self.env.n_actors = n_actors

    return defective


def own_targets(unpacked: Any) -> Any:
    def defective(content: bytes, *args: Any) -> Any:
        model = unpacked(content, *args)
        model.target_update_interval = 3
        return model

    return defective


def first_priorities_after_an_update(td_errors: Any) -> Any:
    def defective(self: Any) -> np.ndarray:
        for parameter in self.model.q_net.parameters():
            parameter.data.mul_(1.5)
        errors: np.ndarray = td_errors(self)
        return errors

    return defective


def nothing(old: Any) -> Any:
    return lambda *args: None


#: Owner, name of what decides, what stands in its place, and who sees it.
DEFECTS: dict[str, tuple[Any, str, Callable[[Any], Any], Callable[[pytest.MonkeyPatch], None]]] = {
    "a chunk is admitted twice": (crew.Crew, "next_chunk", twice, nothing_is_lost_or_doubled),
    "what was lost is not asked for again": (crew.Crew, "_replace", not_asked_for_again, chunks_get_lost),
    "what follows a lost chunk is joined": (loop.LearningLoop, "_lose", nothing, chunks_get_lost),
    "a gap is cut behind the chunk that is under way, and not behind what came": (
        loop.LearningLoop,
        "_lose",
        lambda lose: loop.LearningLoop._cut,
        chunks_get_lost,
    ),
    "in lockstep, whoever is first": (crew.Crew, "_wait", without_order, lambda patch: same_run_on(Unordered, patch)),
    "views of what an actor has sent": (
        loop,
        "_copied_chunk",
        lambda copied: lambda chunk: chunk,
        lambda patch: same_run_on(Forgetful, patch),
    ),
    "any number of calls": (crew.Crew, "done_with", five_at_once, at_most_two_calls),
    "a run ends with a whole chunk": (loop._Received, "__init__", all_of_it, counted_as_sb3_counts),
    "updates go by the steps of an actor": (loop.LearningLoop, "_next_tick", one_step_a_tick, counted_as_sb3_counts),
    "weights do not arrive": (model_copy, "take_on", nothing, as_a_synchronous_run),
    "random numbers do not come back": (loop.streams, "take_on", nothing, with_noise_as_a_synchronous_run),
    "statistics stay with the actor": (
        loop.LearningLoop,
        "_learn_statistics",
        nothing,
        statistics_as_of_a_synchronous_run,
    ),
    "equal seeds": (
        streams,
        "derived_seed",
        lambda derived: lambda seed, actor, *rest: derived(seed, 0, *rest),
        test_actors.test_seeds_differ_between_actors_and_after_a_restart,
    ),
    "the same seed after a restart": (
        streams,
        "derived_seed",
        lambda derived: lambda seed, actor, start, *rest: derived(seed, actor, 0, *rest),
        test_actors.test_seeds_differ_between_actors_and_after_a_restart,
    ),
    "target networks move while an actor acts": (
        model_copy,
        "unpacked",
        own_targets,
        test_actors.test_target_networks_of_actors_are_the_learners,
    ),
    "priorities by other weights": (
        worker.ActorWorker,
        "_td_errors",
        first_priorities_after_an_update,
        lambda patch: test_actors.test_new_transitions_have_the_priorities_of_actors(),
    ),
    "schedules go by the steps of an actor": (
        loop.LearningLoop,
        "_act",
        lambda act: lambda self, actor, n_steps, n_left: act(self, actor, n_steps, n_left * 3),
        test_actors.test_actors_know_how_far_the_run_is,
    ),
    "restarts hide an error": (crew, "FRUITLESS_RESTARTS", lambda old: 5, errors_end_a_run),
    "an error without the traceback of the actor": (
        Failure,
        "reraise",
        lambda old: lambda self: (_ for _ in ()).throw(self.error),
        errors_end_a_run,
    ),
}

# What takes longest, when there is time.
_SLOW = (
    "random numbers do not come back",
    "statistics stay with the actor",
    "the same seed after a restart",
    "a gap is cut behind the chunk that is under way, and not behind what came",
)


@pytest.mark.parametrize("check", [same_run_on, at_most_two_calls, nothing_is_lost_or_doubled], ids=lambda f: f.__name__)
def test_without_a_defect(check, monkeypatch):
    """The others are tests of ``test_actors.py``."""
    if check is same_run_on:
        check(Unordered, monkeypatch)
        check(Forgetful, monkeypatch)
    else:
        check(monkeypatch)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in DEFECTS])
def test_a_defect_is_seen(name, monkeypatch):
    owner, attribute, change, check = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    with pytest.raises((AssertionError, ValueError, LookupError, TypeError)):
        check(monkeypatch)
