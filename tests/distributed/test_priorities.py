"""TD errors and initial priorities that actors compute, and their exploration rates."""

import copy

import numpy as np
import pytest
import torch as th

from sb3_per import PERDQN, IgnoredSettingWarning
from sb3_per.distributed import algorithm, exploration_ladder, random_state
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import CONFIGURATIONS, Listening, local, on_engine, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["td3-noise", "crossq-ratio", "qrdqn"])
def test_actors_compute_the_td_errors_of_the_learner(name):
    """With the same weights and random numbers, TD errors differ by rounding at most. N-step windows end with the chunk."""
    cls, env, kwargs = CONFIGURATIONS[name]
    env = local(env, 2, n_envs=2, chunk=5)
    model = small(cls, env, **kwargs)
    model.learn(60)
    for worker in env.engine.workers.values():
        algorithm.set_weights(worker.model, algorithm.weights_of(model))
        before = random_state.current()
        of_actor = worker.td_errors()
        steps = worker.steps()
        buffer = type(model.replay_buffer)(
            10, model.observation_space, model.action_space, n_steps=model.n_steps, gamma=model.gamma, device="cpu"
        )
        for i in range(2):
            buffer.append_rows(**{name: part[:, i] for name, part in steps.items()})
        random_state.set_current(before)
        in_order_of_actor = np.arange(10).reshape(2, 5).T.ravel()
        of_learner = model.td_errors(buffer.read_drawn(in_order_of_actor)).numpy()
        np.testing.assert_allclose(of_actor.reshape(10, -1), of_learner, rtol=1e-4, atol=1e-5)
        assert np.abs(of_actor).max() > 0


def test_actors_use_the_target_network_of_the_learner():
    """SB3 updates target networks while it collects steps. The actor's target network must not change within a chunk."""
    engine = Listening()
    model = small(PERDQN, on_engine(engine, 1, chunk=20), gradient_steps=0, target_update_interval=3)
    for parameter in model.q_net_target.parameters():
        parameter.data.add_(1.0)
    before = copy.deepcopy(model.policy.state_dict())
    model.learn(20)
    assert not th.equal(model.q_net_target.q_net[0].weight, before["q_net_target.q_net.0.weight"])
    model.policy.load_state_dict(before)
    of_learner = model.td_errors(model.replay_buffer.read_drawn(np.arange(20))).numpy()
    np.testing.assert_allclose(engine.chunks[0].steps["td_errors"].ravel(), of_learner.ravel(), rtol=1e-4, atol=1e-5)


def test_new_transitions_get_the_priorities_of_actors():
    """The priorities follow from the TD errors, and do not raise the largest priority."""
    model = small(PERDQN, local(Tracked, 2, chunk=10), gradient_steps=0)
    model.learn(40)
    buffer = model.replay_buffer
    assert buffer.max_priority == 1.0 and buffer.settings.initial_priority == "max"
    td_errors = model.td_errors(buffer.read_drawn(np.arange(40))).numpy().ravel()
    np.testing.assert_allclose(buffer.masses.ravel()[:40], (np.abs(td_errors) + 1e-6) ** 0.6, rtol=1e-4)


def test_new_transitions_get_the_largest_priority_if_settings_say_so():
    for initial_priorities, kwargs in (("max", {}), ("actor", dict(initial_priority="max"))):
        env = local(Tracked, initial_priorities=initial_priorities)
        model = small(PERDQN, env, gradient_steps=0, replay_buffer_kwargs=kwargs)
        model.learn(40)
        assert (model.replay_buffer.masses[:20] == 1.0).all()


def test_settings_of_initial_priorities_that_contradict_each_other_warn():
    with pytest.warns(IgnoredSettingWarning, match="initial_priority='td_error' has no effect with make_actors"):
        small(PERDQN, local(Tracked, initial_priorities="max"), replay_buffer_kwargs=dict(initial_priority="td_error"))


def test_the_ladder_sets_the_exploration_rate_of_each_actor():
    np.testing.assert_allclose(exploration_ladder(8), 0.4 ** (1 + 7 * np.arange(8) / 7))
    assert exploration_ladder(1) == [0.4]
    env = local(Tracked, 3, exploration="ladder")
    model = small(PERDQN, env, learning_starts=0)
    model.learn(60)
    rates = [env.engine.workers[actor].model.exploration_rate for actor in range(3)]
    np.testing.assert_allclose(rates, exploration_ladder(3))
