"""Arguments and combinations of settings that are refused."""

from typing import Any

import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERDQN, PERSAC, PERRecurrentDQN, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.distributed import make_actors
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import local, small

pytestmark = pytest.mark.usefixtures("one_thread")


def never_made() -> None:
    pytest.fail("an environment was made")


class Renormalized(VecNormalize):
    pass


def test_the_error_names_a_bad_argument_before_anything_starts():
    for kwargs, match in (
        (dict(chunk=0), "chunk must be an integer of at least 1, not 0"),
        (dict(exploration="noise"), "exploration must be None or 'ladder', not 'noise'"),
        (dict(timeout=float("nan")), "timeout must be a number of seconds above 0, not nan"),
        (dict(in_flight=3), "in_flight must be None or 1 or 2, not 3"),
        (dict(engine="dask"), "engine must be 'ray' or 'local', not 'dask'"),
        (dict(address="auto"), "address='auto' has no effect with engine='local'"),
        (dict(env_id="NoSuchEnvironment-v0"), "env_id='NoSuchEnvironment-v0' is neither"),
    ):
        with pytest.raises(ValueError, match=match):
            make_actors(**{"env_id": never_made, "engine": "local", **kwargs})


def test_what_actors_cannot_do_is_refused_when_constructed():
    her = dict(policy="MultiInputPolicy", replay_buffer_class=PrioritizedHerReplayBuffer)
    memory = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    for make, error, match in (
        (lambda: small(PERDQN, local(Tracked, 1), train_freq=(1, "episode")), NotImplementedError, "EPISODE"),
        (lambda: PERRecurrentDQN("MlpLstmPolicy", local(Tracked), buffer_size=2000), NotImplementedError, "sequences"),
        (lambda: small(PERDQN, local(BitFlippingEnv), **her), NotImplementedError, "HER"),
        (lambda: small(PERSAC, local("Pendulum-v1", exploration="ladder")), ValueError, "ladder"),
        (lambda: small(PERSAC, local("Pendulum-v1"), **memory), NotImplementedError, "optimize_memory_usage=True.*frames=1"),
        (lambda: small(PERDQN, Renormalized(local(Tracked))), ValueError, "Renormalized.*wrapper_class"),
    ):
        with pytest.raises(error, match=match):
            make()


def test_a_buffer_with_a_column_for_each_environment_is_refused():
    """Models that were made without actors have one."""
    model = small(PERDQN, make_vec_env(Tracked, 2))
    model.set_env(local(Tracked, 2))
    with pytest.raises(ValueError, match=r"has n_envs=2. Give the environments of make_actors\(\) to the constructor"):
        model.learn(20)


def test_a_buffer_with_its_own_add_is_refused():
    class Own(PrioritizedReplayBuffer):
        def add(self, *args: Any, **kwargs: Any) -> None:
            super().add(*args, **kwargs)

    class Both(Own):
        def append_rows(self, *args: Any, **kwargs: Any) -> None:
            super().append_rows(*args, **kwargs)

    with pytest.raises(NotImplementedError, match=r"Own overrides add\(\).*append_rows"):
        small(PERDQN, local(Tracked), replay_buffer_class=Own)
    small(PERDQN, local(Tracked), replay_buffer_class=Both).learn(20)
