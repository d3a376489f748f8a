"""Actors in processes of their own: the same as in one process, whatever dies; and a ``VecEnv`` like SB3's."""

import copy
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERDQN, PERSAC, BufferCheckpointCallback, latest_checkpoint
from sb3_per.distributed import NoActorAliveError, make_actors
from tests.actor_envs import Images, Mortal, Slow, Tracked, Unlucky
from tests.test_actors import assert_columns_hold, assert_same_run, small
from tests.utils import ROOT, alone_with_ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'sb3_per[distributed]'")

# As small as Ray allows.
STORE = 80_000_000


@pytest.fixture(scope="module", autouse=True)
def alone():
    with alone_with_ray():
        yield


@pytest.fixture(scope="module")
def session(alone):
    """One Ray for all tests of this file, which ends with them, also when they fail."""
    ray.init(num_cpus=2, object_store_memory=STORE, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def closing():
    """Closes environments at the end of a test, also when it fails."""
    envs: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        envs.append(make_actors(*args, **{"chunk": 5, **kwargs}))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


# ---- runs


def test_actors_are_as_in_one_process(session, closing):
    """All that is not slow, in one test: an actor takes seconds to start."""
    actors = closing(Custom, n_actors=2, n_envs=2, lockstep=True, env_kwargs=dict(space=SPACES["dict"]))
    check_lockstep(actors)
    compare_steps(actors, make_vec_env(Custom, n_envs=4, env_kwargs=dict(space=SPACES["dict"])))
    compare_answers(actors, make_vec_env(Custom, n_envs=4))


def check_lockstep(actors: Any) -> None:
    """To the bit, with noise of each actor's own, statistics of observations, and several environments in each."""
    runs = []
    local = make_actors(Custom, n_actors=2, n_envs=2, chunk=5, engine="local", env_kwargs=dict(space=SPACES["dict"]))
    for env in (actors, local, actors):
        env.learning_loop._n_runs = 0  # another run would explore in another way
        model = small(PERSAC, VecNormalize(env, norm_obs_keys=["a"]), "MultiInputPolicy")
        model.learn(80)
        model.learn(30, reset_num_timesteps=False)
        runs.append(model)
    assert_same_run(runs[1], runs[0])
    assert_same_run(runs[2], runs[1])


@pytest.mark.slow
def test_one_actor_in_lockstep_is_the_synchronous_algorithm(session, closing):
    """Random numbers travel with the calls, and come back."""
    runs = []
    for env in (
        make_vec_env("Pendulum-v1"),
        closing("Pendulum-v1", n_actors=1, chunk=1, lockstep=True, initial_priorities="max"),
    ):
        runs.append(small(PERSAC, env))
        runs[-1].learn(60)
    assert_same_run(*runs)


@pytest.mark.slow
def test_a_run_without_lockstep(session, closing, capsys):
    env = closing(Tracked, n_actors=3, n_envs=2)
    model = small(PERDQN, env, buffer_size=2000, verbose=1)
    model.learn(301, log_interval=10)
    assert model.num_timesteps == 301 == model.replay_buffer.column_steps.sum()
    assert assert_columns_hold(model.replay_buffer) == 0
    assert model._n_updates == 13  # of 24 transitions each, the last one of what is left
    assert "samples_per_insert" in capsys.readouterr().out


@pytest.mark.slow
def test_a_process_is_killed(session, closing, tmp_path):
    """The same end, and nothing twice; its environments begin anew, with another seed."""
    env = closing(Mortal, n_actors=2, env_kwargs=dict(folder=str(tmp_path), lifetime=33), max_restarts=1)
    model = small(PERDQN, env, buffer_size=2000)
    model.learn(300)
    assert (tmp_path / "killed").exists()
    assert env.crew.restarts == 1 and env.crew.lost_transitions > 0
    assert model.num_timesteps == 300 == model.replay_buffer.column_steps.sum()
    assert_columns_hold(model.replay_buffer)


@pytest.mark.slow
def test_an_environment_raises(session, closing):
    env = closing(Unlucky, n_actors=1, env_kwargs=dict(lifetime=2))
    with pytest.raises(ArithmeticError, match="is broken") as caught:
        small(PERDQN, env).learn(100)
    assert "tests/actor_envs.py" in str(caught.value.__cause__)
    assert env.crew.restarts == 3 and env.closed
    assert ray.is_initialized()  # it was not started by the environment


@pytest.mark.slow
def test_no_process_within_timeout_is_an_error(session):
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        make_actors(Tracked, n_actors=1, timeout=0.01)


@pytest.mark.slow
def test_environments_may_take_longer_to_make_than_timeout(session, closing):
    class Sleepy(Tracked):
        def __init__(self) -> None:
            time.sleep(4)
            super().__init__()

    with pytest.warns(UserWarning, match=r"still starting.*\[0\]"):
        env = closing(Sleepy, n_actors=1, timeout=1.5)
    assert env.num_envs == 1


class FailsOnce(Tracked):
    """Kills its process in the first reset that comes so far, and interrupts it in the first such step."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = Path(folder)

    def is_first(self, name: str) -> bool:
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def reset(self, **kwargs: Any) -> Any:
        if self.is_first("reset"):
            os._exit(1)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.t == 3 and self.is_first("step"):
            raise KeyboardInterrupt
        *others, _ = super().step(action)
        return *others, {"said": Said()}


class Said:
    pass


@pytest.mark.slow
def test_faults_at_any_time_restart_the_actor(session, closing, tmp_path):
    """In the reset that opens `learn()`, in a step, and between two runs. Infos may be of a class that only a script has."""
    said = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            said.extend(info["said"] for info in self.locals["infos"])
            return True

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as if it were the script
    try:
        env = closing(FailsOnce, n_actors=2, env_kwargs=dict(folder=str(tmp_path)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    model = small(PERDQN, env, buffer_size=2000)
    model.learn(100, callback=Look())
    assert env.crew.restarts == 2 and model.num_timesteps == 100
    assert len(said) == 100 and all(isinstance(one, Said) for one in said)
    os.kill(env.env_method("pid", indices=0)[0], signal.SIGKILL)
    model.learn(60)
    assert env.crew.restarts == 1 and model.num_timesteps == 60
    assert_columns_hold(model.replay_buffer)


@pytest.mark.slow
def test_the_object_store_stays_flat(session, closing):
    """Several times as much goes through it as it has room for, and nothing is left in it."""
    env = closing(Images, n_actors=2, chunk=200, env_kwargs={}, initial_priorities="max")
    model = small(PERDQN, env, "MlpPolicy", policy_kwargs=dict(net_arch=[4]), gradient_steps=0, buffer_size=1000)
    before = _store_used()
    model.learn(4000)
    env.reset()
    assert _store_used() - before < 10_000_000


def _store_used() -> int:
    from ray._private.internal_api import memory_summary

    text = memory_summary(stats_only=True)
    line = next(line for line in text.splitlines() if "Plasma memory usage" in line)
    return int(float(line.split("usage ")[1].split(" MiB")[0]) * 2**20)


# ---- as an environment that is stepped


class Custom(gym.Env):
    """What SB3's tests of vectorized environments look at."""

    def __init__(self, space: Any = None, render_mode: str | None = "rgb_array"):
        self.observation_space = copy.deepcopy(space or SPACES["box"])  # each has a generator of its own
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.render_mode, self.number, self.options, self.t = render_mode, 0, None, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.options = 0, options
        if seed is not None:
            self.observation_space.seed(seed)
            self.given_seed = seed
        return self.observation_space.sample(), {"seed": seed, "options": options}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.sample(), float(action[0]), False, self.t == 3, {"t": self.t}

    def render(self) -> Any:
        return np.full((4, 4, 3), self.number, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return self.number + a + b

    def fail(self) -> None:
        raise KeyError("no such thing")


SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))),
}


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    else:
        np.testing.assert_array_equal(actual, expected)


