"""Runs that are equal to the bit: one actor and the synchronous algorithm, or two runs with the same seed."""

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_per import PERDQN, PERSAC
from sb3_per.buffers.slots import keyed
from tests.helpers.actor_envs import Images, Tracked
from tests.helpers.actors import CONFIGURATIONS, assert_same_run, local, small
from tests.helpers.buffers import fill

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["sac-sde", "ddpg-noise", "tqc-n-steps", "dqn-dict"])
def test_one_actor_without_lag_equals_the_synchronous_algorithm(name):
    """Chunks of one step have no n-step returns."""
    cls, env, kwargs = CONFIGURATIONS[name]
    kwargs = {**kwargs, "n_steps": 1}
    runs = []
    for make in (make_vec_env, lambda env: local(env, 1, chunk=1, initial_priorities="max")):
        model = small(cls, make(env), **kwargs)
        model.learn(40)
        model.learn(12, reset_num_timesteps=False)  # in the middle of an episode
        model.learn(12)
        runs.append(model)
    assert_same_run(*runs, is_synchronous=True)


def test_wrappers_are_made_around_an_actor():
    """Running statistics and stacked frames equal those of a synchronous run."""
    runs = []
    for make in (make_vec_env, lambda env, n_envs: local(env, 1, n_envs=n_envs, chunk=1, initial_priorities="max")):
        env = VecCheckNan(VecFrameStack(make(lambda: Tracked(is_dict=True), n_envs=2), 3))
        model = small(PERDQN, VecNormalize(env), "MultiInputPolicy")
        model.learn(64)
        model.learn(40, reset_num_timesteps=False)
        runs.append(model)
    assert_same_run(*runs, is_synchronous=True)
    first, second = (model.get_vec_normalize_env() for model in runs)
    for key, statistics in keyed(first.obs_rms).items():
        np.testing.assert_array_equal(statistics.mean, keyed(second.obs_rms)[key].mean)
    assert first.ret_rms.var == second.ret_rms.var and first.ret_rms.count == second.ret_rms.count
    np.testing.assert_array_equal(first.returns, second.returns)


def test_image_runs_equal_synchronous_runs():
    runs = []
    for make in (make_vec_env, lambda env: local(env, 1, chunk=1, initial_priorities="max")):
        env = VecTransposeImage(VecFrameStack(make(Images), 2))
        kwargs = dict(replay_buffer_kwargs=dict(frames=2), policy_kwargs=dict(net_arch=[4]), batch_size=4)
        model = small(PERDQN, env, "CnnPolicy", **kwargs)
        model.learn(40)
        runs.append(model)
    assert_same_run(*runs, is_synchronous=True)


def test_local_runs_are_reproducible():
    runs = []
    for _ in range(2):
        model = small(PERSAC, local("Pendulum-v1", 3, n_envs=2, in_flight=2))
        model.learn(80)
        runs.append(model)
    assert_same_run(*runs)


def test_runs_with_demonstrations_equal_synchronous_runs():
    runs = []
    for make in (make_vec_env, lambda env: local(env, 1, chunk=1, initial_priorities="max")):
        kwargs = dict(replay_buffer_kwargs=dict(demonstration_fraction=0.5))
        model = small(PERSAC, make("Pendulum-v1"), **kwargs)
        stored = type(model.replay_buffer)(10, model.observation_space, model.action_space)
        fill([stored], 10)
        stored.actions[:] = model.policy.scale_action(stored.actions)
        model.set_random_seed(0)
        model.replay_buffer.add_demonstrations_from(stored)
        model.pretrain(3)
        model.learn(30)
        assert len(model.replay_buffer.demonstrations) == 10
        runs.append(model)
    assert_same_run(*runs, is_synchronous=True)
