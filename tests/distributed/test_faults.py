"""Actors that die, raise, hang or start slowly."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN
from sb3_per.distributed import NoActorAliveError
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import LocalEngine
from tests.distributed.envs import Tracked, Unlucky
from tests.distributed.helpers import assert_columns_hold, local, on_engine, small


class Mortal(LocalEngine):
    """Let tests kill actors, as processes of Ray can be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[int] = set()

    def start(self, actor: int, *args: Any) -> None:
        super().start(actor, *args)
        self.dead.discard(actor)

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.is_lost = actor in self.dead
        return handle

    def wait(self, handles: Any, timeout: float) -> Any:
        return handles[0] if handles[0].is_lost else super().wait(handles, timeout)

    def answer(self, handle: Any) -> Any:
        if handle.is_lost:
            raise RuntimeError("killed")
        return super().answer(handle)


class Slow(LocalEngine):
    """Give no answer in the first three waits. ``started`` has the actors whose processes run."""

    def __init__(self, started: set[int]):
        super().__init__()
        self.started, self.n_silent = started, 3

    def has_started(self, actor: int) -> bool:
        return actor in self.started

    def wait(self, handles: Any, timeout: float) -> Any:
        if self.n_silent > 0:
            self.n_silent -= 1
            time.sleep(0.02)
            return None
        return super().wait(handles, timeout)


@pytest.mark.parametrize("continues", [False, True])
def test_an_actor_killed_between_two_runs_is_restarted(continues, monkeypatch):
    engine = Mortal()
    env = on_engine(engine, monkeypatch, Tracked, 2)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(60)
    engine.dead.add(0)
    model.learn(60, reset_num_timesteps=not continues)
    assert env.crew.restarts == 1 and not env.crew.closed
    assert model.replay_buffer.ring.added.sum() == 120
    assert_columns_hold(model.replay_buffer)


class FailsToReset(Tracked):
    """Raise an error in the first ``n_failures`` resets of all processes together. A file counts the resets."""

    def __init__(self, folder: str, n_failures: int):
        super().__init__()
        self.log, self.n_failures = Path(folder, "resets"), n_failures

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        with self.log.open("a") as file:
            file.write(f"{seed}\n")
        if len(self.log.read_text().splitlines()) <= self.n_failures:
            raise ArithmeticError("the first reset is broken")
        return super().reset(seed=seed, options=options)


def test_a_first_reset_that_raises_once_restarts_the_actor(tmp_path):
    env = local(FailsToReset, 2, env_kwargs=dict(folder=str(tmp_path), n_failures=1))
    model = small(PERDQN, env)
    model.learn(60)
    assert env.crew.restarts == 1 and model.num_timesteps == 60
    seeds = (tmp_path / "resets").read_text().split()[:3]
    assert len(set(seeds)) == 3 and "None" not in seeds  # the new actor has its own seed


def test_a_reset_that_always_raises_ends_the_run_with_its_error(tmp_path):
    env = local(FailsToReset, 1, env_kwargs=dict(folder=str(tmp_path), n_failures=100))
    with pytest.raises(ArithmeticError, match="first reset is broken"):
        small(PERDQN, env).learn(60)
    assert env.crew.restarts == 3 and env.crew.closed


def test_a_slow_reset_warns_and_names_the_actors(monkeypatch):
    engine = Slow({0, 1})
    engine.n_silent = 0
    env = on_engine(engine, monkeypatch, Tracked, 2, timeout=0.01)
    model = small(PERDQN, env)
    engine.n_silent = 3
    with pytest.warns(UserWarning, match=r"resetting their environments: \[0, 1\]"):
        model.learn(20)
    assert model.num_timesteps == 20


def test_a_slow_start_warns_if_a_process_runs(monkeypatch):
    with pytest.warns(UserWarning, match=r"still starting.*\[0, 1\]"):
        env = on_engine(Slow({1}), monkeypatch, Tracked, 2, timeout=0.01)
    assert env.num_envs == 2


def test_a_start_raises_if_no_process_runs_within_timeout(monkeypatch):
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        on_engine(Slow(set()), monkeypatch, Tracked, 2, timeout=0.01)


