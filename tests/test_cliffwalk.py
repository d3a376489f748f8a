"""Blind Cliffwalk (Schaul et al. 2016, section 3.1 and appendix B.1) through the real buffer."""

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer


def all_transitions(n_states: int) -> list[tuple[int, int, float, int, bool]]:
    """(state, action, reward, next state, done) of all 2^n action sequences; action 1 advances, 0 ends the episode."""
    transitions = []
    for length in range(n_states + 1):  # number of right actions before the wrong one
        sequences = 2 ** (n_states - 1 - length) if length < n_states else 1
        episode = [(state, 1, float(state == n_states - 1), state + 1, state == n_states - 1) for state in range(length)]
        if length < n_states:
            episode.append((length, 0, 0.0, 0, True))
        transitions += episode * sequences
    return transitions


def updates_until_learned(n_states: int, seed: int, max_updates: int = 200_000, **kwargs: str) -> int:
    """Tabular Q-learning, one transition an update, until the mean squared error to the true values is below 1e-3."""
    np.random.seed(seed)
    gamma, step_size = 1 - 1 / n_states, 0.25
    transitions = all_transitions(n_states)
    buffer = PrioritizedReplayBuffer(
        len(transitions),
        spaces.Discrete(n_states + 1),
        spaces.Discrete(2),
        device="cpu",
        beta_start=0.0,
        beta_end=0.0,
        **kwargs,
    )
    for i in np.random.permutation(len(transitions)):
        state, action, reward, next_state, done = transitions[i]
        buffer.add(np.array([state]), np.array([next_state]), np.array([action]), np.array([reward]), np.array([done]), [{}])

    q = np.random.normal(0, 0.1, (n_states + 1, 2))
    true_q = np.zeros((n_states, 2))
    true_q[:, 1] = gamma ** np.arange(n_states - 1, -1, -1.0)
    for n_updates in range(1, max_updates + 1):
        batch = buffer.sample(1)
        state, action = batch.observations.item(), batch.actions.item()
        value = 0.0 if batch.dones.item() else q[batch.next_observations.item()].max()
        td_error = batch.rewards.item() + gamma * value - q[state, action]
        q[state, action] += step_size * td_error
        buffer.update_priorities(batch.indices, np.array([td_error]))
        if n_updates % 10 == 0 and np.mean((q[:-1] - true_q) ** 2) < 1e-3:
            return n_updates
    return max_updates


@pytest.mark.parametrize("n_states", [2, 3, 5])
def test_transitions(n_states):
    """2^n sequences; at each state as many go right as go wrong, and one sequence reaches the reward."""
    transitions = all_transitions(n_states)
    assert sum(done for *_, done in transitions) == 2**n_states
    for state in range(n_states):
        right = sum(s == state and a == 1 for s, a, *_ in transitions)
        assert right == sum(s == state and a == 0 for s, a, *_ in transitions) == 2 ** (n_states - 1 - state)
    assert sum(reward for _, _, reward, _, _ in transitions) == 1


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
def test_prioritization_learns_with_fewer_updates(scheme):
    seeds = range(5)
    uniform = np.median([updates_until_learned(9, seed, scheme="uniform") for seed in seeds])
    prioritized = np.median([updates_until_learned(9, seed, scheme=scheme) for seed in seeds])
    assert uniform >= 4 * prioritized
