"""Arguments and combinations of settings that are refused."""

import subprocess
import sys

import pytest
from stable_baselines3.common.vec_env import VecMonitor

from sb3_per import PERDQN, PERSAC, PERRecurrentDQN, PrioritizedHerReplayBuffer
from sb3_per.distributed import make_actors
from tests.distributed.envs import Tracked
from tests.distributed.helpers import (
    local,
    small,
)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(n_actors=0),
        dict(n_envs=0),
        dict(chunk=0),
        dict(exploration="noise"),
        dict(initial_priorities="mean"),
        dict(max_restarts=-1),
        dict(timeout=0),
        dict(timeout=float("nan")),
        dict(engine="dask"),
        dict(in_flight=3),
        dict(lockstep="yes"),
        dict(engine="local", address="auto"),
        dict(env_id="NoSuchEnvironment-v0"),
        dict(env_id=3),
    ],
    ids=str,
)
def test_the_error_names_a_bad_argument_before_anything_starts(kwargs, monkeypatch):
    monkeypatch.setattr("sb3_per.distributed.make._engine", lambda *args: pytest.fail("something was started"))
    arguments = {"env_id": "CartPole-v1", **kwargs}
    name = next(iter(kwargs)) if "address" not in kwargs else "address"
    with pytest.raises(ValueError, match=f"{name}.*{arguments[name]}"):
        make_actors(**arguments)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda env: small(PERDQN, local(env, 1), train_freq=(1, "episode")), "EPISODE"),
        (
            lambda env: PERRecurrentDQN("MlpLstmPolicy", local(env), buffer_size=2000, policy_kwargs=dict(lstm_hidden_size=4)),
            "sequences",
        ),
    ],
)
def test_training_per_episode_and_recurrent_agents_are_refused(make, match):
    with pytest.raises(NotImplementedError, match=match):
        make(Tracked)


def test_her_is_refused():
    from stable_baselines3.common.envs import BitFlippingEnv

    with pytest.raises(NotImplementedError, match="HER"):
        small(PERDQN, local(BitFlippingEnv), "MultiInputPolicy", replay_buffer_class=PrioritizedHerReplayBuffer)


def test_ladder_exploration_needs_an_algorithm_with_random_actions():
    with pytest.raises(ValueError, match="ladder"):
        small(PERSAC, local("Pendulum-v1", exploration="ladder"))


def test_wrappers_that_cannot_be_rebuilt_are_refused(tmp_path):
    with pytest.raises(ValueError, match="monitor_dir"):
        small(PERDQN, VecMonitor(local(Tracked), str(tmp_path / "monitor.csv")))


def test_importing_the_package_does_not_import_ray():
    code = "import sys, sb3_per, sb3_per.distributed; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
