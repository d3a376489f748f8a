"""Environments on actors as a ``VecEnv``, compared with SB3's."""

import random

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERSAC
from sb3_per.distributed import make_actors
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import local, small
from tests.helpers.vec_env_checks import SPACES, Custom, compare_answers, compare_steps

pytestmark = pytest.mark.usefixtures("one_thread")


def test_steps_equal_those_of_sb3():
    kwargs = dict(env_kwargs=dict(space=SPACES["tuple"]), seed=11)
    ours = make_actors(Custom, n_actors=2, n_envs=2, engine="local", **kwargs)
    compare_steps(ours, make_vec_env(Custom, n_envs=4, **kwargs))


def test_attributes_methods_and_images_equal_those_of_sb3():
    compare_answers(make_actors(Custom, n_actors=2, n_envs=2, engine="local"), make_vec_env(Custom, n_envs=4))


def test_closed_environments_refuse_every_use():
    env = make_actors(Custom, n_actors=1, engine="local")
    env.close()
    env.close()
    for use in (env.reset, lambda: env.get_attr("number"), lambda: env.step(np.zeros((1, 1)))):
        with pytest.raises(ValueError, match="stopped"):
            use()


def test_local_actors_leave_the_generators_and_the_threads_of_the_process_alone():
    """Each actor has random generators of its own, and acts with one thread as on Ray."""
    model = small(PERSAC, local("Pendulum-v1", 2), learning_starts=10, gradient_steps=0)
    th.set_num_threads(2)
    before = random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()
    model.learn(40)
    after = random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()
    assert after == before
    assert th.get_num_threads() == 2
    first, second = np.split(model.replay_buffer.actions[:10], 2)  # a chunk of each actor
    assert (first != second).all()


def test_a_stock_algorithm_can_train_on_actors():
    model = DQN("MlpPolicy", local(Tracked, 2, n_envs=2), train_freq=1, learning_starts=10, buffer_size=100, batch_size=4)
    model.learn(60)
    assert model.num_timesteps == 60 and (model.replay_buffer.rewards != 0).any()
