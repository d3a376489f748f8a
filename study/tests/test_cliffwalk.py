"""The Blind Cliffwalk benchmark (Schaul et al. 2016, section 3.1 and appendix B.1): its task, its oracle and its results."""

import copy

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer
from study import campaign, cliffwalk


def median_of_updates(n_states: int, replayed: str, seeds: range) -> float:
    runs = [cliffwalk.updates_until_learned(n_states, replayed, seed)["updates"] for seed in seeds]
    assert max(runs) < cliffwalk.MAX_UPDATES
    return float(np.median(runs))


@pytest.mark.parametrize("n_states", [2, 3, 5])
def test_all_sequences_are_stored_and_one_reaches_the_reward(n_states):
    """There are 2^n sequences, and half of those that reach a state take the right action there."""
    transitions = cliffwalk.all_transitions(n_states)
    assert len(transitions) == 2 ** (n_states + 1) - 2
    assert sum(done for *_, done in transitions) == 2**n_states
    for state in range(n_states):
        right = sum(s == state and a == 1 for s, a, *_ in transitions)
        assert right == sum(s == state and a == 0 for s, a, *_ in transitions) == 2 ** (n_states - 1 - state)
    assert sum(reward for _, _, reward, _, _ in transitions) == 1


def test_the_learner_and_the_stored_transitions_give_the_same_td_errors():
    n_states = 5
    learner = cliffwalk.Learner(n_states)
    n_transitions = len(cliffwalk.all_transitions(n_states))
    buffer = PrioritizedReplayBuffer(n_transitions, spaces.Discrete(n_states + 1), spaces.Discrete(2), device="cpu")
    cliffwalk.fill(buffer, n_states)
    seen = set()
    for _ in range(50):
        batch = buffer.sample(32)
        for i in range(32):
            state, action = batch.observations[i].item(), batch.actions[i].item()
            following = 0.0 if batch.dones[i].item() else learner.q[batch.next_observations[i].item()].max()
            expected = batch.rewards[i].item() + learner.gamma * following - learner.q[state, action]
            assert learner.td_error(state, action) == pytest.approx(expected)
            seen.add((state, action))
    assert len(seen) == 2 * n_states


def test_true_values_have_no_td_errors():
    learner = cliffwalk.Learner(6)
    learner.q[:] = learner.true_q
    assert learner.error == 0.0
    assert [learner.td_error(state, action) for state in range(6) for action in range(2)] == pytest.approx([0.0] * 12)


def test_the_oracle_takes_the_update_that_leaves_the_smallest_error():
    np.random.seed(0)
    learner = cliffwalk.Learner(6)
    steps = cliffwalk.oracle(learner)
    for _ in range(50):
        others = []
        for state in range(6):
            for action in range(2):
                other = copy.deepcopy(learner)
                other.update(state, action)
                others.append(other.error)
        next(steps)
        assert learner.error == pytest.approx(min(others), rel=1e-12)


@pytest.mark.parametrize("scheme", ["proportional", pytest.param("rank", marks=pytest.mark.slow)])
def test_prioritized_replay_needs_fewer_updates_than_uniform_and_more_than_the_oracle(scheme):
    uniform, prioritized, oracle = (median_of_updates(8, replayed, range(3)) for replayed in ("uniform", scheme, "oracle"))
    assert uniform >= 3 * prioritized >= 3 * oracle


def test_td_errors_given_to_add_become_the_first_priorities():
    n_states = 5
    learner = cliffwalk.Learner(n_states)
    size = len(cliffwalk.all_transitions(n_states))
    observations, actions = spaces.Discrete(n_states + 1), spaces.Discrete(2)
    buffer = PrioritizedReplayBuffer(size, observations, actions, device="cpu", initial_priority="td_error")
    cliffwalk.fill(buffer, n_states, learner)
    pairs = zip(buffer.observations.ravel(), buffer.actions.ravel(), strict=True)
    errors = np.array([learner.td_error(int(state), int(action)) for state, action in pairs])
    np.testing.assert_allclose(buffer.priorities.ravel(), (np.abs(errors) + 1e-6) ** 0.6)


@pytest.mark.slow
def test_prioritized_replay_needs_an_eighth_of_the_updates_with_twelve_states():
    assert median_of_updates(12, "uniform", range(11)) >= 8 * median_of_updates(12, "proportional", range(11))


def test_the_published_table_follows_from_the_runs():
    """The file has every run, and the runs give the ratio that the documentation states."""
    rows = cliffwalk.read(campaign.ROOT / "data" / "cliffwalk.csv")
    found = cliffwalk.medians(rows)
    assert len(rows) == len(cliffwalk.jobs())
    assert (campaign.ROOT / "results" / "cliffwalk.md").read_text() == cliffwalk.report(found)
    of_twelve = {replayed: of[0, cliffwalk.SIZES.index(12)] for replayed, of in found.items()}
    assert of_twelve["uniform"] >= 8 * of_twelve["proportional"]


def test_growth_is_the_base_of_the_fitted_exponential():
    assert cliffwalk.growth(np.array([5.0 * 1.7**n for n in cliffwalk.SIZES])) == pytest.approx(1.7)