def test_seeds_differ_between_actors_and_after_a_restart(monkeypatch):
    env = local(Unlucky, 3, n_envs=2, seed=5, env_kwargs=dict(lifetime=30), max_restarts=100)
    seeds, ask = [], env.engine.ask

    def listen(actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "begin":
            seeds.append(args[1])
        return ask(actor, method, *args, **kwargs)

    monkeypatch.setattr(env.engine, "ask", listen)
    model = small(PERDQN, env)
    model.learn(300)
    model.learn(300)
    assert len(seeds) == len(set(seeds)) > 12
    assert len(set(model.replay_buffer.observations[0, :, 0])) == 6
    assert_columns_hold(model.replay_buffer)
    workers = env.engine.workers.values()
    assert len({worker.random.state[1][1].tobytes() for worker in workers}) == 3


def test_an_environment_that_always_raises_ends_the_run_with_its_error():
    """The run ends after three restarts of an actor without a chunk. The error has the actor's traceback."""
    env = local(Unlucky, 2, env_kwargs=dict(lifetime=0))
    with pytest.raises(ArithmeticError, match="the environment is broken") as caught:
        small(PERDQN, env).learn(100)
    assert str(caught.traceback[-1].path).endswith("tests/distributed/envs.py")
    assert env.crew.restarts == 6 and env.crew.closed  # three restarts of each actor
    with pytest.raises(ValueError, match="make_actors"):
        env.reset()


def test_an_environment_that_raises_sometimes_restarts_its_actor():
    env = local(Unlucky, 2, chunk=5, env_kwargs=dict(lifetime=17), max_restarts=100, in_flight=2)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(200)
    assert model.num_timesteps == 200 == model.replay_buffer.ring.added.sum()
    assert assert_columns_hold(model.replay_buffer) > 0
    assert env.crew.restarts > 5 and env.crew.lost_transitions >= 5 * env.crew.restarts


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_run_ends_after_max_restarts(max_restarts):
    env = local(Unlucky, 1, env_kwargs=dict(lifetime=17), max_restarts=max_restarts)
    with pytest.raises(ArithmeticError):
        small(PERDQN, env).learn(1000)
    assert env.crew.restarts == max_restarts


class Fragile(LocalEngine):
    """Lose an answer and its actor with probability ``p``, and answer in random order."""

    def __init__(self, p: float, seed: int):
        super().__init__()
        self.p, self.rng = p, np.random.default_rng(seed)

    def answer(self, handle: Any) -> Any:
        answer = super().answer(handle)
        if isinstance(answer, Chunk) and self.rng.random() < self.p:
            raise RuntimeError("killed")
        return answer

    def wait(self, handles: Any, timeout: float) -> Any:
        return handles[self.rng.integers(len(handles))]


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 4, 5))])
def test_lost_chunks_are_requested_again_and_end_episodes(seed, monkeypatch):
    """The run has its full length, no transition is stored twice, and no episode continues across a gap."""
    n_envs, chunk = 1 + seed % 3, [1, 4, 9][seed // 2]
    monkeypatch.setattr("sb3_per.distributed.crew.FRUITLESS_RESTARTS", 100)
    kwargs = dict(n_envs=n_envs, chunk=chunk, in_flight=2, max_restarts=1000)
    env = on_engine(Fragile(0.2, seed), monkeypatch, Tracked, 3, **kwargs)
    env.crew.settings = replace(env.crew.settings, lockstep=False)
    model = small(PERDQN, env, buffer_size=5000, n_steps=1 + seed % 2)
    model.learn(211)
    buffer = model.replay_buffer
    assert model.num_timesteps == 211 == buffer.ring.added.sum()
    assert env.crew.restarts > 0 and env.crew.lost_transitions > 0
    assert_columns_hold(buffer)
    model.learn(50, reset_num_timesteps=False)
    assert_columns_hold(buffer)


class Silent(LocalEngine):
    """Give no answer in the next ``n_silent`` waits."""

    n_silent = 0

    def wait(self, handles: Any, timeout: float) -> Any:
        self.n_silent -= 1
        return None if self.n_silent >= 0 else super().wait(handles, timeout)


def test_warnings_about_a_silent_actor_become_rarer(monkeypatch):
    """A long step is not an error. The warnings come after 1, 2, 4 and 8 times ``timeout``, and name the actor."""
    engine = Silent()
    env = on_engine(engine, monkeypatch, Tracked, 2, timeout=3.0)
    model = small(PERDQN, env)

    class Hush(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 2:
                engine.n_silent = 30
            return True

    seconds = iter(range(10**6))
    monkeypatch.setattr("sb3_per.distributed.crew.time.monotonic", lambda: next(seconds))
    with pytest.warns(UserWarning, match=r"a step of an environment takes very long.*\[\d\]") as warned:
        model.learn(40, callback=Hush())
    assert [int(str(warning.message).split()[5]) for warning in warned if "answered" in str(warning.message)] == [3, 6, 12, 24]
