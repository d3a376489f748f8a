"""Actors that die, raise, hang or start slowly."""

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.distributed import NoActorAliveError
from sb3_per.distributed.engines import ActorDiedError, LocalEngine
from sb3_per.distributed.messages import Chunk
from sb3_per.distributed.recorder import Recorder
from tests.actor_envs import Tracked
from tests.test_actors import assert_columns_hold, local, small


class Mortal(LocalEngine):
    """Actors can be killed, as the processes of Ray can."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[int] = set()

    def start(self, actor: int) -> None:
        super().start(actor)
        self.dead.discard(actor)

    def ask(self, actor: int, method: str, *args: Any, **kwargs: Any) -> Any:
        handle = super().ask(actor, method, *args, **kwargs)
        handle.is_lost = actor in self.dead
        return handle

    def wait(self, handles: Any, timeout: float) -> Any:
        return handles[0] if handles[0].is_lost else super().wait(handles, timeout)

    def answer(self, handle: Any) -> Any:
        if handle.is_lost:
            raise ActorDiedError("killed")
        return super().answer(handle)


class Slow(LocalEngine):
    """The first answers take a while; ``has_started`` says whether the processes run by then."""

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


def on_engine(engine: Any, monkeypatch: pytest.MonkeyPatch, *args: Any, **kwargs: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr("sb3_per.distributed.make.LocalEngine", lambda: engine)
        return local(*args, **kwargs)


# ---- the reset that opens learn()


@pytest.mark.parametrize("continues", [False, True])
def test_an_actor_killed_between_two_runs_is_restarted(continues, monkeypatch):
    engine = Mortal()
    env = on_engine(engine, monkeypatch, Tracked, 2)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(60)
    engine.dead.add(0)
    model.learn(60, reset_num_timesteps=not continues)
    assert env.crew.restarts == 1 and not env.closed
    assert model.replay_buffer.column_steps.sum() == 120
    assert_columns_hold(model.replay_buffer)


class FailsToReset(Tracked):
    """Raises in its first resets, over all of its processes: a file counts them."""

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
    assert len(set(seeds)) == 3 and "None" not in seeds  # two actors, and the new one has a seed of its own


def test_a_reset_that_always_raises_ends_the_run_with_its_error(tmp_path):
    env = local(FailsToReset, 1, env_kwargs=dict(folder=str(tmp_path), n_failures=100))
    with pytest.raises(ArithmeticError, match="first reset is broken"):
        small(PERDQN, env).learn(60)
    assert env.crew.restarts == 3 and env.closed


def test_a_reset_that_takes_long_is_a_warning_that_names_the_actor(monkeypatch):
    engine = Slow({0, 1})
    engine.n_silent = 0
    env = on_engine(engine, monkeypatch, Tracked, 2, timeout=0.01)
    model = small(PERDQN, env)
    engine.n_silent = 3
    with pytest.warns(UserWarning, match=r"resetting their environments: \[0, 1\]"):
        model.learn(20)
    assert model.num_timesteps == 20


def test_acting_environments_cannot_be_reset_or_stepped():
    """Their transitions would no longer follow each other."""
    env = local(Tracked)

    class Meddle(BaseCallback):
        def _on_step(self) -> bool:
            for use in (env.reset, lambda: env.step(np.zeros(2, int))):
                with pytest.raises(ValueError, match="while an algorithm learns"):
                    use()
            return True

    small(PERDQN, env).learn(20, callback=Meddle())


# ---- timeout


def test_timeout_does_not_count_the_start_of_a_process_that_lives(monkeypatch):
    with pytest.warns(UserWarning, match=r"still starting.*\[0, 1\]"):
        env = on_engine(Slow({1}), monkeypatch, Tracked, 2, timeout=0.01)
    assert env.num_envs == 2


def test_no_process_for_as_long_as_timeout_is_an_error(monkeypatch):
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        on_engine(Slow(set()), monkeypatch, Tracked, 2, timeout=0.01)


# ---- what an environment says


class Speaks(Tracked):
    """Its infos hold what the first argument makes."""

    def __init__(self, make: Any):
        super().__init__()
        self.make = make

    def step(self, action: Any) -> Any:
        *others, _ = super().step(action)
        return *others, {"said": self.make()}


def test_infos_may_hold_objects_of_classes_that_no_module_has():
    class Mark:
        pass

    seen = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            seen.extend(info["said"] for info in self.locals["infos"])
            return True

    small(PERDQN, local(Speaks, env_kwargs=dict(make=Mark))).learn(20, callback=Look())
    assert len(seen) == 20 and all(isinstance(said, Mark) for said in seen)


class Interrupts(Tracked):
    def __init__(self, error: type[BaseException]):
        super().__init__()
        self.error = error

    def step(self, action: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_process_of_ray_is_a_fault_as_any_other(error):
    pytest.importorskip("ray")
    from sb3_per.distributed.messages import EnvRecipe, Failure
    from sb3_per.distributed.ray_engine import process_class

    process = process_class()([])
    recipe = EnvRecipe(dict(env_id=lambda: Interrupts(error)), 1).packed()
    process.call("build", recipe, 0, 0)
    process.call("reset", recipe, 0, 0, [None], [{}])
    answer = process.call("step", np.zeros(1, int))
    assert isinstance(answer, Failure)
    with pytest.raises(RuntimeError, match=error.__name__):
        answer.reraise()


# ---- what a run leaves alone


def test_local_actors_leave_sys_path_alone(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path, "no/such/folder"])
    before = list(sys.path)
    local(Tracked).reset()
    assert sys.path == before


def test_a_recorder_without_steps_makes_an_empty_chunk():
    box = spaces.Box(-1, 1, (3,), np.float32)
    recorder = Recorder(PrioritizedReplayBuffer(8, box, box, n_envs=2))
    recorder.clear()
    fields = dict(actor=0, version=0, td_errors=None, last_obs=None, last_original_obs=None, random_state=None)
    chunk = Chunk(**fields, **recorder.columns())
    assert chunk.rewards.shape == (0, 2) and chunk.obs.shape == (0, 2, 3) and pickle.loads(chunk.infos) == []


def test_a_buffer_pickled_in_a_run_keeps_its_own_initial_priority(tmp_path):
    model = small(PERDQN, local(Tracked))
    priorities = []

    class Save(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 15:
                model.save_replay_buffer(tmp_path / "buffer.pkl")
            priorities.append(pickle.loads(pickle.dumps(model.replay_buffer)).initial_priority)
            return True

    model.learn(40, callback=Save())
    assert set(priorities) == {"max"}
    loaded = small(PERDQN, local(Tracked))
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert loaded.replay_buffer.initial_priority == "max"