def compare_steps(ours: Any, theirs: Any) -> None:
    """Observations, rewards, ends, infos, terminal observations, seeds and options."""
    assert ours.num_envs == 4 and ours.observation_space == theirs.observation_space
    for env in (ours, theirs):
        env.seed(11)
        env.set_options([{"n": i} for i in range(4)])
    for _ in range(2):
        assert_same(ours.reset(), theirs.reset())
        assert_same(ours.reset_infos, theirs.reset_infos)
    rng = np.random.default_rng(0)
    for _ in range(7):
        actions = rng.uniform(-1, 1, (4, 1)).astype(np.float32)
        (obs, rewards, dones, infos), expected = ours.step(actions), theirs.step(actions)
        assert_same((obs, rewards, dones), expected[:3])
        for info, other in zip(infos, expected[3], strict=True):
            info.pop("episode", None), other.pop("episode", None)  # with the time of day
        assert_same(infos, expected[3])
        assert_same(ours.reset_infos, theirs.reset_infos)
    for env in (ours, theirs):
        env.seed(3)
    assert_same(ours.reset(), theirs.reset())
    assert ours.get_attr("given_seed") == [3, 4, 5, 6]


@pytest.mark.parametrize("space", SPACES)
def test_steps_are_those_of_sb3(space):
    kwargs = dict(env_kwargs=dict(space=SPACES[space]), seed=11)
    ours = make_actors(Custom, n_actors=2, n_envs=2, engine="local", **kwargs)
    compare_steps(ours, make_vec_env(Custom, n_envs=4, **kwargs))


