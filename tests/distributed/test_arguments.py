"""Arguments and combinations of settings that are refused."""

import pytest
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERDQN, PERSAC, PERRecurrentDQN, PrioritizedHerReplayBuffer
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
    for make, error, match in (
        (lambda: small(PERDQN, local(Tracked, 1), train_freq=(1, "episode")), NotImplementedError, "EPISODE"),
        (lambda: PERRecurrentDQN("MlpLstmPolicy", local(Tracked), buffer_size=2000), NotImplementedError, "sequences"),
        (lambda: small(PERDQN, local(BitFlippingEnv), **her), NotImplementedError, "HER"),
        (lambda: small(PERSAC, local("Pendulum-v1", exploration="ladder")), ValueError, "ladder"),
        (lambda: small(PERDQN, Renormalized(local(Tracked))), ValueError, "Renormalized.*wrapper_class"),
    ):
        with pytest.raises(error, match=match):
            make()
