"""Actors that die, raise, hang or start slowly."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN
from sb3_per.distributed import NoActorAliveError
from sb3_per.distributed.engines import LocalEngine
from sb3_per.distributed.worker import ActorWorker
from tests.helpers.actor_envs import Tracked, Unlucky
from tests.helpers.actors import Listening, assert_rows_hold, local, on_engine, small

pytestmark = pytest.mark.usefixtures("one_thread")


class Mortal(LocalEngine):
    """Let tests kill actors, as processes of Ray can be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[int] = set()

    def start(self, actor: int, *args: Any) -> None:
        super().start(actor, *args)
        self.dead.discard(actor)

    def ask(self, actor: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.is_lost = actor in self.dead
        return handle

    def answer(self, handle: Any) -> Any:
        if handle.is_lost:
            raise RuntimeError("killed")
        return super().answer(handle)


def test_an_actor_killed_between_two_runs_is_restarted():
    engine = Mortal()
    env = on_engine(engine)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(60)
    engine.dead.add(0)
    model.learn(60, reset_num_timesteps=False)
    assert env.pool.n_restarts_in_run == 1 and not env.pool.closed
    assert model.replay_buffer.numbering.next_id == 120
    assert_rows_hold(model.replay_buffer)


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
    assert env.pool.n_restarts_in_run == 1 and model.num_timesteps == 60
    seeds = (tmp_path / "resets").read_text().split()[:3]
    assert len(set(seeds)) == 3 and "None" not in seeds  # the new actor has its own seed


def test_a_reset_that_always_raises_ends_the_run_with_its_error(tmp_path):
    env = local(FailsToReset, 1, env_kwargs=dict(folder=str(tmp_path), n_failures=100))
    with pytest.raises(ArithmeticError, match="first reset is broken"):
        small(PERDQN, env).learn(60)
    assert env.pool.n_restarts_in_run == 3 and env.pool.closed


def test_an_environment_that_always_raises_ends_the_run_with_its_error():
    """The run ends after three restarts of an actor without a chunk. The error has the actor's traceback."""
    env = local(Unlucky, 2, env_kwargs=dict(lifetime=0))
    with pytest.raises(ArithmeticError, match="the environment is broken") as caught:
        small(PERDQN, env).learn(100)
    assert str(caught.traceback[-1].path).endswith("actor_envs.py")
    assert env.pool.n_restarts_in_run == 6 and env.pool.closed  # three restarts of each actor
    with pytest.raises(ValueError, match="make_actors"):
        env.reset()


def test_an_environment_that_raises_sometimes_restarts_its_actor():
    env = local(Unlucky, 2, env_kwargs=dict(lifetime=17), max_restarts=100, in_flight=2)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(200)
    assert model.num_timesteps == 200 == model.replay_buffer.numbering.next_id
    assert assert_rows_hold(model.replay_buffer) > env.num_envs
    assert env.pool.n_restarts_in_run > 5 and env.pool.lost_transitions >= 5 * env.pool.n_restarts_in_run


def test_a_run_ends_after_max_restarts():
    env = local(Unlucky, 1, env_kwargs=dict(lifetime=17), max_restarts=2)
    with pytest.raises(ArithmeticError):
        small(PERDQN, env).learn(1000)
    assert env.pool.n_restarts_in_run == 2


class Fragile(Listening):
    """Lose an answer and its actor with probability 0.1, and answer in random order."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def answer(self, handle: Any) -> Any:
        n_before = len(self.chunks)
        answer = super().answer(handle)
        if len(self.chunks) > n_before and self.rng.random() < 0.1:
            raise RuntimeError("killed")
        return answer

    def wait(self, handles: Any, timeout: float) -> Any:
        return handles[self.rng.integers(len(handles))]


def test_lost_chunks_are_requested_again_and_end_episodes():
    """The run has its full length, no transition is stored twice, and no episode continues across a gap."""
    env = on_engine(Fragile(0), 3, n_envs=2, chunk=4, in_flight=2, max_restarts=1000, lockstep=False)
    model = small(PERDQN, env, buffer_size=5000, n_steps=3)
    model.learn(211)
    buffer = model.replay_buffer
    assert model.num_timesteps == 211 == buffer.numbering.next_id
    # Two calls of four steps in two environments are under way, of which a restart loses one or both.
    assert 8 * env.pool.n_restarts_in_run < env.pool.lost_transitions <= 16 * env.pool.n_restarts_in_run
    assert_rows_hold(buffer)
    model.learn(50, reset_num_timesteps=False)
    assert_rows_hold(buffer)


def test_seeds_differ_between_actors_runs_and_restarts():
    engine = Fragile(0)
    env = on_engine(engine, 3, n_envs=2, seed=5, max_restarts=100)
    model = small(PERDQN, env, gradient_steps=0)
    model.learn(300)
    model.learn(300)
    seeds = [args[1] for _, method, args in engine.calls if method is ActorWorker.begin]
    assert len(seeds) == len(set(seeds)) > 12
    assert len(set(model.replay_buffer.observations[:, 0, 0])) > 12
    assert_rows_hold(model.replay_buffer)


class Silent(LocalEngine):
    """Give no answer in the next ``n_silent`` waits. ``running`` has the actors whose processes run."""

    def __init__(self, running: set[int], n_silent: int = 0):
        super().__init__()
        self.running = running
        self.n_silent = n_silent
        self.timeouts: list[float] = []

    def is_running(self, actor: int) -> bool:
        return actor in self.running

    def wait(self, handles: Any, timeout: float) -> Any:
        if self.n_silent == 0:
            return super().wait(handles, timeout)
        self.n_silent -= 1
        self.timeouts.append(timeout)
        time.sleep(timeout)
        return None


def test_a_slow_start_warns_if_a_process_runs_and_raises_if_none_does():
    with pytest.warns(UserWarning, match=r"[Ss]till starting.*\[0, 1\]"):
        env = on_engine(Silent({1}, 1), timeout=0.01)
    assert env.num_envs == 2
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        on_engine(Silent(set(), 1), timeout=0.01)


def test_warnings_about_a_silent_actor_become_rarer():
    """A long step is not an error. The learner waits on, and names the actors."""
    engine = Silent({0, 1})
    env = on_engine(engine, timeout=0.01)
    model = small(PERDQN, env)

    class Hush(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 2:
                engine.n_silent = 4
            return True

    with pytest.warns(UserWarning, match=r"step of an environment that takes very long.*\[\d\]") as warned:
        model.learn(40, callback=Hush())
    assert model.num_timesteps == 40
    assert sum("No actor has answered" in str(warning.message) for warning in warned) == 4
    np.testing.assert_allclose(engine.timeouts, [0.01, 0.02, 0.04, 0.08])