def test_what_environments_are_asked():
    compare_answers(make_actors(Custom, n_actors=2, n_envs=2, engine="local"), make_vec_env(Custom, n_envs=4))


def compare_answers(ours: Any, theirs: Any) -> None:
    """Attributes, methods and pictures, of all or some of them, in the order of the indices, as with ``DummyVecEnv``."""
    answers = []
    for env in (ours, theirs):
        env.reset()
        env.set_attr("mark", 5, indices=[1, 2])
        env.env_method("set_wrapper_attr", "number", 9, indices=0)
        answers.append(
            [
                [env.has_attr("mark"), env.has_attr("number"), env.has_attr("no_such_attribute")],
                [env.get_attr("number"), env.get_attr("number", indices=[3, 0]), env.get_attr("mark", indices=2)],
                [env.env_method("add", 1, b=2), env.env_method("add", 1, indices=[2, 0])],
                [env.env_is_wrapped(Monitor), env.env_is_wrapped(gym.wrappers.TimeLimit, indices=1)],
                [image[0, 0, 0] for image in env.get_images()],
                [env.render().shape, env.render_mode],
            ]
        )
        with pytest.raises(AttributeError):
            env.get_attr("no_such_attribute")
        with pytest.raises(KeyError, match="no such thing"):
            env.env_method("fail")
        env.env_method("set_wrapper_attr", "number", 0, indices=0)
    assert answers[0] == answers[1]
    assert ours.get_attr("number", indices=-1) == [0]


@pytest.mark.slow
def test_registered_here(session, closing):
    """What the script has registered, an actor knows as well."""
    gym.register("TrackedForActors-v0", entry_point="tests.actor_envs:Tracked", max_episode_steps=4)
    env = closing("TrackedForActors-v0", n_actors=1)
    env.reset()
    dones = [env.step([0])[2][0] for _ in range(4)]
    assert dones == [False, False, False, True]


# ---- machines and processes


def script(text: str) -> str:
    return textwrap.dedent(text)


def start(text: str, folder: Any) -> subprocess.Popen:
    """A learner in a process of its own; workers name it, so that they can be found."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_TMPDIR": "/tmp"}
    (folder / "learner.py").write_text(script(text))
    return subprocess.Popen(
        [sys.executable, "learner.py"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def living(pids: list[int]) -> list[int]:
    def is_alive(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if is_alive(pid)]


def wait_until(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


LEARNER = """
    import os
    from sb3_per import PERDQN, BufferCheckpointCallback, latest_checkpoint
    from sb3_per.distributed import make_actors
    from tests.actor_envs import Slow, Tracked

    class Telling(Slow):
        def tell(self):
            return os.getpid()

    class Printing(BufferCheckpointCallback):
        def _on_step(self):
            if self.n_calls == 5:
                print("acting", *self.training_env.env_method("tell"), flush=True)
            return super()._on_step()

    if __name__ == "__main__":
        env = make_actors(Telling, n_actors=2, chunk=5, ray_options=dict(num_cpus=2, object_store_memory=80_000_000))
        checkpoint = latest_checkpoint("checkpoints")
        if checkpoint is None:
            model = PERDQN("MlpPolicy", env, learning_starts=20, buffer_size=2000, batch_size=8)
        else:
            model = PERDQN.load(checkpoint[0], env=env)
            model.load_replay_buffer(checkpoint[1])
            print("resumed", model.num_timesteps, flush=True)
        model.learn(TOTAL - model.num_timesteps, Printing(40, "checkpoints"), reset_num_timesteps=checkpoint is None)
        print("end", model.num_timesteps, model.replay_buffer.column_steps.sum(), flush=True)
        env.close()
