"""Actors in processes of Ray."""

import contextlib
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
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERDQN, PERSAC, latest_checkpoint
from sb3_per.distributed import NoActorAliveError, make_actors
from tests.helpers.actor_envs import Images, Mortal, Slow, Tracked, Unlucky
from tests.helpers.actors import assert_rows_hold, assert_same_run, on_engine, small
from tests.helpers.project import ROOT, alone_with_ray
from tests.helpers.vec_env_checks import SPACES, Custom, compare_answers, compare_steps

pytestmark = pytest.mark.usefixtures("one_thread")

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'sb3_per[distributed]'")

# The smallest object store that Ray allows, in bytes.
STORE = 80_000_000


@pytest.fixture(scope="module", autouse=True)
def alone():
    with alone_with_ray():
        yield


@pytest.fixture(scope="module")
def session(alone):
    """Start Ray once for all tests of this file."""
    ray.init(num_cpus=2, object_store_memory=STORE, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def closing():
    """Close environments at the end of a test, also when it fails."""
    envs: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        envs.append(make_actors(*args, **{"chunk": 5, "timeout": 600.0, **kwargs}))  # Ray may start slowly
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def test_actors_on_ray_give_the_same_run_and_the_same_steps(session, closing):
    """The only quick test that starts Ray: lockstep equals the local engine to the bit, synchronous steps equal SB3's."""
    kwargs = dict(n_actors=2, n_envs=2, lockstep=True, env_kwargs=dict(space=SPACES["dict"]))
    actors, runs = closing(Custom, **kwargs), []
    for env in (actors, make_actors(Custom, chunk=5, engine="local", **kwargs)):
        model = small(PERSAC, VecNormalize(env, norm_obs_keys=["a"]), "MultiInputPolicy")
        model.learn(40)
        model.learn(20, reset_num_timesteps=False)
        runs.append(model)
    assert_same_run(*runs)
    compare_steps(actors, make_vec_env(Custom, n_envs=4, env_kwargs=dict(space=SPACES["dict"])))
    compare_answers(actors, make_vec_env(Custom, n_envs=4))


@pytest.mark.slow
def test_one_actor_in_lockstep_equals_the_synchronous_algorithm(session, closing):
    """Each call sends the learner's random state to the actor, and the answer returns it."""
    runs = []
    for env in (
        make_vec_env("Pendulum-v1"),
        closing("Pendulum-v1", n_actors=1, chunk=1, lockstep=True, initial_priorities="max"),
    ):
        runs.append(small(PERSAC, env))
        runs[-1].learn(60)
    assert_same_run(*runs, is_synchronous=True)


@pytest.mark.slow
def test_a_run_without_lockstep_stores_every_step_once(session, closing, capsys):
    env = closing(Tracked, n_actors=3, n_envs=2)
    model = small(PERDQN, env, buffer_size=2000, verbose=1)
    model.learn(301, log_interval=10)
    assert model.num_timesteps == 301 == model.replay_buffer.numbering.next_id
    assert assert_rows_hold(model.replay_buffer) <= env.num_envs
    assert model._n_updates == 13  # one for each 24 transitions, and one for the rest
    assert "samples_per_insert" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_process_is_replaced(session, closing, tmp_path):
    """The run has its full length, and no transition is stored twice."""
    env = closing(Mortal, n_actors=2, env_kwargs=dict(folder=str(tmp_path), lifetime=33), max_restarts=1)
    model = small(PERDQN, env, buffer_size=2000)
    model.learn(300)
    assert (tmp_path / "killed").exists()
    assert env.pool.n_restarts_in_run == 1 and env.pool.lost_transitions > 0
    assert model.num_timesteps == 300 == model.replay_buffer.numbering.next_id
    assert_rows_hold(model.replay_buffer)


@pytest.mark.slow
def test_an_environment_that_raises_on_ray_ends_the_run_with_its_error(session, closing):
    env = closing(Unlucky, n_actors=1, env_kwargs=dict(lifetime=2))
    with pytest.raises(ArithmeticError, match="is broken") as caught:
        small(PERDQN, env).learn(100)
    assert "tests/helpers/actor_envs.py" in str(caught.value)
    assert env.pool.n_restarts_in_run == 3 and env.pool.closed
    assert ray.is_initialized()  # the environment does not stop a Ray that it did not start


@pytest.mark.slow
def test_a_start_raises_if_no_process_runs_within_timeout(session):
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        make_actors(Tracked, n_actors=1, timeout=0.01)


@pytest.mark.slow
def test_building_an_environment_may_take_longer_than_timeout(session, tmp_path):
    """The environment is not there before the engine was asked whether the process runs, which takes ``timeout``."""
    from sb3_per.distributed.ray_engine import RayEngine

    asked = tmp_path / "asked"

    class Sleepy(Tracked):
        def __init__(self) -> None:
            while not asked.exists():
                time.sleep(0.05)
            super().__init__()

    class Asked(RayEngine):
        def is_running(self, actor: int) -> bool:
            ray.wait([self._ready[actor]])  # a process that starts slowly is another case
            asked.touch()
            return super().is_running(actor)

    with (
        pytest.warns(UserWarning, match=r"Still starting.*\[0\]"),
        contextlib.closing(on_engine(Asked(), 1, env=Sleepy, timeout=0.5)) as env,
    ):
        assert env.num_envs == 1


class FailsOnce(Tracked):
    """Kill the process in the first reset of all processes, and interrupt it in the first step 4 of all processes."""

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
    """
    An actor fails in the reset that opens ``learn()``, in a step, and between two runs. Infos may hold classes of the script.
    """
    said = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            said.extend(info["said"] for info in self.locals["infos"])
            return True

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as if this module were the script
    try:
        env = closing(FailsOnce, n_actors=2, env_kwargs=dict(folder=str(tmp_path)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    model = small(PERDQN, env, buffer_size=2000)
    model.learn(100, callback=Look())
    assert env.pool.n_restarts_in_run == 2 and model.num_timesteps == 100
    assert len(said) == 100 and all(isinstance(one, Said) for one in said)
    os.kill(env.env_method("pid", indices=0)[0], signal.SIGKILL)
    model.learn(60)
    assert env.pool.n_restarts_in_run == 1 and model.num_timesteps == 60
    assert_rows_hold(model.replay_buffer)


@pytest.mark.slow
def test_the_object_store_does_not_fill_up(session, closing):
    """A run that sends over 25 MB of observations leaves less than 20 MB in the object store."""
    env = closing(Images, n_actors=2, chunk=200, env_kwargs={}, initial_priorities="max")
    model = small(PERDQN, env, "MlpPolicy", policy_kwargs=dict(net_arch=[4]), gradient_steps=0, buffer_size=1000)
    before = _store_used()
    model.learn(20_000)
    env.reset()
    assert _store_used() - before < 20_000_000


def _store_used() -> int:
    from ray._private.internal_api import memory_summary

    text = memory_summary(stats_only=True)
    line = next(line for line in text.splitlines() if "Plasma memory usage" in line)
    return int(float(line.split("usage ")[1].split(" MiB")[0]) * 2**20)


@pytest.mark.slow
def test_actors_can_make_environments_that_the_script_registered(session, closing):
    gym.register("TrackedForActors-v0", entry_point="tests.helpers.actor_envs:Tracked", max_episode_steps=4)
    env = closing("TrackedForActors-v0", n_actors=1)
    env.reset()
    dones = [env.step([0])[2][0] for _ in range(4)]
    assert dones == [False, False, False, True]


def script(text: str) -> str:
    return textwrap.dedent(text)


def start(text: str, folder: Any) -> subprocess.Popen:
    """Start a learner in a process of its own."""
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


def wait_until(condition: Any, seconds: float = 300.0) -> bool:
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
    from tests.helpers.actor_envs import Slow

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
        print("end", model.num_timesteps, model.replay_buffer.numbering.next_id, flush=True)
        env.close()
"""


@pytest.mark.slow
def test_actors_end_with_a_killed_learner_and_the_run_resumes(tmp_path):
    """The same script resumes from the checkpoint."""
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
    output = learner.communicate(timeout=600)[0]
    assert f"resumed {steps}" in output and f"end {steps + 200} " in output, output


def _acting(learner: subprocess.Popen) -> list[int]:
    lines = []
    for line in learner.stdout:
        lines.append(line)
        if line.startswith("acting"):
            return [int(pid) for pid in line.split()[1:]]
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_ctrl_c_ends_the_actors(tmp_path):
    """The learner stops with a ``KeyboardInterrupt``, and its actors end."""
    learner = start(LEARNER.replace("TOTAL", "100_000"), tmp_path)
    try:
        pids = _acting(learner)
        learner.send_signal(signal.SIGINT)
        output = learner.communicate(timeout=600)[0]
    finally:
        learner.kill()
        learner.wait()
    assert "KeyboardInterrupt" in output and learner.returncode != 0
    assert wait_until(lambda: not living(pids))


@pytest.fixture
def cluster():
    """Start a cluster of two nodes on this host, after Ray of the other tests has ended."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, object_store_memory=STORE, include_dashboard=False))
    made.second = made.add_node(num_cpus=1, object_store_memory=STORE)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_two_nodes_give_the_local_result_and_the_run_survives_the_loss_of_one(cluster, closing, tmp_path):
    cluster.wait_for_nodes()
    local = small(PERSAC, closing("Pendulum-v1", n_actors=2, engine="local"))
    local.learn(100)
    env = closing("Pendulum-v1", n_actors=2, lockstep=True, address=cluster.address, ray_options=dict(log_to_driver=False))
    model = small(PERSAC, env)
    model.learn(100)
    assert_same_run(model, local)
    env.close()
    assert not ray.is_initialized()

    class Located(Slow):
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    class KillNode(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 60:
                cluster.remove_node(cluster.second, allow_graceful=False)
            return True

    def acting_on_both() -> Any:
        for _ in range(20):  # Ray spreads actors as a rule, but may start both on one node
            env = closing(Located, n_actors=2, address=cluster.address, timeout=600, ray_options=dict(log_to_driver=False))
            if len(set(env.env_method("node"))) == 2:
                return env
            env.close()
        raise AssertionError("both actors are always on the same node")

    env = acting_on_both()
    model = small(PERDQN, env, buffer_size=4000)
    model.learn(1000, callback=KillNode())
    assert model.num_timesteps == 1000 == model.replay_buffer.numbering.next_id
    assert env.pool.n_restarts_in_run >= 1
    assert_rows_hold(model.replay_buffer)
