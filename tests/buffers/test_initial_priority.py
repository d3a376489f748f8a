"""The mass of a new transition, and the maximum priority that it comes from."""

import numpy as np
import pytest
import torch as th

from sb3_per import PrioritizedHerReplayBuffer
from tests.helpers.buffers import add_one, assert_same_state, contents_of, counting_env, fill, make_buffer


def test_new_transitions_never_have_less_mass_than_updated_ones():
    """TD errors vary from far below 1 to far above 1."""
    buffer = make_buffer(50, n_envs=2)
    for size in (1e-3, 0.5, 40.0, 7.0, 1e-6):
        add_one(buffer)
        newest = buffer.masses[buffer.pos - 1]
        assert (newest >= buffer.masses.max()).all()
        batch = buffer.sample(20)
        buffer.update_priorities(batch.indices, np.full(20, size))
    assert buffer.max_priority == 40.0 + 1e-6


@pytest.mark.parametrize("scheme, n_critics", [("proportional", None), ("rank", 2)])
def test_td_errors_given_to_add_set_priorities_but_not_the_maximum(scheme, n_critics):
    """The priorities equal those of an immediate update, but max_priority does not rise."""
    buffer, reference = (make_buffer(6, n_envs=3, scheme=scheme, initial_priority="td_error") for _ in range(2))
    rng = np.random.default_rng(0)
    for step in range(8):
        fill([buffer, reference], 1, seed=step)
        td_errors = rng.normal(size=3 if n_critics is None else (3, n_critics)) * 5
        for each in (buffer, reference):
            obs = np.zeros((3, 3))
            given = dict(td_errors=th.tensor(td_errors)) if each is buffer else {}
            each.add(obs, obs, np.zeros((3, 2)), np.zeros(3), np.zeros(3), [{}] * 3, **given)
        reference.update_priorities(reference.transition_ids.max() - 2 + np.arange(3), td_errors)
        reference.priority_sampler.max_priority = 1.0
        np.testing.assert_array_equal(buffer.masses, reference.priorities)
        assert buffer.max_priority == 1.0


def test_her_applies_td_errors_at_the_end_of_the_episode():
    env = counting_env(goals=True)
    spaces = (env.observation_space, env.action_space)
    buffer = PrioritizedHerReplayBuffer(20, *spaces, env, "cpu", 2, initial_priority="td_error", alpha=1.0)
    obs = {key: np.zeros((2, 2), np.float32) for key in env.observation_space.spaces}
    for step in range(3):
        done = np.array([step == 2, False])
        buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), done, [{}] * 2, td_errors=np.array([step + 1.0, 9.0]))
    np.testing.assert_allclose(buffer.masses[:3], [[1, 0], [2, 0], [3, 0]], atol=2e-6)


def test_bad_td_errors_add_nothing():
    for setting, td_errors, value in [
        ("max", [1.0, 2.0], "initial_priority='td_error', not 'max'"),
        ("td_error", [1.0, np.nan], "nan"),
        ("td_error", [1.0, 2.0, 3.0], r"\(3,\)"),
    ]:
        buffer = make_buffer(6, n_envs=2, initial_priority=setting)
        fill([buffer], 3)
        before = contents_of(buffer)
        with pytest.raises(ValueError, match=value):
            buffer.add(
                np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.zeros(2), [{}] * 2, td_errors=td_errors
            )
        assert_same_state(contents_of(buffer), before)