"""


@pytest.mark.slow
def test_the_learner_is_killed_and_the_run_goes_on(tmp_path):
    """Actors end with the learner; the same command goes on from the checkpoint."""
    learner = start(LEARNER.replace("TOTAL", "100_000"), tmp_path)
    try:
        pids = _acting(learner)
        assert len(living(pids)) == 2
        assert wait_until(lambda: latest_checkpoint(tmp_path / "checkpoints") is not None)
    finally:
        learner.kill()
        learner.wait()
    assert wait_until(lambda: not living(pids))
    steps = int(latest_checkpoint(tmp_path / "checkpoints")[0].stem.split("_")[-2])
    learner = start(LEARNER.replace("TOTAL", str(steps + 200)), tmp_path)
    output = learner.communicate(timeout=120)[0]
    assert f"resumed {steps}" in output and f"end {steps + 200} " in output, output


def _acting(learner: subprocess.Popen) -> list[int]:
    lines = []
    for line in learner.stdout:
        lines.append(line)
        if line.startswith("acting"):
            return [int(pid) for pid in line.split()[1:]]
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_interrupted(tmp_path):
    """Ctrl-C: the actors end, and so does the Ray that was started for them."""
    learner = start(LEARNER.replace("TOTAL", "100_000"), tmp_path)
    try:
        pids = _acting(learner)
        learner.send_signal(signal.SIGINT)
        output = learner.communicate(timeout=60)[0]
    finally:
        learner.kill()
        learner.wait()
    assert "KeyboardInterrupt" in output and learner.returncode != 0
    assert wait_until(lambda: not living(pids))


@pytest.fixture
def cluster():
    """Two raylets on this host. The tests before may have a Ray of their own, which has to end."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, object_store_memory=STORE, include_dashboard=False))
    made.second = made.add_node(num_cpus=1, object_store_memory=STORE)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_two_machines(cluster, closing):
    """The same result as on one; and when one of them dies, the run goes on."""
    cluster.wait_for_nodes()
    local = small(PERSAC, closing("Pendulum-v1", n_actors=2, engine="local"))
    local.learn(100)
    env = closing("Pendulum-v1", n_actors=2, lockstep=True, address=cluster.address, ray_options=dict(log_to_driver=False))
    model = small(PERSAC, env)
    model.learn(100)
    assert_same_run(model, local)
    env.close()
    assert not ray.is_initialized()

    class KillNode(BufferCheckpointCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 60:
                cluster.remove_node(cluster.second, allow_graceful=False)
            return True

    env = closing(Slow, n_actors=2, address=cluster.address, timeout=90, ray_options=dict(log_to_driver=False))
    model = small(PERDQN, env, buffer_size=4000)
    model.learn(1000, callback=KillNode(1000, "unused"))
    assert model.num_timesteps == 1000 == model.replay_buffer.column_steps.sum()
    assert env.crew.restarts >= 1
    assert_columns_hold(model.replay_buffer)


def test_closed():
    env = make_actors(Custom, n_actors=1, engine="local")
    env.close()
    env.close()
    for use in (env.reset, lambda: env.get_attr("number"), lambda: env.step(np.zeros((1, 1)))):
        with pytest.raises(ValueError, match="stopped"):
            use()


def test_threads_do_not_change_the_numbers():
    """An actor in this process leaves the number of threads as it was."""
    n_threads = th.get_num_threads()
    model = small(PERSAC, make_actors("Pendulum-v1", n_actors=1, engine="local"))
    model.learn(30)
    assert th.get_num_threads() == n_threads
