"""The ten tests of two blog posts on PER for a SAC pairs-trading agent: the tree, the buffer, and a whole training."""

import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC, SumTree
from tests.helpers.buffers import add_one, fill, make_buffer


@pytest.fixture
def tree():
    tree = SumTree(4)
    tree.update(np.arange(4), [1.0, 2.0, 3.0, 4.0])
    return tree


def test_total_is_the_sum_of_all_masses(tree):
    assert tree.total == 10.0


def test_find_inverts_the_cumulative_sums(tree):
    """The cumulative sums are 1, 3, 6 and 10."""
    np.testing.assert_array_equal(tree.find([0.5, 2.5, 7.0]), [0, 1, 3])


def test_an_update_changes_the_total(tree):
    tree.update(1, 10.0)
    assert tree.total == 18.0
    assert tree.find(10.9) == 1
    assert tree.find(11.0) == 2


def test_a_mass_that_is_written_again_replaces_the_old_one():
    tree = SumTree(3)
    for step in range(7):
        tree.update(step % 3, float(step))
    np.testing.assert_array_equal(tree[:], [6.0, 4.0, 5.0])
    assert tree.total == 15.0


def test_batches_have_the_shapes_of_sb3_and_weights_and_indices():
    buffer = make_buffer(100)
    fill([buffer], 50)
    batch = buffer.sample(16)
    assert batch.observations.shape == batch.next_observations.shape == (16, 3)
    assert batch.actions.shape == (16, 2)
    assert batch.rewards.shape == batch.dones.shape == batch.weights.shape == (16, 1)
    assert batch.indices.shape == (16,)
    assert batch.indices.dtype == np.int64


def test_sampling_from_an_empty_buffer_raises():
    with pytest.raises(ValueError, match="empty"):
        make_buffer(100).sample(16)


def test_transitions_with_larger_priority_are_drawn_more_often():
    np.random.seed(0)
    buffer = make_buffer(100, alpha=1.0)
    for _ in range(100):
        add_one(buffer)
    buffer.update_priorities(np.arange(100), np.where(np.arange(100) == 42, 100.0, 0.01))
    drawn = np.concatenate([buffer.sample(16).indices for _ in range(100)])
    assert (drawn == 42).sum() > 200


def test_transitions_with_larger_priority_have_smaller_weights():
    buffer = make_buffer(20)
    fill([buffer], 20)
    buffer.update_priorities(np.arange(20), np.arange(20.0))
    batch = buffer.sample(64)
    weights = batch.weights[:, 0].numpy()
    assert ((weights > 0) & (weights <= 1)).all()
    order = np.argsort(batch.indices)
    assert (np.diff(weights[order]) <= 0).all()
    assert weights[order[0]] > weights[order[-1]]


def test_beta_reaches_its_end():
    buffer = make_buffer(20, beta_start=0.4, beta_end=1.0, beta_anneal_steps=50)
    fill([buffer], 20)
    for _ in range(50):
        assert buffer.beta < 1.0
        buffer.sample(4)
    assert buffer.beta == 1.0


def test_sac_trains_and_can_be_evaluated():
    """After training, priorities differ from one another and beta has risen."""
    model = PERSAC("MlpPolicy", "Pendulum-v1", learning_starts=100, policy_kwargs=dict(net_arch=[32, 32]), seed=0)
    model.learn(400)
    masses = model.replay_buffer.priorities
    assert np.count_nonzero(masses) == 400
    assert len(np.unique(masses)) > 50
    assert model.replay_buffer.beta == 1.0
    mean_reward, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=2)
    assert -2000 < mean_reward < 0
